"""The part that state has in a commit: changelog records out, then the same writes into the local store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kpsplit.consumer.state.changelog_record import headers_for
from kpsplit.consumer.state.owned import OwnedState
from kpsplit.consumer.state.pending import Writes
from kpsplit.errors import KpsplitError, UnknownOutcomeError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.splitter.ports import Deadline

log = logging.getLogger(__name__)

_FULL_QUEUE_SECONDS = 0.05


class PlainWriter:
    """The producer for commits without a transaction, made at the first. Thread safe.

    The same one is kept after a timeout: then a second try of the same write lands behind the first.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producer: Producer | None = None
        self._lock = Lock()

    def producer(self) -> Producer:
        """Return it."""
        with self._lock:
            if self._producer is None:
                self._producer = self._connection.open_producer(
                    "changelog", acks="all", enable_idempotence=True, linger_ms=5
                )
            return self._producer

    def forget(self) -> None:
        """The producer failed for good: the next commit makes another."""
        self._producer = None


@dataclass(slots=True)
class Part:
    """One slot's writes in a commit. ``last``: the greatest offset that was acknowledged."""

    owned: OwnedState
    topic: str
    writes: Writes
    acknowledged: int = 0
    last: int = -1
    error: KafkaError | None = None

    def report(self, error: KafkaError | None, message: Message) -> None:
        """Take a delivery report."""
        if error is not None:
            self.error = error
            return
        self.acknowledged += 1
        self.last = max(self.last, message.offset() or 0)

    @property
    def complete(self) -> bool:
        """Tell whether every record is acknowledged."""
        return self.acknowledged == len(self.writes)


class ChangelogCommit:
    """Implements StateCommit. One thread; see ``hooks`` for the order of calls.

    Args:
        writer: for ``flush``.
        rewind: restores a slot anew whose local store could not follow.
    """

    def __init__(self, writer: PlainWriter, rewind: Callable[[OwnedState], None]) -> None:
        self._parts: list[Part] = []
        self._writer = writer
        self._rewind = rewind

    def add(self, part: Part) -> None:
        """Take a slot's writes into the commit; there may be none."""
        self._parts.append(part)

    @property
    def records(self) -> int:
        """How many changelog records it has."""
        return sum(len(part.writes) for part in self._parts)

    def write(self, producer: Producer, deadline: Deadline) -> None:
        """Produce the changelog records; see StateCommit."""
        for part in self._parts:
            part.acknowledged, part.last, part.error = 0, -1, None
            headers = headers_for(part.owned.slot)
            for key, value in part.writes.items():
                self._produce(producer, part, key, value, headers, deadline)

    def flush(self, deadline: Deadline) -> None:
        """Write the changelog records and wait for their acknowledgements; see StateCommit."""
        if self.records:
            try:
                self._flush(self._writer.producer(), deadline)
            except KpsplitError:
                self.aborted()
                raise
        self.committed()

    def committed(self) -> None:
        """The changelog has the records: the local store follows.

        A slot whose local store cannot follow is restored anew; nothing is lost.
        """
        now = int(time.time() * 1000)
        for part in self._parts:
            if not part.writes:
                part.owned.settled()
            elif not part.complete or not _applied(part, now):
                self._rewind(part.owned)

    def aborted(self) -> None:
        """The writes wait for the next commit."""
        for part in self._parts:
            part.owned.aborted()

    def _flush(self, producer: Producer, deadline: Deadline) -> None:
        self.write(producer, deadline)
        while not all(part.complete for part in self._parts):
            producer.flush(min(0.5, deadline.left()))
            error = next((part.error for part in self._parts if part.error), None)
            if error is not None:
                if error.fatal():
                    self._writer.forget()
                raise translate(error, "write the changelog", writing=True)
            if deadline.left() <= 0 and not all(part.complete for part in self._parts):
                raise UnknownOutcomeError(
                    "the changelog's acknowledgements did not come in time",
                    hint="no position was committed; the next commit writes them again",
                )

    def _produce(
        self,
        producer: Producer,
        part: Part,
        key: bytes,
        value: bytes | None,
        headers: list[tuple[str, str | bytes | None]],
        deadline: Deadline,
    ) -> None:
        number = part.owned.slot.number
        while True:
            try:
                producer.produce(part.topic, value, key, number, part.report, headers=headers)
                return
            except BufferError:
                deadline.check("room in the producer's queue for changelog records")
                producer.poll(_FULL_QUEUE_SECONDS)
            except KafkaException as exception:
                raise translate(error_of(exception), "write the changelog", writing=True) from exception


def _applied(part: Part, now: int) -> bool:
    try:
        part.owned.committed(part.writes, part.last + 1, now)
    except KpsplitError as error:
        log.warning("kpsplit: the state of %s is restored anew: %s", part.owned.slot, error)
        return False
    return True
