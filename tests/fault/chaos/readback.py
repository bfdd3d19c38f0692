"""Reads everything back along the lineage, with a fresh client, for the checker of histories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.consumer.fetch.lineage_reader import LineageReader, LineageTally, LogicalRecord
from kpsplit.demo.judge import ReadBack, ReadBackCheck, RecordId
from kpsplit.demo.records import read_journal, sequence_in, writer_in
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.testing import Send
from tests.fault.chaos.retention import Archive, WholeLogs

PATIENCE = 120.0


class WholeLineageReader(LineageReader):
    """Reads a logical partition as if retention had removed nothing."""

    def __init__(self, connection: Connection, state: PartitionState, archive: Archive) -> None:
        super().__init__(connection, state, patience=PATIENCE)
        self._reader.close()
        self._reader = WholeLogs(connection, PATIENCE, archive)


def read_back(
    connection: Connection,
    topic: str,
    states: Sequence[PartitionState],
    journals: dict[str, Path],
    archive: Archive,
    foreign: Sequence[Send] = (),
) -> ReadBack:
    """Read all partitions to their ends, and check them against what was reported to the writers.

    What retention removed is read from where it was kept: it was delivered, once and in order, too.
    ``foreign``: what programs wrote that do not use kpsplit.
    """
    records: dict[PhysicalPartition, list[LogicalRecord]] = {}
    tallies: dict[PhysicalPartition, LineageTally] = {}
    for state in states:
        with WholeLineageReader(connection, state, archive) as reader:
            records[state.parent] = list(reader.records())
            tallies[state.parent] = reader.tally
    found = {_id(record): parent for parent, all_ in records.items() for record in all_}
    reading = ReadBackCheck([state.lineage for state in states], {send.producer for send in foreign})
    sent = {writer: read_journal(journal) for writer, journal in journals.items() if journal.exists()}
    reading.take_journals(topic, sent, found)
    for send in foreign:
        reading.take_send(send)
    for parent, tally in tallies.items():
        reading.take(parent, records[parent], tally)
    return reading.result()


def _id(record: LogicalRecord) -> RecordId:
    value = record.value or b""
    return writer_in(value), sequence_in(value)


def plainly_read_back(connection: Connection, state: PartitionState) -> tuple[list[Gap], set[int]]:
    """Return the gaps in what the logs have left that a fresh reader tells of, and what it is given."""
    with LineageReader(connection, state, patience=PATIENCE) as reader:
        offsets = {record.logical_offset for record in reader.records()}
        return reader.tally.gaps, offsets
