"""The leader of the producers topic stands still (SIGSTOP) at a step of an operation; nobody is fenced."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Producer, StepDone
from kpsplit.admin import Admin
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.records.keys import PRODUCERS_TOPIC
from tests.broker.operating import enrolled
from tests.broker.producing import eventually
from tests.fault.test_brokers_break import leader_of

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

PAUSE_MS = 20_000
TRY_SECONDS = 60.0


def committed(producer: Producer, topic: str) -> bool:
    """Tell whether a transaction came through; only what ends a producer for good is raised."""
    try:
        producer.begin_transaction()
        producer.produce(topic, b"v", b"key")
        producer.commit_transaction(TRY_SECONDS)
    except KafkaException as exception:
        if exception.args[0].fatal():
            raise
        with suppress(KafkaException):
            producer.abort_transaction(TRY_SECONDS)
        return False
    return True


@pytest.mark.parametrize("step", ["Prepare", "Fence", "AppendMarkers", "Commit"])
def test_a_frozen_broker_ends_no_producer_with_transactions(kafka_runtime: KafkaRuntime, step: str) -> None:
    topic, frozen, moved = "orders", list[int](), threading.Event()
    with (
        DevCluster(3) as cluster,
        Admin(Connection({"bootstrap.servers": cluster.bootstrap})) as operations,
    ):
        operations.initialise()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(60)
        parent = enrolled(operations, topic)
        config = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "t"}
        with Producer(config) as producer:
            producer.init_transactions(TRY_SECONDS)
            assert committed(producer, topic)

            def freeze(done: StepDone) -> None:
                if done.name == "Prepare":  # begun earlier, the plan would be refused because of it
                    producer.begin_transaction()
                    producer.produce(topic, b"v", b"key")
                    assert producer.flush(TRY_SECONDS) == 0
                if done.name == step and not frozen:
                    frozen.append(leader_of(cluster.bootstrap, PRODUCERS_TOPIC))
                    cluster.pause(frozen[0])
                if done.name in ("Fence", step):  # the fence waits for the end of the transaction
                    moved.set()

            def write_on() -> None:
                moved.wait(TRY_SECONDS)
                with suppress(KafkaException):
                    producer.commit_transaction(TRY_SECONDS)

            writing = threading.Thread(target=write_on)
            writing.start()
            try:
                with suppress(KpsplitError):  # it may be rolled back
                    plan = operations.plan_split(parent, 2, even=True)
                    operations.run(plan, max_pause_ms=PAUSE_MS, force=True, observer=freeze)
            finally:
                for number in frozen:
                    cluster.resume(number)
                moved.set()
                writing.join()
            assert frozen, "the operation did not come so far"
            with suppress(KafkaException):
                producer.abort_transaction(TRY_SECONDS)
            eventually(lambda: committed(producer, topic), "a transaction of the same producer")
