"""Reads everything back along the lineage, with a fresh client, for the checker of histories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.consumer.fetch.lineage_reader import LineageReader
from kpsplit.consumer.fetch.logical_record import LogicalRecord
from kpsplit.demo.journal import JournalEntry, read_journal
from kpsplit.demo.traffic import sequence_in, writer_in
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.testing import Delivery, HistoryChecker, HistoryReport, Send, SendOutcome
from tests.fault.chaos.retention import Archive, WholeLogs

PATIENCE = 120.0


@dataclass(slots=True)
class ReadBack:
    """What was found. ``offsets``: logical offsets by logical partition."""

    history: HistoryReport
    strays: int = 0
    gaps: list[str] = field(default_factory=list)
    offsets: dict[int, set[int]] = field(default_factory=dict)


class WholeLineageReader(LineageReader):
    """Reads a logical partition as if retention had removed nothing."""

    def __init__(self, connection: Connection, state: PartitionState, archive: Archive) -> None:
        super().__init__(connection, state, patience=PATIENCE)
        self._reader.close()
        self._reader = WholeLogs(connection, PATIENCE, archive)


def read_back(
    connection: Connection,
    topic: str,
    states: Iterable[PartitionState],
    journals: dict[str, Path],
    archive: Archive,
    foreign: Iterable[Send] = (),
) -> ReadBack:
    """Read all partitions to their ends, and check them against what the writers were told.

    What retention removed is read from where it was kept: it was delivered, once and in order, too.
    ``foreign``: what others wrote, who do not use kpsplit.
    """
    states, foreign = list(states), list(foreign)
    checker = HistoryChecker([state.lineage for state in states], {send.producer for send in foreign})
    found = ReadBack(checker.report())
    deliveries: list[Delivery] = []
    for state in states:
        offsets = found.offsets.setdefault(state.parent.partition, set())
        with WholeLineageReader(connection, state, archive) as reader:
            for record in reader.records():
                offsets.add(record.logical_offset)
                deliveries.append(_delivery(state.parent, record))
            found.strays += reader.tally.strays
            found.gaps += [str(gap) for gap in reader.tally.gaps]
    places = {delivery.id: delivery.partition for delivery in deliveries}
    for writer, journal in journals.items():
        for entry in read_journal(journal) if journal.exists() else ():
            checker.sent(_send(topic, writer, entry, places.get((writer, entry.sequence))))
    for send in foreign:
        checker.sent(send)
    for delivery in deliveries:
        checker.delivered(delivery)
    found.history = checker.report()
    return found


def plainly_read_back(connection: Connection, state: PartitionState) -> tuple[list[Gap], set[int]]:
    """Return the gaps in what the logs have left that a fresh reader tells of, and what it is given."""
    with LineageReader(connection, state, patience=PATIENCE) as reader:
        offsets = {record.logical_offset for record in reader.records()}
        return reader.tally.gaps, offsets


def _send(topic: str, writer: str, entry: JournalEntry, found: PhysicalPartition | None) -> Send:
    """Return a send. Without a report nobody knows its partition: partitions may have been added."""
    ok = entry.outcome is SendOutcome.OK
    reported = entry.partition if entry.reported_partition is None or not ok else entry.reported_partition
    parent = PhysicalPartition(topic, reported) if ok or found is None else found
    return Send(
        producer=writer,
        partition=parent,
        key=entry.key,
        id=(writer, entry.sequence),
        sequence=entry.sequence,
        outcome=entry.outcome,
        logical_offset=entry.offset if ok else None,
    )


def _delivery(parent: PhysicalPartition, record: LogicalRecord) -> Delivery:
    value = record.value or b""
    return Delivery(
        parent,
        record.logical_offset,
        record.segment,
        record.key,
        (writer_in(value), sequence_in(value)),
        PhysicalPartition(record.source_topic, record.source_partition),
        record.source_offset,
        None if record.stamp is None else record.stamp.epoch,
    )
