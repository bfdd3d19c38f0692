"""A record as handlers in other processes get it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kpsplit.errors import UsageError
from kpsplit.kafka.headers import Headers, headers_of
from kpsplit.splitter.records import stamp


def own_headers(message: Any) -> Headers:
    """Return the application's own headers of a message: kpsplit's stamp belongs to one place in one log."""
    return [(name, value) for name, value in headers_of(message) or () if name != stamp.HEADER]


def place(message: Any) -> str:
    """Return a message's logical place for people; never its content."""
    return f"{message.topic()}/{message.partition()} at offset {message.offset()}"


@dataclass(slots=True, eq=False)
class Record:
    """A plain copy of a message with the surface of ``confluent_kafka.Message``; it can be pickled.

    Topic, partition and offset are the logical ones. ``segment`` and ``epoch`` are None where the message
    came through untouched and does not tell them; ``source()`` always tells the physical place.
    """

    _topic: str
    _partition: int
    _offset: int
    _key: Any
    _value: Any
    _headers: Headers | None
    _timestamp: tuple[int, int]
    _leader_epoch: int | None
    _source: tuple[str, int, int]
    segment: int | None
    epoch: int | None

    @classmethod
    def of(cls, message: Any) -> Record:
        """Copy a message."""
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        source = getattr(message, "source", None)
        return cls(
            topic,
            partition,
            offset,
            message.key(),
            message.value(),
            headers_of(message),
            message.timestamp(),
            message.leader_epoch(),
            (topic, partition, offset) if source is None else source(),
            getattr(message, "segment", None),
            getattr(message, "epoch", None),
        )

    def topic(self) -> str:
        """Return the logical partition's topic."""
        return self._topic

    def partition(self) -> int:
        """Return the logical partition's number."""
        return self._partition

    def offset(self) -> int:
        """Return the logical offset."""
        return self._offset

    def key(self) -> Any:
        """Return the key, None for a record that has none."""
        return self._key

    def value(self) -> Any:
        """Return the value."""
        return self._value

    def headers(self) -> Headers | None:
        """Return the headers."""
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        """Return the kind of the record's time, and the time in ms."""
        return self._timestamp

    def leader_epoch(self) -> int | None:
        """Return the leader epoch of the physical partition."""
        return self._leader_epoch

    def source(self) -> tuple[str, int, int]:
        """Return topic, partition and offset of the real record."""
        return self._source

    def error(self) -> None:
        """Return None: errors are never given to handlers."""

    def latency(self) -> None:
        """Return None: only delivery reports have it."""

    def delivery_count(self) -> int | None:
        """Return None: only records of share groups have it."""

    def deserialized_key(self) -> Any:
        """Return the key as it is."""
        return self._key

    def deserialized_value(self) -> Any:
        """Return the value as it is."""
        return self._value

    def set_topic(self, topic: str) -> None:
        """Replace the topic that ``topic()`` tells."""
        self._topic = topic

    def set_key(self, key: Any) -> None:
        """Replace the key."""
        self._key = key

    def set_value(self, value: Any) -> None:
        """Replace the value."""
        self._value = value

    def set_headers(self, headers: Headers | None) -> None:
        """Replace the headers."""
        self._headers = headers

    def set_error(self, error: Any) -> None:
        """Refuse: a record that handlers are given has none.

        Raises:
            UsageError: always.
        """
        raise UsageError("a handler is given records, never errors", hint="raise the error in the handler")

    def __len__(self) -> int:
        """Return the size of the value in bytes."""
        return len(self._value) if self._value is not None else 0
