"""Which records retention took, what a reader must say of it, and what the group may have missed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from kpsplit import PartitionProgress
from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment
from kpsplit.splitter.reading import GapReason

_TOLD = re.compile(r"segment (\d+): offsets (\d+) to (\d+) of (\S+)/(\d+) cannot be read \(([a-z ]+)\)")


def told_gap(text: str) -> Gap | None:
    """Return the gap that the library told of, None if it told of something else."""
    found = _TOLD.search(text)
    if found is None:
        return None
    segment, first, last, topic, partition, reason = found.groups()
    source = PhysicalPartition(topic, int(partition))
    return Gap(int(segment), source, int(first), int(last) + 1, GapReason(reason.replace(" ", "_")))


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a group has come in a physical partition, and how far its log goes."""

    source: PhysicalPartition
    read_to: int
    end: int
    draining: bool
    """It has not read a segment there to its end that is closed."""


def extents(progress: PartitionProgress, ends: Mapping[PhysicalPartition, int]) -> list[Extent]:
    """Return the group's extents in a logical partition; none where one of its ranges has no commit.

    A segment that no range has before it is read; what stands behind it begins with its marker's successor.
    """
    if any(not range_.left for range_ in progress.ranges):
        return []
    positions: dict[int, int] = {}
    for range_ in progress.ranges:
        for left in range_.left:
            positions[left.segment.id] = min(left.next, positions.get(left.segment.id, left.next))
    return [
        _extent(source, [s for s in progress.state.lineage if s.source == source], positions, ends[source])
        for source in progress.state.lineage.sources()
        if source in ends
    ]


def _extent(
    source: PhysicalPartition, segments: list[Segment], positions: Mapping[int, int], end: int
) -> Extent:
    read_to = 0
    for segment in sorted(segments, key=lambda s: s.start):
        if segment.id in positions:
            return Extent(source, positions[segment.id], end, not segment.is_open)
        read_to = end if segment.end is None else segment.end + 1
    return Extent(source, min(read_to, end), end, False)


def expected_gaps(lineage: Lineage, starts: Mapping[PhysicalPartition, int]) -> list[Gap]:
    """Return the gaps that a fresh reader has to tell of: ``starts`` is where the logs begin now."""
    return [
        Gap(s.id, s.source, s.start, min(starts[s.source], s.end or starts[s.source]), GapReason.EXPIRED)
        for s in lineage
        if s.start < starts.get(s.source, 0) and s.start != s.end
    ]


@dataclass(frozen=True, slots=True)
class Removal:
    """Offsets [first, behind) that were removed of a log, which began at ``behind`` then."""

    first: int
    behind: int
    unread: int
    """From here on nobody had committed."""


Removals = Mapping[PhysicalPartition, Sequence[Removal]]


def excused(lineage: Lineage, gaps: Iterable[Gap], removals: Removals, worked_on: Set[int]) -> set[int]:
    """Return the logical offsets that the group need not have worked on: it was told that they are gone.

    Only what was removed before anybody had read it counts, whatever a member was told.
    """
    found: set[int] = set()
    for gap in gaps:
        segment = lineage.get(gap.segment)
        for removal in removals.get(gap.source, ()):
            gone = range(max(gap.start, removal.unread), min(gap.end, removal.behind))
            found.update(segment.logical(offset) for offset in gone)
    return found - worked_on


def untrue(lineage: Lineage, gaps: Iterable[Gap], removals: Removals) -> list[Gap]:
    """Return the gaps that a member was told of although the log, or the segment, never began there."""
    return [gap for gap in gaps if not _is_true(lineage.get(gap.segment), gap, removals.get(gap.source, ()))]


def _is_true(segment: Segment, gap: Gap, removals: Sequence[Removal]) -> bool:
    ends = {removal.behind for removal in removals}
    whole = segment.end is not None and gap.end == segment.end <= max(ends, default=0)
    return gap.reason is GapReason.EXPIRED and (gap.end in ends or whole)
