"""The counts that a producer keeps, and what ``Producer.layout_stats()`` tells of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_RUNS = 10_000
"""In how many runs of consecutive numbers failures are remembered, per partition."""
MOST_NAMED = 150_000
"""More numbers do not fit into a certificate."""


class FailedNumbers:
    """The sequence numbers of records that failed, for the certificate, in bounded memory.

    ``count``: how many failed. Beyond the limits they are only counted.
    """

    __slots__ = ("_runs", "count")

    def __init__(self) -> None:
        self.count = 0
        self._runs: list[range] | None = []

    def __len__(self) -> int:
        """Return how many runs are remembered."""
        return len(self._runs or ())

    def add(self, numbers: Iterable[int]) -> None:
        """Note more of them."""
        for number in numbers:
            self.count += 1
            self._note(number)

    def numbers(self) -> list[int] | None:
        """Return them in order, None if there were too many to remember, or to be told."""
        if self._runs is None or self.count > MOST_NAMED:
            return None
        return sorted({number for run in self._runs for number in run})

    def _note(self, number: int) -> None:
        runs = self._runs
        if runs is None:
            return
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        elif len(runs) < MOST_RUNS:
            runs.append(range(number, number + 1))
        else:
            self._runs = None


@dataclass(slots=True)
class FenceStatistics:
    """What a fence counts since the start of the producer: fences, and held records and strays.

    ``delivered``: per segment id.
    """

    fences: int = 0
    held: int = 0
    strays: int = 0
    delivered: dict[int, int] = field(default_factory=dict)
    failed: FailedNumbers = field(default_factory=FailedNumbers)


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
