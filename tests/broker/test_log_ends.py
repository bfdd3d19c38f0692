"""Where a log ends while its leader does not answer: never told as an end that nobody said."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, Message, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kpsplit.clock import Deadline
from kpsplit.consumer.fetch import physical_reader as probing
from kpsplit.consumer.fetch.physical_reader import LogProbe
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import KpsplitError, UnreachableError
from kpsplit.kafka import log_tail
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_ends import EndRequest, LogEndQueries
from kpsplit.kafka.log_tail import LogTail
from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.producing import eventually

pytestmark = pytest.mark.broker

SECONDS = 60.0
TOPIC, RECORDS = "log", 3
PLACE = PhysicalPartition(TOPIC, 0)


@pytest.fixture(scope="module")
def alone(kafka_runtime: KafkaRuntime) -> Iterator[DevCluster]:
    """One broker that may be frozen, and a log of a few records."""
    with DevCluster(brokers=1) as running:
        fill(running.bootstrap)
        yield running


def fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(SECONDS)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(TOPIC, str(number), partition=0)
    assert producer.flush(SECONDS) == 0


@contextmanager
def frozen(alone: DevCluster) -> Iterator[None]:
    alone.pause(0)
    try:
        yield
    finally:
        alone.resume(0)


def ends(admin: AdminClient, seconds: float) -> dict[int, int]:
    return EndRequest(admin, TOPIC, [0], IsolationLevel.READ_COMMITTED, seconds).result()


def ends_or_none(admin: AdminClient) -> dict[int, int] | None:
    try:
        return ends(admin, SECONDS)
    except KpsplitError:  # no leader yet
        return None


def tries_until_now(admin: AdminClient, statistics: list[dict[str, Any]]) -> int:
    """How often a client has tried to connect, by statistics from after this call: older ones are queued."""
    now = time.monotonic_ns() // 1000  # librdkafka's clock
    eventually(
        lambda: admin.poll(0.1) >= 0 and statistics and statistics[-1]["ts"] > now, "statistics", SECONDS
    )
    return sum(broker["connects"] for broker in statistics[-1]["brokers"].values())


@pytest.mark.nightly
def test_a_question_that_nobody_answers_has_no_result(alone: DevCluster) -> None:
    """A lease that was renewed on such an answer would be one that knows nothing of a fence."""
    connection = Connection({"bootstrap.servers": alone.bootstrap})
    admin, logs = AdminClient(connection.client("ends")), LogEndQueries(connection)
    assert ends(admin, SECONDS) == {0: RECORDS}  # they know the leader from here on
    assert logs.end_offsets([PLACE])[PLACE].offset == RECORDS
    with frozen(alone):
        with pytest.raises(UnreachableError, match="in time"):
            ends(admin, 1.0)
        with pytest.raises(UnreachableError, match="no answer in time"):
            logs.end_offsets([PLACE], seconds=1.0)
    assert ends(admin, SECONDS) == {0: RECORDS}


@pytest.mark.nightly
def test_partitions_that_were_added_since_a_client_looked_have_ends(alone: DevCluster) -> None:
    """librdkafka remembers how many partitions a topic has for 15 minutes, and asks no broker for others."""
    connection = Connection({"bootstrap.servers": alone.bootstrap})
    logs, admin = LogEndQueries(connection), AdminClient({"bootstrap.servers": alone.bootstrap})
    admin.create_topics([NewTopic("grows", 1, 1)])["grows"].result(SECONDS)
    places = [PhysicalPartition("grows", n) for n in range(3)]
    assert eventually(lambda: logs.end_offsets(places[:1]), "the topic's leader", SECONDS)
    admin.create_partitions([NewPartitions("grows", 3)])["grows"].result(SECONDS)
    eventually(
        lambda: len(admin.list_topics("grows").topics["grows"].partitions) == 3, "the partitions", SECONDS
    )
    assert {p: end.offset for p, end in logs.end_offsets(places[2:]).items()} == {places[2]: 0}
    assert logs.start_offsets(places) == dict.fromkeys(places, 0)
    assert list(logs.end_offsets([places[0], PhysicalPartition("missing", 0)])) == places[:1]


@pytest.mark.nightly
def test_a_log_of_which_nothing_was_read_is_not_read_to_its_end(alone: DevCluster) -> None:
    read: list[Message] = []
    connection = Connection({"bootstrap.servers": alone.bootstrap})
    with closing(LogTail(connection, TOPIC, read.append)) as tail:
        tail.ask_end(SECONDS).result()
        with frozen(alone), pytest.raises(KpsplitError):
            tail.read_to_end(Deadline(1.0))
        tail.read_to_end(Deadline(SECONDS))
    assert [message.value() for message in read] == [b"0", b"1", b"2"]


@pytest.mark.nightly
def test_a_broker_that_is_down_and_leads_is_not_connected_to_without_a_pause(
    kafka_runtime: KafkaRuntime,
) -> None:
    """librdkafka tries thousands of times a second, unless its connections are not sparse."""
    statistics: list[dict[str, Any]] = []

    def keep(text: str) -> None:
        statistics.append(json.loads(text))

    with DevCluster(brokers=2) as pair:  # without one of them there is no quorum: leaders stay
        properties = {"bootstrap.servers": pair.bootstrap, "statistics.interval.ms": 100, "stats_cb": keep}
        admin = Connection(properties).shared_admin()
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(SECONDS)
        eventually(lambda: ends_or_none(admin) == {0: 0}, "a leader", SECONDS)
        leader = admin.list_topics(TOPIC, timeout=SECONDS).topics[TOPIC].partitions[0].leader
        before = tries_until_now(admin, statistics)
        pair.kill(leader)
        with pytest.raises(UnreachableError):
            ends(admin, 3.0)
        assert 0 < tries_until_now(admin, statistics) - before < 30


@pytest.mark.nightly
def test_it_is_asked_again_while_there_is_time(alone: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_tail, "OFFSET_REQUEST_SECONDS", 0.3)
    connection = Connection({"bootstrap.servers": alone.bootstrap})
    with closing(LogTail(connection, TOPIC, lambda _: None)) as tail, ThreadPoolExecutor(1) as pool:
        with frozen(alone):
            reading = pool.submit(tail.read_to_end, Deadline(SECONDS))
            with pytest.raises(TimeoutError):
                reading.result(4)  # a question may take as long as looking for leaders and its grace besides
        reading.result(SECONDS)
        assert tail.progress() == RECORDS


def test_a_probe_asks_for_a_log_s_bounds_until_it_is_told(
    alone: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "REQUEST_SECONDS", 0.5)
    connection = Connection({"bootstrap.servers": alone.bootstrap})
    admin = AdminClient(connection.client("probe"))
    assert ends(admin, SECONDS) == {0: RECORDS}
    with frozen(alone):
        probe = LogProbe(admin, connection, PLACE, 0, with_bounds=True, holds_up=False)
        first = list(probe._asked)
        eventually(lambda: probe.done() or probe._asked != first, "another question", SECONDS)
        assert probe.found is None and probe.error is None
    eventually(probe.done, "an answer", SECONDS)
    assert probe.found is not None and probe.found.bounds is not None
    assert (probe.found.bounds.low, probe.found.bounds.high) == (0, RECORDS)


def test_topics_that_are_all_missing_are_taken_for_missing(bootstrap: str) -> None:
    missing = [PhysicalPartition("never-made", 0), PhysicalPartition("nor-this-one", 2)]
    log_ends = LogEndQueries(Connection({"bootstrap.servers": bootstrap}))
    assert log_ends.end_offsets(missing) == {} == log_ends.start_offsets(missing)
