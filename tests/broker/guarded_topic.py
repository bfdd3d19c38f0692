"""A guarded cluster with a topic that is split, and what its writers and readers do there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Consumer, Producer
from kpsplit.admin import Admin
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.rights import Role, rights_for
from tests.broker.consuming import drain
from tests.broker.guarded import ADMIN, AccessLists, Guarded, guarded_cluster
from tests.broker.operating import PAUSE_MS, SHORT_LEASE_MS

TOPIC, GROUP, KEYS = "orders", "billing", 30
PARENT = PhysicalPartition(TOPIC, 0)


@contextmanager
def guarded_topic(folder: Path) -> Iterator[Guarded]:
    """A cluster that its admin has initialised, with a topic that its operator has split."""
    with guarded_cluster(folder) as guarded:
        _prepare(guarded)
        yield guarded


def _prepare(guarded: Guarded) -> None:
    """Do it in a function of its own, so that no client outlives it."""
    admin = AdminClient(guarded.client(ADMIN))
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(20)
    lists = AccessLists(guarded)
    for role in Role:
        lists.give(role.value, rights_for(role, TOPIC, group=GROUP))
    with Admin(Connection(guarded.client(ADMIN))) as operations:
        operations.initialise(lease_ms=SHORT_LEASE_MS)
    with Admin(Connection(guarded.client("operator"))) as operations:
        operations.enrol(TOPIC, Partitioner.CONSISTENT_RANDOM, slots=2)
        operations.run(operations.plan_split(PARENT, 2, even=True), max_pause_ms=PAUSE_MS, force=True)


def send(producer: Producer, name: str) -> None:
    told: list[KafkaError | None] = []
    for n in range(KEYS):
        producer.produce(
            TOPIC,
            f"{name}-{n}".encode(),
            f"key-{n}".encode(),
            on_delivery=lambda error, _: told.append(error),
        )
    assert producer.flush(180) == 0
    assert told == [None] * KEYS


def all_of(names: Iterable[str]) -> set[bytes | None]:
    return {f"{name}-{n}".encode() for name in names for n in range(KEYS)}


def consumer(guarded: Guarded) -> Consumer:
    """A member of the group that is allowed."""
    return Consumer(
        {
            **guarded.client("consumer"),
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
        }
    )


def read_all(member: Consumer, names: Iterable[str]) -> None:
    """Read until the records of these names have come."""
    wanted = all_of(names)
    while wanted:
        wanted -= {m.value() for m in drain(member, 1)}
