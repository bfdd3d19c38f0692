"""Delivery reports in logical terms, and the content of records that wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import time_ns
from typing import Any

from confluent_kafka import Message

from kpsplit.splitter.lineage import PhysicalPartition, Segment

Callback = Callable[[Any, Any], None]
Headers = dict[str, Any] | list[tuple[str, Any]] | None

CREATE_TIME = 1
"""confluent_kafka.TIMESTAMP_CREATE_TIME: the producer gave the time."""


class LogicalMessage(Message):
    """A delivery report whose topic, partition and offset are the logical ones.

    Used where they differ from Kafka's own; ``source()`` tells the physical place. It wraps librdkafka's
    report instead of copying it: one is made for every record of a phantom partition.
    """

    __slots__ = ("_error", "_offset", "_parent", "_raw", "_source")

    _raw: Any
    _parent: PhysicalPartition
    _source: PhysicalPartition
    _offset: tuple[int | None, int | None]
    _error: Any

    def topic(self) -> str:
        """Return the logical partition's topic."""
        return self._parent.topic

    def partition(self) -> int:
        """Return the logical partition's number."""
        return self._parent.partition

    def offset(self) -> int | None:
        """Return the logical offset, None for a record that failed."""
        return self._offset[0]

    def source(self) -> tuple[str, int, int | None]:
        """Return topic, partition and offset of the real record (offset None: not written)."""
        return self._source.topic, self._source.partition, self._offset[1]

    def error(self) -> Any:
        """Return why the record failed, None if it was delivered."""
        return self._error

    def key(self) -> Any:
        """Return the record's key."""
        return self._raw.key()

    def value(self) -> Any:
        """Return the record's value."""
        return self._raw.value()

    def headers(self) -> Any:
        """Return None, as the reports of confluent-kafka do."""
        return self._raw.headers()

    def timestamp(self) -> tuple[int, int]:
        """Return the kind of the record's time, and the time in ms."""
        timestamp: tuple[int, int] = self._raw.timestamp()
        return timestamp

    def latency(self) -> Any:
        """Return the seconds from produce() to the broker's answer."""
        return self._raw.latency()

    def leader_epoch(self) -> Any:
        """Return the leader epoch of the physical partition, where the report tells it."""
        return self._raw.leader_epoch()

    def __len__(self) -> int:
        """Return the size of the value in bytes."""
        return len(self._raw)


def _wrap(
    raw: Any,
    parent: PhysicalPartition,
    source: PhysicalPartition,
    offset: tuple[int | None, int | None],
    error: Any,
) -> LogicalMessage:
    told: LogicalMessage = Message.__new__(LogicalMessage)
    told._raw = raw
    told._parent = parent
    told._source = source
    told._offset = offset
    told._error = error
    return told


@dataclass(slots=True)
class Content:
    """What the application gave for one record, and what librdkafka said about it so far."""

    value: bytes | str | None
    key: bytes | None
    timestamp: int
    headers: Headers
    callback: Callback | None
    accepted_at: float
    message: Any = None
    error: Any = None

    def check(self) -> None:
        """Do nothing for what librdkafka's produce() would take; a record that is held must not fail later.

        Raises:
            TypeError: it would not.
        """
        for part in (self.value, self.key):
            if part is not None and not isinstance(part, bytes | str):
                raise TypeError(f"a bytes-like object is required, not {type(part).__name__!r}")
        if self.headers is not None and not isinstance(self.headers, dict | list):
            raise TypeError("expected headers to be dict or list of (key, value) tuples")
        if not isinstance(self.timestamp, int):
            raise TypeError("expected timestamp to be an int")
        self.timestamp = self.timestamp or time_ns() // 1_000_000  # when it was produced, not when it is sent

    def size(self) -> int:
        """Return how many bytes the record takes in the queue, roughly."""
        return len(self.value or b"") + len(self.key or b"")


def is_identity(segment: Segment, parent: PhysicalPartition) -> bool:
    """Tell whether topic, partition and offset of a segment's records are the logical ones as they are."""
    numbers = segment.progression
    return segment.source == parent and numbers.stride == 1 and numbers.base == segment.start


def logical_message(
    message: Any, segment: Segment, parent: PhysicalPartition, found_at: int | None = None
) -> Any:
    """Return a delivery report in logical terms.

    ``found_at``: the record's offset where the report itself does not tell it.
    """
    error = message.error()
    if is_identity(segment, parent) and (error is None or found_at is None):
        return message
    offset = found_at if error is not None else message.offset()
    told = (None, None) if offset is None else (segment.logical(offset), offset)
    return _wrap(message, parent, segment.source, told, error if found_at is None else None)


def failed_message(parent: PhysicalPartition, content: Content, error: Any) -> Any:
    """Return the delivery report of a record that was never given to librdkafka."""
    value = content.value.encode() if isinstance(content.value, str) else content.value
    timestamp = (CREATE_TIME, content.timestamp)
    raw = Message(key=content.key, value=value, error=error, timestamp=timestamp, latency=0.0)
    return _wrap(raw, parent, parent, (None, None), error)


def timestamp_of(message: Any) -> int:
    """Return the record's own time for sending it again, 0 for none."""
    kind, milliseconds = message.timestamp()
    return int(milliseconds) if kind == CREATE_TIME else 0
