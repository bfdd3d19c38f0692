"""How far groups have read, asked while their coordinators move."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AclOperation
from kafka import TopicPartition
from kafka.errors import (
    CoordinatorLoadInProgressError,
    GroupAuthorizationFailedError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    KafkaConnectionError,
    NoError,
    NonEmptyGroupError,
    NotCoordinatorError,
    RequestTimedOutError,
    UnknownError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata

from kpsplit.clock import Deadline
from kpsplit.errors import AuthorizationError, KpsplitError, UnknownOutcomeError, UnreachableError
from kpsplit.kafka import coordinators, groups
from kpsplit.kafka.cluster_admin import PartitionFacts, TopicFacts
from kpsplit.kafka.coordinators import java_hash, made_up_groups, partition_of_hash
from kpsplit.kafka.error_map import translate
from kpsplit.kafka.groups import Members, Owner
from kpsplit.kafka.kafka_python import KafkaPythonError, NotExpressibleError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.rights import GROUPS_TOPIC

ADMIN: Any = SimpleNamespace(connection=SimpleNamespace(properties={}))
ALLOWED = SimpleNamespace(authorized_operations=[AclOperation.DESCRIBE])
Answers = Callable[..., list[Any]]


DELETED = {TopicPartition("orders", 0): NoError}


@pytest.mark.parametrize(
    ("answer", "changed"),
    [
        (TimeoutError, None),
        (RequestTimedOutError, None),
        (KafkaConnectionError, None),
        (NotCoordinatorError, None),
        (UnknownError, None),
        (CoordinatorLoadInProgressError, False),
        (GroupAuthorizationFailedError, False),
        (NonEmptyGroupError, False),
        ({TopicPartition("orders", 1): GroupSubscribedToTopicError}, False),
        ({TopicPartition("gone", 0): UnknownTopicOrPartitionError}, "done"),
        ({**DELETED, TopicPartition("orders", 1): GroupSubscribedToTopicError}, True),
        (DELETED, "done"),
        (GroupIdNotFoundError, "done"),
    ],
    ids=str,
)
def test_it_is_said_what_is_known_of_ordinary_offsets_that_were_to_be_forgotten(
    monkeypatch: pytest.MonkeyPatch, answer: Any, changed: object
) -> None:
    """A coordinator that could not replicate the deletion says that it is none, or is not available."""

    def ask(*_: Any) -> Any:
        if isinstance(answer, dict):
            return answer
        raise KafkaPythonError(answer)

    monkeypatch.setattr(groups, "ask_kafka_python", ask)
    places = [PhysicalPartition("orders", n) for n in range(2)]
    if changed == "done":
        groups.delete_positions(ADMIN.connection, "billing", places)
        return
    with pytest.raises(KpsplitError, match="could not forget the ordinary offsets of group billing") as told:
        groups.delete_positions(ADMIN.connection, "billing", places)
    assert told.value.changed is changed
    assert isinstance(told.value, UnknownOutcomeError) is (changed is None)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Have kafka-python fail so, and answer after that; return what was asked."""

    def answer(*failures: Exception) -> list[Any]:
        due, asked = list(failures), []
        client = SimpleNamespace(list_group_offsets=lambda names: asked.append(names) or offsets(names))

        def ask(_: Any, __: str, seconds: float, question: Callable[[Any], Any]) -> Any:
            assert seconds > 0
            if due:
                raise due.pop(0)
            return question(client)

        monkeypatch.setattr(groups, "ask_kafka_python", ask)
        monkeypatch.setattr(groups, "PAUSE", 0.001)
        monkeypatch.setattr(coordinators, "PAUSE", 0.001)
        return asked

    return answer


