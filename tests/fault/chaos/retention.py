"""Removes records as retention does, and keeps them aside: what was written has to be judged all the same.

Also: which records retention took, what a reader must report of it, and what the group may have missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from kpsplit import PartitionProgress
from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.consumer.fetch.gaps import Gap, LogBounds
from kpsplit.consumer.fetch.physical_reader import PhysicalReader
from kpsplit.errors import KpsplitError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment
from kpsplit.splitter.reading import GapReason

_TOLD = re.compile(r"segment (\d+): offsets (\d+) to (\d+) of (\S+)/(\d+) cannot be read \(([a-z ]+)\)")


def reported_gap(text: str) -> Gap | None:
    """Return the gap that the library reported, None if it reported something else."""
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

    A segment that no range has before it is read; what comes after it begins after its marker.
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
    """Return the gaps that a fresh reader has to report: ``starts`` is where the logs begin now."""
    return [
        Gap(s.id, s.source, s.start, min(starts[s.source], s.end or starts[s.source]), GapReason.EXPIRED)
        for s in lineage
        if s.start < starts.get(s.source, 0) and s.start != s.end
    ]


@dataclass(frozen=True, slots=True)
class Removal:
    """Offsets [first, start) that were removed from a log, which began at ``start`` then."""

    first: int
    start: int
    unread: int
    """From here on nobody had committed."""


Removals = Mapping[PhysicalPartition, Sequence[Removal]]


def excused(lineage: Lineage, gaps: Iterable[Gap], removals: Removals, worked_on: Set[int]) -> set[int]:
    """Return the logical offsets that the group need not have worked on: their removal was reported to it.

    Only what was removed before anybody had read it counts, whatever was reported.
    """
    found: set[int] = set()
    for gap in gaps:
        segment = lineage.get(gap.segment)
        for removal in removals.get(gap.source, ()):
            gone = range(max(gap.start, removal.unread), min(gap.end, removal.start))
            found.update(segment.logical(offset) for offset in gone)
    return found - worked_on


def untrue(lineage: Lineage, gaps: Iterable[Gap], removals: Removals) -> list[Gap]:
    """Return the gaps that were reported although the log, or the segment, never began there."""
    return [gap for gap in gaps if not _is_true(lineage.get(gap.segment), gap, removals.get(gap.source, ()))]


def _is_true(segment: Segment, gap: Gap, removals: Sequence[Removal]) -> bool:
    ends = {removal.start for removal in removals}
    whole = segment.end is not None and gap.end == segment.end <= max(ends, default=0)
    return gap.reason is GapReason.EXPIRED and (gap.end in ends or whole)


ANSWER_SECONDS = 10.0
REMOVAL_SECONDS = 120.0
POLL_SECONDS = 0.2


class Archive:
    """Records that are in their logs no more. ``starts``: where these logs begin now."""

    def __init__(self) -> None:
        self.starts: dict[PhysicalPartition, int] = {}
        self.removals: dict[PhysicalPartition, list[Removal]] = {}
        self._records: dict[PhysicalPartition, list[Message]] = {}

    @property
    def count(self) -> int:
        """How many records were removed."""
        return sum(len(records) for records in self._records.values())

    def keep(self, source: PhysicalPartition, records: list[Message], removal: Removal) -> None:
        """Take what was removed of a log, in order."""
        self._records.setdefault(source, []).extend(records)
        self.removals.setdefault(source, []).append(removal)
        self.starts[source] = removal.start

    def records(self, source: PhysicalPartition, start: int, end: int) -> Iterator[Message]:
        """Yield what was removed of [start, end)."""
        return (m for m in self._records.get(source, ()) if start <= (m.offset() or 0) < end)


class WholeLogs(PhysicalReader):
    """Reads logs as if nothing had been removed."""

    def __init__(self, connection: Connection, patience: float, archive: Archive) -> None:
        super().__init__(connection, patience)
        self._archive = archive

    def bounds(self, source: PhysicalPartition, leader_epoch: int | None = None) -> LogBounds | None:
        """Return what a log has held; see ``PhysicalReader``."""
        found = super().bounds(source, leader_epoch)
        removed = source in self._archive.starts
        return replace(found, low=0) if found is not None and removed else found

    def records(self, source: PhysicalPartition, start: int, end: int) -> Iterator[Message]:
        """Yield the records of [start, end), also those that were removed."""
        yield from self._archive.records(source, start, end)
        yield from super().records(source, max(start, self._archive.starts.get(source, 0)), end)


class Retention:
    """Removes what a group has read, or has not. For one thread."""

    def __init__(self, connection: Connection, group: str, topic: str) -> None:
        self.archive = Archive()
        self._connection = connection
        self._group = group
        self._topic = topic
        self._admin = ClusterAdmin(connection)

    def remove_read(self, target: int) -> int:
        """Remove what the group has committed of one log or another; return how many offsets."""
        found = [e for e in self._extents() if e.read_to > self._start(e.source)]
        if not found:
            return 0
        extent = found[target % len(found)]
        return self._remove(extent, extent.read_to)

    def remove_unread(self, target: int) -> int:
        """Remove half of what the group has before it in a log, one that it drains if there is one."""
        unread = [e for e in self._extents() if e.end > e.read_to]
        found = [e for e in unread if e.draining] or unread
        if not found:
            return 0
        extent = found[target % len(found)]
        return self._remove(extent, extent.read_to + (extent.end - extent.read_to + 1) // 2)

    def _extents(self) -> list[Extent]:
        """Return the group's extents in all logs; none while they cannot be looked at."""
        try:
            with Admin(self._connection) as operations:
                progress = operations.offsets(self._group, self._topic)
        except KpsplitError:
            return []
        sources = [source for p in progress for source in p.state.lineage.sources()]
        ends = {s: end.offset for s, end in self._admin.end_offsets(sources).items()}
        return [extent for p in progress for extent in extents(p, ends)]

    def _start(self, source: PhysicalPartition) -> int:
        return self.archive.starts.get(source, 0)

    def _remove(self, extent: Extent, before: int) -> int:
        """Remove what stands before an offset, once it is kept aside.

        Raises:
            DeadlineExceededError: the brokers do not do it in time.
        """
        source = extent.source
        start = self._start(source)
        reader = PhysicalReader(self._connection, REMOVAL_SECONDS)
        try:
            kept = list(reader.records(source, start, before))
        finally:
            reader.close()
        deadline = Deadline(REMOVAL_SECONDS)
        while (low := self._admin.start_offsets([source])[source]) < before:
            deadline.check(f"records of {source} to be removed")
            self._ask_to_remove(source, before)
            deadline.pause(POLL_SECONDS)
        self.archive.keep(source, kept, Removal(start, low, max(start, extent.read_to)))
        return low - start

    def _ask_to_remove(self, source: PhysicalPartition, before: int) -> None:
        """Ask once; whether it was done is looked at."""
        client = AdminClient(self._connection.client("retention"))
        asked = client.delete_records([TopicPartition(source.topic, source.partition, before)])
        try:
            for answer in asked.values():
                answer.result(ANSWER_SECONDS)
        except (KafkaException, TimeoutError):
            return
