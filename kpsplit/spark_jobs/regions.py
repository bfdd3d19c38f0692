"""What every offset of every physical partition is: the small table that records are joined with. Pure.

The regions of a physical partition tile its offsets [0, 2^63 - 1): each segment's stretch together with the
marker at its end, and what lies between and behind them, which holds nothing of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.logical_offset import MAX_OFFSET
from kpsplit.splitter.partition_state import PartitionState


@dataclass(frozen=True, slots=True)
class Region:
    """The offsets [first, behind) of one physical partition, as a logical partition's state has them."""

    state: PartitionState
    source: PhysicalPartition
    first: int
    behind: int
    segment: Segment | None

    def row(self) -> tuple[object, ...]:
        """Return the row of ``schemas.REGIONS``."""
        parent, s = self.state.parent, self.segment
        home = self.state.home(self.source).to_bytes(8, "big")
        place = (*_flat(self.source), self.first, self.behind, *_flat(parent), home)
        if s is None:
            return (*place, None, None, None, None, None, None, None, None, self.state.epoch)
        numbers = s.progression
        return (
            *(*place, s.id, s.range.lo, s.range.hi, s.start, s.end),
            *(numbers.base, numbers.stride, s.opened_epoch, self.state.epoch),
        )


def _flat(place: PhysicalPartition) -> tuple[str, int]:
    return place.topic, place.partition


def all_regions(state: PartitionState) -> list[Region]:
    """Return the regions of every physical partition of a logical one, with markers and what is nobody's."""
    return [region for source in state.lineage.sources() for region in _of_source(state, source)]


def _of_source(state: PartitionState, source: PhysicalPartition) -> Iterator[Region]:
    behind = 0
    for segment in sorted((s for s in state.lineage if s.source == source), key=lambda s: s.start):
        if behind < segment.start:
            yield Region(state, source, behind, segment.start, None)
        behind = MAX_OFFSET if segment.end is None else segment.end + 1
        yield Region(state, source, segment.start, behind, segment)
    if behind < MAX_OFFSET:
        yield Region(state, source, behind, MAX_OFFSET, None)


def stretches(state: PartitionState, bounds: Mapping[int, tuple[int, int]]) -> list[Region]:
    """Return the parts of segments that are to be delivered: per segment id the offsets [first, behind)."""
    return [
        Region(state, s.source, first, behind, s)
        for s in state.lineage
        for first, behind in [bounds.get(s.id, (0, 0))]
        if first < behind
    ]


def ranges_to_scan(regions: Iterable[Region]) -> dict[PhysicalPartition, tuple[int, int]]:
    """Return the one stretch of each physical partition that holds all the regions given."""
    found: dict[PhysicalPartition, tuple[int, int]] = {}
    for r in regions:
        first, behind = found.get(r.source, (r.first, r.behind))
        found[r.source] = min(first, r.first), max(behind, r.behind)
    return found
