"""Logical offsets: every segment owns an arithmetic progression (design, section 3).

    logical(physical) = base + stride * (physical - start)

Worked example: a partition that was never split (base = start = 0, stride 1) ends at 1000 and is split into
four. Its progression goes to five heirs with stride 5: the overflow has base 1000, the phantoms 1001..1004.
Record 7 of the third phantom (base 1003) has the logical offset 1003 + 5 * 7 = 1038.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kpsplit.errors import InvariantError

MAX_OFFSET = (1 << 63) - 1
"""Offsets, logical ones too, are signed 64-bit integers for every Kafka client."""

MAX_STRIDE = 1 << 31
"""No split that would make a greater stride is begun: each segment keeps room for 2**32 records."""


@dataclass(frozen=True, slots=True)
class Progression:
    """The numbers that a segment gives to its records: ``base``, ``base + stride``, and so on."""

    base: int
    stride: int

    def __post_init__(self) -> None:
        """Refuse a progression that does not rise, or that begins outside the 64-bit offsets."""
        if not 0 <= self.base <= MAX_OFFSET or not 1 <= self.stride <= MAX_OFFSET:
            raise InvariantError(f"no progression: base {self.base}, stride {self.stride}")

    def at(self, index: int) -> int:
        """Return the logical offset of the index-th record of the segment."""
        return self.base + self.stride * index

    def index_of(self, logical: int) -> int | None:
        """Return which record of the segment has this logical offset, None if the number is not ours."""
        index, rest = divmod(logical - self.base, self.stride)
        return index if rest == 0 and index >= 0 else None

    def heirs(self, length: int, count: int) -> tuple[Progression, ...]:
        """Divide what is left after ``length`` records among the overflow (heir 0) and the children."""
        first = self.at(length)
        return tuple(Progression(first + self.stride * j, self.stride * count) for j in range(count))

    def from_beyond(self, floor: int) -> Progression:
        """Return the rest of this progression from its first number that is at least ``floor``."""
        steps = max(0, -((self.base - floor) // self.stride))
        return Progression(self.at(steps), self.stride)


FIRST = Progression(0, 1)
"""Until the first split a logical offset is Kafka's own offset."""


def merged_progression(ends: Iterable[tuple[Progression, int]]) -> Progression:
    """Return the progression of a segment merged from others, given each one's progression and length.

    It is the densest of theirs, from its first number beyond all ends; the rest of the others is given up.
    """
    parts = list(ends)
    if not parts:
        raise InvariantError("a merge needs predecessors")
    floor = max(p.at(length) for p, length in parts)
    densest, _ = min(parts, key=lambda part: (part[0].stride, part[0].base))
    return densest.from_beyond(floor)
