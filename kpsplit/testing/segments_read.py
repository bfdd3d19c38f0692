"""One segment as a reading of it goes on."""

from __future__ import annotations

from typing import Self

from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment, SegmentKind

NOTHING = -1
"""Below every logical offset."""


class SegmentRead:
    """What the lineage says about a segment, flat for speed, and how far it was read.

    ``last``: the latest logical offset read from it, ``NOTHING`` at first.
    """

    __slots__ = (
        "_base",
        "_end",
        "_hi",
        "_inherited",
        "_lo",
        "_predecessors",
        "_source",
        "_start",
        "_stride",
        "kind",
        "last",
    )

    def __init__(self, segment: Segment, predecessors: tuple[Self, ...]) -> None:
        self.kind: SegmentKind = segment.kind
        self.last = NOTHING
        self._lo, self._hi = segment.range.lo, segment.range.hi
        self._source, self._start, self._end = segment.source, segment.start, segment.end
        self._base, self._stride = segment.progression.base, segment.progression.stride
        self._predecessors = predecessors
        self._inherited: int | None = None

    @classmethod
    def all_of(cls, lineage: Lineage) -> dict[int, Self]:
        """Return all segments of a lineage by their ids."""
        found: dict[int, Self] = {}
        for segment in lineage:
            found[segment.id] = cls(segment, tuple(found[i] for i in segment.predecessors))
        return found

    def logical(self, source: PhysicalPartition, offset: int) -> int | None:
        """Return the logical offset that belongs to a physical place, None if it is outside the segment."""
        if source != self._source or offset < self._start or (self._end is not None and offset >= self._end):
            return None
        return self._base + self._stride * (offset - self._start)

    def takes(self, hash_: int) -> bool:
        """Tell whether a key hash lies in the segment's range."""
        return self._lo <= hash_ < self._hi

    def floor(self) -> int:
        """Return the logical offset that the next record must be above."""
        if self.last != NOTHING:
            return self.last
        if self._inherited is None:  # asked for when the predecessors have been read
            self._inherited = max((p.floor() for p in self._predecessors), default=NOTHING)
        return self._inherited
