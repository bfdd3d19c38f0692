"""What the tests of operations share: an initialised cluster, enrolled topics, records, small looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kpsplit import StepDone
from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.control.returning import following
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_ends import offset_answer
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment, Partitioner, encode_enrolment
from kpsplit.splitter.records.data import STAMP_HEADER
from kpsplit.splitter.records.keys import CONTROL_TOPIC, enrolment_key

PAUSE_MS = 30_000
"""Long: what is slow on a busy machine is not wrong."""
PATIENCE_SECONDS = 180.0
"""For each call: the same."""
SHORT_LEASE_MS = 500
SHORTEST_STAMP = 21


class DiedError(BaseException):
    """The operator is gone: nothing catches this, so nothing is tidied up."""


def dying_after(step: str) -> Callable[[StepDone], None]:
    """An observer that ends the operator behind a step."""

    def observe(done: StepDone) -> None:
        if done.name == step:
            raise DiedError(step)

    return observe


@contextmanager
def operating(bootstrap: str) -> Iterator[Admin]:
    """Operations on the session's cluster, initialised by whoever comes first."""
    with Admin(Connection({"bootstrap.servers": bootstrap}), PATIENCE_SECONDS) as operations:
        if CONTROL_TOPIC not in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics:
            operations.initialise(lease_ms=SHORT_LEASE_MS)
        yield operations


def enrolled(operations: Admin, topic: str, partition: int = 0) -> PhysicalPartition:
    """Enrol a topic, with few slots, which cost the brokers less; return one of its partitions."""
    operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=2)
    return PhysicalPartition(topic, partition)


def step_back(bootstrap: str, operations: Admin, topic: str) -> Enrolment:
    """Write the next record of a topic's return to plain clients, whatever it should wait for; return it."""
    recorded = operations.view().recorded(topic)
    assert recorded is not None
    enrolment = following(recorded)
    assert enrolment is not None
    writer = AcknowledgedWriter(Connection({"bootstrap.servers": bootstrap}), "tests")
    writer.write(CONTROL_TOPIC, enrolment_key(topic), encode_enrolment(enrolment), Deadline(60))
    return enrolment


def state_of(operations: Admin, parent: PhysicalPartition) -> PartitionState:
    """The state of a partition now."""
    state = operations.view().state(parent)
    assert state is not None
    return state


def split(operations: Admin, parent: PhysicalPartition, ranges: int = 4) -> PartitionState:
    """Split a partition into even ranges."""
    plan = operations.plan_split(parent, ranges, even=True)
    return operations.run(plan, max_pause_ms=PAUSE_MS).state


def merge(operations: Admin, parent: PhysicalPartition) -> PartitionState:
    """Merge all ranges back into the parent."""
    return operations.run(operations.plan_merge(parent), max_pause_ms=PAUSE_MS).state


def write(bootstrap: str, topic: str, count: int, partition: int = -1, key: str = "key-{}") -> None:
    """Write records with librdkafka's default partitioner."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
    errors: list[KafkaError | None] = []
    for i in range(count):
        producer.produce(topic, b"v", key.format(i), partition, lambda error, _: errors.append(error))
    producer.flush(30)
    assert errors == [None] * count


def write_error(bootstrap: str, place: PhysicalPartition) -> KafkaError | None:
    """Try to write the smallest record that has a stamp; return the broker's answer."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 20_000})
    errors: list[KafkaError | None] = []
    stamp: list[tuple[str, str | bytes | None]] = [(STAMP_HEADER, bytes(SHORTEST_STAMP))]
    report = partial(_keep_error, errors)
    producer.produce(place.topic, None, None, place.partition, report, headers=stamp)
    producer.flush(30)
    return errors[0]


def _keep_error(errors: list[KafkaError | None], error: KafkaError | None, _: Message) -> None:
    errors.append(error)


def log_end(admin: AdminClient, place: PhysicalPartition) -> int:
    """The high watermark."""
    asked = TopicPartition(place.topic, place.partition)
    return int(offset_answer(admin.list_offsets({asked: OffsetSpec.latest()})[asked], 20).offset)


def stable_end(admin: AdminClient, place: PhysicalPartition) -> int:
    """The last stable offset."""
    asked, committed = TopicPartition(place.topic, place.partition), IsolationLevel.READ_COMMITTED
    answer = admin.list_offsets({asked: OffsetSpec.latest()}, isolation_level=committed)[asked]
    return int(offset_answer(answer, 20).offset)


def records(bootstrap: str, place: PhysicalPartition) -> list[Message]:
    """All records of a physical partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tests", "enable.partition.eof": True})
    consumer.assign([TopicPartition(place.topic, place.partition, 0)])
    found: list[Message] = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message)
    consumer.close()
    return found


def commit(brokers: str | dict[str, Any], group: str, positions: dict[PhysicalPartition, int]) -> None:
    """Commit positions of a consumer group; ``brokers``: their addresses, or how a client connects."""
    config = {"bootstrap.servers": brokers} if isinstance(brokers, str) else brokers
    consumer = Consumer({**config, "group.id": group})
    offsets = [TopicPartition(p.topic, p.partition, offset) for p, offset in positions.items()]
    committed = consumer.commit(offsets=offsets, asynchronous=False)
    assert committed and all(c.error is None for c in committed)
    consumer.close()
