"""Follows partitions of a topic from their starts, and reads stretches of partitions from any offset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition

from kpsplit.clock import Deadline
from kpsplit.errors import DeadlineExceededError, FutureVersionError, KpsplitError
from kpsplit.kafka.connection import TRY_AGAIN_MS, AdminUse, Connection
from kpsplit.kafka.error_map import TRANSIENT_READS, is_late, translate
from kpsplit.kafka.log_ends import (
    MIN_REQUEST_SECONDS,
    OFFSET_REQUEST_SECONDS,
    EndRequest,
    answered,
    learn_leaders,
    while_leaders_move,
)
from kpsplit.splitter.lineage import PhysicalPartition

_POLL_SECONDS = 0.2
FOLLOW_SECONDS = 1.0


class LogTail:
    """A manually assigned consumer of partitions from their starts, read committed.

    Not thread safe: one thread owns it. Each record is handed to ``fold`` once, in its partition's order.
    ``decided``: ends are asked for as last stable offsets, so that everything before them is decided; else as
    high watermarks, which a transaction that is still open holds up. ``everything``: records of open and of
    aborted transactions are handed over as well, and nothing holds anything up. ``begin``: the first offset.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        fold: Callable[[Message], None],
        partitions: Iterable[int] = (0,),
        *,
        decided: bool = True,
        everything: bool = False,
        begin: int = 0,
    ) -> None:
        self._topic = topic
        self._fold = fold
        committed = decided and not everything
        self._isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        self._begin = begin
        self._positions: dict[int, int] = {}
        self._admin = AdminUse(connection)
        self._admin()  # at once: a client that is asked early knows no leaders
        self._consumer = connection.open_reader(
            "tail",
            auto_offset_reset="earliest",
            isolation_level="read_uncommitted" if everything else "read_committed",
            fetch_error_backoff_ms=50,
            socket_timeout_ms=connection.answer_ms(),
            reconnect_backoff_max_ms=connection.longest_pause(TRY_AGAIN_MS),
        )
        self._asked: EndRequest | None = None
        self._stopped: FutureVersionError | None = None
        self._assign(partitions)

    def follow(self, partitions: Iterable[int]) -> None:
        """Follow more partitions; waits up to a second for the client to learn their leaders.

        By itself it looks for them once a second, and reads nothing until then.
        """
        if self._assign(partitions):
            learn_leaders(self._consumer, self._topic, FOLLOW_SECONDS)

    def _assign(self, partitions: Iterable[int]) -> bool:
        new = sorted(set(partitions) - self._positions.keys())
        if new:
            self._consumer.incremental_assign([TopicPartition(self._topic, p, self._begin) for p in new])
            self._positions.update(dict.fromkeys(new, self._begin))
        return bool(new)

    def progress(self) -> int:
        """Return a number that rises with everything that is read, transaction markers included."""
        return sum(self._positions.values())

    def reached(self, ends: Mapping[int, int]) -> bool:
        """Return whether everything before these ends is decided and handed over."""
        return all(self._positions.get(partition, 0) >= end for partition, end in ends.items())

    def poll(self, seconds: float) -> bool:
        """Hand over what arrives within that time; return whether a record did.

        Raises:
            FutureVersionError: a newer kpsplit writes the topic; nothing after its record is read any more.
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

        Waits up to a second for the leaders before the first question and after one that failed: a client
        that is asked before it knows any leader may look for one only seconds later.
        """
        if self._asked is None or self._asked.failed:
            learn_leaders(self._admin(), self._topic, seconds)
        self._asked = EndRequest(self._admin(), self._topic, self._positions, self._isolation, seconds)
        return self._asked

    def read_to(self, ends: Mapping[int, int], deadline: Deadline) -> None:
        """Hand over everything before these ends.

        Raises:
            DeadlineExceededError: it did not arrive in time, or a transaction is open for longer.
        """
        while not self.reached(ends):
            deadline.check(self._to_be_read())
            self.poll(min(_POLL_SECONDS, deadline.left()))

    def read_to_end(self, deadline: Deadline) -> None:
        """Hand over everything that was there when the call began (decided then, if ``decided``)."""
        with answered(self._topic):
            ends = self._ends(deadline)
        self.read_to(ends, deadline)

    def read_each(self, partitions: Collection[int], deadline: Deadline) -> dict[int, KpsplitError]:
        """Hand over what was there in some of the followed partitions when the call began.

        One that cannot be read to that end in time keeps no other from being read.

        Returns:
            By partition, why it was not read to that end: the others were.

        Raises:
            KpsplitError: the topic cannot be read.
        """
        ends: dict[int, int] = {}
        failed: dict[int, KpsplitError] = {}
        half = deadline.left() / 2
        while deadline.left() > half and len(ends) < len(partitions):
            waiting = [p for p in partitions if p not in ends]
            if failed:
                self.poll(min(_POLL_SECONDS, deadline.left() - half))
            if self._asked is None or failed:
                learn_leaders(self._admin(), self._topic, deadline.left() - half)
            seconds = max(deadline.left() - half, MIN_REQUEST_SECONDS)
            self._asked = EndRequest(self._admin(), self._topic, waiting, self._isolation, seconds)
            answers = self._asked.each()
            ends |= {p: end for p, end in answers.items() if isinstance(end, int)}
            failed = {p: error for p, error in answers.items() if isinstance(error, KpsplitError)}
        self.poll(0)
        while not self.reached(ends) and deadline.left() > 0:
            self.poll(min(_POLL_SECONDS, deadline.left()))
        late = [p for p, end in ends.items() if not self.reached({p: end})]
        hint = "kpsplit doctor names whose transaction it is, and how to end it"
        return failed | {
            p: DeadlineExceededError(f"waited for {self._to_be_read(p)}", hint=hint) for p in late
        }

    def _to_be_read(self, partition: int | None = None) -> str:
        name = self._topic if partition is None else f"{self._topic}/{partition}"
        return f"{name} to be read to its end (an open transaction may hold it up)"

    def _ends(self, deadline: Deadline) -> dict[int, int]:
        """Ask where the log ends, as often as there is time: a question is lost while the client connects."""

        def ask(seconds: float) -> dict[int, int]:
            return self.ask_end(seconds).answer()

        while True:
            seconds = max(min(OFFSET_REQUEST_SECONDS, deadline.left()), MIN_REQUEST_SECONDS)
            try:
                return while_leaders_move(self._admin(), self._topic, ask, seconds)
            except (TimeoutError, KafkaException) as error:
                if deadline.left() <= 0 or not is_late(error):
                    raise
                learn_leaders(self._admin(), self._topic, deadline.left())

    def close(self) -> None:
        self._consumer.close()
        self._admin.close()

    def _take(self, message: Message) -> bool:
        error = message.error()
        partition, offset = message.partition() or 0, message.offset() or 0
        if error is None:
            if offset < self._positions[partition]:
                return False  # librdkafka began anew: an old state must not count as the latest one
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
        try:
            self._fold(message)
        except FutureVersionError as error:  # nothing is read again after it: it would be guessing
            self._stopped = error
            raise


