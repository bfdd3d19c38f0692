"""Each role works with the rights that `kpsplit acls` prints, and a missing one is named."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer as PlainConsumer
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AclPermissionType, AdminClient, NewPartitions, NewTopic

from kpsplit import Consumer, Producer
from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.consumer.fetch.lineage_reader import LineageReader
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import AuthorizationError, DeadlineExceededError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.partition_state import Phase, SubTopicState
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.records.keys import CONTROL_TOPIC, group_ids, slots_topic
from kpsplit.splitter.rights import LIST_GROUPS, Operation, Resource, Right, Role, rights_for, takeover_rights
from tests.broker.consuming import wait_for
from tests.broker.guarded import (
    ADMIN,
    AccessLists,
    Guarded,
)
from tests.broker.guarded_topic import GROUP, PARENT, TOPIC, all_of, consumer, guarded_topic, read_all, send
from tests.broker.operating import PAUSE_MS, state_of
from tests.broker.producing import eventually
from tests.nights import others_at_night

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def guarded(kafka_runtime: KafkaRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A cluster that its admin has initialised, with a topic that its operator has split."""
    with guarded_topic(tmp_path_factory.mktemp("tls")) as guarded:
        yield guarded


@pytest.fixture
def operations(guarded: Guarded) -> Iterator[Admin]:
    """Operations of somebody who is an operator and no more."""
    with Admin(Connection(guarded.client("operator"))) as operations:
        yield operations


def in_words(right: Right | str) -> str:
    """A right in a test's name: without blanks, so that reports do not cut it off."""
    return str(right).replace(" ", "-")


@contextmanager
def without(guarded: Guarded, role: Role, right: Right | None) -> Iterator[None]:
    """Take a right from a role for a while; None: take nothing."""
    if right is None:
        yield
        return
    lists = AccessLists(guarded)
    lists.take(role.value, right)
    try:
        yield
    finally:
        lists.give(role.value, [right])


def test_everybody_works_with_the_least_rights(guarded: Guarded, operations: Admin) -> None:
    names, epoch = ("before", "between", "after"), state_of(operations, PARENT).epoch
    with Producer(guarded.client("producer")) as producer, consumer(guarded) as member:
        member.subscribe([TOPIC])
        send(producer, names[0])
        operations.run(operations.plan_merge(PARENT), max_pause_ms=PAUSE_MS, force=True)
        send(producer, names[1])
        operations.run(operations.plan_split(PARENT, 2, even=True), max_pause_ms=PAUSE_MS, force=True)
        send(producer, names[2])
        read_all(member, names)
        member.commit(asynchronous=False)
    state = state_of(operations, PARENT)
    assert state.epoch == epoch + 2
    reader = LineageReader(Connection(guarded.client("verifier")), state)
    assert {r.value for r in reader.records()} >= all_of(names)


@pytest.mark.parametrize("right", rights_for(Role.PRODUCER, TOPIC), ids=in_words)
def test_a_right_that_a_producer_lacks_fails_its_records(guarded: Guarded, right: Right) -> None:
    told: list[KafkaError | None] = []
    with without(guarded, Role.PRODUCER, right):
        with Producer(guarded.client("producer")) as producer:
            producer.produce(TOPIC, b"v", b"k", on_delivery=lambda error, _: told.append(error))
            assert producer.flush(30) == 0
    assert [error and error.code() for error in told] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with Producer(guarded.client("producer")) as producer:
        send(producer, "with the right again")


ALTER_CLUSTER = Right(Resource.CLUSTER, LIST_GROUPS.name, False, Operation.ALTER)
WRITE_TOPIC = Right(Resource.TOPIC, TOPIC, False, Operation.WRITE)
WRITE_CONTROL = Right(Resource.TOPIC, CONTROL_TOPIC, False, Operation.WRITE)
LATER = (Operation.CREATE, Operation.ALTER, Operation.DELETE)
"""For `kpsplit init`, new slots and sub-topics, slots by another number; for leaders that move, of which one
broker has none."""


