"""Judges a scenario: what the writers sent against what a fresh reader finds, and what the group worked on.

The group: was every record worked on, in the order of its key, and why did some come twice? A record that
comes again after a commit of it has no excuse. So the offset log is read for when the group committed what.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from confluent_kafka import Message

from kpsplit.clock import Deadline, monotonic
from kpsplit.consumer.fetch.lineage_reader import LineageReader, LineageTally, LogicalRecord
from kpsplit.demo.records import (
    LINE_HEADER,
    NO_KEY_HASH,
    JournalEntry,
    Line,
    Worked,
    sequence_in,
    value_of,
    writer_in,
)
from kpsplit.errors import RecordError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_tail import LogTail
from kpsplit.splitter.commits import cursor_of
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.keys import OFFSETS_TOPIC, offsets_partition
from kpsplit.splitter.records.offsets import CommitKey, RangeCommit, decode_range_commit, parse_offset_key
from kpsplit.testing import Delivery, HistoryChecker, HistoryReport, Send, SendOutcome

# -- what was sent against what is found -----------------------------------------------------------


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
    """What was found. ``offsets``: logical ones, by partition; ``altered``: values that were not sent."""

    history: HistoryReport
    tallies: dict[PhysicalPartition, LineageTally]
    segments: dict[PhysicalPartition, dict[int, SegmentSeen]]
    places: dict[RecordId, PhysicalPartition]
    offsets: dict[int, set[int]]
    altered: int = 0

    @property
    def strays(self) -> int:
        """Copies in the logs that readers skip, because their producers sent the records again."""
        return sum(tally.strays for tally in self.tallies.values())


class ReadBackCheck:
    """Takes the journals, then every record that a fresh reader finds.

    Args:
        lineages: of all partitions.
        foreign: the writers that know nothing of kpsplit; their reports name physical offsets.
        lines: the input; None: records with skewed keys.
    """

    def __init__(
        self, lineages: Sequence[Lineage], foreign: Collection[str], lines: Sequence[Line] | None = None
    ) -> None:
        self._foreign = foreign
        self._lines = lines
        self._checker = HistoryChecker(lineages, foreign)
        self._interned: dict[tuple[str, int], PhysicalPartition] = {}
        self._back = ReadBack(
            self._checker.report(),
            {},
            {lineage.parent: {segment.id: SegmentSeen() for segment in lineage} for lineage in lineages},
            {},
            {lineage.parent.partition: set() for lineage in lineages},
        )

    def take_journals(
        self,
        topic: str,
        journals: Mapping[str, Iterable[JournalEntry]],
        found: Mapping[RecordId, PhysicalPartition] = MappingProxyType({}),
    ) -> None:
        """``found``: where records without a report are, for a topic to which partitions were added."""
        for writer, entries in journals.items():
            for entry in entries:
                self._checker.sent(self._send(topic, writer, entry, found))

    def take_send(self, send: Send) -> None:
        self._checker.sent(send)

    def take(self, parent: PhysicalPartition, records: Iterable[LogicalRecord], tally: LineageTally) -> None:
        parent = self._partition(parent.topic, parent.partition)
        for record in records:
            self._take(parent, record)
        self._back.tallies[parent] = tally

    def result(self) -> ReadBack:
        self._back.history = self._checker.report()
        return self._back

    def _take(self, parent: PhysicalPartition, record: LogicalRecord) -> None:
        back, logical = self._back, record.logical_offset
        source = self._partition(record.source_topic, record.source_partition)
        found, intact = self._identify(record)
        back.altered += not intact
        back.places[found] = source
        back.offsets[parent.partition].add(logical)
        seen = back.segments[parent].setdefault(record.segment, SegmentSeen())
        seen.records += 1
        seen.first = logical if seen.first is None else seen.first
        seen.last = logical
        epoch = None if record.stamp is None else record.stamp.epoch
        self._checker.delivered(
            Delivery(parent, logical, record.segment, record.key, found, source, record.source_offset, epoch)
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
            if self._lines is None:
                writer, sequence = writer_in(value), sequence_in(value)
                return (writer, sequence), value == value_of(writer, sequence)
            number = next(int(content or b"") for name, content in record.headers if name == LINE_HEADER)
            return ("", number), number < len(self._lines) and self._lines[number].text == value
        except (ValueError, StopIteration):
            return ("?", record.logical_offset), False

    def _send(
        self, topic: str, writer: str, entry: JournalEntry, found: Mapping[RecordId, PhysicalPartition]
    ) -> Send:
        """Return a send. The checker sees where it is if that is not where it was reported."""
        ok = entry.outcome is SendOutcome.OK
        record_id: RecordId = ("" if self._lines is not None else writer, entry.sequence)
        place = found.get(record_id)
        if ok and entry.reported_partition is not None:
            place = self._partition(topic, entry.reported_partition)
        parent = place or self._partition(topic, entry.partition)
        offset = entry.offset if ok else None
        physical = writer in self._foreign and offset is not None
        return Send(
            producer=writer,
            partition=parent,
            key=entry.key,
            id=record_id,
            sequence=entry.sequence,
            outcome=entry.outcome,
            logical_offset=None if physical else offset,
            place=(parent, offset) if physical and offset is not None else None,
        )


def read_back(
    connection: Connection,
    topic: str,
    states: Sequence[PartitionState],
    journals: Mapping[str, Iterable[JournalEntry]],
    foreign: Collection[str],
    lines: Sequence[Line] | None,
) -> ReadBack:
    """Read all partitions of a topic to their ends along the lineage; the arguments as for ReadBackCheck."""
    reading = ReadBackCheck([state.lineage for state in states], foreign, lines)
    reading.take_journals(topic, journals)
    for state in states:
        with LineageReader(connection, state) as reader:
            reading.take(state.parent, reader.records(), reader.tally)
    return reading.result()


# -- what the group committed, and when ------------------------------------------------------------


COMMITS_SECONDS = 60.0
TICK_SECONDS = 0.002
"""Kafka's timestamps are whole milliseconds, cut off: no commit may seem older than it is."""


