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
    """A handler returned something else than output records."""


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
        OutputError: it is neither None, an Output nor an iterable of Outputs.
    """
    if returned is None:
        return ()
    if isinstance(returned, Output):
        return (returned,)
    outputs = tuple(returned) if isinstance(returned, Iterable) else (returned,)
    for output in outputs:
        if not isinstance(output, Output):
            raise OutputError(
                f"the handler returned {type(output).__name__} where an Output was expected",
                hint="a transactional handler returns None, an Output or an iterable of Outputs",
            )
    return outputs


def dead_letter(message: Any, error: BaseException, topic: str) -> Output:
    """Return the dead letter for a record: its own content, the class of the error and the logical place."""
    headers: list[tuple[str, Any]] = [
        *own_headers(message),
        (ERROR_HEADER, type(error).__name__.encode()),
        (TOPIC_HEADER, message.topic().encode()),
        (PARTITION_HEADER, str(message.partition()).encode()),
        (OFFSET_HEADER, str(message.offset()).encode()),
    ]
    kind, milliseconds = message.timestamp()
    timestamp = milliseconds if kind == CREATE_TIME else 0
    return Output(topic, message.key(), message.value(), headers, timestamp=timestamp)
