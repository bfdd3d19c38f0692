"""Messages in logical terms: topic, partition and offset as applications know them (protocol, section 3).

A message of a topic that is not enrolled needs no translation and is handed on untouched. Every other one is
wrapped, not copied; where the compiled part is in use, the message itself becomes one of a class that says
which segment it is of (``relabelled``). ``place_of`` returns the physical place of all kinds.

``headers_of`` is the one place that asks a record that was read for its headers. Brokers take header names
that are not UTF-8. For a record with such a name the client library (2.16) sets an error, and returns and
keeps a broken list all the same. A look into that list ends the process: the second caller, and even the
first one in a loop, because the interpreter does not look for an error beside a result in calls that it has
specialised. ``methodcaller`` looks, and so does ``operator.call``. The broken list is replaced at once.

``all_keyed``, ``content_bytes``, ``of_key_ranges``, ``obvious_until``, ``stretch_ends`` and ``wrapped`` are
what readers ask of each record. They exist twice: here, and in ``_messages.c``, which answers None where only
Python knows.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, groupby
from operator import call, methodcaller
from typing import Any, cast
from zlib import crc32

from confluent_kafka import Message

from kpsplit import compiled
from kpsplit.splitter.key_range import MULTIPLIER, KeyRange
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, STAMP_SIZES, STAMP_VERSION

log = logging.getLogger(__name__)

Headers = list[tuple[str, bytes | None]]

_ask = methodcaller("headers")
_ask_client: Callable[[Message], Any] = partial(cast("Any", call), Message.headers)
_ask_key = methodcaller("key")
_key, _offset = Message.key, Message.offset
_warned: set[str] = set()
_STAMP_BYTES = STAMP_SIZES[STAMP_VERSION]


def headers_of(message: Any) -> Headers | None:
    """Return the headers of a record; None if it has none, an empty list if the client cannot read them.

    A record whose headers cannot be read has no stamp: kpsplit's producers write no such names. It is read
    like a record of a writer that does not use kpsplit. May be called any number of times.
    """
    return _asked(_ask, message)


def _asked(ask: Callable[[Any], Any], message: Any) -> Headers | None:
    try:
        return cast("Headers | None", ask(message))
    except (UnicodeError, SystemError):
        return _unreadable(message)


def _unreadable(message: Any) -> Headers:
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


def _without_stamp(headers: Headers | None) -> Headers | None:
    if not headers:
        return headers
    return [header for header in headers if header[0] != STAMP_HEADER] or None


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

    Everything else is the client's, but for kpsplit's stamp, which is none of the application's headers: a
    program that sends them on would send it on. Made by ``wrapped`` and ``wrapped_one`` only.
    """

    __slots__ = ()

    _segment: Segment
    _parent: PhysicalPartition

    def topic(self) -> str:
        return self._parent.topic

    def partition(self) -> int:
        return self._parent.partition

    @property
    def segment(self) -> int:
        return self._segment.id

    @property
    def epoch(self) -> int:
        return self._segment.opened_epoch

    def source(self) -> tuple[str, int, int]:
        """Return topic, partition and offset of the real record."""
        return self._segment.source.topic, self._segment.source.partition, physical_offset(self)


class RelabelledMessage(LogicalMessage):
    """The client's own message. Each segment has a class of its own, with what all its messages share."""

    __slots__ = ()

    def offset(self) -> int:
        at = _offset(self)
        return None if at is None else self._segment.logical(at)  # type: ignore[return-value]

    def headers(self) -> Any:
        return _without_stamp(_asked(_ask_client, self))

    def set_topic(self, topic: str) -> None:
        self.__class__ = _relabelled_once(self._segment, PhysicalPartition(topic, self._parent.partition))


class WrappedMessage(LogicalMessage):
    """A message around the client's: for reports, and where the compiled part is not in use."""

    __slots__ = ("_parent", "_raw", "_segment")

    _raw: Message
    _segment: Segment
    _parent: PhysicalPartition

    def offset(self) -> int:
        at = self._raw.offset()
        return None if at is None else self._segment.logical(at)  # type: ignore[return-value]

    def error(self) -> Any:
        return self._raw.error()

    def key(self) -> Any:
        return self._raw.key()

    def value(self) -> Any:
        return self._raw.value()

    def headers(self) -> Any:
        return _without_stamp(headers_of(self._raw))

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


def wrapped(messages: list[Message], kind: type[RelabelledMessage]) -> list[Message]:
    """Return messages of a segment in logical terms; they are not to be used as the client's any more.

    Args:
        messages: as the client gave them.
        kind: what ``relabelled`` returns for the segment.
    """
    if compiled.messages is not None and compiled.messages.relabel(messages, kind):
        return messages
    segment, parent = kind._segment, kind._parent
    made: list[Message] = []
    for raw in messages:
        message: WrappedMessage = _new(WrappedMessage)
        message._raw = raw
        message._segment = segment
        message._parent = parent
        made.append(message)
    return made