@pytest.mark.parametrize(
    "right",
    others_at_night(
        (r for r in rights_for(Role.OPERATOR, TOPIC) if r.operation not in LATER or r.name.startswith(TOPIC)),
        lambda r: r.operation is Operation.CREATE or r == WRITE_TOPIC,
    ),
    ids=in_words,
)
def test_a_right_that_an_operator_lacks_is_named_and_nothing_is_half_done(
    guarded: Guarded, operations: Admin, right: Right
) -> None:
    also = ALTER_CLUSTER if right == LIST_GROUPS else None  # that one brings Describe with it
    with Producer(guarded.client("producer")) as producer, without(guarded, Role.OPERATOR, also):
        send(producer, str(right))
        with without(guarded, Role.OPERATOR, right), pytest.raises(AuthorizationError) as refused:
            with Admin(Connection(guarded.client("operator"))) as lacking:
                live_through(lacking)
        assert refused.value.changed is not True or "is left over" in str(refused.value)
        assert (right.name or right.resource) in str(refused.value)
        state = operations.view().state(PARENT)
        assert state is not None and (state.phase, state.attempt) == (Phase.STEADY, None)
        send(producer, "still")


@pytest.mark.nightly
def test_retire_deletes_nothing_while_a_group_is_denied_to_the_operator(
    guarded: Guarded, operations: Admin
) -> None:
    """Without Describe on the cluster brokers would leave it out of their lists."""
    merge_all(operations)
    operations.run(operations.plan_split(PARENT, 2, even=True), max_pause_ms=PAUSE_MS, force=True)
    with Producer(guarded.client("producer")) as producer:
        send(producer, "unread by a group that is denied")
    merge_all(operations)
    name = state_of(operations, PARENT).subtopics[-1].name
    secret = "a-secret"  # named first among those that have not read it
    describe = Right(Resource.GROUP, secret, False, Operation.DESCRIBE)
    reader = PlainConsumer({**guarded.client(ADMIN), "group.id": secret})
    reader.commit(offsets=[TopicPartition(name, 0, 0)], asynchronous=False)
    reader.close()
    lists = AccessLists(guarded)
    lists.give(Role.OPERATOR.value, [describe], AclPermissionType.DENY)
    try:
        with without(guarded, Role.OPERATOR, ALTER_CLUSTER), without(guarded, Role.OPERATOR, LIST_GROUPS):
            with pytest.raises(AuthorizationError, match=f"missing {LIST_GROUPS}"):
                operations.retire(PARENT)
        with pytest.raises(AuthorizationError, match="Describe on the group"):
            operations.retire(PARENT)
    finally:
        lists.take(Role.OPERATOR.value, describe, AclPermissionType.DENY)
    assert operations.plan_retire(PARENT).kept[name].startswith(f"group {secret} stands at 0")
    assert state_of(operations, PARENT).subtopic(name).state is SubTopicState.SEALED
    admin = AdminClient(guarded.client(ADMIN))
    admin.delete_consumer_groups([secret])[secret].result(30)


SHORT_PAUSE_MS = 5_000


