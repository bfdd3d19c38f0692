"""Delivery reports in logical terms, and the content of records that wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from time import time_ns
from typing import Any, NamedTuple

from confluent_kafka import Message

from kpsplit.kafka.logical_message import WrappedMessage, is_identity, wrapped_one
from kpsplit.splitter.lineage import PhysicalPartition, Segment

Callback = Callable[[Any, Any], None]
Send = Callable[..., None]
Headers = dict[str, Any] | list[tuple[str, Any]] | None
Pairs = tuple[tuple[str, Any], ...]
"""Headers that nobody changes any more."""
CREATE_TIME = 1
"""confluent_kafka.TIMESTAMP_CREATE_TIME: the producer gave the time."""
EARLIEST, LATEST = -(2**63), 2**63 - 1
"""What librdkafka's timestamps can be."""


class PlainProducer(NamedTuple):
    """Calls of the application's plain producer, by a weak reference: ``send`` is its produce(), by position.

    ``queued`` is its len(). ``learn`` has it look at a topic; it returns how many partitions it knows then.
    """

    send: Send
    poll: Callable[[float], int]
    queued: Callable[[], int]
    learn: Callable[[str], int]


class SettledMessage(WrappedMessage):
    """A delivery report whose outcome differs from librdkafka's own."""

    __slots__ = ("_error", "_found_at", "_source")

    _source: PhysicalPartition
    _found_at: int | None
    _error: Any

    def offset(self) -> int | None:  # type: ignore[override]
        """Return the logical offset, None for a record that failed."""
        return None if self._found_at is None else self._segment.logical(self._found_at)

    def source(self) -> tuple[str, int, int | None]:  # type: ignore[override]
        """Return topic, partition and offset of the real record (offset None: not written, or not known)."""
        return self._source.topic, self._source.partition, self._found_at

    def error(self) -> Any:
        return self._error


_new: Any = Message.__new__


def lost_message(
    raw: Any, parent: PhysicalPartition, source: PhysicalPartition, error: Any
) -> SettledMessage:
    """Return the delivery report of a record that failed, whatever librdkafka's own report says."""
    report: SettledMessage = _new(SettledMessage)
    report._raw = raw
    report._parent = parent
    report._source = source
    report._found_at = None
    report._error = error
    return report


@dataclass(slots=True)
class PendingRecord:
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
        """Look whether librdkafka's produce() would take it, and keep what the application may change.

        A record that is held must not fail later, and is sent as it was when it was produced.

        Raises:
            TypeError, UnicodeEncodeError, OverflowError: it would not.
        """
        for part in (self.value, self.key):
            if part is not None and not isinstance(part, bytes | str):
                raise TypeError(f"a bytes-like object is required, not {type(part).__name__!r}")
        if self.headers is not None and not isinstance(self.headers, dict | list):
            raise TypeError("expected headers to be dict or list of (key, value) tuples")
        self.timestamp = index(self.timestamp)  # a number of numpy's as well
        if not EARLIEST <= self.timestamp <= LATEST:
            raise OverflowError("int too big to convert")
        if isinstance(self.value, str):
            self.value = self.value.encode()
        self.timestamp = self.timestamp or time_ns() // 1_000_000
        if self.headers is not None:
            every = self.headers.items() if isinstance(self.headers, dict) else self.headers
            self.headers = [_checked_header(header) for header in every]

    def size(self) -> int:
        """Return how many bytes the record takes in the queue, roughly."""
        return len(self.value or b"") + len(self.key or b"")


@dataclass(slots=True)
class Unrouted:
    """A record of a topic that was not looked up yet, or whose lookup is stale: produce()'s arguments."""

    content: PendingRecord
    partition: int


def logical_message(
    message: Any, segment: Segment, parent: PhysicalPartition, found_at: int | None = None
) -> Any:
    """Return a delivery report in logical terms.

    ``found_at``: where the record stands, None if it is not known; what librdkafka's report tells goes first.
    """
    error = message.error()
    told = error is None and (found_at is None or message.offset() is not None)
    if is_identity(segment, parent) and (told or found_at is None):
        return message
    if told:
        return wrapped_one(message, segment, parent)
    report = lost_message(message, parent, segment.source, error if found_at is None else None)
    report._segment = segment
    report._found_at = found_at
    return report


def failed_message(parent: PhysicalPartition, content: PendingRecord, error: Any) -> Any:
    """Return the delivery report of a record that was never given to librdkafka.

    It never fails, whatever the record holds: nothing would replace a report that is lost.
    """
    value = content.value.encode(errors="replace") if isinstance(content.value, str) else content.value
    timestamp = (CREATE_TIME, min(max(content.timestamp, EARLIEST), LATEST))
    raw = Message(key=content.key, value=value, error=error, timestamp=timestamp, latency=0.0)
    return lost_message(raw, parent, parent, error)


def _checked_header(header: Any) -> tuple[str, Any]:
    """Return a header as librdkafka would send it; unlike its produce() no name ends the process.

    Raises:
        TypeError, UnicodeEncodeError: it would not be sent.
    """
    if not isinstance(header, tuple) or len(header) != 2:
        raise TypeError("Headers are expected to be a list of (key, value) tuples")
    name, value = str(header[0]), header[1]
    name.encode()
    if isinstance(value, str):
        value = value.encode()
    elif value is not None and not isinstance(value, bytes):
        given = type(value).__name__
        raise TypeError(f"expected header value to be None, binary, or unicode string, not {given}")
    return name, value
