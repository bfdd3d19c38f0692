"""Each role works with the rights that `kpsplit acls` prints, and a missing one is named."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Consumer, Producer
from kpsplit.consumer.lineage_reader import LineageReader
from kpsplit.devcluster.jvm import KafkaRuntime
from kpsplit.errors import AuthorizationError
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.operations import Operations
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.records.keys import CONTROL_TOPIC
from kpsplit.splitter.rights import Operation, Resource, Right, Role, rights_for, takeover_rights
from kpsplit.splitter.states import Phase
from tests.broker.consuming import drain, wait_for
from tests.broker.guarded import (
    ADMIN,
    AccessLists,
    Guarded,
    await_login,
    guarded_cluster,
    password_of,
    set_passwords,
)
from tests.broker.operating import PAUSE_MS, SHORT_LEASE_MS, state_of

pytestmark = pytest.mark.broker

TOPIC, GROUP, KEYS = "orders", "billing", 30
PARENT = PhysicalPartition(TOPIC, 0)


@pytest.fixture(scope="module")
def guarded(kafka_runtime: KafkaRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A cluster that its admin has initialised, with a topic that its operator has split."""
    with guarded_cluster(tmp_path_factory.mktemp("tls")) as guarded:
        prepare(guarded)
        yield guarded


def prepare(guarded: Guarded) -> None:
    """Do it in a function of its own, so that no client outlives it."""
    admin = AdminClient(guarded.client(ADMIN))
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(20)
    lists = AccessLists(guarded)
    for role in Role:
        lists.give(role.value, rights_for(role, TOPIC, group=GROUP))
    with Operations(Connection(guarded.client(ADMIN))) as operations:
        operations.initialise(lease_ms=SHORT_LEASE_MS)
    with Operations(Connection(guarded.client("operator"))) as operations:
        operations.enrol(TOPIC, Partitioner.CONSISTENT_RANDOM, slots=2)
        operations.run(operations.plan_split(PARENT, 2, even=True), max_pause_ms=PAUSE_MS, force=True)


@pytest.fixture
def operations(guarded: Guarded) -> Iterator[Operations]:
    """Operations of somebody who is an operator and no more."""
    with Operations(Connection(guarded.client("operator"))) as operations:
        yield operations


def in_words(right: Right | str) -> str:
    """A right in a test's name: without blanks, so that reports do not cut it off."""
    return str(right).replace(" ", "-")


def send(producer: Producer, name: str) -> None:
    told: list[KafkaError | None] = []
    for n in range(KEYS):
        producer.produce(
            TOPIC,
            f"{name}-{n}".encode(),
            f"key-{n}".encode(),
            on_delivery=lambda error, _: told.append(error),
        )
    assert producer.flush(30) == 0
    assert told == [None] * KEYS


def all_of(names: Iterable[str]) -> set[bytes | None]:
    return {f"{name}-{n}".encode() for name in names for n in range(KEYS)}


def consumer(guarded: Guarded) -> Consumer:
    """A member of the group that is allowed."""
    return Consumer(
        {
            **guarded.client("consumer"),
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
        }
    )


def read_all(member: Consumer, names: Iterable[str]) -> None:
    """Read until the records of these names have come."""
    wanted = all_of(names)
    while wanted:
        wanted -= {m.value() for m in drain(member, 1)}


@contextmanager
def without(guarded: Guarded, role: Role, right: Right) -> Iterator[None]:
    """Take a right from a role for a while."""
    lists = AccessLists(guarded)
    lists.take(role.value, right)
    try:
        yield
    finally:
        lists.give(role.value, [right])


ROTATED = ("operator", "producer", "consumer")


@contextmanager
def other_passwords(guarded: Guarded) -> Iterator[Callable[[], dict[str, str]]]:
    """Yield what gives the users other passwords, until the end of the block, and returns them."""
    admin = AdminClient(guarded.client(ADMIN))

    def change(passwords: dict[str, str]) -> dict[str, str]:
        set_passwords(admin, passwords)
        for user, password in passwords.items():
            await_login({**guarded.client(user), "sasl.password": password})
        return passwords

    try:
        yield lambda: change({user: f"rotated-{user}" for user in ROTATED})
    finally:
        change({user: password_of(user) for user in ROTATED})


def commits(member: Consumer) -> bool:
    """Try to commit. librdkafka loses requests of a transaction when its broker goes away: then once more."""
    try:
        member.commit(asynchronous=False)
    except KafkaException as exception:
        assert exception.args[0].code() == KafkaError._TIMED_OUT
        return False
    return True


