"""Simulated logs: data partitions, the control topic (transactions, claims), the producers topic."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from confluent_kafka import Message

from kpsplit.errors import FencedError
from kpsplit.splitter.control_plane import Registrations
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Claim, Enrolment
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, Marker, Stamp
from kpsplit.splitter.records.producers import Entry as Registration

PARENT = PhysicalPartition("t", 0)
RETENTION_SECONDS = 120.0


class RefusedError(Exception):
    """The broker refused a write: the topic is sealed, or there is none."""

    def __init__(self, gone: bool) -> None:
        super().__init__("no such topic" if gone else "the topic is sealed")
        self.gone = gone


@dataclass(slots=True)
class Entry:
    """One record of a log. ``id`` is empty for markers."""

    source: PhysicalPartition
    offset: int
    id: bytes
    key: bytes | None
    stamp: Stamp | None
    marker: Marker | None
    at: float

    def message(self) -> Message:
        """Return a message of its own for each consumer, as a client gives it."""
        headers: list[tuple[str, str | bytes | None]] = []
        if self.stamp is not None:
            headers.append((STAMP_HEADER, self.stamp.encode()))
        if self.marker is not None:
            headers.append((MARKER_HEADER, self.marker.encode()))
        return Message(
            topic=self.source.topic,
            partition=self.source.partition,
            offset=self.offset,
            key=self.key,
            value=self.id,
            headers=headers or None,
            timestamp=(1, int(self.at * 1000)),
        )


@dataclass(slots=True)
class Log:
    """A physical partition. ``start``: the first offset that retention has left."""

    source: PhysicalPartition
    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    end: int = 0
    leader_epoch: int = 0

    def from_offset(self, offset: int, most: int) -> list[Entry]:
        """Return up to ``most`` records from an offset on."""
        return [e for e in self.entries if e.offset >= offset][:most]


class Brokers:
    """All data topics. ``written``: what was appended since the oracle last looked."""

    def __init__(self) -> None:
        self.logs: dict[PhysicalPartition, Log] = {PARENT: Log(PARENT)}
        self.topics: dict[str, str] = {PARENT.topic: "id-of-t"}
        self.ever: dict[str, int] = {}
        self.sealed: set[str] = set()
        self.written: list[Entry] = []

    def create(self, name: str, partitions: int) -> str:
        """Create a topic; return its id."""
        if name not in self.topics:
            self.topics[name] = f"id-of-{name}-{len(self.ever)}"
            self.ever[name] = partitions
            for number in range(partitions):
                place = PhysicalPartition(name, number)
                self.logs[place] = Log(place)
        return self.topics[name]

    def delete(self, name: str) -> None:
        """Delete a topic; its logs are kept for the oracle."""
        self.topics.pop(name, None)

    def empty(self, name: str) -> bool:
        """Return whether a topic never held a record."""
        return all(log.end == 0 for place, log in self.logs.items() if place.topic == name)

    def append(
        self,
        place: PhysicalPartition,
        id_: bytes,
        key: bytes | None,
        now: float,
        stamp: Stamp | None = None,
        marker: Marker | None = None,
    ) -> int:
        """Write one record and return its offset.

        Raises:
            RefusedError: nothing was written.
        """
        if place.topic not in self.topics or place.topic in self.sealed:
            raise RefusedError(place.topic not in self.topics)
        log = self.logs[place]
        entry = Entry(place, log.end, id_, key, stamp, marker, now)
        log.entries.append(entry)
        log.end += 1
        self.written.append(entry)
        return entry.offset

    def leave_hole(self, place: PhysicalPartition) -> None:
        """Let the end of somebody's transaction take up an offset."""
        self.logs[place].end += 1

    def expire(self, place: PhysicalPartition, now: float) -> bool:
        """Remove what is older than the retention time; return whether that was anything."""
        log = self.logs[place]
        old = [e.offset for e in log.entries if e.at < now - RETENTION_SECONDS and e.offset >= log.start]
        if old:
            log.start = old[-1] + 1
        return bool(old)


# -- control topic and producers topic -------------------------------------------------------------