@pytest.mark.parametrize(
    ("step", "right"),
    [
        pytest.param("Prepare", WRITE_TOPIC, marks=pytest.mark.nightly),
        pytest.param("Fence", WRITE_TOPIC, marks=pytest.mark.nightly),
        pytest.param("Prepare", WRITE_CONTROL, marks=pytest.mark.nightly),
        pytest.param("Fence", WRITE_CONTROL, marks=pytest.mark.nightly),
        ("AppendMarkers", WRITE_CONTROL),
    ],
    ids=in_words,
)
def test_a_right_that_is_withdrawn_in_the_middle_rolls_the_operation_back(
    guarded: Guarded, operations: Admin, step: str, right: Right
) -> None:
    """Also where the operator may not even write that it gives up: a producer does it after max-pause.

    If max-pause is over before the operator comes to the write that is refused, its error says why it could
    not roll back.
    """
    lists, name = AccessLists(guarded), f"withdrawn-{step}-{right.name}"
    gives_up = right is WRITE_TOPIC
    pause_ms = PAUSE_MS if gives_up else SHORT_PAUSE_MS
    expected = (AuthorizationError,) if gives_up else (AuthorizationError, DeadlineExceededError)
    lists.give(Role.PRODUCER.value, takeover_rights(TOPIC))

    def observe(done: StepDone) -> None:
        if done.name == step:
            lists.take(Role.OPERATOR.value, right)

    merge_all(operations)
    before = state_of(operations, PARENT)
    with Producer(guarded.client("producer")) as producer, consumer(guarded) as member:
        send(producer, f"{name}-before")
        plan = operations.plan_split(PARENT, 2, even=True)
        try:
            with pytest.raises(expected) as refused:
                operations.run(plan, max_pause_ms=pause_ms, observer=observe, force=True)
            send(producer, f"{name}-while")
        finally:
            lists.give(Role.OPERATOR.value, [right])
            for lent in takeover_rights(TOPIC):
                lists.take(Role.PRODUCER.value, lent)
        assert re.search(rf"(to|in) {re.escape(right.name)}.*: missing", str(refused.value))
        operations.abort(PARENT, "a right was withdrawn")
        state = state_of(operations, PARENT)
        assert (state.phase, state.epoch) == (Phase.STEADY, before.epoch)
        send(producer, f"{name}-after")
        member.subscribe([TOPIC])
        read_all(member, [f"{name}-{when}" for when in ("before", "while", "after")])


def merge_all(operations: Admin) -> None:
    """Bring the partition into the state in which it can be split."""
    if len(state_of(operations, PARENT).lineage.open_segments()) > 1:
        operations.run(operations.plan_merge(PARENT), max_pause_ms=PAUSE_MS, force=True)


def live_through(operations: Admin) -> None:
    """Everything that an operator does with a topic, from the state that it is in."""
    operations.enrol(TOPIC, Partitioner.CONSISTENT_RANDOM, slots=2)
    merge_all(operations)
    operations.run(operations.plan_split(PARENT, 2, even=True), max_pause_ms=PAUSE_MS, force=True)
    operations.retire(PARENT)


ADD_SLOTS = Right(Resource.TOPIC, slots_topic(TOPIC), False, Operation.ALTER)
NEEDED = [
    right
    for right in rights_for(Role.CONSUMER, TOPIC, group=GROUP)
    if right.name not in (CONTROL_TOPIC, group_ids("run", GROUP)) and right != ADD_SLOTS
]


@pytest.mark.parametrize(
    "right", others_at_night(NEEDED, lambda r: r.operation is not Operation.READ), ids=in_words
)
def test_a_right_that_a_consumer_lacks_is_told_and_nothing_is_lost(guarded: Guarded, right: Right) -> None:
    with Producer(guarded.client("producer")) as producer:
        send(producer, str(right))
    also = ADD_SLOTS if right.name == ADD_SLOTS.name else None  # that one would let it see the topic
    with without(guarded, Role.CONSUMER, right), without(guarded, Role.CONSUMER, also):
        with consumer(guarded) as member:
            member.subscribe([TOPIC])
            error = first_error(member)
    assert error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
    with consumer(guarded) as member:
        member.subscribe([TOPIC])
        read_all(member, [str(right)])


def first_error(member: Consumer) -> KafkaError:
    """Poll, and commit what came, until something is refused."""
    deadline = Deadline(120)
    while True:
        deadline.check("an error that tells of the missing right")
        message = member.poll(0.2)
        try:
            if message is not None and message.error() is None:
                member.commit(asynchronous=False)
        except KafkaException as refused:
            return refused.args[0]
        if message is not None and message.error() is not None:
            return message.error()


def test_a_consumer_that_may_not_see_the_control_topic_reads_nothing_and_names_it(guarded: Guarded) -> None:
    """It cannot know whether the topic is split; what it took for a plain topic would end at the split."""
    with Producer(guarded.client("producer")) as producer:
        send(producer, "unseen")
    right = Right(Resource.TOPIC, CONTROL_TOPIC, False, Operation.READ)
    with without(guarded, Role.CONSUMER, right), consumer(guarded) as member:
        member.subscribe([TOPIC])
        message = wait_for_message(member)
        assert message.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert CONTROL_TOPIC in message.error().str()
        assert member.poll(2.0) is None
        AccessLists(guarded).give(Role.CONSUMER.value, [right])
        read_all(member, ["unseen"])