@dataclass
class Coordinators:
    """Brokers that say so many times that they read their log; after that there is no group."""

    loads: int

    def _error(self) -> KafkaError | None:
        self.loads -= 1
        return KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS) if self.loads >= 0 else None

    def describe_cluster(self, **_: Any) -> Any:
        return ALLOWED

    def list_consumer_groups(self, **_: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        error = self._error()
        answer.set_result(SimpleNamespace(valid=[], errors=[KafkaException(error)] if error else []))
        return answer

    def describe_consumer_groups(self, names: list[str], **_: Any) -> dict[str, Future[Any]]:
        error = self._error() or KafkaError(KafkaError.GROUP_ID_NOT_FOUND)
        return {name: refused(error) for name in names}


class OldCoordinator:
    """A broker that coordinates the group no more, though the client goes on asking it.

    ``moved``: a client asks the new one, which says that there is no group.
    """

    moved = False

    @property
    def client(self) -> OldCoordinator:
        return self

    def renew(self) -> None:
        self.moved = True

    def describe_consumer_groups(self, names: list[str], **_: Any) -> dict[str, Future[Any]]:
        moved = KafkaError(KafkaError.NOT_COORDINATOR, "ConsumerGroupDescribe: ")
        answer = refused(KafkaError(KafkaError.GROUP_ID_NOT_FOUND) if self.moved else moved)
        return dict.fromkeys(names, answer)


@dataclass
class OneThatDoesNotCoordinate:
    """Brokers that coordinate three partitions of the groups, but one only after so many questions.

    Until then its group is on no list, and no error says so. ``asked``: groups that are made up, at a time.
    ``behind``: so many times its leader does not know yet what is committed, and cannot say where it ends.
    """

    partition: int
    silent_for: int
    refusal: int = KafkaError.NOT_COORDINATOR
    asked: list[list[str]] = field(default_factory=list)
    allowed: tuple[AclOperation, ...] = (AclOperation.DESCRIBE,)
    behind: int = 0

    @property
    def client(self) -> OneThatDoesNotCoordinate:
        return self

    @property
    def connection(self) -> Any:
        return ADMIN.connection

    def describe_cluster(self, *, include_authorized_operations: bool, **_: Any) -> Any:
        assert include_authorized_operations
        return SimpleNamespace(authorized_operations=self.allowed)

    def answer(self, cluster: Any, _what: str) -> Any:
        return cluster

    def known(self, _topic: str, _deadline: Deadline) -> TopicFacts:
        return TopicFacts(GROUPS_TOPIC, "id", (PartitionFacts(0, (0,), (0,)),) * 3)

    def renew(self) -> None:
        pass

    def end_offsets(self, places: list[PhysicalPartition], seconds: float) -> dict[PhysicalPartition, int]:
        assert len(places) == 3
        self.behind -= 1
        if self.behind >= 0:
            raise translate(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE), "read the end")
        return dict.fromkeys(places, 0)

    def describe_consumer_groups(self, names: list[str], **_: Any) -> dict[str, Future[Any]]:
        self.asked.append(names)
        found = {name: refused(KafkaError(KafkaError.GROUP_ID_NOT_FOUND)) for name in names}
        if len(self.asked) <= self.silent_for:
            (kept_there,) = (n for n in names if partition_of_hash(java_hash(n), 3) == self.partition)
            found[kept_there] = refused(KafkaError(self.refusal))
        return found

    def list_consumer_groups(self, **_: Any) -> Future[Any]:
        groups_there = [SimpleNamespace(group_id="seen", state=ConsumerGroupState.STABLE)]
        if len(self.asked) > self.silent_for:
            groups_there.append(SimpleNamespace(group_id="hidden", state=ConsumerGroupState.EMPTY))
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(valid=groups_there, errors=[]))
        return answer


def refused(error: KafkaError) -> Future[Any]:
    answer: Future[Any] = Future()
    answer.set_exception(KafkaException(error))
    return answer


def offsets(names: list[str]) -> dict[str, Any]:
    """Every group has read partition 0 up to 7, and has nothing of partition 1."""
    known = {0: 7, 1: -1}
    return {
        g: {TopicPartition("orders", n): OffsetAndMetadata(at, "", -1) for n, at in known.items()}
        for g in names
    }


