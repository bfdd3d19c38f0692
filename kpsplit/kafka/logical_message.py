"""Messages in logical terms: topic, partition and offset as applications know them (protocol, section 3).

A message of a topic that is not enrolled needs no translation and is handed on untouched. Every other one is
wrapped, not copied. ``place_of`` returns the physical place of both kinds.

``headers_of`` is the one place that asks a record that was read for its headers. Brokers take header names
that are not UTF-8. For a record with such a name the client library (2.16) sets an error, and returns and
keeps a broken list all the same. A look into that list ends the process: the second caller, and even the
first one in a loop, because the interpreter does not look for an error beside a result in calls that it has
specialised. ``methodcaller`` looks. The broken list is replaced at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, cast

from confluent_kafka import Message

from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment
from kpsplit.splitter.records.data import STAMP_HEADER

log = logging.getLogger(__name__)

Headers = list[tuple[str, bytes | None]]

_ask = methodcaller("headers")
_warned: set[str] = set()


def headers_of(message: Any) -> Headers | None:
    """Return the headers of a record; None if it has none, an empty list if the client cannot read them.

    A record whose headers cannot be read has no stamp: kpsplit's producers write no such names. It is read
    like a record of a writer that does not use kpsplit. May be called any number of times.
    """
    try:
        return cast("Headers | None", _ask(message))
    except (UnicodeError, SystemError):
        message.set_headers([])
    topic = message.topic()
    if topic not in _warned:
        _warned.add(topic)
        log.warning(
            "kpsplit: %s has records with header names that are not UTF-8; the client library cannot read "
            "the headers of such a record, so it is handed out without headers",
            topic,
        )
    return []


_new = Message.__new__


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record is stored: its segment, the epoch that opened it, and Kafka's own numbers."""

    segment: int
    epoch: int
    source_topic: str
    source_partition: int
    source_offset: int


class LogicalMessage(Message):
    """A message with the logical topic, partition and offset; ``source()`` returns the physical place.

    Everything else is the wrapped message's, but for kpsplit's stamp, which is none of the application's
    headers: a program that sends them on would send it on. Made by ``wrapped`` and ``wrapped_one`` only.
    """

    __slots__ = ("_parent", "_raw", "_segment")

    _raw: Message
    _segment: Segment
    _parent: PhysicalPartition

    def topic(self) -> str:
        return self._parent.topic

    def partition(self) -> int:
        return self._parent.partition

    def offset(self) -> int:
        at = self._raw.offset()
        return None if at is None else self._segment.logical(at)  # type: ignore[return-value]

    @property
    def segment(self) -> int:
        return self._segment.id

    @property
    def epoch(self) -> int:
        return self._segment.opened_epoch

    def source(self) -> tuple[str, int, int]:
        """Return topic, partition and offset of the real record."""
        return self._segment.source.topic, self._segment.source.partition, self._raw.offset() or 0

    def error(self) -> Any:
        return self._raw.error()

    def key(self) -> Any:
        return self._raw.key()

    def value(self) -> Any:
        return self._raw.value()

    def headers(self) -> Any:
        headers = headers_of(self._raw)
        if not headers:
            return headers
        return [header for header in headers if header[0] != STAMP_HEADER] or None

    def timestamp(self) -> tuple[int, int]:
        return self._raw.timestamp()

    def latency(self) -> float | None:
        return self._raw.latency()

    def leader_epoch(self) -> int | None:
        return self._raw.leader_epoch()

    def delivery_count(self) -> int | None:
        return self._raw.delivery_count()

    def deserialized_key(self) -> Any:
        return self._raw.deserialized_key()

    def deserialized_value(self) -> Any:
        return self._raw.deserialized_value()

    def set_topic(self, topic: str) -> None:
        self._parent = PhysicalPartition(topic, self._parent.partition)

    def set_key(self, key: Any) -> None:
        self._raw.set_key(key)

    def set_value(self, value: Any) -> None:
        self._raw.set_value(value)

    def set_headers(self, headers: Any) -> None:
        self._raw.set_headers(headers)

    def set_error(self, error: Any) -> None:
        self._raw.set_error(error)

    def __len__(self) -> int:
        return len(self._raw)

    def __str__(self) -> str:
        return str(self._raw)


def wrapped(messages: Iterable[Message], segment: Segment, parent: PhysicalPartition) -> list[Message]:
    made: list[Message] = []
    for raw in messages:
        message: LogicalMessage = _new(LogicalMessage)
        message._raw = raw
        message._segment = segment
        message._parent = parent
        made.append(message)
    return made


def wrapped_one(raw: Message, segment: Segment, parent: PhysicalPartition) -> LogicalMessage:
    """Return one message of a segment, or the delivery report of a record there, in logical terms."""
    message: LogicalMessage = _new(LogicalMessage)
    message._raw = raw
    message._segment = segment
    message._parent = parent
    return message


def is_identity(segment: Segment, parent: PhysicalPartition) -> bool:
    """Return whether topic, partition and offset of a segment's records are the logical ones as they are."""
    numbers = segment.progression
    return segment.source == parent and numbers.stride == 1 and numbers.base == segment.start


def physical_offset(message: Message) -> int:
    raw = message._raw if isinstance(message, LogicalMessage) else message
    return raw.offset() or 0


def segment_of(message: Message) -> Segment | None:
    return message._segment if isinstance(message, LogicalMessage) else None


def place_of(message: Message, lineage: Lineage) -> Place | None:
    """Return where a record that was read is stored, None if the lineage has no such place.

    Args:
        message: as it was handed out, wrapped or not.
        lineage: that of its logical partition.
    """
    if isinstance(message, LogicalMessage):
        return Place(message.segment, message.epoch, *message.source())
    source, offset = lineage.parent, message.offset() or 0
    found = lineage.at(source, offset)
    if found is None:
        return None
    return Place(found.id, found.opened_epoch, source.topic, source.partition, offset)
