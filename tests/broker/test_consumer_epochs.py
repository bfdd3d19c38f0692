"""Range commits tell in which leader epoch the last processed record was written."""

from __future__ import annotations

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from kpsplit.clock import Deadline
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.kafka_python import reassign
from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.consuming import consumer, drain, shared, wait_for
from tests.broker.operating import write

pytestmark = pytest.mark.broker

SECONDS = 120.0


def move_leader(bootstrap: str, admin: AdminClient, place: PhysicalPartition) -> None:
    """Have another replica lead a partition; its leader epoch rises."""

    def leader() -> int:
        topics = admin.list_topics(place.topic, timeout=30).topics
        return int(topics[place.topic].partitions[place.partition].leader)

    replicas = admin.list_topics(place.topic, timeout=30).topics[place.topic].partitions[place.partition]
    first, *others = replicas.replicas
    reassign(Connection({"bootstrap.servers": bootstrap}), {place: [*others, first]}, Deadline(SECONDS))

    def moved() -> bool:
        asked = [TopicPartition(place.topic, place.partition)]
        admin.elect_leaders(ElectionType.PREFERRED, asked).result(SECONDS)
        return leader() == others[0]

    wait_for(moved, "another leader", SECONDS)


def test_a_range_commit_has_the_leader_epoch_of_the_record_before_its_position(
    bootstrap, operations, make_topic, admin
):
    topic = make_topic()
    group, parent = f"g-{topic}", PhysicalPartition(topic, 0)
    seen: list[int | None] = []
    with consumer(bootstrap, group, enable_auto_commit=False) as member:
        shared(operations, topic, 2)
        member.subscribe([topic])
        for _ in range(2):
            write(bootstrap, topic, 20)
            last = drain(member, 20)[-1].leader_epoch()
            member.commit(asynchronous=False)
            (shown,) = operations.offsets(group, topic, 0)
            commits = [r.commit for r in shown.ranges if r.commit is not None]
            assert {at.leader_epoch for c in commits for at in c.positions.values()} == {last}
            seen.append(last)
            move_leader(bootstrap, admin, parent)
    assert seen[0] is not None and seen[1] is not None
    assert seen[1] > seen[0]
