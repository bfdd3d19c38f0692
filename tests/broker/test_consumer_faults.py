"""What a consumer does when something is wrong: told by name, counted, never guessed over."""

from __future__ import annotations

import json
import threading
import time
from math import inf

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit.devcluster.cluster import DevCluster
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import OFFSETS_TOPIC, offsets_partition
from tests.broker.consuming import consumer, drain, shared, wait_for
from tests.broker.operating import operating, split, write
from tests.broker.topic_config import set_config

pytestmark = pytest.mark.broker


def event_of(member, seconds=180.0):
    """The next error event."""
    end = time.monotonic() + seconds
    while True:
        assert time.monotonic() < end, dict(member.stats())
        message = member.poll(0.1)
        if message is not None and message.error() is not None:
            return message


def test_an_offset_log_that_would_forget_commits_is_refused_by_name(bootstrap, operations, make_topic):
    topic = make_topic()
    shared(operations, topic, 2)
    write(bootstrap, topic, 10)
    set_config(bootstrap, OFFSETS_TOPIC, "cleanup.policy", "delete")
    try:
        with consumer(bootstrap, f"g-{topic}") as member:
            member.subscribe([topic])
            error = event_of(member).error()
            assert "cleanup.policy" in error.str()
            assert "cleanup.policy" in member.stats()["trouble"]
            set_config(bootstrap, OFFSETS_TOPIC, "cleanup.policy", "compact")
            assert len(drain(member, 10)) == 10
    finally:
        set_config(bootstrap, OFFSETS_TOPIC, "cleanup.policy", "compact")


@pytest.mark.nightly
def test_garbage_in_the_offset_log_is_counted_and_skipped(kafka_runtime):
    """On a cluster of its own: who verifies a topic of the session's could not tell whose it was."""
    with DevCluster(1) as alone, operating(alone.bootstrap) as operations:
        admin = AdminClient({"bootstrap.servers": alone.bootstrap})
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(60)
        parent = shared(operations, "orders", 2)
        write(alone.bootstrap, "orders", 10)
        count = len(admin.list_topics(OFFSETS_TOPIC, timeout=30).topics[OFFSETS_TOPIC].partitions)
        producer = Producer({"bootstrap.servers": alone.bootstrap})
        for _ in range(3):
            producer.produce(OFFSETS_TOPIC, b"garbage", b"garbage", offsets_partition(parent, count))
        assert producer.flush(60) == 0
        with consumer(alone.bootstrap, "g") as member:
            member.subscribe(["orders"])
            assert len(drain(member, 10)) == 10
            assert member.stats()["offset_log_garbage"] >= 3


@pytest.mark.parametrize("policy", ["error", "skip-and-report"])
def test_records_that_are_gone_are_a_gap_that_is_told(bootstrap, operations, make_topic, admin, policy):
    topic = make_topic()
    told = []
    shared(operations, topic, 2)
    write(bootstrap, topic, 30)
    settings = {"kpsplit.gap.policy": policy, "error_cb": told.append}
    with consumer(bootstrap, f"g-{topic}") as member:
        member.subscribe([topic])
        drain(member, 10)
    asked = [TopicPartition(topic, 0, 20)]
    for deleted in admin.delete_records(asked).values():
        deleted.result(20)
    with consumer(bootstrap, f"g-{topic}", **settings) as member:
        member.subscribe([topic])
        if policy == "error":
            event = event_of(member)
            assert event.error().code() == KafkaError._AUTO_OFFSET_RESET
            assert (event.topic(), event.partition()) == (topic, 0)
            assert "10 to 19" in event.error().str()
            member.seek(TopicPartition(topic, 0, 20))
        assert [m.offset() for m in drain(member, 10)] == list(range(20, 30))
        assert member.stats()["gaps"] >= 1
        if policy != "error":
            wait_for(lambda: member.poll(0.05) is None and told, "error_cb")


