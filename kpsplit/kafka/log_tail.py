"""Follows one partition of a topic of kpsplit's own, and knows when it has read to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kpsplit.errors import FutureVersionError, UnreachableError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import TRANSIENT_READS, error_of, translate, translated
from kpsplit.kafka.retries import learn_leaders, while_leaders_move
from kpsplit.splitter.ports import Deadline

OFFSET_REQUEST_SECONDS = 5.0
MIN_REQUEST_SECONDS = 0.1


class EndRequest:
    """A question for a log's last stable offset: every transaction before it is decided.

    ``asked`` is the monotonic time at which the question was asked: what the answer says held then or later.
    """

    def __init__(self, admin: AdminClient, topic: str, partition: int, seconds: float) -> None:
        self.asked = monotonic()
        self._what = f"read the end of {topic}/{partition}"
        self._seconds = max(seconds, MIN_REQUEST_SECONDS)
        place = TopicPartition(topic, partition)
        futures: dict[TopicPartition, Future[Any]] = admin.list_offsets(
            {place: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._seconds,
        )
        self._future = futures[place]

    def done(self) -> bool:
        """Tell whether the answer is there."""
        return self._future.done()

    def answer(self) -> int:
        """Return the offset, waiting for it if need be.

        Raises:
            KafkaException: the broker refused. TimeoutError: no answer in time.
        """
        return int(self._future.result(self._seconds + 1.0).offset)

    def result(self) -> int:
        """Return the offset like ``answer``, with kpsplit's errors.

        Raises:
            KpsplitError: the broker could not be asked.
        """
        with _answered(self._what):
            return self.answer()


def stable_end(admin: AdminClient, topic: str, partition: int, seconds: float) -> int:
    """Return the last stable offset, asking again while leaders move.

    Raises:
        KpsplitError: the broker could not be asked.
    """
    with _answered(f"read the end of {topic}/{partition}"):
        return while_leaders_move(
            admin, topic, lambda left: EndRequest(admin, topic, partition, left).answer(), seconds
        )


@contextmanager
def _answered(what: str) -> Iterator[None]:
    with translated(what):
        try:
            yield
        except TimeoutError:
            raise UnreachableError(f"could not {what} in time") from None


class LogTail:
    """A manually assigned consumer from the start of one partition, read committed.

    Not thread safe: one thread owns it. ``position`` is the offset before which everything was handed over,
    transaction markers included.
    """

    def __init__(
        self, connection: Connection, topic: str, fold: Callable[[Message], None], partition: int = 0
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._fold = fold
        self._admin = AdminClient(connection.client("admin"))
        self._consumer = Consumer(
            connection.reader(
                "tail", auto_offset_reset="error", fetch_error_backoff_ms=50, reconnect_backoff_max_ms=1000
            )
        )
        self._consumer.assign([TopicPartition(topic, partition, 0)])
        self.position = 0
        self._stopped: FutureVersionError | None = None

    def poll(self, seconds: float) -> bool:
        """Hand over what arrives within that time; tell whether a record did.

        Raises:
            KpsplitError: the topic cannot be read (missing, no right).
        """
        if self._stopped is not None:
            raise self._stopped
        message = self._consumer.poll(seconds)
        arrived = False
        while message is not None:
            arrived = self._take(message) or arrived
            message = self._consumer.poll(0)
        return arrived

    def end(self, seconds: float = OFFSET_REQUEST_SECONDS) -> int:
        """Return the log's last stable offset now."""
        return stable_end(self._admin, self._topic, self._partition, seconds)

    def ask_end(self, seconds: float = OFFSET_REQUEST_SECONDS) -> EndRequest:
        """Ask for the log's last stable offset without waiting for the answer."""
        return EndRequest(self._admin, self._topic, self._partition, seconds)

    def learn_leader(self) -> None:
        """Look for the leader anew; called when a question failed."""
        learn_leaders(self._admin, self._topic, OFFSET_REQUEST_SECONDS)

    def read_to(self, end: int, deadline: Deadline) -> None:
        """Hand over everything before an offset.

        Raises:
            DeadlineExceededError: it did not arrive in time.
        """
        while self.position < end:
            deadline.check(f"{self._topic} to be read to its end")
            self.poll(min(0.2, deadline.left()))

    def read_to_end(self, deadline: Deadline) -> None:
        """Hand over everything that was decided when the call began."""
        self.read_to(self.end(min(OFFSET_REQUEST_SECONDS, deadline.left())), deadline)

    def close(self) -> None:
        """End the consumer."""
        self._consumer.close()

    def _take(self, message: Message) -> bool:
        error = message.error()
        offset = message.offset()
        if error is None:
            self._hand_over(message)
            self.position = max(self.position, (offset or 0) + 1)
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self.position = max(self.position, offset or 0)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._restart_at_log_start()
        elif error.code() not in TRANSIENT_READS:
            raise translate(error, f"read {self._topic}")
        return False

    def _hand_over(self, message: Message) -> None:
        """Fold a record; behind one of a newer version nothing is ever read again: it would be guessing."""
        try:
            self._fold(message)
        except FutureVersionError as error:
            self._stopped = error
            raise

    def _restart_at_log_start(self) -> None:
        """Compaction may have removed the first offsets: nothing is missed by starting behind them."""
        try:
            low, _ = self._consumer.get_watermark_offsets(
                TopicPartition(self._topic, self._partition), timeout=OFFSET_REQUEST_SECONDS
            )
        except KafkaException as exception:
            raise translate(error_of(exception), f"read the start of {self._topic}") from exception
        self._consumer.assign([TopicPartition(self._topic, self._partition, max(low, self.position))])
