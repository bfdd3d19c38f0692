"""Reads stretches of physical partitions, one after the other, with one manually assigned consumer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from confluent_kafka import IsolationLevel, KafkaError, Message, TopicPartition

from kpsplit.errors import DeadlineExceededError, KpsplitError, UnreachableError
from kpsplit.kafka.admin_answers import Absence
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import TRANSIENT_READS, translate
from kpsplit.splitter.lineage import PhysicalPartition

BATCH = 1000
BUFFER_KBYTES = 16_384
"""What the client fetches ahead: bounds memory, with the batch."""

AHEAD = 100_000
"""Records that the client fetches ahead of what is read, if they are not more than ``BUFFER_KBYTES``."""

POLL_SECONDS = 0.5
ASK_AGAIN_SECONDS = 0.2
_TRANSIENT = TRANSIENT_READS | {KafkaError.OFFSET_NOT_AVAILABLE}


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offsets [low, high) that a log holds; ``stable``: every transaction before it is decided."""

    low: int
    high: int
    stable: int


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
        """End the consumer."""
        self._consumer.close()

    def rest(self) -> None:
        """Fetch nothing more until the next stretch; what was fetched and not read is dropped."""
        self._source = None
        self._fetched.clear()
        self._consumer.unassign()

    def bounds(self, source: PhysicalPartition) -> LogBounds | None:
        """Return what a physical partition holds now, None if there is no such partition.

        Raises:
            KpsplitError: the brokers could not be asked, or a right is missing.
        """
        low = self._admin.start_offsets([source])
        high = self._admin.end_offsets([source])
        stable = self._admin.end_offsets([source], IsolationLevel.READ_COMMITTED)
        if source not in low or source not in high or source not in stable:
            return None
        return LogBounds(low[source], high[source].offset, stable[source].offset)

    def topic_id(self, topic: str) -> str | None:
        """Return Kafka's id of a topic, None if there is no such topic.

        A broker may not know every topic yet, so "no" is asked for more than once.
        """
        absence = Absence()
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
        if error is None or error.code() in _TRANSIENT:
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self._position = max(self._position, message.offset() or 0)
            return self._position < end and self._goes_on_to(end)
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise LostStartError(self._position)
        raise translate(error, f"read {self._source}")

    def _goes_on_to(self, end: int) -> bool:
        """Tell whether the log is longer than what can be read now: an open transaction holds readers up."""
        found = None if self._source is None else self.bounds(self._source)
        return found is not None and found.high >= end

    def _stuck(self, end: int) -> KpsplitError:
        found = None if self._source is None else self.bounds(self._source)
        if found is not None and found.stable < min(end, found.high):
            return DeadlineExceededError(
                f"an open transaction holds readers of {self._source} at offset {found.stable}",
                hint="wait for it, or end it with kafka-transactions.sh",
            )
        return UnreachableError(
            f"{self._source}: nothing arrived within {self._patience:.0f} s", hint="retry"
        )


class LostStartError(Exception):
    """The position is outside the log: records before its start were deleted, or its end was cut off."""

    def __init__(self, position: int) -> None:
        super().__init__(f"position {position} is outside the log")
        self.position = position
