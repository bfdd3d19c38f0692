"""What a commit carries besides positions: outputs of the records that it covers, and state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaException, Message

from kpsplit.consumer.commit.writes import CommitPayload, RecordPlace
from kpsplit.consumer.fetch.batch import message_hash, placed_hash
from kpsplit.errors import KpsplitError
from kpsplit.kafka.logical_message import physical_offset, segment_of
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import WHOLE

if TYPE_CHECKING:  # what it takes part in is handed a deadline
    from kpsplit.clock import Deadline

Taken = TypeVar("Taken", bound=CommitPayload | None)


def place_of(message: Message) -> RecordPlace:
    """Return the place of a message that was handed out, wrapped or not; its key must be bytes or None."""
    segment, offset = segment_of(message), physical_offset(message)
    if segment is None:
        return RecordPlace(placed_hash(message.key(), offset, WHOLE), None, offset)
    return RecordPlace(message_hash(message, segment), segment.id, offset)


class CommitPayloads:
    """Several payloads as one."""

    def __init__(self, *payloads: CommitPayload) -> None:
        self._payloads = payloads

    def write(self, producer: Any, deadline: Deadline) -> None:
        """See ``CommitPayload``."""
        for payload in self._payloads:
            payload.write(producer, deadline)

    def committed(self) -> None:
        """See ``CommitPayload``."""
        for payload in self._payloads:
            payload.committed()

    def aborted(self) -> None:
        """See ``CommitPayload``."""
        for payload in self._payloads:
            payload.aborted()


@dataclass(slots=True)
class CommitUnit:
    """What is committed all or nothing.

    ``payload``: what goes along in its transaction, None if there is none. ``then``: what follows when
    ``future`` has succeeded.
    """

    slots: tuple[OwnedSlot, ...]
    future: Future[None]
    payload: CommitPayload | None = None
    then: Callable[[], Future[None]] | None = None

    def done(self) -> bool:
        """Return whether it is over; begin what follows where that is due."""
        if self.future.done() and self.then is not None:
            then, self.then = self.then, None
            if self.future.exception() is None:
                try:
                    self.future = then()
                except (KpsplitError, KafkaException) as error:
                    self.future = settled(error)
        return self.future.done()


@contextmanager
def taken(payload: Taken) -> Iterator[Taken]:
    """Have what was taken for a commit wait for the next one where it cannot even be sent."""
    try:
        yield payload
    except BaseException:
        if payload is not None:
            payload.aborted()
        raise


def settled(error: BaseException | None = None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future
