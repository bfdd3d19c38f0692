"""Reads stretches of physical partitions, one after the other; asks brokers about them without waiting."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import cached_property
from typing import Any

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from kpsplit.clock import Deadline
from kpsplit.consumer.fetch.gaps import Found, LogBounds
from kpsplit.errors import AuthorizationError, DeadlineExceededError, KpsplitError, UnreachableError
from kpsplit.kafka.cluster_admin import Absence, ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import MISSING, TRANSIENT_READS, error_of, translate
from kpsplit.kafka.log_ends import log_end, offset_answer
from kpsplit.splitter.lineage import PhysicalPartition

BATCH = 1000
BUFFER_KBYTES = 16_384
"""What the client fetches ahead: bounds memory, with the batch."""

AHEAD = 100_000
"""Records that the client fetches ahead of what is read, if they are not more than ``BUFFER_KBYTES``."""

POLL_SECONDS = 0.5
ASK_AGAIN_SECONDS = 0.2


class PhysicalReader:
    """One consumer for all stretches, read committed. Not thread safe; memory is bounded.

    A stretch that follows the one before it in the same physical partition is read on without a new fetch.

    Args:
        connection: how to reach the cluster.
        patience: seconds without any progress after which a read gives up.
        most: records in the longest stretch. The client fetches about as many ahead, and not what follows
            them; not more than ``AHEAD``, which it also fetches when nothing is said.

    Attributes:
        ahead: how many records the client fetches ahead.
    """

    def __init__(self, connection: Connection, patience: float = 30.0, most: int = AHEAD) -> None:
        self._patience = patience
        self._connection = connection
        self.ahead = min(max(most, 1), AHEAD)
        self._consumer = connection.open_reader(
            "reader",
            auto_offset_reset="error",
            queued_max_messages_kbytes=BUFFER_KBYTES,
            queued_min_messages=self.ahead,
        )
        self._source: PhysicalPartition | None = None
        self._fetched: deque[Message] = deque()
        self._position = 0

    @cached_property
    def _admin(self) -> ClusterAdmin:
        """Made when it is first needed: whoever reads what is known to be there does without."""
        return ClusterAdmin(self._connection)

    def close(self) -> None:
        self._consumer.close()

    def rest(self) -> None:
        """Fetch nothing more until the next stretch; what was fetched and not read is dropped."""
        self._source = None
        self._fetched.clear()
        self._consumer.unassign()

    def bounds(self, source: PhysicalPartition, leader_epoch: int | None = None) -> LogBounds | None:
        """Return what a physical partition holds now, None if it is certain that there is no such partition.

        Leaders that were deposed before ``leader_epoch`` are asked again.

        Raises:
            KpsplitError: the brokers could not be asked or do not agree, or a right is missing.
        """
        limit = Deadline(self._patience)
        while True:
            low = self._admin.start_offsets([source])
            high = self._admin.end_offsets([source])
            stable = self._admin.end_offsets([source], IsolationLevel.READ_COMMITTED)
            if source in low and source in high and source in stable:
                end = high[source]
                bounds = LogBounds(low[source], end.offset, stable[source].offset, end.leader_epoch)
                if not bounds.before(leader_epoch):
                    return bounds
            found = self._admin.known(source.topic)  # each of these answers may be a stale broker's
            if found is None or source.partition >= len(found.partitions):
                return None
            limit.check(f"the brokers to agree on whether there is a log {source}")
            time.sleep(ASK_AGAIN_SECONDS)

    def topic_id(self, topic: str) -> str | None:
        """Return Kafka's id of a topic, None if there is no such topic.

        A broker may not know every topic yet, so "no" is asked for more than once.
        """
        absence = Absence(self._connection, topic)
        while (found := self._admin.layout(topic)) is None and not absence.denied():
            time.sleep(ASK_AGAIN_SECONDS)
        return None if found is None else found.topic_id

    def records(self, source: PhysicalPartition, start: int, end: int) -> Iterator[Message]:
        """Yield the committed records of [start, end) in the order of their offsets.

        It ends early where the log does (the log is shorter than ``end``); ``position`` says where.

        Raises:
            LostStartError: the log's start has moved beyond the place where reading goes on.
            UnreachableError: nothing arrived within the patience. DeadlineExceededError: a transaction hangs.
        """
        self._go_to(source, start)
        idle = Deadline(self._patience)
        while self._position < end:
            if not self._fetched:
                self._fetched.extend(self._fetch(idle, end))
                continue
            message = self._fetched.popleft()
            if message.error() is not None:
                if not self._notice(message, end):
                    return
                continue
            offset = message.offset() or 0
            if offset >= end:
                self._fetched.appendleft(message)
                self._position = offset
                return
            self._position = offset + 1
            yield message
            idle = Deadline(self._patience)

    @property
    def position(self) -> int:
        """The offset before which the current partition has been read."""
        return self._position

    def _go_to(self, source: PhysicalPartition, start: int) -> None:
        if source == self._source and self._position <= start and self._fetched:
            while self._fetched and (self._fetched[0].offset() or 0) < start:
                self._fetched.popleft()
            self._position = start
            if self._fetched:
                return
        self._source, self._position = source, start
        self._assign()

    def _assign(self) -> None:
        if self._source is None:
            return
        self._fetched.clear()
        place = TopicPartition(self._source.topic, self._source.partition, self._position)
        self._consumer.assign([place])

    def _fetch(self, idle: Deadline, end: int) -> list[Message]:
        if idle.left() <= 0:
            raise self._stuck(end)
        first = self._consumer.poll(POLL_SECONDS)
        return [] if first is None else [first, *self._consumer.consume(BATCH - 1, 0)]

    def _notice(self, message: Message, end: int) -> bool:
        """Take an error or the end of the log; tell whether reading goes on."""
        error = message.error()
        if error is None or error.code() in TRANSIENT_READS:
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self._position = max(self._position, message.offset() or 0)
            return self._position < end and self._goes_on_to(end)
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise LostStartError(self._position)
        raise translate(error, f"read {self._source}")

    def _goes_on_to(self, end: int) -> bool:
        """Return whether the log is longer than what can be read now: an open transaction holds it up."""
        found = None if self._source is None else self.bounds(self._source)
        return found is not None and found.high >= end

    def _stuck(self, end: int) -> KpsplitError:
        found = None if self._source is None else self.bounds(self._source)
        if found is not None and found.stable < min(end, found.high):
            return DeadlineExceededError(
                f"an open transaction holds readers of {self._source} at offset {found.stable}",
                hint="wait for it, or end it with kafka-transactions.sh",
            )
        return UnreachableError(f"{self._source}: nothing arrived within {self._patience:g} s", hint="retry")


class LostStartError(Exception):
    """The position is outside the log: records before its start were deleted, or its end was cut off."""

    def __init__(self, position: int) -> None:
        super().__init__(f"position {position} is outside the log")
        self.position = position


REQUEST_SECONDS = 5.0
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class LogProbe:
    """One question, repeated until it is answered: Kafka's id of the topic, and, if wanted, the log's bounds.

    Not thread safe. ``found`` is the answer; ``error`` why it cannot be had (a missing right). ``position``:
    where reading stood when it was asked; an answer says nothing of any other place. ``retired``: the
    control topic says that the topic is deleted, so the first "no" is believed. ``rest``: how many seconds
    pass before it is asked.
    """

    def __init__(
        self,
        admin: AdminClient,
        connection: Connection,
        source: PhysicalPartition,
        position: int,
        *,
        with_bounds: bool,
        holds_up: bool,
        retired: bool = False,
        rest: float = 0.0,
    ) -> None:
        self.source = source
        self.position = position
        self.holds_up = holds_up
        """Whether the physical partition is not read until the answer is there."""
        self.found: Found | None = None
        self.error: KpsplitError | None = None
        self._admin = admin
        self._with_bounds = with_bounds
        self._absence = Absence(connection, source.topic)
        self._retired = retired
        self._again: Deadline | None = None
        self._asked: list[Future[Any]] = []
        if rest:
            self._again = Deadline(rest)
        else:
            self._ask()

    def done(self) -> bool:
        """Look whether the answer is there; ask again if it has to be."""
        if self.found is not None or self.error is not None:
            return True
        if self._again is not None:
            if self._again.left() <= 0:
                self._again = None
                self._ask()
            return False
        if not all(future.done() for future in self._asked):
            return False
        try:
            self.found = _answer(*self._asked)
        except KafkaException as exception:
            self._take_error(error_of(exception))
        except TimeoutError:
            self._absence.doubted()
            self._again = Deadline(ASK_AGAIN_SECONDS)
        return self.found is not None or self.error is not None

    def _take_error(self, error: KafkaError | None) -> None:
        if error is not None and error.code() in MISSING:
            if self._retired or self._absence.denied():
                self.found = Found(None, None)
                return
        else:
            self._absence.doubted()
        translated = translate(error, f"look at {self.source}")
        if isinstance(translated, AuthorizationError):
            self.error = translated
        self._again = Deadline(ASK_AGAIN_SECONDS)

    def _ask(self) -> None:
        topics = TopicCollection([self.source.topic])
        describing = self._admin.describe_topics(topics, request_timeout=REQUEST_SECONDS)
        self._asked = [describing[self.source.topic]]
        if self._with_bounds:
            self._asked += [
                self._offsets(_EARLIEST, IsolationLevel.READ_UNCOMMITTED),
                self._offsets(_LATEST, IsolationLevel.READ_UNCOMMITTED),
                self._offsets(_LATEST, IsolationLevel.READ_COMMITTED),
            ]

    def _offsets(self, spec: OffsetSpec, isolation: IsolationLevel) -> Future[Any]:
        place = TopicPartition(self.source.topic, self.source.partition)
        asked: dict[TopicPartition, Future[Any]] = self._admin.list_offsets(
            {place: spec},
            isolation_level=isolation,
            request_timeout=REQUEST_SECONDS,
        )
        return asked[place]


def _answer(described: Future[Any], *offsets: Future[Any]) -> Found:
    bounds = None
    if offsets:
        low, high, stable = (log_end(offset_answer(asked, 0)) for asked in offsets)
        bounds = LogBounds(low.offset, high.offset, stable.offset, high.leader_epoch)
    return Found(str(described.result(0).topic_id), bounds)
