"""The counts that a producer keeps, and what ``Producer.layout_stats()`` tells of them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FenceStatistics:
    """What a fence counts since the start of the producer: fences, and held records and strays.

    ``delivered``: per segment id; ``failed``: sequence numbers.
    """

    fences: int = 0
    held: int = 0
    strays: int = 0
    delivered: dict[int, int] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One enrolled logical partition, as this producer sees it. Counts are of records since the start.

    ``next_sequence``: how many records were accepted; ``held``: how many had to wait for a segment to open;
    ``waiting``: how many wait now; ``pending``: acknowledged and not final yet; ``strays``: how many went
    astray and were sent again; ``delivered``: reported as delivered, per segment id.
    """

    epoch: int
    segments: int
    fences: int
    next_sequence: int
    held: int
    waiting: int
    pending: int
    strays: int
    delivered: dict[int, int]
    failed: int


@dataclass(frozen=True, slots=True)
class LayoutStats:
    """A producer's statistics. ``pauses_ms``: the length of each pause so far, in milliseconds."""

    instance: str
    lease_valid: bool
    partitions: dict[str, PartitionStats]
    pauses_ms: tuple[int, ...]
    last_error: str | None

    @property
    def strays(self) -> int:
        """How many records went astray and were sent again."""
        return sum(p.strays for p in self.partitions.values())

    @property
    def held(self) -> int:
        """How many records had to wait for a segment to open."""
        return sum(p.held for p in self.partitions.values())