def test_a_coordinator_that_moves_is_looked_for_again(answers: Answers) -> None:
    asked = answers(KafkaPythonError(NotCoordinatorError), KafkaPythonError(NotCoordinatorError))
    assert groups.positions_of(ADMIN, "billing") == {PhysicalPartition("orders", 0): 7}
    assert asked == [["billing"]]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (GroupAuthorizationFailedError, AuthorizationError),
        (TimeoutError, UnreachableError),
        (UnknownError, KpsplitError),
    ],
)
def test_a_group_that_cannot_be_asked_is_not_taken_for_one_without_positions(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], error: type[KpsplitError]
) -> None:
    monkeypatch.setattr(groups, "ANSWER_SECONDS", 0.01)  # what is not answered uses up the time
    answers(KafkaPythonError(kind))
    with pytest.raises(error, match="could not read the positions of group billing"):
        groups.positions_of(ADMIN, "billing")


def test_a_coordinator_that_is_never_found_ends_the_question(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "ANSWER_SECONDS", 0.01)
    answers(*[KafkaPythonError(NotCoordinatorError)] * 1000)
    with pytest.raises(KpsplitError, match="NotCoordinatorError"):
        groups.positions_of(ADMIN, "billing")


@pytest.mark.parametrize(
    "question", [groups.committed_positions, lambda a, _: groups.describe_members(a, "billing")]
)
def test_a_coordinator_that_reads_its_log_is_asked_again(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, question: Callable[[Any, Deadline], Any]
) -> None:
    """So a broker answers that has just started, also when it is asked for its list of groups."""
    answers()
    loading = Coordinators(loads=3)
    monkeypatch.setattr(coordinators, "_leaders", lambda _, __: [0])
    admin = SimpleNamespace(
        client=loading,
        connection=ADMIN.connection,
        answer=lambda found, _: found,
        end_offsets=lambda places, seconds: {},
    )
    question(admin, Deadline(30))
    assert loading.loads < 0, "it was not asked until the log was read"


class Slow(Coordinators):
    """Answers take a moment. ``renewed``: the client was thrown away."""

    renewed = False

    @property
    def client(self) -> Slow:
        return self

    def renew(self) -> None:
        self.renewed = True

    def describe_consumer_groups(self, names: list[str], **_: Any) -> dict[str, Future[Any]]:
        error = KafkaException(self._error() or KafkaError(KafkaError.GROUP_ID_NOT_FOUND))
        answer: Future[Any] = Future()
        threading.Timer(0.3, answer.set_exception, [error]).start()
        return dict.fromkeys(names, answer)


def test_a_coordinator_that_reads_its_log_all_along_is_not_taken_for_one_that_is_silent() -> None:
    """No question is asked for whose answer there is no time."""
    brokers: Any = Slow(loads=10**9)
    with pytest.raises(UnreachableError, match="oad in progress"):
        groups.describe_members(brokers, "billing", 1.35)
    assert not brokers.renewed


def test_a_group_is_not_asked_for_at_its_old_coordinator_again() -> None:
    assert not groups.describe_members(cast(Any, OldCoordinator()), "billing").active


