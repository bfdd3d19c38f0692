"""`init` on a cluster of its own: created once, refused when a topic is not as it has to be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit.admin import Admin
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import CheckFailedError, ConflictError, UnreachableError, UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.records.control import Partitioner
from tests.broker.producing import eventually

pytestmark = pytest.mark.broker

OWN = ["__kpsplit.producers", "__kpsplit.control", "__kpsplit.offsets"]


@pytest.fixture(scope="module")
def alone(kafka_runtime: KafkaRuntime) -> Iterator[DevCluster]:
    with DevCluster(brokers=1) as running:
        yield running


def test_init_creates_what_is_missing_once_and_refuses_what_is_wrong(alone: DevCluster) -> None:
    admin = AdminClient({"bootstrap.servers": alone.bootstrap})
    wrong = NewTopic(OWN[0], 1, 1, config={"cleanup.policy": "delete"})
    admin.create_topics([wrong])[OWN[0]].result(30)
    with Admin(Connection({"bootstrap.servers": alone.bootstrap})) as operations:
        with pytest.raises(UsageError, match="there is no topic __kpsplit.control; run: kpsplit init"):
            operations.view()
        with pytest.raises(CheckFailedError, match="cleanup.policy is 'delete', not 'compact'"):
            operations.initialise()
        assert OWN[1] not in admin.list_topics(timeout=10).topics
        admin.delete_topics([OWN[0]])[OWN[0]].result(30)
        eventually(lambda: OWN[0] not in admin.list_topics(timeout=10).topics, "the broker to drop the topic")

        assert operations.initialise(lease_ms=700, offsets_partitions=4) == OWN
        assert operations.initialise() == []
        assert operations.view().settings.lease_ms == 700
        with pytest.raises(CheckFailedError, match="has 4 partitions, not 5"):
            operations.initialise(offsets_partitions=5)
        assert operations.initialise(lease_ms=600) == []
        assert operations.view().settings.lease_ms == 600
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
        assert operations.enrol("orders", Partitioner.EXPLICIT).settled
        with pytest.raises(ConflictError, match="the lease is 600 ms"):
            operations.initialise(lease_ms=900)
        failed = [c.message for c in operations.doctor() if not c.ok]
        assert failed == ["the lease of 600 ms is outside 1000 to 60000 ms"]


def test_brokers_that_cannot_be_reached_are_one_clear_error() -> None:
    with Admin(Connection({"bootstrap.servers": "127.0.0.1:1"})) as operations:
        with pytest.raises(UnreachableError, match="the brokers cannot be reached"):
            operations.view()
