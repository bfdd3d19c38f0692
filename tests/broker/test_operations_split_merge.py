"""Splits, nested splits and merges on real brokers, with nobody writing through kpsplit meanwhile."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, Producer, TopicCollection

from kpsplit import Plan
from kpsplit.kafka.markers import marker_of
from kpsplit.splitter.key_range import WHOLE, KeyRange, key_hash
from kpsplit.splitter.lineage import PhysicalPartition, SegmentKind
from kpsplit.splitter.partition_state import Phase, Result, SubTopicState
from kpsplit.splitter.records.data import MarkerKind
from kpsplit.splitter.records.producers import PauseReport, ProducerRegistration
from tests.broker.operating import (
    PAUSE_MS,
    enrolled,
    log_end,
    merge,
    records,
    split,
    stable_end,
    state_of,
    write,
    write_error,
)
from tests.broker.producing import eventually
from tests.broker.topic_config import set_config

pytestmark = pytest.mark.broker


def replicas(admin, topic: str) -> list[tuple[int, list[int]]]:
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(20)
    return [(p.leader.id, [r.id for r in p.replicas]) for p in found.partitions]


def test_an_empty_partition_is_split_in_a_subtopic_beside_it(operations, admin, make_topic) -> None:
    topic = make_topic(partitions=2, config={"retention.ms": "7200000", "max.message.bytes": "2000000"})
    parent = enrolled(operations, topic, 1)
    plan = operations.plan_split(parent, 4)
    assert not plan.problems()
    assert Plan.decode(plan.encode()) == plan

    report = operations.run(plan, max_pause_ms=PAUSE_MS)

    assert report.outcome.result is Result.COMMITTED
    assert (report.state.epoch, report.state.phase) == (1, Phase.STEADY)
    subtopic = report.state.subtopics[0]
    assert (subtopic.name, subtopic.state) == (f"{topic}.split-1-1", SubTopicState.ACTIVE)
    found = replicas(admin, subtopic.name)
    parents = set(replicas(admin, topic)[1][1])
    assert all(set(brokers) == parents for _, brokers in found)
    assert {leader for leader, _ in found} == parents
    from kpsplit.kafka.cluster_admin import ClusterAdmin

    explicit = ClusterAdmin(operations._session.connection).describe(subtopic.name).explicit
    assert explicit == {"retention.ms": "7200000", "max.message.bytes": "2000000"}


def test_a_filled_partition_is_split_where_its_keys_are(operations, bootstrap, admin, make_topic) -> None:
    topic = make_topic(partitions=1)
    parent = enrolled(operations, topic)
    write(bootstrap, topic, 1000)
    end = log_end(admin, parent)
    plan = operations.plan_split(parent, 4)
    assert plan.sampled == 1000
    assert plan.shares == pytest.approx((0.25,) * 4, abs=0.02)
    assert all(key_hash(k.label.encode()) == k.key_hash for k in plan.heaviest)

    state = operations.run(plan, max_pause_ms=PAUSE_MS).state

    first = state.lineage.get(0)
    assert (first.end, first.end_leader_epoch) == (end, 0)
    marker = marker_of(records(bootstrap, parent)[end])
    assert marker is not None and marker.kind is MarkerKind.SEAL
    phantoms = state.lineage.open_segments()
    assert tuple(s.range for s in phantoms) == plan.ranges
    assert all(s.progression.base > end - 1 for s in phantoms)


def test_splits_nest_and_adjacent_ranges_merge_and_all_goes_back(
    operations, bootstrap, admin, make_topic
) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    split(operations, parent)
    whole = KeyRange(0, 1 << 30)
    nested = operations.plan_split(parent, 2, of=whole, even=True)
    assert len(operations.run(nested, max_pause_ms=PAUSE_MS).state.lineage.open_segments()) == 5
    partial = operations.plan_merge(parent, KeyRange(1 << 29, 3 << 30))
    state = operations.run(partial, max_pause_ms=PAUSE_MS).state
    layout = [s.range for s in state.lineage.open_segments()]
    assert layout == [KeyRange(0, 1 << 29), KeyRange(1 << 29, 3 << 30), KeyRange(3 << 30, 1 << 32)]
    sealed = {t.name for t in state.subtopics if t.state is SubTopicState.SEALED}
    assert not sealed  # each sub-topic still holds an open segment

    state = merge(operations, parent)

    assert state.epoch == 4
    assert [(s.kind, s.range) for s in state.lineage.open_segments()] == [(SegmentKind.PARENT, WHOLE)]
    assert {t.state for t in state.subtopics} == {SubTopicState.SEALED}
    assert not state.lineage.problems()
    assert write_error(bootstrap, parent) is None
    again = split(operations, parent, 2)
    assert all(s.progression.base > log_end(admin, parent) - 3 for s in again.lineage.open_segments())


def test_markers_of_an_idle_log_have_the_time_of_the_cut(operations, bootstrap, admin, make_topic) -> None:
    """Also where brokers would refuse the time of the log's newest record."""
    parent = enrolled(operations, make_topic(partitions=1))
    began = int(time.time() * 1000)
    yesterday = began - 86_400_000
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(parent.topic, b"v", b"k", timestamp=yesterday)
    assert producer.flush(30) == 0
    set_config(bootstrap, parent.topic, "message.timestamp.before.max.ms", "60000")
    state = split(operations, parent, 2)
    assert state.epoch == 1
    assert merge(operations, parent).epoch == 2
    times = [m.timestamp()[1] for m in records(bootstrap, parent)]
    assert (len(times), times[0]) == (3, yesterday)
    assert min(times[1:]) >= began