def test_every_client_logs_in_with_a_password_that_was_changed_while_it_ran(guarded: Guarded) -> None:
    """The broker is restarted, so that each has to log in again, and tells of those that it refused."""
    operator, broker = Connection(guarded.client("operator")), guarded.cluster.brokers[0]
    with (
        other_passwords(guarded) as change_passwords,
        Operations(operator) as operations,
        Producer(guarded.client("producer")) as producer,
        consumer(guarded) as member,
    ):
        member.subscribe([TOPIC])
        send(producer, "old password")
        merge_all(operations)
        read_all(member, ["old password"])
        member.commit(asynchronous=False)
        passwords = change_passwords()
        for client, user in ((operator, "operator"), (producer, "producer"), (member, "consumer")):
            client.set_sasl_credentials(user, passwords[user])
        gc.collect()  # clients of earlier tests would try the old password for ever
        broker.kill()
        told = broker.log.stat().st_size
        broker.restart()
        send(producer, "new password")
        operations.run(operations.plan_split(PARENT, 2, even=True), max_pause_ms=PAUSE_MS, force=True)
        send(producer, "new password, new layout")
        read_all(member, ["new password", "new password, new layout"])
        wait_for(lambda: commits(member), "a commit")
        lines = broker.log.read_bytes()[told:].decode(errors="replace").splitlines()
        assert not [line for line in lines if "Failed authentication" in line]


def test_everybody_works_with_the_least_rights(guarded: Guarded, operations: Operations) -> None:
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


LATER = (Operation.CREATE, Operation.ALTER)
"""For `kpsplit init`, new slots and sub-topics; for leaders that move, of which one broker has none."""


@pytest.mark.parametrize(
    "right",
    [r for r in rights_for(Role.OPERATOR, TOPIC) if r.operation not in LATER or r.name.startswith(TOPIC)],
    ids=in_words,
)
def test_a_right_that_an_operator_lacks_is_named_and_nothing_is_half_done(
    guarded: Guarded, operations: Operations, right: Right
) -> None:
    with Producer(guarded.client("producer")) as producer:
        send(producer, str(right))
        with without(guarded, Role.OPERATOR, right), pytest.raises(AuthorizationError) as refused:
            with Operations(Connection(guarded.client("operator"))) as lacking:
                live_through(lacking)
        assert refused.value.changed is not True
        assert (right.name or right.resource) in str(refused.value)
        state = operations.view().state(PARENT)
        assert state is not None and (state.phase, state.attempt) == (Phase.STEADY, None)
        send(producer, "still")


SHORT_PAUSE_MS = 5_000
WRITE_TOPIC = Right(Resource.TOPIC, TOPIC, False, Operation.WRITE)
WRITE_CONTROL = Right(Resource.TOPIC, CONTROL_TOPIC, False, Operation.WRITE)


@pytest.mark.parametrize(
    ("step", "right"),
    [
        ("Prepare", WRITE_TOPIC),
        ("Fence", WRITE_TOPIC),
        ("Prepare", WRITE_CONTROL),
        ("Fence", WRITE_CONTROL),
        ("AppendMarkers", WRITE_CONTROL),
    ],
    ids=in_words,
)
def test_a_right_that_is_withdrawn_in_the_middle_rolls_the_operation_back(
    guarded: Guarded, operations: Operations, step: str, right: Right
) -> None:
    """Also where the operator may not even write that it gives up: a producer does it behind max-pause."""
    lists, name = AccessLists(guarded), f"withdrawn-{step}-{right.name}"
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
            with pytest.raises(AuthorizationError) as refused:
                operations.run(plan, max_pause_ms=SHORT_PAUSE_MS, observer=observe, force=True)
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


def merge_all(operations: Operations) -> None:
    """Bring the partition into the state in which it can be split."""
    if len(state_of(operations, PARENT).lineage.open_segments()) > 1:
        operations.run(operations.plan_merge(PARENT), max_pause_ms=PAUSE_MS, force=True)


def live_through(operations: Operations) -> None:
    """Everything that an operator does with a topic, from the state that it is in."""
    operations.enrol(TOPIC, Partitioner.CONSISTENT_RANDOM, slots=2)
    merge_all(operations)
    operations.run(operations.plan_split(PARENT, 2, even=True), max_pause_ms=PAUSE_MS, force=True)
    operations.retire(PARENT)


NEEDED = [
    right
    for right in rights_for(Role.CONSUMER, TOPIC, group=GROUP)
    if right.name not in (CONTROL_TOPIC, f"kpsplit.run.{GROUP}.")
]


@pytest.mark.parametrize("right", NEEDED, ids=in_words)
def test_a_right_that_a_consumer_lacks_is_told_and_nothing_is_lost(guarded: Guarded, right: Right) -> None:
    with Producer(guarded.client("producer")) as producer:
        send(producer, str(right))
    with without(guarded, Role.CONSUMER, right), consumer(guarded) as member:
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
