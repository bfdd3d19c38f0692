"""A broker that never heard of a sub-topic is the only one that answers: the sub-topic is not gone.

It is frozen (SIGSTOP) before the split. It wakes up while the other two are frozen, so it cannot learn what
it missed, and it answers "no such topic" for as long as they are. It is not the active controller: for
half a minute the others would forward to it what they are asked to create.
"""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit.admin import Admin
from kpsplit.consumer.fetch.gaps import GapFound, GapPolicy
from kpsplit.consumer.fetch.physical_reader import LogProbe
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.kafka.cluster_admin import CERTAIN_SECONDS, ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.operating import PAUSE_MS, enrolled
from tests.broker.producing import eventually
from tests.broker.slot_reading import Member, Writer, slots_of
from tests.fault.chaos.brokers import Brokers

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

TOPIC = "orders"
PROBES = 12


def test_a_stale_broker_that_is_the_only_one_to_answer_makes_no_gap(kafka_runtime: KafkaRuntime) -> None:
    with DevCluster(3) as cluster, Admin({"bootstrap.servers": cluster.bootstrap}) as operations:
        connection = Connection({"bootstrap.servers": cluster.bootstrap})
        operations.initialise()
        controller = Brokers(cluster.bootstrap).active_controller(60)
        stale, *others = sorted(range(3), key=lambda broker: broker == controller)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        beside = NewTopic(TOPIC, 1, replica_assignment=[others])
        admin.create_topics([beside])[TOPIC].result(60)
        parent = enrolled(operations, TOPIC)
        cluster.pause(stale)
        brokers = ClusterAdmin(connection).brokers
        eventually(lambda: stale not in brokers(), "the frozen broker to be fenced")
        awake = ",".join(address(cluster, broker) for broker in others)
        writer = Writer(awake, parent)  # like the operator's clients it never asks the frozen broker
        with Admin({"bootstrap.servers": awake}) as fresh:
            plan = fresh.plan_split(parent, 2, even=True)
            state = fresh.run(plan, max_pause_ms=PAUSE_MS, force=True).state
        (subtopic,) = (t.name for t in state.subtopics)
        writer.write(state, 5)
        member = Member(cluster.bootstrap, lambda _: state, on_gap=GapPolicy.SKIP_AND_REPORT)
        alone = AdminClient({"bootstrap.servers": address(cluster, stale)})
        for broker in others:
            cluster.pause(broker)
        try:
            cluster.resume(stale)
            eventually(lambda: TOPIC in listed(alone), "the stale broker to answer")
            assert subtopic not in listed(alone)
            for slot in slots_of(parent, 4):
                member.own(slot)
            place = PhysicalPartition(subtopic, 0)
            probes = [probe(cluster.bootstrap, place) for _ in range(PROBES)]
            end = time.monotonic() + 3 * CERTAIN_SECONDS
            while time.monotonic() < end:
                member.step()
                assert not [p.found for p in probes if p.done()], "nobody is certain"
            assert subtopic not in listed(alone), "the broker is stale still"
            assert not [e for e in member.events if isinstance(e, GapFound)]
        finally:
            for broker in others:
                cluster.resume(broker)
        eventually(lambda: all(p.done() for p in probes), "answers to all questions")
        assert {p.found.topic_id for p in probes if p.found} == {state.topic_id_of(subtopic)}
        member.read(sum(map(len, writer.sent.values())))
        assert member.by_key() == dict(writer.sent)
        member.close()


def address(cluster: DevCluster, broker: int) -> str:
    """Return where one broker listens."""
    return f"127.0.0.1:{cluster.brokers[broker].port}"


def listed(alone: AdminClient) -> set[str]:
    """Return the topics that the one broker knows to which a client is connected."""
    try:
        return set(alone.list_topics(timeout=2).topics)
    except KafkaException:
        return set()


def probe(bootstrap: str, place: PhysicalPartition) -> LogProbe:
    """Return a question of a client of its own: which broker such a client asks is a matter of chance."""
    connection = Connection({"bootstrap.servers": bootstrap})
    return LogProbe(connection.open_admin("probe"), connection, place, 0, with_bounds=False, holds_up=True)
