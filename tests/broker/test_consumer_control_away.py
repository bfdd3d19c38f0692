"""A broker is away, or the control topic: who asks is answered by others, or guesses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from kpsplit import Consumer
from kpsplit.clock import Deadline
from kpsplit.consumer.broker_executor import QueryClient
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.kafka_python import reassign
from kpsplit.kafka.log_ends import offset_answer
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


def answered(question: Callable[[], object]) -> bool:
    try:
        question()
    except (KafkaException, TimeoutError):
        return False
    return True


def test_clients_that_only_ask_find_others_when_the_broker_that_they_asked_is_gone(own: DevCluster) -> None:
    """It was named the controller to some, and led partitions; nothing else has these clients look again."""
    connection, places = Connection({"bootstrap.servers": own.bootstrap}), range(6)
    fresh = AdminClient({"bootstrap.servers": own.bootstrap})
    fresh.create_topics([NewTopic("t", len(places), 3)], operation_timeout=30)["t"].result(60)
    times = QueryClient(connection, "g-times")

    def topic(asking: AdminClient) -> None:
        asking.describe_topics(TopicCollection(["t"]), request_timeout=2)["t"].result(3)

    def ends(asking: AdminClient) -> None:
        wanted = {TopicPartition("t", number): OffsetSpec.latest() for number in places}
        for end in asking.list_offsets(wanted, request_timeout=2).values():
            offset_answer(end, 3)

    def young() -> None:
        assert not times.first_at([PhysicalPartition("t", number) for number in places], 0, 2)

    questions: list[Callable[[], object]] = [young]
    questions += [partial(ask, connection.open_admin("asking")) for ask in (topic, ends) for _ in range(6)]
    for question in questions:
        wait_for(lambda ask=question: answered(ask), "a first answer")
    gone = fresh.list_topics("t", timeout=30).topics["t"].partitions[0].leader
    own.kill(gone)
    found = partial(fresh.list_topics, "t", timeout=30)
    wait_for(lambda: gone not in [p.leader for p in found().topics["t"].partitions.values()], "new leaders")
    limit = Deadline(60)  # librdkafka's own look comes after 5 minutes
    for question in questions:
        wait_for(lambda ask=question: answered(ask), "an answer of another broker", limit.left())
    times.close()
