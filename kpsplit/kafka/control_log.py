"""The control topic: read by everybody, written by the holder of an operation (design, sections 4 and 5)."""

from __future__ import annotations

from binascii import crc32
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from confluent_kafka import KafkaException, Message, Producer

from kpsplit.errors import (
    AuthorizationError,
    FencedError,
    InvariantError,
    UnknownOutcomeError,
    UsageError,
    behind_a_change,
)
from kpsplit.kafka.clock import Deadline as RealDeadline
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.log_tail import LogTail
from kpsplit.kafka.taking_id import MIN_TIMEOUT, TakingId
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.events import Commit, Event, Fence, Prepare
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.control import encode_state
from kpsplit.splitter.records.keys import (
    CONTROL_TOPIC,
    OFFSETS_TOPIC,
    operator_transactional_id,
    partition_key,
)
from kpsplit.splitter.records.offsets import boundaries

TRANSACTION_TIMEOUT_MS = 10_000
"""A holder that dies inside a transaction holds up readers of the control topic for no longer."""

READ_BACK_SECONDS = 10.0
"""For what is written already, however little time is left for the operation."""
FENCE_READ_BACK_SECONDS = 1.0
"""The same for a fence: behind max-pause there is nothing to wait for."""


def offsets_partition(parent: PhysicalPartition, count: int) -> int:
    """Return the partition of the offset log that holds everything about a logical partition."""
    return crc32(partition_key(parent)) % count


class ControlTail(LogTail):
    """A view of the control topic that follows it. Not thread safe: one thread owns it."""

    def __init__(self, connection: Connection) -> None:
        self.view = ControlView()
        super().__init__(connection, CONTROL_TOPIC, self._fold_record)

    def read_all(self, deadline: Deadline) -> ControlView:
        """Read everything that was decided when the call began; return the view.

        Raises:
            DeadlineExceededError: not in time. KpsplitError: the topic cannot be read.
        """
        self.read_to_end(deadline)
        return self.view

    def _fold_record(self, message: Message) -> None:
        self.view.fold(message.key(), message.value())


class OperationLog:
    """Implements the driver's ControlPort for one logical partition. Not thread safe."""

    def __init__(self, connection: Connection, parent: PhysicalPartition) -> None:
        self._connection = connection
        self._parent = parent
        self._tail = ControlTail(connection)
        self._taking = TakingId(partial(_operators_producer, connection, parent))
        self._producer: Producer | None = None
        self._offsets_partitions = 0

    def lease_seconds(self) -> float:
        """Return the length of the producers' lease."""
        return self._tail.view.settings.lease_ms / 1000

    def peek(self, deadline: Deadline) -> PartitionState:
        """Return the partition's state without claiming it."""
        self._tail.read_to_end(deadline)
        return self._state()

    def seen(self) -> PartitionState:
        """Return the state that was read last, without asking again."""
        return self._state()

    def claim(self, deadline: Deadline) -> PartitionState:
        """Fence every earlier holder, read the log to its end, return the state.

        Where an earlier call did not come through in time somebody may have claimed it since: the first
        write is refused then.
        """
        self._destroy()
        try:
            self._producer = self._taking.take(deadline)
        except KafkaException as exception:
            what = f"claim {self._parent} as {operator_transactional_id(self._parent)}"
            raise translate(error_of(exception), what) from exception
        with suppress(KafkaException):  # it only learns the leaders early
            self._producer.list_topics(OFFSETS_TOPIC, timeout=min(max(deadline.left(), MIN_TIMEOUT), 1.0))
        self._tail.read_to_end(deadline)
        return self._state()

    def record(self, before: PartitionState, event: Event, deadline: Deadline) -> PartitionState:
        """Apply and write an event in one transaction and read it back."""
        after = apply(before, event)
        deadline.check(f"the {event.kind} of {self._parent}")
        offset = self._write(after, event, deadline)
        patience = FENCE_READ_BACK_SECONDS if isinstance(event, Fence) else READ_BACK_SECONDS
        with behind_a_change():
            self._tail.read_to({0: offset + 1}, RealDeadline(max(deadline.left(), patience)))
            seen = self._state()
        if seen != after:
            raise FencedError(
                f"{self._parent}: the control topic does not say what was just written", changed=None
            )
        return after

    def close(self) -> None:
        """Let go of the claim and end the clients."""
        self._destroy()
        self._taking.forget()
        self._tail.close()

    def _state(self) -> PartitionState:
        state = self._tail.view.state(self._parent)
        if state is None:
            raise UsageError(
                f"topic {self._parent.topic} is not enrolled",
                hint=f"run: kpsplit enroll {self._parent.topic}",
            )
        return state

    def _count_offsets_partitions(self, deadline: Deadline) -> int:
        admin = self._connection.shared_admin()
        try:
            found = admin.list_topics(timeout=max(deadline.left(), MIN_TIMEOUT)).topics.get(OFFSETS_TOPIC)
        except KafkaException as exception:
            raise translate(error_of(exception), "read the cluster's topics") from exception
        if found is None or not found.partitions:
            raise UsageError(f"there is no topic {OFFSETS_TOPIC}", hint="run: kpsplit init")
        return len(found.partitions)

    def _write(self, after: PartitionState, event: Event, deadline: Deadline) -> int:
        """Write one transaction; return the offset of the control record."""
        producer = self._producer
        if producer is None:
            raise InvariantError(f"{self._parent} is not claimed")
        offsets: list[int] = []
        records = [(CONTROL_TOPIC, 0, partition_key(self._parent), encode_state(after))]
        if isinstance(event, Prepare | Commit):  # whoever only rolls back need not know it
            self._offsets_partitions = self._offsets_partitions or self._count_offsets_partitions(deadline)
        if isinstance(event, Commit):
            records += self._boundary_records(after)
        topics = " and ".join(dict.fromkeys(topic for topic, *_ in records))
        what = f"record the {event.kind} of {self._parent} in {topics}"
        try:
            producer.begin_transaction()
            for topic, partition, key, value in records:
                callback = _keep_offset(offsets) if topic == CONTROL_TOPIC else None
                producer.produce(topic, value, key, partition, callback)
            producer.commit_transaction(max(deadline.left(), MIN_TIMEOUT))
        except KafkaException as exception:
            self._destroy()
            error = error_of(exception)
            translated = translate(error, what, writing=True)
            if isinstance(translated, FencedError | UnknownOutcomeError | AuthorizationError):
                raise translated from exception
            raise UnknownOutcomeError(translated.message) from exception
        if not offsets:
            self._destroy()
            raise UnknownOutcomeError(f"could not {what}: no acknowledgement")
        return offsets[0]

    def _boundary_records(self, after: PartitionState) -> Iterable[tuple[str, int, bytes, bytes]]:
        partition = offsets_partition(self._parent, self._offsets_partitions)
        return [(OFFSETS_TOPIC, partition, b.key, b.encode()) for b in boundaries(after)]

    def _destroy(self) -> None:
        """Never reuse a producer after a commit that did not succeed: a late EndTxn could hit a later one."""
        self._producer = None


def _operators_producer(connection: Connection, parent: PhysicalPartition) -> Producer:
    return connection.open_producer(
        "operator",
        transactional_id=operator_transactional_id(parent),
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        linger_ms=0,
        # Connect to the leader of the offset log now: connecting at the commit would be pause.
        enable_sparse_connections=False,
    )


def _keep_offset(offsets: list[int]) -> Callable[[object, Message], None]:
    def report(error: object, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            offsets.append(offset)

    return report