def test_an_old_coordinator_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer has no text of its own."""
    monkeypatch.setattr(OldCoordinator, "renew", lambda _: None)
    with pytest.raises(UnreachableError, match="could not describe group billing: Broker: Not coordinator"):
        groups.describe_members(cast(Any, OldCoordinator()), "billing", 0.2)


def test_a_list_counts_only_if_leaders_know_what_is_committed(answers: Answers) -> None:
    answers()
    brokers: Any = OneThatDoesNotCoordinate(partition=1, silent_for=0, behind=2)
    assert set(groups.committed_positions(brokers, Deadline(30))) == {"seen", "hidden"}
    assert brokers.behind < 0, "a leader that does not know it yet was taken at its word"


def test_a_group_whose_coordinator_has_not_read_its_partition_is_waited_for(answers: Answers) -> None:
    """A broker that does not coordinate a partition leaves its groups out of the list, without an error."""
    answers()
    brokers: Any = OneThatDoesNotCoordinate(partition=1, silent_for=2)
    assert set(groups.committed_positions(brokers, Deadline(30))) == {"seen", "hidden"}
    assert [len(names) for names in brokers.asked] == [3, 3, 3], "one question for all partitions"


def test_positions_and_members_of_groups_come_from_one_list(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list asks the coordinator of every partition."""
    answers()
    brokers: Any = OneThatDoesNotCoordinate(partition=0, silent_for=0)
    described: list[str] = []

    def members(_: object, group: str, *__: object, kept: bool) -> Members:
        described.append(group)
        return Members(True, True, {PhysicalPartition("elsewhere", 0): Owner("m", "client", "host")})

    monkeypatch.setattr(groups, "_stable_classic", lambda *_: {})
    monkeypatch.setattr(groups, "describe_members", members)
    seven = {PhysicalPartition("orders", 0): 7}
    assert groups.known_groups(brokers, {"orders"}, Deadline(30)) == {"seen": seven, "hidden": seven}
    assert described == [], "a group with commits is known without its members"
    assert groups.known_groups(brokers, {"elsewhere"}, Deadline(30)) == {"seen": seven}
    assert described == ["seen"], "a group without members has none to ask for"
    assert len(brokers.asked) == 2


def test_groups_that_nobody_coordinates_are_not_taken_for_none(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it stays where a coordinator could not read its partition."""
    answers()
    monkeypatch.setattr(coordinators, "ANSWER_SECONDS", 0.05)
    brokers: Any = OneThatDoesNotCoordinate(partition=2, silent_for=10**9)
    with pytest.raises(UnreachableError, match=f"the groups of partition 2 of {GROUPS_TOPIC}"):
        groups.committed_positions(brokers, Deadline(30))


def test_groups_that_we_may_not_see_are_not_taken_for_none(answers: Answers) -> None:
    answers()
    brokers: Any = OneThatDoesNotCoordinate(0, 1, KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(AuthorizationError, match="Describe on group"):
        groups.committed_positions(brokers, Deadline(30))


@pytest.mark.parametrize("allowed", [(), (AclOperation.CREATE,)], ids=["nothing", "not-to-describe"])
def test_no_list_of_groups_counts_without_the_right_to_see_those_that_are_denied(
    answers: Answers, allowed: tuple[AclOperation, ...]
) -> None:
    """Brokers leave out a group that a rule denies, and answer for every other one."""
    answers()
    brokers: Any = OneThatDoesNotCoordinate(0, 0, allowed=allowed)
    with pytest.raises(AuthorizationError, match="missing Describe on cluster kafka-cluster"):
        groups.committed_positions(brokers, Deadline(30))


@pytest.mark.parametrize(
    ("name", "partition"),
    [("", 0), ("hello", 99162322 % 50), ("foobar", 1268878963 % 50), ("polygenelubricants", 0)],
    ids=["empty", "hello", "negative", "the-least-number"],
)
def test_a_group_is_kept_where_the_hash_of_its_name_says(name: str, partition: int) -> None:
    """By Java's String.hashCode, of which Kafka takes the amount; of the least number of all, 0."""
    assert partition_of_hash(java_hash(name), 50) == partition


@pytest.mark.parametrize("partitions", [0, 1, 50])
def test_made_up_groups_are_kept_in_one_partition_each(partitions: int) -> None:
    names = made_up_groups(partitions)
    assert [partition_of_hash(java_hash(n), partitions) for n in names] == list(range(partitions))


def test_librdkafka_is_asked_where_kafka_python_cannot_be_given_the_settings(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(NotExpressibleError("oauth_cb"))
    monkeypatch.setattr(groups, "_by_librdkafka", lambda _, group: {PhysicalPartition(group, 0): 3})
    assert groups.positions_of(ADMIN, "billing") == {PhysicalPartition("billing", 0): 3}
