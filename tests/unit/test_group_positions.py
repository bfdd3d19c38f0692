"""How far groups have read, asked while their coordinators move."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka import TopicPartition
from kafka.errors import GroupAuthorizationFailedError, NotCoordinatorError, UnknownError
from kafka.structs import OffsetAndMetadata

from kpsplit.clock import Deadline
from kpsplit.errors import AuthorizationError, KpsplitError, UnreachableError
from kpsplit.kafka import groups
from kpsplit.kafka.kafka_python import KafkaPythonError, NotExpressibleError
from kpsplit.splitter.lineage import PhysicalPartition

ADMIN: Any = SimpleNamespace(connection=SimpleNamespace(properties={}))
Answers = Callable[..., list[Any]]


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
        monkeypatch.setattr(groups, "_PAUSE", 0.001)
        return asked

    return answer


@dataclass
class Coordinators:
    """Brokers that say so many times that they read their log; after that there is no group."""

    loads: int

    def _error(self) -> KafkaError | None:
        self.loads -= 1
        return KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS) if self.loads >= 0 else None

    def list_consumer_groups(self, **_: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        error = self._error()
        answer.set_result(SimpleNamespace(valid=[], errors=[KafkaException(error)] if error else []))
        return answer

    def describe_consumer_groups(self, names: list[str], **_: Any) -> dict[str, Future[Any]]:
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(self._error() or KafkaError(KafkaError.GROUP_ID_NOT_FOUND)))
        return {names[0]: answer}


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
    answers: Answers, kind: type[Exception], error: type[KpsplitError]
) -> None:
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
    coordinators = Coordinators(loads=3)
    monkeypatch.setattr(groups, "_coordinators", lambda _, __: [0])
    question(SimpleNamespace(client=coordinators, connection=ADMIN.connection), Deadline(30))
    assert coordinators.loads < 0, "it was not asked until the log was read"


def test_librdkafka_is_asked_where_kafka_python_cannot_be_given_the_settings(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(NotExpressibleError("oauth_cb"))
    monkeypatch.setattr(groups, "_by_librdkafka", lambda _, group: {PhysicalPartition(group, 0): 3})
    assert groups.positions_of(ADMIN, "billing") == {PhysicalPartition("billing", 0): 3}
