"""How far groups have read, asked while their coordinators move."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import GroupAuthorizationFailedError, NotCoordinatorError, UnknownError
from kafka.structs import OffsetAndMetadata

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


def test_librdkafka_is_asked_where_kafka_python_cannot_be_given_the_settings(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(NotExpressibleError("oauth_cb"))
    monkeypatch.setattr(groups, "_ask", lambda _, group: group)
    monkeypatch.setattr(groups, "_answer", lambda _, group, __: {PhysicalPartition(group, 0): 3})
    assert groups.positions_of(ADMIN, "billing") == {PhysicalPartition("billing", 0): 3}