def wrapped_one(raw: Message, segment: Segment, parent: PhysicalPartition) -> WrappedMessage:
    """Return one message of a segment, or the delivery report of a record there, in logical terms."""
    message: WrappedMessage = _new(WrappedMessage)
    message._raw = raw
    message._segment = segment
    message._parent = parent
    return message


def relabelled(segment: Segment, parent: PhysicalPartition) -> type[RelabelledMessage]:
    """Return a class for the messages of a segment. Numbers of the client that are the logical ones stay."""
    shared: dict[str, object] = {"__slots__": (), "_segment": segment, "_parent": parent}
    if is_identity(segment, parent):
        shared |= {"topic": Message.topic, "partition": Message.partition, "offset": Message.offset}
    return type("LogicalMessage", (RelabelledMessage,), shared)


_relabelled_once = lru_cache(maxsize=64)(relabelled)


def is_identity(segment: Segment, parent: PhysicalPartition) -> bool:
    """Return whether topic, partition and offset of a segment's records are the logical ones as they are."""
    numbers = segment.progression
    return segment.source == parent and numbers.stride == 1 and numbers.base == segment.start


def physical_offset(message: Message) -> int:
    if isinstance(message, RelabelledMessage):
        return _offset(message) or 0
    raw = message._raw if isinstance(message, WrappedMessage) else message
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


# What readers ask of each record, in lists of them.


def all_keyed(messages: list[Message]) -> bool:
    """Return whether each message has a key that is not empty: none of them is an error or a marker."""
    if compiled.messages is not None and (found := compiled.messages.all_keyed(messages)) is not None:
        return bool(found)
    return all(map(_key, messages))


def content_bytes(messages: list[Message]) -> int:
    """Return how many bytes the keys and values of messages have."""
    if compiled.messages is not None and (found := compiled.messages.content_bytes(messages)) is not None:
        return int(found)
    try:
        keys = sum(map(len, filter(None, map(_ask_key, messages))))
    except TypeError:  # a deserialiser has changed those that were handed out
        keys = sum(len(key) for key in map(_ask_key, messages) if isinstance(key, bytes | str))
    return sum(map(len, messages)) + keys


def stretch_ends(messages: list[Message], ask: Sequence[Callable[[Message], object]]) -> list[int]:
    """Return where each stretch of messages of one physical partition ends.

    Args:
        messages: as the client gave them.
        ask: what tells the partitions apart: their numbers, their topics, or both.
    """
    if compiled.messages is not None and (found := compiled.messages.stretch_ends(messages)) is not None:
        return cast("list[int]", found)
    keys: list[object] = list(map(ask[0], messages))
    if len(ask) > 1:
        keys = list(zip(*(map(method, messages) for method in ask), strict=True))
    if keys and keys.count(keys[0]) == len(keys):
        return [len(keys)]
    return list(accumulate(len(list(group)) for _, group in groupby(keys)))


def of_key_ranges(messages: list[Message], bounds: list[int], within: KeyRange) -> list[Message]:
    """Return the messages of a segment that have a key, as ``placed_hash`` places it, in some key ranges.

    Args:
        messages: with a key each.
        bounds: where the union of the ranges begins and ends: inside, the count before is odd.
        within: the range of the segment.
    """
    lo, hi, width = within.lo, within.hi, within.width
    if compiled.messages is not None:
        found = compiled.messages.of_key_ranges(messages, bounds, lo, hi)
        if found is not None:
            return cast("list[Message]", found)
    # placed_hash() written out: this runs once per record that is read
    keys = cast("Any", map(_key, messages))
    return [
        message
        for message, key in zip(messages, keys, strict=True)
        if bisect_right(
            bounds, h if lo <= (h := crc32(key) * MULTIPLIER & 0xFFFFFFFF) < hi else lo + h % width
        )
        & 1
    ]


def obvious_until(messages: list[Message], at: int, home: int, epochs: tuple[int, int]) -> int:
    """Return the index from ``at`` on of the first message that has to be looked at closely.

    Those before it have no marker, and no stamp but a single one of the present version: a record of another
    place has it, or it is of one of the epochs from the first to the last.
    """
    if compiled.messages is not None:
        found = compiled.messages.obvious_until(messages, at, home, *epochs)
        if found is not None:
            return int(found)
    here = home.to_bytes(8, "big")
    for index in range(at, len(messages)):
        headers = headers_of(messages[index])
        if headers and not _are_obvious(headers, here, *epochs):
            return index
    return len(messages)


def _are_obvious(headers: Headers, here: bytes, first_epoch: int, last_epoch: int) -> bool:
    stamps = 0
    for name, value in headers:
        if name == MARKER_HEADER:
            return False
        if name == STAMP_HEADER:
            stamps += 1
            if stamps > 1 or value is None or len(value) != _STAMP_BYTES or value[0] != STAMP_VERSION:
                return False
            if value[13:21] == here and not first_epoch <= int.from_bytes(value[1:5], "big") <= last_epoch:
                return False
    return True


compiled.messages = compiled.teach(
    compiled.messages, Message, crc32, STAMP_HEADER, MARKER_HEADER, _unreadable
)
