"""The offset log: followed by everybody who needs range commits; written by ``kafka.commit_writer``.

Where the log ends is asked as the *high watermark*, not as the last stable offset: a new owner of a slot
waits until every transaction that an earlier owner may still commit is decided. An open transaction holds it
up for no longer than its timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from kpsplit.errors import (
    CheckFailedError,
    FutureVersionError,
    UnreachableError,
    UsageError,
)
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import TRANSIENT_READS, error_of, translate, translated
from kpsplit.kafka.log_tail import MIN_REQUEST_SECONDS, OFFSET_REQUEST_SECONDS
from kpsplit.kafka.retries import learn_leaders, while_leaders_move
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.keys import OFFSETS_TOPIC

_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def offset_log_partitions(admin: ClusterAdmin) -> int:
    """Return how many partitions the offset log has.

    Raises:
        UsageError: there is none. CheckFailedError: it is not compacted, so commits would be lost.
        AuthorizationError: it must not be described.
    """
    found = admin.find(OFFSETS_TOPIC)
    if found is None:
        raise UsageError(f"there is no topic {OFFSETS_TOPIC}", hint="run: kpsplit init")
    policy = found.config.get("cleanup.policy", "")
    if policy != "compact":
        raise CheckFailedError(
            f"topic {OFFSETS_TOPIC} has cleanup.policy {policy!r}: range commits would be lost",
            hint="set cleanup.policy=compact with kafka-configs",
        )
    return len(found.partitions)


class EndsRequest:
    """A question for the high watermarks of some partitions of the offset log.

    ``asked`` is the monotonic time at which the question was asked: what the answer says held then or later.
    """

    def __init__(self, admin: AdminClient, partitions: Iterable[int], seconds: float) -> None:
        self.asked = monotonic()
        self._seconds = max(seconds, MIN_REQUEST_SECONDS)
        wanted = {TopicPartition(OFFSETS_TOPIC, p): _LATEST for p in partitions}
        self._futures: dict[TopicPartition, Future[Any]] = (
            admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=self._seconds
            )
            if wanted
            else {}
        )

    def done(self) -> bool:
        """Tell whether the answer is there."""
        return all(future.done() for future in self._futures.values())

    def answer(self) -> dict[int, int]:
        """Return the end of each partition, waiting for it if need be.

        Raises:
            KafkaException: the broker refused. TimeoutError: no answer in time.
        """
        end = monotonic() + self._seconds + 1.0
        return {
            place.partition: int(future.result(max(0.0, end - monotonic())).offset)
            for place, future in self._futures.items()
        }

    def result(self) -> dict[int, int]:
        """Return the ends like ``answer``, with kpsplit's errors.

        Raises:
            KpsplitError: the broker could not be asked.
        """
        return _explained(self.answer)


class OffsetTail:
    """Follows partitions of the offset log from their starts, read committed.

    Not thread safe: one thread owns it. ``fold`` holds what was read. Partitions are added by ``follow`` and
    stay.
    """

    def __init__(self, connection: Connection, partitions: Iterable[int] = ()) -> None:
        self.fold = CommitFold()
        self._positions: dict[int, int] = {}
        self._admin = AdminClient(connection.client("admin"))
        self._consumer = Consumer(
            connection.reader(
                "offsets",
                auto_offset_reset="earliest",
                fetch_error_backoff_ms=50,
                reconnect_backoff_max_ms=1000,
            )
        )
        self._stopped: FutureVersionError | None = None
        self.follow(partitions)

    def follow(self, partitions: Iterable[int]) -> None:
        """Follow these partitions too."""
        new = sorted(set(partitions) - self._positions.keys())
        if new:
            self._consumer.incremental_assign([TopicPartition(OFFSETS_TOPIC, p, 0) for p in new])
            self._positions.update(dict.fromkeys(new, 0))

    def position(self, partition: int) -> int:
        """Return the offset before which everything of a partition is in the fold."""
        return self._positions[partition]

    def poll(self, seconds: float) -> bool:
        """Take what arrives within that time; tell whether a record did.

        Raises:
            FutureVersionError: a newer kpsplit writes to the log; nothing behind its record is read any more.
            KpsplitError: the log cannot be read (missing, no right).
        """
        if self._stopped is not None:
            raise self._stopped
        message = self._consumer.poll(seconds)
        arrived = False
        while message is not None:
            arrived = self._take(message) or arrived
            message = self._consumer.poll(0)
        return arrived

    def ask_end(self, seconds: float = OFFSET_REQUEST_SECONDS) -> EndsRequest:
        """Ask where the followed partitions end without waiting for the answer."""
        return EndsRequest(self._admin, self._positions, seconds)

    def reached(self, ends: Mapping[int, int]) -> bool:
        """Tell whether everything before these ends is decided and in the fold."""
        return all(self._positions.get(partition, 0) >= end for partition, end in ends.items())

    def learn_leader(self) -> None:
        """Look for the leaders anew; called when a question failed."""
        learn_leaders(self._admin, OFFSETS_TOPIC, OFFSET_REQUEST_SECONDS)

    def read_to(self, ends: Mapping[int, int], deadline: Deadline) -> None:
        """Take everything before these ends.

        Raises:
            DeadlineExceededError: it was not decided in time: a transaction is open for longer.
        """
        while not self.reached(ends):
            deadline.check(f"{OFFSETS_TOPIC} to be read to its end (an open transaction may hold it up)")
            self.poll(min(0.2, deadline.left()))

    def read_to_end(self, deadline: Deadline) -> CommitFold:
        """Take everything that was written when the call began, decided or not; return the fold.

        Raises:
            DeadlineExceededError: a transaction that was open then is not decided in time.
            KpsplitError: the log cannot be read.
        """
        seconds = max(min(OFFSET_REQUEST_SECONDS, deadline.left()), MIN_REQUEST_SECONDS)
        ends = _explained(
            lambda: while_leaders_move(
                self._admin, OFFSETS_TOPIC, lambda left: self.ask_end(left).answer(), seconds
            )
        )
        self.read_to(ends, deadline)
        return self.fold

    def close(self) -> None:
        """End the consumer."""
        self._consumer.close()

    def _take(self, message: Message) -> bool:
        error = message.error()
        partition, offset = message.partition() or 0, message.offset() or 0
        if error is None:
            self._fold(message)
            self._reach(partition, offset + 1)
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self._reach(partition, offset)
        elif error.code() not in TRANSIENT_READS:
            raise translate(error, f"read {OFFSETS_TOPIC}")
        return False

    def _reach(self, partition: int, offset: int) -> None:
        self._positions[partition] = max(self._positions[partition], offset)

    def _fold(self, message: Message) -> None:
        """Fold a record; behind one of a newer version nothing is ever read again: it would be guessing."""
        try:
            self.fold.fold(message.key(), message.value(), message.offset() or 0)
        except FutureVersionError as error:
            self._stopped = error
            raise


def _explained(ask: Callable[[], dict[int, int]]) -> dict[int, int]:
    what = f"read the end of {OFFSETS_TOPIC}"
    with translated(what):
        try:
            return ask()
        except TimeoutError:
            raise UnreachableError(f"could not {what} in time") from None
        except KafkaException as exception:
            error = error_of(exception)
            if error is None or error.code() != KafkaError._NOENT:
                raise
            raise UnreachableError(
                f"{OFFSETS_TOPIC} has no leader", hint="if there is no such topic, run: kpsplit init"
            ) from exception
