"""What handlers are, what they get, what they return to have it written, and processes that call them.

A process for a handler imports this module and nothing else of ``run``: it should start soon.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import signal
import traceback
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME

from kpsplit.errors import ConfigurationError, KpsplitError, UsageError
from kpsplit.kafka.logical_message import Headers, headers_of
from kpsplit.splitter.records.data import STAMP_HEADER


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


RECORD_BYTES = 200
"""What a record that waits for its transaction takes in memory besides its key and value, roughly."""

ERROR_HEADER = "kpsplit.failed.error"
TOPIC_HEADER = "kpsplit.failed.topic"
PARTITION_HEADER = "kpsplit.failed.partition"
OFFSET_HEADER = "kpsplit.failed.offset"


class OutputError(KpsplitError):
    """A handler returned something else than output records, or one that can never be written."""


@dataclass(frozen=True, slots=True)
class Output:
    """One record to be written in the transaction that commits the record it was made from.

    ``partition`` -1: the topic's partitioner chooses. ``timestamp`` in milliseconds, 0: when it is written.
    """

    topic: str
    key: str | bytes | None = None
    value: str | bytes | None = None
    headers: list[tuple[str, Any]] | dict[str, Any] | None = None
    partition: int = -1
    timestamp: int = 0

    @property
    def size(self) -> int:
        """How many bytes it takes while it waits, roughly."""
        return len(self.value or b"") + len(self.key or b"") + RECORD_BYTES


def outputs_of(returned: Any) -> tuple[Output, ...]:
    """Return what a handler returned as output records; an iterable is run through to its end.

    Raises:
        OutputError: it is neither None, an Output nor an iterable of Outputs, or no producer takes one.
    """
    if returned is None:
        return ()
    if isinstance(returned, Output):
        return (checked(returned),)
    outputs = tuple(returned) if isinstance(returned, Iterable) else (returned,)
    for output in outputs:
        if not isinstance(output, Output):
            raise OutputError(
                f"the handler returned {type(output).__name__} where an Output was expected",
                hint="a transactional handler returns None, an Output or an iterable of Outputs",
            )
        checked(output)
    return outputs


def checked(output: Output) -> Output:
    """Return an output that a producer takes, as far as can be seen before; seen later, a commit fails of it.

    Raises:
        OutputError: it does not. The message names the field, never its content.
    """
    if not (isinstance(output.topic, str) and output.topic and _is_text(output.topic)):
        raise _wrong("topic", output.topic, "the name of a topic")
    for name, part in (("key", output.key), ("value", output.value)):
        if not _is_content(part):
            raise _wrong(name, part, "bytes, a str that can be encoded, or None")
    if output.headers is not None and not _are_headers(output.headers):
        raise _wrong("headers", output.headers, "a dict or a list of tuples: names with bytes, str or None")
    for name, number, least, limit in (
        ("partition", output.partition, -1, 1 << 31),
        ("timestamp", output.timestamp, 0, 1 << 63),
    ):
        if not (isinstance(number, int) and least <= number < limit):
            raise _wrong(name, number, f"a whole number from {least} on")
    return output


def _are_headers(headers: Any) -> bool:
    if not isinstance(headers, list | dict):
        return False
    pairs = headers.items() if isinstance(headers, dict) else headers
    return all(
        isinstance(pair, tuple)
        and len(pair) == 2
        and isinstance(pair[0], str | bytes)
        and _is_content(pair[0])
        and _is_content(pair[1])
        for pair in pairs
    )


def _is_content(part: Any) -> bool:
    return part is None or isinstance(part, bytes) or (isinstance(part, str) and _is_text(part))


def _is_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong(name: str, found: Any, wanted: str) -> OutputError:
    return OutputError(
        f"the {name} of an Output cannot be written: it is a {type(found).__name__}",
        hint=f"give {wanted}",
    )


def dead_letter(message: Any, error: BaseException, topic: str) -> Output:
    """Return the dead letter for a record: its own content, the class of the error and the logical place.

    Raises:
        OutputError: the handler has put something into the message that cannot be written.
    """
    headers: list[tuple[str, Any]] = [
        # kpsplit's stamp belongs to one place in one log.
        *(header for header in headers_of(message) or () if header[0] != STAMP_HEADER),
        (ERROR_HEADER, type(error).__name__.encode()),
        (TOPIC_HEADER, message.topic().encode()),
        (PARTITION_HEADER, str(message.partition()).encode()),
        (OFFSET_HEADER, str(message.offset()).encode()),
    ]
    kind, milliseconds = message.timestamp()
    timestamp = milliseconds if kind == TIMESTAMP_CREATE_TIME else 0
    return checked(Output(topic, message.key(), message.value(), headers, timestamp=timestamp))


Handler = Callable[[Any], Any]

Call = Callable[[Any], tuple[Output, ...]]
"""Calls the handler with a record; returns what is to be written."""

AsyncCall = Callable[[Any], Awaitable[tuple[Output, ...]]]


def is_async(handler: Handler) -> bool:
    """Return whether a handler is ``async def``: a function, a method, a partial, or an object's call."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - whether that is async, not whether there is one
    )


