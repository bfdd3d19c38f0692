"""Removes records as retention does, and keeps them aside: what was written has to be judged all the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from kpsplit.admin import Admin
from kpsplit.consumer.fetch.gaps import LogBounds
from kpsplit.consumer.fetch.physical_reader import PhysicalReader
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from tests.fault.chaos.removal import Extent, Removal, extents

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
        self.starts[source] = removal.behind

    def records(self, source: PhysicalPartition, start: int, end: int) -> Iterator[Message]:
        """Yield what was removed of [start, end)."""
        return (m for m in self._records.get(source, ()) if start <= (m.offset() or 0) < end)


class WholeLogs(PhysicalReader):
    """Reads logs as if nothing had been removed."""

    def __init__(self, connection: Connection, patience: float, archive: Archive) -> None:
        super().__init__(connection, patience)
        self._archive = archive

    def bounds(self, source: PhysicalPartition) -> LogBounds | None:
        """Return what a log has held; see ``PhysicalReader``."""
        found = super().bounds(source)
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
