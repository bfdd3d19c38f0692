"""Reads everything back along the lineage, with a fresh client, and checks it against the journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kpsplit.consumer.fetch.lineage_reader import LineageReader, LineageTally
from kpsplit.consumer.fetch.logical_record import LogicalRecord
from kpsplit.demo.journal import JournalEntry
from kpsplit.demo.options import PLAIN_WRITER
from kpsplit.demo.traffic import LINE_HEADER, Line, sequence_in, value_of, writer_in
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.testing import Delivery, HistoryChecker, HistoryReport, Send, SendOutcome

RecordId = tuple[str, int]
"""A writer and its record's sequence number; for a file's lines the writer is left empty."""


@dataclass(slots=True)
class SegmentSeen:
    """What was read of one segment."""

    records: int = 0
    first: int | None = None
    last: int | None = None


@dataclass(slots=True)
class ReadBack:
    """Everything that was found.

    ``altered``: records whose value is not what was sent; ``offsets``: logical offsets by logical partition.
    """

    history: HistoryReport
    tallies: dict[PhysicalPartition, LineageTally]
    segments: dict[PhysicalPartition, dict[int, SegmentSeen]]
    places: dict[RecordId, PhysicalPartition]
    altered: int
    offsets: dict[int, set[int]] = field(default_factory=dict)

    @property
    def strays(self) -> int:
        """Copies in the logs that readers skip, because their producers sent the records again."""
        return sum(tally.strays for tally in self.tallies.values())


@dataclass(slots=True)
class Reading:
    """Takes journals, then partitions. ``lines``: the input, None for records with skewed keys."""

    lineages: Sequence[Lineage]
    lines: Sequence[Line] | None
    _checker: HistoryChecker = field(init=False)
    _tallies: dict[PhysicalPartition, LineageTally] = field(default_factory=dict)
    _segments: dict[PhysicalPartition, dict[int, SegmentSeen]] = field(default_factory=dict)
    _places: dict[RecordId, PhysicalPartition] = field(default_factory=dict)
    _altered: int = 0
    _offsets: dict[int, set[int]] = field(default_factory=dict)
    _interned: dict[tuple[str, int], PhysicalPartition] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._checker = HistoryChecker(self.lineages, foreign={PLAIN_WRITER})

    def take_journals(self, topic: str, journals: Mapping[str, Sequence[JournalEntry]]) -> None:
        """Take what was sent."""
        for writer, entries in journals.items():
            for entry in entries:
                self._checker.sent(self._send(topic, writer, entry))

    def read(self, connection: Connection, state: PartitionState) -> None:
        """Read one logical partition to its end.

        Raises:
            KpsplitError: it cannot be read.
        """
        parent = self._partition(state.parent.topic, state.parent.partition)
        self._segments[parent] = {segment.id: SegmentSeen() for segment in state.lineage}
        with LineageReader(connection, state) as reader:
            for record in reader.records():
                self.take(parent, record)
            self._tallies[parent] = reader.tally

    def result(self) -> ReadBack:
        """Return everything that was found."""
        return ReadBack(
            self._checker.report(), self._tallies, self._segments, self._places, self._altered, self._offsets
        )

    def take(self, parent: PhysicalPartition, record: LogicalRecord) -> None:
        """Take the next record of a logical partition."""
        seen = self._segments.setdefault(parent, {}).setdefault(record.segment, SegmentSeen())
        source = self._partition(record.source_topic, record.source_partition)
        found, intact = self._identify(record)
        self._altered += not intact
        self._places[found] = source
        self._offsets.setdefault(parent.partition, set()).add(record.logical_offset)
        seen.records += 1
        seen.first = record.logical_offset if seen.first is None else seen.first
        seen.last = record.logical_offset
        self._checker.delivered(
            Delivery(
                parent,
                record.logical_offset,
                record.segment,
                record.key,
                found,
                source,
                record.source_offset,
            )
        )

    def _partition(self, topic: str, partition: int) -> PhysicalPartition:
        """Return one object for each partition: comparing them is most of the work otherwise."""
        found = self._interned.get((topic, partition))
        if found is None:
            found = self._interned[topic, partition] = PhysicalPartition(topic, partition)
        return found

    def _identify(self, record: LogicalRecord) -> tuple[RecordId, bool]:
        """Return which record this is, and whether its value is what was sent."""
        value = record.value or b""
        try:
            if self.lines is None:
                writer, sequence = writer_in(value), sequence_in(value)
                return (writer, sequence), value == value_of(writer, sequence)
            number = next(int(content or b"") for name, content in record.headers if name == LINE_HEADER)
            return ("", number), number < len(self.lines) and self.lines[number].text == value
        except (ValueError, StopIteration):
            return ("?", record.logical_offset), False

    def _send(self, topic: str, writer: str, entry: JournalEntry) -> Send:
        """Return a send; plain producers report physical offsets, kpsplit's logical ones."""
        reported = entry.partition if entry.reported_partition is None else entry.reported_partition
        parent = self._partition(topic, entry.partition)
        plain = writer == PLAIN_WRITER
        known = entry.outcome is SendOutcome.OK and entry.offset is not None
        if known and reported != entry.partition:
            parent = self._partition(topic, reported)  # the checker sees that it was read elsewhere
        return Send(
            producer=writer,
            partition=parent,
            key=entry.key,
            id=("" if self.lines is not None else writer, entry.sequence),
            sequence=entry.sequence,
            outcome=entry.outcome,
            logical_offset=entry.offset if known and not plain else None,
            place=(parent, entry.offset) if known and plain and entry.offset is not None else None,
        )
