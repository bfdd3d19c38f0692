"""Simulated data partitions: what was written where, and what the brokers still have of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from confluent_kafka import Message

from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.marker import HEADER as MARKER
from kpsplit.splitter.records.marker import Marker
from kpsplit.splitter.records.stamp import HEADER as STAMP
from kpsplit.splitter.records.stamp import Stamp

PARENT = PhysicalPartition("t", 0)
RETENTION_SECONDS = 120.0


class RefusedError(Exception):
    """The broker refused a write: the topic is sealed, or there is none."""

    def __init__(self, gone: bool) -> None:
        super().__init__("no such topic" if gone else "the topic is sealed")
        self.gone = gone


@dataclass(slots=True)
class Entry:
    """One record of a log. ``id`` is empty for markers; ``message`` as a consumer gets it."""

    source: PhysicalPartition
    offset: int
    id: bytes
    key: bytes | None
    stamp: Stamp | None
    marker: Marker | None
    at: float
    message: Message


@dataclass(slots=True)
class Log:
    """A physical partition. ``start``: the first offset that retention has left."""

    source: PhysicalPartition
    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    end: int = 0
    leader_epoch: int = 0

    def from_offset(self, offset: int, most: int) -> list[Entry]:
        """Return up to ``most`` records at or behind an offset."""
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
        """Tell whether a topic never held a record."""
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
        headers: list[tuple[str, str | bytes | None]] = []
        if stamp is not None:
            headers.append((STAMP, stamp.encode()))
        if marker is not None:
            headers.append((MARKER, marker.encode()))
        message = Message(
            topic=place.topic,
            partition=place.partition,
            offset=log.end,
            key=key,
            value=id_,
            headers=headers or None,
            timestamp=(1, int(now * 1000)),
        )
        entry = Entry(place, log.end, id_, key, stamp, marker, now, message)
        log.entries.append(entry)
        log.end += 1
        self.written.append(entry)
        return entry.offset

    def leave_hole(self, place: PhysicalPartition) -> None:
        """Let the end of somebody's transaction take up an offset."""
        self.logs[place].end += 1

    def expire(self, place: PhysicalPartition, now: float) -> bool:
        """Remove what is older than the retention time; tell whether that was anything."""
        log = self.logs[place]
        old = [e.offset for e in log.entries if e.at < now - RETENTION_SECONDS and e.offset >= log.start]
        if old:
            log.start = old[-1] + 1
        return bool(old)