def write_large(bootstrap: str, topic: str) -> None:
    """Write 200 records of 100 kB."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(200):
        producer.produce(topic, b"x" * 100_000, b"key-%d" % n, 0)
        producer.poll(0)
    assert producer.flush(60) == 0


def test_a_stalled_application_bounds_what_is_read_ahead(bootstrap, make_topic):
    topic = make_topic()
    write_large(bootstrap, topic)
    bound, client_bound, fetched = 2_000_000, 1000 * 1024, 1024 * 1024
    read_ahead: list[int] = []

    def statistics(text: str) -> None:
        topics = json.loads(text)["topics"].values()
        read_ahead.append(sum(p["fetchq_size"] for t in topics for p in t["partitions"].values()))

    settings = {"kpsplit.fetch.buffer.bytes": bound, "queued.max.messages.kbytes": 1000}
    told = {"stats_cb": statistics, "statistics.interval.ms": 100, "max.partition.fetch.bytes": fetched}
    with consumer(bootstrap, f"g-{topic}", **settings, **told) as member:
        member.subscribe([topic])
        drain(member, 1)
        time.sleep(2)
        assert member.stats()["waiting_bytes"] <= bound - client_bound
        assert len(drain(member, 199)) == 199
    assert client_bound * 0.9 < max(read_ahead) < client_bound + fetched


def test_handlers_that_are_stalled_bound_what_is_read_ahead(bootstrap, make_topic):
    topic, go = make_topic(), threading.Event()
    write_large(bootstrap, topic)
    bound = 2_000_000
    settings = {"kpsplit.fetch.buffer.bytes": bound, "queued.max.messages.kbytes": 1000}
    with consumer(bootstrap, f"g-{topic}", **settings) as member:
        member.subscribe([topic])
        running = threading.Thread(target=member.run, args=(lambda _: go.wait(),))
        running.start()

        def full():
            stats = member.stats()
            return stats["turns_without_room"] > 5 or (stats["run"] or {}).get("backpressured")

        wait_for(full, "the lanes to be full")
        time.sleep(1)
        assert member.stats()["waiting_bytes"] <= bound
        go.set()
        wait_for(lambda: member.stats()["run"]["processed"] == 200, "all records")
        member.stop()
        running.join()


def test_an_application_that_stops_polling_loses_its_slots_and_comes_back(bootstrap, operations, make_topic):
    topic = make_topic()
    shared(operations, topic, 4)
    write(bootstrap, topic, 50)
    group = f"g-{topic}"
    with consumer(bootstrap, group, max_poll_interval_ms=6000, session_timeout_ms=6000) as sleeper:
        lost = []
        sleeper.subscribe([topic], on_lost=lambda _, parts: lost.append(parts))
        first = [m.offset() for m in drain(sleeper, 10)]
        with consumer(bootstrap, group) as other:
            other.subscribe([topic])
            rest = [m.offset() for m in drain(other, 41)]
            assert set(first[:9]) | set(rest) == set(range(50))
            assert set(first[:9]).isdisjoint(rest)
            event = event_of(sleeper)
            assert event.error().code() == KafkaError._MAX_POLL_EXCEEDED
            assert lost

            def back():
                other.poll(0.02)
                sleeper.poll(0.02)
                return sleeper.assignment()

            wait_for(back, "coming back")


def test_nothing_behind_a_seal_is_guessed_without_the_lineage(bootstrap, operations, make_topic):
    topic = make_topic()
    parent = shared(operations, topic, 2)
    write(bootstrap, topic, 200)
    split(operations, parent, 2)
    with consumer(bootstrap, f"g-{topic}") as member:
        session = member._running()
        metadata = session.engine.metadata
        metadata.ready, metadata._good_until = True, inf  # as if the control topic had been lost from sight
        metadata.turn = lambda: None
        member.subscribe([topic])
        assert len(drain(member, 200)) == 200
        assert member.poll(1.0) is None
    assert parent == PhysicalPartition(topic, 0)