TRANSACTION_SECONDS = 10.0
"""An open transaction that nobody ends is aborted after so long."""


class Fate(Enum):
    """What became of a transaction."""

    OPEN = 0
    COMMITTED = 1
    ABORTED = 2


@dataclass(slots=True)
class ControlRecord:
    """One transaction. ``state`` None: about the topic's enrolment, or about another partition."""

    offset: int
    state: PartitionState | None
    event: str
    opened: float
    fate: Fate = Fate.OPEN
    enrolment: Enrolment | None = None


class ControlLog:
    """The control topic. ``truth`` and ``enrolment``: what the log says, whoever can see it by now."""

    def __init__(self, first: PartitionState, enrolment: Enrolment) -> None:
        self.records: list[ControlRecord] = []
        self.states: list[PartitionState] = [first]
        """The state after so many records, as far as all before them are decided."""
        self.enrolments: list[Enrolment] = [enrolment]
        """The same of the topic's enrolment."""
        self.truth = first
        self.enrolment = enrolment
        self.holder = 0
        self.claims: list[Claim] = []
        self.committed: list[ControlRecord] = []
        """What was committed since the oracle last looked."""

    def stable(self) -> int:
        """Return the last stable offset: how many records readers can see."""
        while len(self.states) <= len(self.records):
            record = self.records[len(self.states) - 1]
            if record.fate is Fate.OPEN:
                break
            seen = record.state is not None and record.fate is Fate.COMMITTED
            self.states.append(record.state if seen and record.state is not None else self.states[-1])
            self.enrolments.append(record.enrolment or self.enrolments[-1])
        return len(self.states) - 1

    def high_watermark(self) -> int:
        """Return where the log ends, records of open transactions included."""
        return len(self.records)

    def seen(self) -> PartitionState:
        """Return the state that a reader at the last stable offset knows."""
        return self.states[self.stable()]

    def claim(self) -> int:
        """Fence every earlier holder: its open transactions are aborted. Return the new holder's number."""
        self.holder += 1
        for record in self.records[len(self.states) - 1 :]:
            if record.fate is Fate.OPEN and record.state is not None:
                record.fate = Fate.ABORTED
        return self.holder

    def begin(self, holder: int, state: PartitionState | None, event: str, now: float) -> ControlRecord:
        """Write a record in an open transaction.

        Raises:
            FencedError: a newer holder claimed the operation.
        """
        if state is not None and holder != self.holder:
            raise FencedError("a newer operator claimed the operation")
        record = ControlRecord(len(self.records), state, event, now)
        self.records.append(record)
        return record

    def commit(self, holder: int, record: ControlRecord) -> None:
        """Commit a record's transaction.

        Raises:
            FencedError: a newer holder claimed the operation, or the transaction is over.
        """
        if record.fate is not Fate.OPEN or (record.state is not None and holder != self.holder):
            raise FencedError("a newer operator claimed the operation")
        record.fate = Fate.COMMITTED
        if record.state is not None:
            self.truth = record.state
            self.committed.append(record)

    def enrol(self, after: Enrolment, now: float) -> None:
        """Write and commit what the topic's enrolment is from now on."""
        record = ControlRecord(len(self.records), None, "the enrolment", now, Fate.COMMITTED, after)
        self.records.append(record)
        self.enrolment = after

    def time_out(self, now: float) -> None:
        """Abort transactions that have been open for too long."""
        for record in self.records[len(self.states) - 1 :]:
            if record.fate is Fate.OPEN and now > record.opened + TRANSACTION_SECONDS:
                record.fate = Fate.ABORTED


class ProducersTopic:
    """The producers topic: not transactional, so everybody sees everything. ``frozen``: its leader is."""

    def __init__(self) -> None:
        self.length = 0
        self.frozen = False
        self._registrations = Registrations()

    def append(self, record: Registration) -> None:
        """Write a record."""
        self.length += 1
        self._registrations.fold(record)

    def read(self) -> Registrations:
        """Return the topic folded up to its present end."""
        registrations = Registrations()
        for record in self._registrations.all():
            registrations.fold(record)
        return registrations
