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

NO_OFFSET = -1001
"""confluent_kafka.OFFSET_INVALID: what a report of a failed record says."""

CREATE_TIME = 1
"""confluent_kafka.TIMESTAMP_CREATE_TIME: the producer gave the time."""


class LogicalMessage(Message):
    """A delivery report whose topic, partition and offset are the logical ones.

    Used where they differ from Kafka's own; ``source()`` tells the physical place.
    """

    _source: tuple[str, int, int | None]

    def source(self) -> tuple[str, int, int | None]:
        """Return topic, partition and offset of the real record (offset None: not written)."""
        return self._source


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
    logical = LogicalMessage(
        topic=parent.topic,
        partition=parent.partition,
        offset=NO_OFFSET if offset is None else segment.logical(offset),
        key=message.key(),
        value=message.value(),
        error=error if found_at is None else None,
        timestamp=message.timestamp(),
        latency=message.latency() or 0.0,
    )
    logical._source = (segment.source.topic, segment.source.partition, offset)
    return logical


def failed_message(parent: PhysicalPartition, content: Content, error: Any) -> Any:
    """Return the delivery report of a record that was never given to librdkafka."""
    value = content.value.encode() if isinstance(content.value, str) else content.value
    logical = LogicalMessage(
        topic=parent.topic,
        partition=parent.partition,
        offset=NO_OFFSET,
        key=content.key,
        value=value,
        error=error,
        timestamp=(CREATE_TIME, content.timestamp),
        latency=0.0,
    )
    logical._source = (parent.topic, parent.partition, None)
    return logical


def timestamp_of(message: Any) -> int:
    """Return the record's own time for sending it again, 0 for none."""
    kind, milliseconds = message.timestamp()
    return int(milliseconds) if kind == CREATE_TIME else 0
