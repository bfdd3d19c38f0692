"""Brokers that create topics by themselves, as Kafka's default is: retired sub-topics stay deleted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Producer
from kpsplit.admin import Admin
from kpsplit.devcluster import DevCluster
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.consuming import shared, wait_for
from tests.broker.operating import merge, operating, split

pytestmark = [pytest.mark.broker, pytest.mark.slow]

REFRESH_MS = 500


@pytest.fixture(scope="module")
def creating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of its own; where it is."""
    with DevCluster(
        brokers=3,
        data_dir=tmp_path_factory.mktemp("creating"),
        extra_properties={"auto.create.topics.enable": "true"},
    ) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="module")
def operations(creating: str) -> Iterator[Admin]:
    with operating(creating) as found:
        yield found


def topics(bootstrap: str) -> set[str]:
    return set(ClusterAdmin(Connection({"bootstrap.servers": bootstrap})).topics())


@pytest.mark.nightly
def test_a_missing_topic_is_created_as_by_the_original(creating: str, operations: Admin) -> None:
    reports: list[object] = []
    with Producer({"bootstrap.servers": creating}) as producer:
        producer.produce("created-by-writing", b"v", b"k", on_delivery=lambda error, _: reports.append(error))
        assert producer.flush(60) == 0
    assert reports == [None]


def test_a_missing_topic_is_not_created_where_the_application_does_not_want_it(
    creating: str, operations: Admin
) -> None:
    reports: list[object] = []
    config = {
        "bootstrap.servers": creating,
        "allow.auto.create.topics": False,
        "topic.metadata.propagation.max.ms": 1000,
    }
    with Producer(config) as producer:
        producer.produce("not-created", b"v", b"k", on_delivery=lambda error, _: reports.append(error))
        assert producer.flush(60) == 0
    assert reports[0] is not None and "not-created" not in topics(creating)


def test_a_retired_sub_topic_is_not_made_again_by_a_producer_that_wrote_to_it(
    creating: str, operations: Admin
) -> None:
    """Its records would be acknowledged there and, by their offsets, count as delivered."""
    admin = AdminClient({"bootstrap.servers": creating})
    admin.create_topics([NewTopic("retired", 1, 3)])["retired"].result(30)
    parent = shared(operations, "retired", 2)
    refreshed: list[tuple[float, int]] = []
    """When the producer told of itself, and how old what it knows of the sub-topic was, in seconds."""

    def hear(statistics: str) -> None:
        known = json.loads(statistics)["topics"].get(name)
        if known is not None:
            refreshed.append((time.monotonic(), known["metadata_age"] / 1000))

    config = {
        "bootstrap.servers": creating,
        "topic.metadata.refresh.interval.ms": REFRESH_MS,
        "statistics.interval.ms": 200,
        "stats_cb": hear,
    }
    name = ""
    with Producer(config) as producer:
        (name,) = (t.name for t in split(operations, parent, 2).subtopics)
        _write(producer, parent)
        merge(operations, parent)
        operations.retire(parent, force=True)
        wait_for(lambda: name not in topics(creating), "the deletion")
        deleted = time.monotonic()

        def has_looked_again() -> bool:
            producer.poll(0.1)
            return sum(at - age > deleted for at, age in refreshed) > 3 or time.monotonic() > deleted + 10

        wait_for(has_looked_again, "the producer to look at its topics again")
        _write(producer, parent)
    assert name not in topics(creating)


def _write(producer: Producer, parent: PhysicalPartition) -> None:
    reports: list[object] = []
    for n in range(40):
        producer.produce(
            parent.topic, b"v", b"user-%d" % n, on_delivery=lambda error, _: reports.append(error)
        )
    assert producer.flush(60) == 0
    assert reports == [None] * 40
