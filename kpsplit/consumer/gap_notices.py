"""Which gaps of one logical partition the application was told of. Pure.

Reading goes on behind a gap only when the application was told of all of it: what lies behind could be
committed, and a member that is killed then would leave a gap that nobody was ever told of. A gap that nobody
was told of stays before the committed position, so that the next owner finds it by itself.

A slot that came later may have stood further back in the same gap: what it missed besides is told as well.
"""

from __future__ import annotations

from kpsplit.consumer.lineage_reader import Gap

_Extent = tuple[int, int, str]
"""Segment, end and reason: gaps that differ in their start only."""


class GapNotices:
    """See the module. Not thread safe."""

    def __init__(self) -> None:
        self._given: dict[_Extent, int] = {}
        self._told: dict[_Extent, int] = {}

    def give(self, gap: Gap) -> bool:
        """Tell whether a gap has to be reported; it counts as reported from now on."""
        return _note(self._given, gap)

    def told(self, gap: Gap) -> None:
        """The application was told of a gap."""
        _note(self._told, gap)

    def knows(self, gap: Gap) -> bool:
        """Tell whether the application was told of all of a gap."""
        return gap.start >= self._told.get(_extent(gap), gap.end)


def _note(starts: dict[_Extent, int], gap: Gap) -> bool:
    extent = _extent(gap)
    new = gap.start < starts.get(extent, gap.end)
    if new:
        starts[extent] = gap.start
    return new


def _extent(gap: Gap) -> _Extent:
    return gap.segment, gap.end, gap.reason.value