def test_a_merged_subtopic_rejects_writes_and_its_leaders_stand_beside_the_parents(
    operations, bootstrap, admin, make_topic
) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    name = split(operations, parent, 3).subtopics[0].name
    merge(operations, parent)
    error = write_error(bootstrap, PhysicalPartition(name, 0))
    assert error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert {leader for leader, _ in replicas(admin, name)} == {replicas(admin, parent.topic)[0][0]}


def test_a_transaction_that_is_open_at_the_hard_seal_can_still_end(
    operations, bootstrap, admin, make_topic
) -> None:
    """A seal that rejected the end markers would hide the rest of the sub-topic for ever."""
    parent = enrolled(operations, make_topic(partitions=1))
    phantom = PhysicalPartition(split(operations, parent, 2).subtopics[0].name, 0)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"open-{parent.topic}"})
    producer.init_transactions(30)

    def begin(step) -> None:
        if step.name == "Prepare":
            producer.begin_transaction()
            producer.produce(phantom.topic, b"v", b"k", phantom.partition)
            assert producer.flush(30) == 0

    operations.run(operations.plan_merge(parent), max_pause_ms=PAUSE_MS, observer=begin)
    assert write_error(bootstrap, phantom) is not None
    producer.commit_transaction(30)
    eventually(lambda: stable_end(admin, phantom) == log_end(admin, phantom), "the end of the transaction")


def test_a_dead_producer_is_asked_once_and_the_pauses_of_the_others_are_reported(
    operations, bootstrap, make_topic
) -> None:
    parent = enrolled(operations, make_topic(partitions=1))
    silent = ProducerRegistration(0xDEAD, 1, "silent", topics=(parent.topic,))
    lively = ProducerRegistration(0xA11F, 1, "lively", topics=(parent.topic,))
    writer = operations._session.writer()

    def publish(record: ProducerRegistration) -> None:
        from kpsplit.clock import Deadline
        from kpsplit.splitter.records.keys import PRODUCERS_TOPIC

        writer.write(PRODUCERS_TOPIC, record.key, record.encode(), Deadline(120))

    def answer(step) -> None:
        attempt = state_of(operations, parent).attempt
        if attempt is None or step.name not in ("Prepare", "Fence"):
            return
        done = {str(parent): attempt.id}
        pauses = {str(parent): PauseReport(attempt.id, 12, 3, 0)}
        answered = ProducerRegistration(lively.instance, 1, "lively", topics=(parent.topic,), ready=done)
        if step.name == "Fence":
            answered = ProducerRegistration(
                lively.instance, 1, "lively", None, (parent.topic,), done, done, pauses
            )
        publish(answered)

    publish(silent)
    publish(lively)
    plan = operations.plan_split(parent, 2, even=True)
    report = operations.run(plan, max_pause_ms=PAUSE_MS, observer=answer)
    assert {name: p.pause_ms for name, p in report.pauses.items()} == {"000000000000a11f": 12}
    assert [r.client_id for r in operations.producers().to_ask(parent.topic)] == ["lively"]
    assert [r.client_id for r in operations.status(parent.topic, 0)[0].writers] == ["lively"]


def test_the_status_shows_ends_of_open_segments(operations, bootstrap, make_topic) -> None:
    parent = enrolled(operations, make_topic(partitions=2))
    write(bootstrap, parent.topic, 5, partition=0)
    before = {s.state.parent.partition: s.ends for s in operations.status(parent.topic)}
    assert before == {0: {0: 5}, 1: {0: 0}}
    split(operations, parent, 2)
    status = operations.status(parent.topic, 0)[0]
    assert (status.state.epoch, status.ends) == (1, {1: 6, 2: 0, 3: 0})
    assert status.attempt_age_seconds is None
