"""Each role works with the rights that `kpsplit acls` prints, and a missing one is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Consumer, Producer
from kpsplit.consumer.lineage_reader import LineageReader
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.jvm import KafkaRuntime
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.operations import Operations
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.rights import Role, rights_for
from tests.broker.consuming import drain
from tests.broker.guarded import ADMIN, AccessLists, client, guarded_cluster
from tests.broker.operating import PAUSE_MS, SHORT_LEASE_MS

pytestmark = pytest.mark.broker

TOPIC, GROUP, KEYS = "orders", "billing", 30
PARENT = PhysicalPartition(TOPIC, 0)


@pytest.fixture(scope="module")
def guarded(kafka_runtime: KafkaRuntime) -> Iterator[DevCluster]:
    """A cluster with a topic, initialised by its admin; every role has its rights."""
    with guarded_cluster() as cluster:
        admin = AdminClient(client(cluster.bootstrap, ADMIN))
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(20)
        lists = AccessLists(cluster.bootstrap)
        for role in Role:
            lists.give(role.value, rights_for(role, TOPIC, group=GROUP))
        with Operations(Connection(client(cluster.bootstrap, ADMIN))) as operations:
            operations.initialise(lease_ms=SHORT_LEASE_MS)
        yield cluster


@pytest.fixture
def operations(guarded: DevCluster) -> Iterator[Operations]:
    """Operations of somebody who is an operator and no more."""
    with Operations(Connection(client(guarded.bootstrap, "operator"))) as operations:
        yield operations


def send(producer: Producer, name: str) -> None:
    for n in range(KEYS):
        producer.produce(TOPIC, f"{name}-{n}".encode(), f"key-{n}".encode())
    assert producer.flush(30) == 0


def test_everybody_works_with_the_least_rights(guarded: DevCluster, operations: Operations) -> None:
    operations.enrol(TOPIC, Partitioner.CONSISTENT_RANDOM, slots=2)
    consumer = Consumer(
        {**client(guarded.bootstrap, "consumer"), "group.id": GROUP, "auto.offset.reset": "earliest"}
    )
    with Producer(client(guarded.bootstrap, "producer")) as producer, consumer as member:
        member.subscribe([TOPIC])
        send(producer, "before")
        operations.run(operations.plan_split(PARENT, 2, even=True), max_pause_ms=PAUSE_MS, force=True)
        send(producer, "between")
        operations.run(operations.plan_merge(PARENT), max_pause_ms=PAUSE_MS, force=True)
        send(producer, "after")
        values = [m.value() for m in drain(member, 3 * KEYS)]
        member.commit(asynchronous=False)
    assert sorted(values) == sorted(
        f"{w}-{n}".encode() for w in ("before", "between", "after") for n in range(KEYS)
    )
    state = operations.view().state(PARENT)
    assert state is not None and state.epoch == 2
    reader = LineageReader(Connection(client(guarded.bootstrap, "verifier")), state)
    assert len(list(reader.records())) == 3 * KEYS