def wait_for_message(member: Consumer) -> Message:
    """Poll until there is a record or an error event."""
    found: list[Message] = []
    wait_for(lambda: (m := member.poll(0.2)) is not None and not found.append(m), "an answer", 60)
    return found[0]


@pytest.mark.nightly
def test_slots_by_another_number_take_rights_on_their_topic_and_whoever_lacks_them_says_so(
    guarded: Guarded, operations: Admin
) -> None:
    """For a topic of its own: the other tests' slots stay as they are."""
    topic, number = "changing", slots_topic("changing", 2)
    admin = AdminClient(guarded.client(ADMIN))
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    lists = AccessLists(guarded)
    for role in Role:
        lists.give(role.value, rights_for(role, topic, group=GROUP))
    operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=2)
    with pytest.raises(AuthorizationError, match=number) as refused:
        operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=3)
    assert not refused.value.changed
    lists.give(Role.OPERATOR.value, rights_for(Role.OPERATOR, topic, generation=2))
    with consumer(guarded) as member:
        member.subscribe([topic])
        wait_for(lambda: not member.poll(0.1) and len(reading(member)) == 2, "its slots", 60)
        changing = threading.Thread(
            target=operations.enrol, args=(topic, Partitioner.CONSISTENT_RANDOM), kwargs={"slots": 3}
        )
        changing.start()
        error = first_error(member)
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert f"the slots of topic {topic} cannot be seen" in error.str() and number in error.str()
        changing.join(60)
    lists.give(Role.CONSUMER.value, rights_for(Role.CONSUMER, topic, group=GROUP, generation=2))
    with consumer(guarded) as member:
        member.subscribe([topic])
        wait_for(lambda: not member.poll(0.1) and len(reading(member)) == 3, "its slots", 60)
    assert operations.view().enrolments[topic].former_slots is None


def reading(member: Consumer) -> list[str]:
    return [slot for slot, stage in member.stats()["slots"].items() if stage == "reading"]


def test_without_the_right_to_add_slots_a_member_names_the_partitions_and_the_operator_adds_them(
    guarded: Guarded, operations: Admin
) -> None:
    """The last test of the file: the topic stays larger."""
    told: list[str] = []
    config = {**guarded.client("consumer"), "group.id": GROUP, "topic.metadata.refresh.interval.ms": 1000}
    with without(guarded, Role.CONSUMER, ADD_SLOTS):
        with Consumer(config | {"error_cb": lambda error: told.append(error.str())}) as member:
            member.subscribe([TOPIC])
            grow(guarded, TOPIC, 2)
            unread = f"no group reads partition 1 of topic {TOPIC}: it has no slots"

            def reports() -> list[str]:
                """Those of this partition: a busy broker may be reported as well."""
                member.poll(0.1)
                return [text for text in told if unread in text]

            report = eventually(reports, "the report")[0]
            assert (
                f"could not add partitions to topic {slots_topic(TOPIC)}: missing the right Alter" in report
            )
            assert f"run: kpsplit enroll {TOPIC}" in report
            operations.enrol(TOPIC, Partitioner.CONSISTENT_RANDOM)
            wait_for(lambda: not member.poll(0.1) and not member.stats()["without_slots"], "the slots", 60)
    with Consumer(config) as member:
        member.subscribe([TOPIC])
        grow(guarded, TOPIC, 3)
        wait_for(lambda: not member.poll(0.1) and slots_of(guarded, TOPIC) == 6, "the member's slots", 60)


def grow(guarded: Guarded, topic: str, count: int) -> None:
    """Add partitions, as the owner of the topic does."""
    admin = AdminClient(guarded.client(ADMIN))
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)


def slots_of(guarded: Guarded, topic: str) -> int:
    """How many partitions the slots topic has."""
    name = slots_topic(topic)
    return len(AdminClient(guarded.client(ADMIN)).list_topics(name, timeout=20).topics[name].partitions)
