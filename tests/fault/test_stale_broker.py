"""A broker that never heard of a sub-topic is the only one that answers: the sub-topic is not gone.

It is frozen (SIGSTOP) before the split. It wakes up while the other two are frozen, so it cannot learn what
it missed, and it answers "no such topic" for as long as they are.
"""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit.admin import Admin
from kpsplit.consumer.fetch.gaps import GapFound, GapPolicy
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import DeadlineExceededError, KpsplitError
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.cluster_admin import CERTAIN_SECONDS, ClusterAdmin
from kpsplit.kafka.connection import Connection
from tests.broker.operating import PAUSE_MS, enrolled, state_of
from tests.broker.producing import eventually
from tests.broker.slot_reading import Member, Writer, slots_of

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

STALE, OTHERS = 2, (0, 1)
TOPIC = "orders"


def test_a_stale_broker_that_is_the_only_one_to_answer_makes_no_gap(kafka_runtime: KafkaRuntime) -> None:
    with DevCluster(3) as cluster, Admin({"bootstrap.servers": cluster.bootstrap}) as operations:
        connection = Connection({"bootstrap.servers": cluster.bootstrap})
        operations.initialise()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        beside = NewTopic(TOPIC, replica_assignment=[list(OTHERS)])
        admin.create_topics([beside])[TOPIC].result(60)
        parent = enrolled(operations, TOPIC)
        writer = Writer(cluster.bootstrap, parent)
        cluster.pause(STALE)
        brokers = ClusterAdmin(connection).brokers
        eventually(lambda: STALE not in brokers(), "the frozen broker to be fenced")
        plan = operations.plan_split(parent, 2, even=True)
        state = operations.run(plan, max_pause_ms=PAUSE_MS, force=True).state
        (subtopic,) = (t.name for t in state.subtopics)
        writer.write(state_of(operations, parent), 5)
        member = Member(cluster.bootstrap, lambda _: state, on_gap=GapPolicy.SKIP_AND_REPORT)
        alone = Connection({"bootstrap.servers": f"127.0.0.1:{cluster.brokers[STALE].port}"})
        asking = ClusterAdmin(alone)
        for broker in OTHERS:
            cluster.pause(broker)
        try:
            cluster.resume(STALE)
            eventually(lambda: _denies(asking, subtopic), "the stale broker to answer")
            for slot in slots_of(parent, 4):
                member.own(slot)
            end = time.monotonic() + 3 * CERTAIN_SECONDS
            while time.monotonic() < end:
                member.step()
            assert asking.layout(subtopic) is None, "the broker is stale still"
            assert not [e for e in member.events if isinstance(e, GapFound)]
            with pytest.raises(DeadlineExceededError):
                asking.certain(subtopic, Deadline(1.5 * CERTAIN_SECONDS))
        finally:
            for broker in OTHERS:
                cluster.resume(broker)
        member.read(sum(map(len, writer.sent.values())))
        assert member.by_key() == dict(writer.sent)
        member.close()


def _denies(asking: ClusterAdmin, topic: str) -> bool:
    try:
        return asking.layout(topic) is None
    except KpsplitError:
        return False