_BATCH = 1000
_FEW = 10
_WAIT = 0.2


def read_slice(
    connection: Connection,
    place: PhysicalPartition,
    start: int,
    end: int,
    deadline: Deadline,
    isolation: str = "read_committed",
) -> Iterator[Message]:
    """Yield the records in [start, end), or those that arrive before the deadline.

    Stops at the end of the log as well: offsets without a record (transaction markers, compaction) are
    skipped by the broker. Records that the log has lost at its start are skipped silently.
    """
    if start >= end:
        return
    consumer = _consumer(connection, isolation)
    try:
        consumer.assign([TopicPartition(place.topic, place.partition, start)])
        while deadline.left() > 0:
            for message in consumer.consume(_BATCH, min(_WAIT, deadline.left())):
                error, offset = message.error(), message.offset() or 0
                if error is None and offset < end:
                    yield message
                if (error is None and offset >= end - 1) or _at_end(error):
                    return
                if error is not None and error.code() not in TRANSIENT_READS:
                    raise translate(error, f"read {place}")
    finally:
        consumer.close()


def read_at(
    connection: Connection, offsets: Mapping[PhysicalPartition, int], deadline: Deadline
) -> dict[PhysicalPartition, Message]:
    """Return the first record at or after an offset of each partition, as far as they arrive in time.

    Uncommitted ones as well. Where an offset has left the log, the first record of the log is returned.
    """
    found: dict[PhysicalPartition, Message] = {}
    if not offsets:
        return found
    consumer = _consumer(connection, "read_uncommitted")
    waiting = set(offsets)
    try:
        consumer.assign([TopicPartition(p.topic, p.partition, offset) for p, offset in offsets.items()])
        while waiting and deadline.left() > 0:
            for message in consumer.consume(_FEW, min(_WAIT, deadline.left())):
                place = PhysicalPartition(message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is not None and error.code() in TRANSIENT_READS:
                    continue
                if place in waiting:
                    waiting.discard(place)
                    consumer.pause([TopicPartition(place.topic, place.partition)])
                    if error is None:
                        found[place] = message
    finally:
        consumer.close()
    return found


def _consumer(connection: Connection, isolation: str) -> Consumer:
    return connection.open_reader("slice", isolation_level=isolation, auto_offset_reset="earliest")


def _at_end(error: KafkaError | None) -> bool:
    return error is not None and error.code() == KafkaError._PARTITION_EOF
