"""Follows partitions of a topic of kpsplit's own from their starts, and knows when it has read to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicPartition

from kpsplit.errors import FutureVersionError
from kpsplit.kafka.connection import TRY_AGAIN_MS, Connection
from kpsplit.kafka.end_request import MIN_REQUEST_SECONDS, OFFSET_REQUEST_SECONDS, EndRequest, answered
from kpsplit.kafka.error_map import TRANSIENT_READS, is_late, translate
from kpsplit.kafka.retries import learn_leaders, while_leaders_move
from kpsplit.splitter.ports import Deadline

_POLL_SECONDS = 0.2


class LogTail:
    """A manually assigned consumer of partitions from their starts, read committed.

    Not thread safe: one thread owns it. Each record is handed to ``fold`` once, in its partition's order.
    ``decided``: ends are asked for as last stable offsets, so that everything before them is decided; else as
    high watermarks, which a transaction that is still open holds up.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        fold: Callable[[Message], None],
        partitions: Iterable[int] = (0,),
        *,
        decided: bool = True,
    ) -> None:
        self._topic = topic
        self._fold = fold
        self._isolation = IsolationLevel.READ_COMMITTED if decided else IsolationLevel.READ_UNCOMMITTED
        self._positions: dict[int, int] = {}
        self._admin = connection.shared_admin()
        self._consumer = connection.open_reader(
            "tail",
            auto_offset_reset="earliest",
            fetch_error_backoff_ms=50,
            reconnect_backoff_max_ms=connection.longest_pause(TRY_AGAIN_MS),
        )
        self._asked: EndRequest | None = None
        self._stopped: FutureVersionError | None = None
        self.follow(partitions)

    def follow(self, partitions: Iterable[int]) -> None:
        """Follow these partitions too."""
        new = sorted(set(partitions) - self._positions.keys())
        if new:
            self._consumer.incremental_assign([TopicPartition(self._topic, p, 0) for p in new])
            self._positions.update(dict.fromkeys(new, 0))

    def position(self, partition: int = 0) -> int:
        """Return the offset before which everything was handed over, transaction markers included."""
        return self._positions[partition]

    def reached(self, ends: Mapping[int, int]) -> bool:
        """Tell whether everything before these ends is decided and handed over."""
        return all(self._positions.get(partition, 0) >= end for partition, end in ends.items())

    def poll(self, seconds: float) -> bool:
        """Hand over what arrives within that time; tell whether a record did.

        Raises:
            FutureVersionError: a newer kpsplit writes the topic; nothing behind its record is read any more.
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

    def ask_end(self, seconds: float = OFFSET_REQUEST_SECONDS) -> EndRequest:
        """Ask where the followed partitions end without waiting for the answer.

        Waits up to a second for the leaders before the first question and behind one that failed: a client
        that is asked before it knows any leader may look for one only seconds later.
        """
        if self._asked is None or self._asked.failed:
            learn_leaders(self._admin, self._topic, seconds)
        self._asked = EndRequest(self._admin, self._topic, self._positions, self._isolation, seconds)
        return self._asked

    def read_to(self, ends: Mapping[int, int], deadline: Deadline) -> None:
        """Hand over everything before these ends.

        Raises:
            DeadlineExceededError: it did not arrive in time, or a transaction is open for longer.
        """
        while not self.reached(ends):
            deadline.check(f"{self._topic} to be read to its end (an open transaction may hold it up)")
            self.poll(min(_POLL_SECONDS, deadline.left()))

    def read_to_end(self, deadline: Deadline) -> None:
        """Hand over everything that was there when the call began (decided then, if ``decided``).

        Raises:
            DeadlineExceededError: not in time. KpsplitError: the topic cannot be read.
        """
        with answered(self._topic):
            ends = self._ends(deadline)
        self.read_to(ends, deadline)

    def _ends(self, deadline: Deadline) -> dict[int, int]:
        """Ask where the log ends, as often as there is time: a question is lost while the client connects."""
        while True:
            seconds = max(min(OFFSET_REQUEST_SECONDS, deadline.left()), MIN_REQUEST_SECONDS)
            try:
                return while_leaders_move(
                    self._admin, self._topic, lambda left: self.ask_end(left).answer(), seconds
                )
            except (TimeoutError, KafkaException) as error:
                if deadline.left() <= 0 or not is_late(error):
                    raise
                learn_leaders(self._admin, self._topic, deadline.left())

    def close(self) -> None:
        """End the consumer."""
        self._consumer.close()

    def _take(self, message: Message) -> bool:
        error = message.error()
        partition, offset = message.partition() or 0, message.offset() or 0
        if error is None:
            self._hand_over(message)
            self._reach(partition, offset + 1)
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self._reach(partition, offset)
        elif error.code() not in TRANSIENT_READS:
            raise translate(error, f"read {self._topic}")
        return False

    def _reach(self, partition: int, offset: int) -> None:
        self._positions[partition] = max(self._positions[partition], offset)

    def _hand_over(self, message: Message) -> None:
        """Fold a record; behind one of a newer version nothing is ever read again: it would be guessing."""
        try:
            self._fold(message)
        except FutureVersionError as error:
            self._stopped = error
            raise