def check_handler(handler: Any, *, executor: str) -> None:
    """Do nothing for what can be called by this executor.

    Raises:
        ConfigurationError: it cannot, or there is no such executor.
    """
    if executor not in ("thread", "process"):
        raise ConfigurationError(f"executor={executor!r} is neither 'thread' nor 'process'")
    if not callable(handler):
        raise ConfigurationError(f"the handler is a {type(handler).__name__}, which cannot be called")
    if executor == "process" and is_async(handler):
        raise ConfigurationError(
            "a handler that is async runs in one event loop, not in processes",
            hint='leave executor="process" out, or give a handler that is not async',
        )


def synchronous(handler: Handler, *, transactional: bool) -> Call:
    """Return what a thread, or a process, calls."""
    checked = outputs_of if transactional else _nothing

    def call(record: Any) -> tuple[Output, ...]:
        return checked(handler(record))

    return call


def asynchronous(handler: Handler, *, transactional: bool) -> AsyncCall:
    """Return what a task of the event loop calls."""
    checked = outputs_of if transactional else _nothing

    async def call(record: Any) -> tuple[Output, ...]:
        return checked(await handler(record))

    return call


def _nothing(returned: Any) -> tuple[Output, ...]:
    """Ignore what a handler returned that has no outputs.

    Raises:
        UsageError: it is work that was not done yet.
    """
    if returned is not None and (inspect.isawaitable(returned) or inspect.isgenerator(returned)):
        if inspect.iscoroutine(returned):
            returned.close()
        raise UsageError(
            f"the handler returned a {type(returned).__name__}: nothing was done yet",
            hint="give the async function itself, or transactional=True for a generator of Outputs",
        )
    return ()


class RemoteError(KpsplitError):
    """A handler in another process raised something that cannot be sent; the message names its class."""


def serve(pipe: Connection, packed_handler: bytes, transactional: bool) -> None:
    """In a process of its own: call the handler with each record that comes, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to everybody; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        handler = pickle.loads(packed_handler)
    except BaseException as error:  # noqa: BLE001 - raised by run()
        pipe.send(f"{type(error).__name__}: {error}")
        return
    call = synchronous(handler, transactional=transactional)
    pipe.send(None)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(_called(call, pipe.recv()))


def _called(call: Call, record: Record) -> tuple[tuple[Output, ...], bytes | None, str]:
    try:
        return call(record), None, ""
    except BaseException as error:  # noqa: BLE001 - the parent's policy decides
        return (), _packed(error), "".join(traceback.format_exception(error))


def _packed(error: BaseException) -> bytes:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - an exception class may do anything here
        return pickle.dumps(RemoteError(f"the handler raised {type(error).__name__}"))
    return data
