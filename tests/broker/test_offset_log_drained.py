"""Rule 10: a group with range commits is judged by them, and a producer notices nothing of slots."""

from __future__ import annotations

import threading

import pytest

from kpsplit import Producer
from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.errors import CheckFailedError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Enrolment, Partitioner, encode_enrolment
from kpsplit.splitter.records.keys import CONTROL_TOPIC, enrolment_key, slots_topic
from tests.broker.committing import SECONDS, Member, await_owned, commit_of, member, writer
from tests.broker.operating import commit, merge, operating, split, write
from tests.conftest import MakeTopic

pytestmark = pytest.mark.broker

KIND = Partitioner.CONSISTENT_RANDOM
LEFT, RIGHT = WHOLE.split_evenly(2)


def test_retire_goes_by_the_lesser_of_a_groups_range_commits_and_its_ordinary_offsets(
    operations: Admin, bootstrap: str, make_topic: MakeTopic
) -> None:
    parent = PhysicalPartition(make_topic(), 0)
    operations.enrol(parent.topic, KIND, slots=2)
    name = split(operations, parent, 2).subtopics[0].name
    for index in range(2):
        write(bootstrap, name, 3, partition=index)
    state = merge(operations, parent)
    reopened = state.lineage.segments[-1]
    group = f"group-of-{parent.topic}"
    at_ends: dict[PhysicalPartition, int] = {PhysicalPartition(name, i): 3 for i in range(2)}
    commit(bootstrap, group, at_ends)
    commits = writer(bootstrap)

    def commit_range(owner: Member, positions: dict[int, int], range_: KeyRange, first: int = 3) -> None:
        record = commit_of(group, parent, positions, range_)
        ordinary = at_ends | {PhysicalPartition(name, 0): first}
        commits.commit([record], [], ordinary, owner.metadata(), Deadline(SECONDS))

    with member(bootstrap, group, slots_topic(parent.topic), "classic") as owner:
        await_owned([(owner, 2)])
        commit_range(owner, {reopened.id: reopened.start}, LEFT)
        with pytest.raises(CheckFailedError, match=f"group {group} has no commit in {name}/1"):
            operations.retire(parent)
        commit_range(owner, {1: state.lineage.get(1).start, 3: 2}, RIGHT)
        with pytest.raises(CheckFailedError, match=f"group {group} stands at 2 in {name}/1"):
            operations.retire(parent)
        commit_range(owner, {reopened.id: reopened.start}, RIGHT, first=1)
        with pytest.raises(
            CheckFailedError, match=f"group {group} stands at 1 in {name}/0.*its ordinary off"
        ):
            operations.retire(parent)
        commit_range(owner, {reopened.id: reopened.start}, RIGHT)
        assert operations.retire(parent) == [name]


def test_a_producer_notices_nothing_when_an_enrolment_gets_slots(
    operations: Admin, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    first = operations.enrol(topic, KIND, slots=2)
    before = Enrolment(topic, first.topic_id, KIND, settled=True)
    control = AcknowledgedWriter(Connection({"bootstrap.servers": bootstrap}), "tests")
    control.write(CONTROL_TOPIC, enrolment_key(topic), encode_enrolment(before), Deadline(SECONDS))
    producer = Producer({"bootstrap.servers": bootstrap})
    errors: list[object] = []
    done = threading.Event()
    sent = 0

    def enrol() -> None:
        with operating(bootstrap) as others:
            others.enrol(topic, KIND)
        done.set()

    enrolling = threading.Thread(target=enrol)
    enrolling.start()
    while not done.is_set():
        producer.produce(topic, b"v", f"key-{sent}", on_delivery=lambda error, _: errors.append(error))
        producer.poll(0.01)
        sent += 1
    enrolling.join()
    assert producer.flush(SECONDS) == 0
    assert errors == [None] * sent
    assert operations.view().enrolments[topic] == first
    producer.close()
