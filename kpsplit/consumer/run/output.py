"""What a handler returns to have it written: output records, and dead letters made of records that failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kpsplit.consumer.run.record import own_headers
from kpsplit.errors import KpsplitError

RECORD_BYTES = 200
"""What a record that waits for its transaction takes in memory besides its key and value, roughly."""

CREATE_TIME = 1
"""confluent_kafka.TIMESTAMP_CREATE_TIME, without loading the library into the processes of handlers."""

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
    """Return an output that a producer takes, as far as can be told before; told later, a commit fails of it.

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
    for name, number, least, behind in (
        ("partition", output.partition, -1, 1 << 31),
        ("timestamp", output.timestamp, 0, 1 << 63),
    ):
        if not (isinstance(number, int) and least <= number < behind):
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
        *own_headers(message),
        (ERROR_HEADER, type(error).__name__.encode()),
        (TOPIC_HEADER, message.topic().encode()),
        (PARTITION_HEADER, str(message.partition()).encode()),
        (OFFSET_HEADER, str(message.offset()).encode()),
    ]
    kind, milliseconds = message.timestamp()
    timestamp = milliseconds if kind == CREATE_TIME else 0
    return checked(Output(topic, message.key(), message.value(), headers, timestamp=timestamp))