class Committed(NamedTuple):
    """A range commit, and when it was written (monotonic seconds): it is decided then or later."""

    at: float
    commit: RangeCommit


class CommitHistory:
    """When the group counted each record as processed, whatever was handed out. Pure."""

    def __init__(self, commits: Iterable[Committed], lineages: Iterable[Lineage]) -> None:
        self._lineages = {lineage.parent.partition: lineage for lineage in lineages}
        self._commits: dict[int, list[tuple[float, KeyRange, Mapping[int, int]]]] = {}
        for at, commit in sorted(commits, key=lambda found: found.at):
            partition = commit.parent.partition
            left = cursor_of(commit, commit.range).pending(self._lineages[partition])
            self._commits.setdefault(partition, []).append((at, commit.range, left))

    def before(self, entry: Worked, at: float) -> bool:
        """Return whether a commit written before a point in time says that a record was processed."""
        if entry.key_hash == NO_KEY_HASH:  # its range is drawn from its place
            return False
        found = self._commits.get(entry.partition, ())
        return any(
            when < at and entry.key_hash in range_ and self._is_passed(left, entry)
            for when, range_, left in found
        )

    def _is_passed(self, left: Mapping[int, int], entry: Worked) -> bool:
        segment = self._lineages[entry.partition].get(entry.segment)
        return segment.id not in left or entry.offset < segment.logical(left[segment.id])


def read_commits(
    connection: Connection, group: str, lineages: Iterable[Lineage], partitions: int
) -> list[Committed]:
    """Read a group's range commits in some logical partitions from the ``partitions`` of the offset log."""
    parents = {lineage.parent for lineage in lineages}
    found: list[Committed] = []
    since_epoch = monotonic() - time.time() + TICK_SECONDS

    def take(message: Message) -> None:
        commit = _commit(message, group)
        if commit is not None and commit.parent in parents:
            found.append(Committed(message.timestamp()[1] / 1000 + since_epoch, commit))

    places = {offsets_partition(parent, partitions) for parent in parents}
    with closing(LogTail(connection, OFFSETS_TOPIC, take, places)) as tail:
        tail.read_to_end(Deadline(COMMITS_SECONDS))
    return found


def _commit(message: Message, group: str) -> RangeCommit | None:
    """Return the range commit of a group that a record is; None for everything else."""
    value = message.value()
    try:
        subject = parse_offset_key(message.key())
        if isinstance(subject, CommitKey) and subject.group == group and value:
            return decode_range_commit(subject, value)
    except RecordError:
        pass
    return None


# -- the verdict -----------------------------------------------------------------------------------


MOST_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Victim:
    """What took slots from a member, and until when it may work on what it had in hand.

    Until then it may work on records that the new owners of its slots have worked on and committed.
    """

    what: str
    until: float


