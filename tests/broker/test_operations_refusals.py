"""What is refused, by name and with the next step, and changes nothing; what retire deletes and keeps."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from kpsplit import StepDone
from kpsplit.clock import Deadline
from kpsplit.control.plans import Drain
from kpsplit.errors import CheckFailedError, ConflictError, UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin, await_served
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.markers import Markers
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Phase, SubTopicState
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.records.data import Marker, MarkerKind
from kpsplit.splitter.steps import PlannedMarker
from tests.broker.consuming import consumer, drain, wait_for
from tests.broker.operating import (
    PAUSE_MS,
    commit,
    enrolled,
    log_end,
    merge,
    split,
    state_of,
    write,
)

pytestmark = pytest.mark.broker


def failed(plan) -> dict[str, str]:
    return {c.name: c.message for c in plan.problems()}


def test_what_cannot_be_planned_is_refused(operations, make_topic) -> None:
    topic = make_topic(partitions=1)
    with pytest.raises(UsageError, match="there is no topic nowhere"):
        operations.plan_split(PhysicalPartition("nowhere", 0), 2)
    with pytest.raises(UsageError, match=f"topic {topic} is not enrolled; run: kpsplit enroll {topic}"):
        operations.plan_split(PhysicalPartition(topic, 0), 2)
    parent = enrolled(operations, topic)
    with pytest.raises(UsageError, match="has 1 partition, 0 to 0; choose one of them, not 7"):
        operations.plan_split(PhysicalPartition(topic, 7), 2)
    for wrong in (1, 65):
        with pytest.raises(UsageError, match="choose 2 to 64"):
            operations.plan_split(parent, wrong)
    with pytest.raises(UsageError, match="is not split"):
        operations.plan_merge(parent)
    with pytest.raises(UsageError, match="has no open range"):
        operations.plan_split(parent, 2, of=KeyRange(0, 7))
    with pytest.raises(UsageError, match="out of bounds"):
        operations.run(operations.plan_split(parent, 2), max_pause_ms=0)


def test_topics_that_cannot_be_enrolled_are_refused(operations, bootstrap, make_topic) -> None:
    with pytest.raises(UsageError, match="there is no topic nowhere"):
        operations.enrol("nowhere", Partitioner.EXPLICIT)
    with pytest.raises(UsageError, match="internal topic"):
        operations.enrol("__kpsplit.control", Partitioner.EXPLICIT)
    with pytest.raises(UsageError, match="is compacted"):
        operations.enrol(make_topic(config={"cleanup.policy": "compact"}), Partitioner.EXPLICIT)
    topic = make_topic(partitions=3)
    write(bootstrap, topic, 300)
    with pytest.raises(UsageError, match="use consistent_random"):
        operations.enrol(topic, Partitioner.MURMUR2_RANDOM, slots=2)
    assert operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=2).settled
    assert operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=2).settled
    with pytest.raises(ConflictError, match="give --partitioner consistent_random"):
        operations.enrol(topic, Partitioner.EXPLICIT)
    name = split(operations, PhysicalPartition(topic, 0), 2).subtopics[0].name
    with pytest.raises(UsageError, match=f"{name} is a sub-topic of {topic}/0"):
        operations.enrol(name, Partitioner.EXPLICIT)


def test_weak_settings_are_found_and_only_some_can_be_forced(operations, bootstrap, make_topic) -> None:
    weak = make_topic(config={"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
    plan = operations.plan_split(enrolled(operations, weak), 2)
    assert set(failed(plan)) == {"min.insync.replicas", "unclean election off"}
    with pytest.raises(CheckFailedError, match=r"min\.insync\.replicas is 1; set min\.insync\.replicas=2"):
        operations.run(plan, max_pause_ms=PAUSE_MS, force=True)
    single = make_topic(rf=1, config={"retention.ms": "60000", "min.insync.replicas": "1"})
    plan = operations.plan_split(enrolled(operations, single), 2)
    assert set(failed(plan)) == {"replication", "retention"} and not plan.problems(force=True)
    with pytest.raises(CheckFailedError, match="replication factor 1"):
        operations.run(plan, max_pause_ms=PAUSE_MS)
    assert operations.run(plan, max_pause_ms=PAUSE_MS, force=True).state.epoch == 1


def test_one_heavy_key_makes_a_split_useless(operations, bootstrap, make_topic) -> None:
    topic = make_topic()
    parent = enrolled(operations, topic)
    write(bootstrap, topic, 200, key="heavy")
    write(bootstrap, topic, 100)
    plan = operations.plan_split(parent, 4)
    assert not plan.useful and "has 6" in failed(plan)["useful"]
    assert plan.heaviest[0].label == "heavy" and not plan.problems(force=True)


def test_a_foreign_topic_of_the_subtopics_name_is_left_alone(
    operations, admin, bootstrap, make_topic
) -> None:
    parent = enrolled(operations, make_topic())
    name = f"{parent.topic}.split-0-1"
    plan = operations.plan_split(parent, 2, even=True)
    admin.create_topics([NewTopic(name, 2, 3)])[name].result(30)
    connection = Connection({"bootstrap.servers": bootstrap})
    await_served(ClusterAdmin(connection), {name: 2}, Deadline(120))
    with pytest.raises(ConflictError, match=f"a topic named {name} exists already"):
        operations.run(plan, max_pause_ms=PAUSE_MS)
    assert state_of(operations, parent).revision == 0
    assert any(c.name == "strangers" and name in c.message for c in operations.doctor())
    admin.delete_topics([name])[name].result(30)

    def in_between(step) -> None:
        if step.name == "Prepare":
            admin.create_topics([NewTopic(name, 3, 3)])[name].result(30)

    with pytest.raises(ConflictError, match="exists already") as caught:
        operations.run(plan, max_pause_ms=PAUSE_MS, observer=in_between)
    assert caught.value.changed is False
    state = state_of(operations, parent)
    assert (state.phase, state.epoch) == (Phase.STEADY, 0)
    assert name in admin.list_topics(timeout=10).topics
    assert operations.run(plan, max_pause_ms=PAUSE_MS).state.subtopics[1].name == f"{parent.topic}.split-0-2"
    with pytest.raises(CheckFailedError, match="its partitions differ"):
        operations.retire(parent)


def test_a_topic_that_was_made_again_is_not_taken_for_the_old_one(operations, admin, make_topic) -> None:
    parent = enrolled(operations, make_topic())
    plan = operations.plan_split(parent, 2, even=True)
    split(operations, parent, 2)
    admin.delete_topics([parent.topic])[parent.topic].result(30)
    admin.create_topics([NewTopic(parent.topic, 1, 3)])[parent.topic].result(30)
    with pytest.raises(ConflictError, match="deleted and made again"):
        operations.plan_split(parent, 2)
    with pytest.raises(ConflictError, match="plan again"):
        operations.run(plan, max_pause_ms=PAUSE_MS)
    with pytest.raises(ConflictError, match="has a lineage of the old one"):
        operations.enrol(parent.topic, Partitioner.CONSISTENT_RANDOM, slots=2)


def test_what_groups_committed_of_a_topic_is_withdrawn_when_it_was_made_again(
    operations, bootstrap, admin, make_topic
) -> None:
    topic = make_topic()
    enrolled(operations, topic)
    group = f"g-{topic}"

    def read(count: int) -> list[int | None]:
        with_group = consumer(bootstrap, group)
        with_group.subscribe([topic])
        try:
            return [message.offset() for message in drain(with_group, count)]
        finally:
            with_group.close()

    write(bootstrap, topic, 20)
    assert read(20) == list(range(20))
    admin.delete_topics([topic])[topic].result(30)
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(30)
    connection = Connection({"bootstrap.servers": bootstrap})
    await_served(ClusterAdmin(connection), {topic: 1}, Deadline(60))
    write(bootstrap, topic, 30)
    steps: list[str] = []
    operations.enrol(
        topic, Partitioner.CONSISTENT_RANDOM, lambda s: steps.append(f"{s.name}: {s.detail}"), slots=2
    )
    assert f"Withdraw: what {group} had committed of the topic before" in steps
    assert read(30) == list(range(30))


def test_an_open_transaction_is_named(operations, bootstrap, make_topic) -> None:
    parent = enrolled(operations, make_topic())
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"app-of-{parent.topic}"})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(parent.topic, b"v")
    writer.flush(30)
    plan = operations.plan_split(parent, 2, even=True)
    writer.abort_transaction(30)
    assert f"app-of-{parent.topic}" in failed(plan)["no open transaction"]
    assert not failed(operations.plan_split(parent, 2, even=True))


def test_retire_keeps_what_a_group_has_not_drained(operations, bootstrap, admin, make_topic) -> None:
    parent = enrolled(operations, make_topic())
    group = f"group-of-{parent.topic}"
    commit(bootstrap, group, {parent: 0})
    state = split(operations, parent, 2)
    name = state.subtopics[0].name
    for index in range(2):
        write(bootstrap, name, 3, partition=index)
    assert operations.retire(parent) == []  # still in use
    planned = operations.plan_merge(parent)
    assert planned.drains == (Drain(group, 6),) and f"{group} has 6 records to read" in planned.note
    merge(operations, parent)
    with pytest.raises(CheckFailedError, match=f"group {group} has no commit in {name}/0, which ends at 3"):
        operations.retire(parent)
    commit(bootstrap, group, {PhysicalPartition(name, 0): 3, PhysicalPartition(name, 1): 2})
    planned = operations.plan_retire(parent)
    assert planned.going == () and f"group {group} stands at 2 in {name}/1" in planned.kept[name]
    with pytest.raises(CheckFailedError, match=f"group {group} stands at 2 in {name}/1"):
        operations.retire(parent)
    with pytest.raises(CheckFailedError, match=f"group {group} stands at 2 in {name}/1"):
        operations.retire(parent, wait_seconds=0.5)
    commit(bootstrap, group, {PhysicalPartition(name, 1): 3})
    reads = consumer(bootstrap, f"reads-{parent.topic}", enable_auto_commit=False)
    reads.subscribe([parent.topic])
    drain(reads, 6)
    planned = operations.plan_retire(parent)
    assert f"group reads-{parent.topic} has no commit in {name}/0" in planned.kept[name]
    assert name in admin.list_topics(timeout=10).topics
    waits: list[StepDone] = []

    def observe(step: StepDone) -> None:
        if step.name == "Wait":
            waits.append(step)
            reads.close()

    assert operations.retire(parent, observer=observe, wait_seconds=120) == [name]
    assert [f"group reads-{parent.topic} has no commit" in step.detail for step in waits] == [True]
    wait_for(lambda: name not in admin.list_topics(timeout=10).topics, "every broker to know of the deletion")
    assert state_of(operations, parent).subtopics[0].state is SubTopicState.RETIRED
    assert operations.retire(parent) == []


@pytest.mark.nightly
def test_retire_by_force_names_the_group_that_loses(operations, bootstrap, make_topic) -> None:
    parent = enrolled(operations, make_topic())
    group = f"group-of-{parent.topic}"
    commit(bootstrap, group, {parent: 0})
    name = split(operations, parent, 2).subtopics[0].name
    write(bootstrap, name, 1, partition=0)
    merge(operations, parent)
    told = []
    assert operations.retire(parent, force=True, observer=told.append) == [name]
    assert any(s.name == "Forced" and group in s.detail for s in told)


def test_markers_whose_outcome_was_unknown_are_found_again(operations, bootstrap, admin, make_topic) -> None:
    topic = make_topic(partitions=2)
    write(bootstrap, topic, 3, partition=0)
    places = [PhysicalPartition(topic, n) for n in range(2)]
    planned = [
        PlannedMarker(i, place, Marker(MarkerKind.SEAL, places[0], "attempt"))
        for i, place in enumerate(places)
    ]
    markers = Markers(ClusterAdmin(operations._session.connection))
    markers.prepare(places)
    cuts = markers.append(planned, Deadline(120))
    assert [(c.segment, c.offset, c.leader_epoch) for c in cuts] == [(0, 3, 0), (1, 0, 0)]
    markers._unknown.add("attempt")
    assert markers.append(planned, Deadline(120)) == cuts
    assert [log_end(admin, place) for place in places] == [4, 1]
    markers.close()


@pytest.mark.nightly
def test_doctor_names_a_plain_producer_on_a_split_partition(operations, bootstrap, make_topic) -> None:
    """Its records go to the overflow without a word, those of an AIOProducer as well."""
    parent = enrolled(operations, make_topic())
    split(operations, parent, 2)

    def told() -> list[str]:
        return [c.message for c in operations.doctor() if c.name == "writers" and str(parent) in c.message]

    assert told() == []
    write(bootstrap, parent.topic, 3, parent.partition)
    (message,) = told()
    assert "3 of the newest 3 records in its overflow come from programs that do not use kpsplit" in message
