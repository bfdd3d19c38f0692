"""An operator that is killed (SIGKILL) inside `enroll` or `retire`, beside a group that goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from kpsplit import Consumer, Producer, SeekTarget, Whence
from kpsplit.admin import Admin
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import SubTopicState
from kpsplit.splitter.records.keys import slots_topic
from tests.broker.consuming import Log, Member, consumer, drain, shared, wait_for
from tests.broker.operating import merge, split, state_of
from tests.broker.producing import Journal
from tests.conftest import MakeTopic
from tests.fault.operator_cases import operator

pytestmark = pytest.mark.broker

KEYS = [b"key-%d" % n for n in range(20)]


def killed(bootstrap: str, parent: PhysicalPartition, verb: str, step: str) -> None:
    """Run an operator that kills itself after a step."""
    with operator(bootstrap, parent, verb, step, signal.SIGKILL) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL


def send(journal: Journal, producer: Producer, topic: str) -> None:
    """Send a record of every key."""
    for key in KEYS:
        journal.send(producer, topic, key)
    assert producer.flush(30) == 0


def expected(journal: Journal) -> dict[bytes, list[bytes]]:
    return {key: values for (_, key), values in journal.sent.items()}


@pytest.mark.parametrize(
    "step", ["Enrol", *(pytest.param(s, marks=pytest.mark.nightly) for s in ("Slots", "Settled"))]
)
def test_a_group_reads_on_although_the_operator_of_an_enrolment_is_killed(
    operations: Admin, bootstrap: str, make_topic: MakeTopic, step: str
) -> None:
    """Nobody has to run anything: members settle it for themselves, a lease after they have seen it."""
    topic = make_topic(2)
    log, journal = Log(), Journal()
    members = [Member(bootstrap, f"g-{topic}", [topic], log, name) for name in ("one", "two")]
    for member in members:
        member.start()
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        send(journal, producer, topic)
        wait_for(lambda: log.distinct() == len(KEYS), "the records before the enrolment")
        killed(bootstrap, PhysicalPartition(topic, 0), "enroll", step)
        if step != "Slots":
            wait_for(
                lambda: all(m.consumer._group.topics == {slots_topic(topic)} for m in members), "the slots"
            )
        assert (topic in operations.view().enrolments) == (step != "Slots")
        send(journal, producer, topic)
        wait_for(lambda: log.distinct() == 2 * len(KEYS), "the records after the operator's death")
        found = [c.remedy for c in operations.doctor() if not c.ok and topic in c.message]
        assert found == ([f"run: kpsplit enroll {topic}"] if step == "Enrol" else [])
        shared(operations, topic, 4)
        assert not [c for c in operations.doctor() if not c.ok and topic in c.message]
        split(operations, PhysicalPartition(topic, 0), 2)
        send(journal, producer, topic)
        wait_for(lambda: log.distinct() == 3 * len(KEYS), "the records after the split")
    for member in members:
        member.stop()
    log.check_order(expected(journal))
    assert log.duplicates() == 0


def worked_on(producer: Producer, member: Consumer, journal: Journal, parent: PhysicalPartition) -> None:
    """Send a record of every key, and read them."""
    send(journal, producer, parent.topic)
    drain(member, len(KEYS))


def split_and_merged(operations: Admin, parent: PhysicalPartition, work: Callable[[], None]) -> str:
    """Split and merge, with some work after each; return the name of the sub-topic."""
    (name,) = (t.name for t in split(operations, parent, 2).subtopics)
    work()
    merge(operations, parent)
    work()
    return name


@pytest.mark.parametrize("step", ["Delete", pytest.param("Retire", marks=pytest.mark.nightly)])
def test_a_group_commits_on_although_the_operator_of_a_retirement_is_killed(
    operations: Admin, bootstrap: str, make_topic: MakeTopic, step: str
) -> None:
    parent = shared(operations, make_topic(), 2)
    journal, group = Journal(), f"g-{parent.topic}"
    with Producer({"bootstrap.servers": bootstrap}) as producer, consumer(bootstrap, group) as member:
        member.subscribe([parent.topic])
        name = split_and_merged(operations, parent, lambda: worked_on(producer, member, journal, parent))
        member.commit(asynchronous=False)
        killed(bootstrap, parent, "retire", step)
        assert state_of(operations, parent).subtopics[0].state is SubTopicState.RETIRED
        found = [c.remedy for c in operations.doctor() if not c.ok and name in c.message]
        assert found == ([f"run: kpsplit retire {parent}"] if step == "Retire" else [])
        worked_on(producer, member, journal, parent)
        member.commit(asynchronous=False)
        assert operations.retire(parent) == ([name] if step == "Retire" else [])
        assert not [c for c in operations.doctor() if not c.ok and name in c.message]
        worked_on(producer, member, journal, parent)
        member.commit(asynchronous=False)
    (progress,) = operations.offsets(group, parent.topic)
    assert progress.lag == 0


@pytest.mark.nightly
def test_a_group_commits_and_is_moved_on_although_somebody_has_deleted_a_sub_topic(
    operations: Admin, bootstrap: str, admin: AdminClient, make_topic: MakeTopic
) -> None:
    parent = shared(operations, make_topic(), 2)
    journal, group = Journal(), f"g-{parent.topic}"
    with Producer({"bootstrap.servers": bootstrap}) as producer, consumer(bootstrap, group) as member:
        member.subscribe([parent.topic])
        name = split_and_merged(operations, parent, lambda: worked_on(producer, member, journal, parent))
        member.commit(asynchronous=False)
        admin.delete_topics([name])[name].result(30)
        wait_for(lambda: name not in admin.list_topics(timeout=10).topics, "the deletion")
        worked_on(producer, member, journal, parent)
        member.commit(asynchronous=False)
    (progress,) = operations.offsets(group, parent.topic)
    assert progress.lag == 0
    operations.seek(operations.plan_seek(group, parent, WHOLE, SeekTarget(Whence.EARLIEST)))
    (progress,) = operations.offsets(group, parent.topic)
    assert progress.lag is not None and progress.lag > 0
    assert operations.retire(parent) == [name], "brokers have forgotten what the group had read there"