@dataclass(frozen=True, slots=True)
class Turn:
    """Who worked on a record, and when."""

    member: str
    entry: Worked

    def __str__(self) -> str:
        return f"{self.member} at {self.entry.at:.1f}"


Excuse = Callable[[Turn, Turn], str | None]
"""What explains that a record that was worked on is worked on again; None if nothing does."""


def excuses(victims: Mapping[str, Victim], committed: CommitHistory) -> Excuse:
    """Return what explains why a record is worked on again. Once it is committed, only one thing does.

    A member that the coordinator took for dead works on what it had in hand when it comes back.
    """

    def excuse(first: Turn, again: Turn) -> str | None:
        back = victims.get(again.member)
        if back is not None and again.entry.at <= back.until:
            return back.what
        victim = victims.get(first.member)
        if victim is None or committed.before(again.entry, again.entry.at):
            return None
        return victim.what

    return excuse


@dataclass(slots=True)
class GroupVerdict:
    """What became of the records in the group.

    ``redelivered``: records that came twice, by what explains it; ``shares``: records per member, those that
    came twice with them; ``unknown``: records that the fresh reader did not find; ``examples`` of faults.
    """

    records: int
    missing: int = 0
    unknown: int = 0
    out_of_order: int = 0
    unexplained: int = 0
    redelivered: Counter[str] = field(default_factory=Counter)
    shares: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.missing or self.unknown or self.out_of_order or self.unexplained)

    def note(self, example: str) -> None:
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(example)

    def __str__(self) -> str:
        twice = ", ".join(f"{n:,} again after {why}" for why, n in sorted(self.redelivered.items()))
        line = (
            f"{self.records - self.missing:,} of {self.records:,} records worked on, "
            f"{self.out_of_order:,} out of order, {self.unexplained:,} repeated without a reason"
        )
        line += f", {self.unknown:,} that no reader saw" if self.unknown else ""
        return f"{line}; {twice}" if twice else line


class KeyOrder:
    """Knows which records of a key must come before which: along the lineage, and by offset in a segment.

    Siblings (a phantom, and the overflow into which a plain producer goes on writing) have no order.
    """

    def __init__(self, lineages: Iterable[Lineage]) -> None:
        self._ancestors: dict[tuple[int, int], set[int]] = {}
        self._latest: dict[tuple[int, int], dict[int, int]] = {}
        for lineage in lineages:
            partition = lineage.parent.partition
            self._ancestors |= {(partition, s.id): lineage.ancestors(s.id) for s in lineage}

    def keeps(self, entry: Worked) -> bool:
        """Take a record that is worked on for the first time; return whether it comes in its order."""
        if entry.key_hash == NO_KEY_HASH:
            return True
        seen = self._latest.setdefault((entry.partition, entry.key_hash), {})
        late = entry.offset < seen.get(entry.segment, -1)
        late |= any(entry.segment in self._ancestors[entry.partition, other] for other in seen)
        seen[entry.segment] = max(entry.offset, seen.get(entry.segment, -1))
        return not late


def judge(
    journals: Mapping[str, Iterable[Worked]],
    read: Mapping[int, Set[int]],
    lineages: Iterable[Lineage],
    excuse: Excuse,
) -> GroupVerdict:
    """Look at all journals in the order of time.

    Args:
        journals: what each member worked on.
        read: the logical offsets that a fresh reader found, by logical partition.
        lineages: of all partitions.
        excuse: explains a repetition; only what a member had in hand when a fault struck may come twice.
    """
    verdict = GroupVerdict(sum(len(offsets) for offsets in read.values()))
    order = KeyOrder(lineages)
    first_by: dict[tuple[int, int], Turn] = {}
    turns = [Turn(name, entry) for name, journal in journals.items() for entry in journal]
    for turn in sorted(turns, key=lambda turn: turn.entry.at):  # stable: batches keep their order
        verdict.shares[turn.member] += 1
        entry = turn.entry
        place = (entry.partition, entry.offset)
        if place in first_by:
            if why := excuse(first_by[place], turn):
                verdict.redelivered[why] += 1
            else:
                verdict.unexplained += 1
                verdict.note(f"{place} to {first_by[place]} and to {turn}")
            continue
        first_by[place] = turn
        verdict.unknown += entry.offset not in read.get(entry.partition, ())
        if not order.keeps(entry):
            verdict.out_of_order += 1
            verdict.note(f"{place} of segment {entry.segment} to {turn.member} out of order")
    verdict.missing = verdict.records - (len(first_by) - verdict.unknown)
    return verdict
