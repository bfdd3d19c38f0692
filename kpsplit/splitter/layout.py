"""The layout: which open segment takes a key (design, section 1)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from kpsplit.errors import InvariantError
from kpsplit.splitter.key_range import WHOLE, union_of_adjacent
from kpsplit.splitter.lineage import Lineage, Segment


@dataclass(frozen=True, slots=True)
class Layout:
    """The open segments of a logical partition, in the order of their ranges.

    ``bounds`` are the lower ends of all ranges but the first, so that a bisection finds a key's segment.
    """

    segments: tuple[Segment, ...]
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, lineage: Lineage) -> Layout:
        """Return the layout of a lineage.

        Raises:
            InvariantError: the open ranges do not tile the key space.
        """
        segments = lineage.open_segments()
        if union_of_adjacent(s.range for s in segments) != WHOLE:
            raise InvariantError(f"{lineage.parent}: the open ranges do not tile the key space")
        return cls(segments, tuple(s.range.lo for s in segments[1:]))

    def index_for(self, key_hash: int) -> int:
        """Return the index, in ``segments``, of the segment that takes a key hash."""
        return bisect_right(self.bounds, key_hash)

    def segment_for(self, key_hash: int) -> Segment:
        """Return the segment that takes a key hash."""
        return self.segments[self.index_for(key_hash)]
