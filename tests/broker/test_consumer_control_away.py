"""The control topic cannot be reached while consumers run: they go on, guess nothing, and lose nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Consumer
from kpsplit.clock import Deadline
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.kafka_python import reassign
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import CONTROL_TOPIC
from tests.broker.consuming import consumer, drain, shared, wait_for
from tests.broker.operating import operating, write

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

SECONDS = 120.0
COUNT = 40


def replicas(bootstrap: str) -> dict[PhysicalPartition, list[int]]:
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics
    return {
        PhysicalPartition(name, number): sorted(facts.replicas)
        for name, topic in topics.items()
        for number, facts in topic.partitions.items()
    }


def put_alone(bootstrap: str, brokers: list[int]) -> int:
    """Have one broker serve the control topic and nothing else, the others the rest; return that broker."""
    alone, *others = brokers
    wanted = {
        place: [alone] if place.topic == CONTROL_TOPIC else sorted(others) for place in replicas(bootstrap)
    }
    reassign(Connection({"bootstrap.servers": bootstrap}), wanted, Deadline(SECONDS))
    wait_for(lambda: replicas(bootstrap) == wanted, "the replicas to move", SECONDS)
    return alone


@pytest.fixture
def own(kafka_runtime: object) -> Iterator[DevCluster]:
    """Brokers of its own, one of which will stand still."""
    with DevCluster(brokers=3) as running:
        yield running


def quiet(member: Consumer) -> bool:
    """Poll; tell whether nothing came and its view is old."""
    assert member.poll(0.1) is None
    return not member.stats()["view_fresh"]


def committed(member: Consumer) -> bool:
    """Commit; tell whether that came through."""
    try:
        member.commit(asynchronous=False)
    except KafkaException:
        return False
    return True


@pytest.mark.nightly
def test_without_the_control_topic_slots_and_plain_partitions_are_read_on_and_nobody_new_begins(
    own: DevCluster,
) -> None:
    bootstrap, admin = own.bootstrap, AdminClient({"bootstrap.servers": own.bootstrap})
    new = [NewTopic(name, 1, 3) for name in ("enrolled", "plain")]
    for created in admin.create_topics(new, operation_timeout=30).values():
        created.result(60)
    with operating(bootstrap) as operations:
        shared(operations, "enrolled", 4)
    write(bootstrap, "enrolled", COUNT)
    write(bootstrap, "plain", COUNT)
    with (
        consumer(bootstrap, "g-slots") as by_slot,
        consumer(bootstrap, "g-plain") as by_partition,
        consumer(bootstrap, "g-new") as late,
        consumer(bootstrap, "g-new-plain") as new_plain,
    ):
        by_slot.subscribe(["enrolled"])
        by_partition.subscribe(["plain"])
        assert len(drain(by_slot, COUNT)) == len(drain(by_partition, COUNT)) == COUNT
        by_slot.commit(asynchronous=False)
        frozen = put_alone(bootstrap, [broker.id for broker in own.brokers])
        # Whoever coordinates groups and transactions has moved: clients learn that when they ask.
        write(bootstrap, "enrolled", COUNT)
        assert len(drain(by_slot, COUNT)) == COUNT
        wait_for(lambda: committed(by_slot), "a commit at the new coordinators")
        wait_for(lambda: by_slot.stats()["view_fresh"], "the control topic at its new place")
        own.pause(frozen)
        try:
            wait_for(lambda: quiet(by_slot), "the view to be old", SECONDS)
            wait_for(lambda: quiet(by_partition), "the view to be old", SECONDS)
            wait_for(lambda: by_slot.stats()["trouble"], "the reason to be told", SECONDS)
            late.subscribe(["enrolled"])
            write(bootstrap, "enrolled", COUNT)
            write(bootstrap, "plain", COUNT)
            read = drain(by_slot, COUNT, SECONDS)
            (part,) = by_slot.commit(asynchronous=False) or []
            assert part.offset == 3 * COUNT
            read_on = drain(by_partition, COUNT, SECONDS)
            assert late.poll(1.0) is None
            new_plain.subscribe(["plain"])
            assert new_plain.poll(1.0) is None
        finally:
            own.resume(frozen)
        everything = drain(late, 3 * COUNT, SECONDS)
        wait_for(lambda: by_slot.stats()["view_fresh"] and not by_slot.stats()["trouble"], "its return")
        assert by_slot.poll(1.0) is by_partition.poll(1.0) is None
    assert [m.offset() for m in read] == list(range(2 * COUNT, 3 * COUNT))
    assert [m.offset() for m in read_on] == list(range(COUNT, 2 * COUNT))
    assert sorted(m.offset() or 0 for m in everything) == list(range(3 * COUNT))
