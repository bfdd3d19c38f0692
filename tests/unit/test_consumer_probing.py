"""Questions about a log: a topic is taken for gone only when brokers agree for a while."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpsplit import clock
from kpsplit.consumer.fetch.gaps import Found
from kpsplit.consumer.fetch.physical_reader import LogProbe
from kpsplit.kafka import cluster_admin
from kpsplit.kafka.cluster_admin import Vote
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition

PLACE = PhysicalPartition("orders.split-3-1", 0)
NO_SUCH = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
CONNECTION = Connection({"bootstrap.servers": "127.0.0.1:1"})
TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Described:
    """What a broker says of a topic that it knows."""

    topic_id = "the-id"


class Admin:
    """Answers at once, whatever is said next; the last answer is said again and again."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked = 0

    def describe_topics(self, _topics: Any, **_: Any) -> dict[str, Future[Any]]:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        future: Future[Any] = Future()
        if isinstance(answer, KafkaException):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return {PLACE.topic: future}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time; tests move it."""
    time = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: time[0])
    return time


@pytest.fixture(autouse=True)
def votes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the vote of all brokers says, one after the other; the last one for ever."""
    said = [True]

    def vote(*_: object) -> Vote:
        gone = said.pop(0) if len(said) > 1 else said[0]
        return Vote(frozenset(range(3)), {n: frozenset() for n in range(3 if gone else 1)})

    def at_once(call: Any, _name: str) -> Future[Vote]:
        future: Future[Vote] = Future()
        future.set_result(call())
        return future

    monkeypatch.setattr(cluster_admin, "ask_every_broker", vote)
    monkeypatch.setattr(cluster_admin, "in_thread", at_once)
    return said


def asked(admin: Admin, now: list[float], seconds: float, *, retired: bool = False) -> Found | None:
    """Ask for so many seconds; return what was found."""
    probe = LogProbe(admin, CONNECTION, PLACE, 7, with_bounds=False, holds_up=True, retired=retired)  # type: ignore[arg-type]
    end = now[0] + seconds
    while not probe.done() and now[0] < end:
        now[0] += 0.1
    return probe.found


def test_a_topic_is_gone_when_nothing_else_was_answered_for_long_enough(now: list[float]) -> None:
    admin = Admin(NO_SUCH)
    assert asked(admin, now, cluster_admin.CERTAIN_SECONDS - 1) is None
    assert asked(admin, now, cluster_admin.CERTAIN_SECONDS + 1) == Found(None, None)
    assert admin.asked > 40


def test_a_topic_is_not_gone_while_most_brokers_do_not_say_so(now: list[float], votes: list[bool]) -> None:
    """A stale broker is the only one that answers: it may say no for as long as the others are frozen."""
    votes[:] = [False, False, True]
    assert asked(Admin(NO_SUCH), now, 2.9 * cluster_admin.CERTAIN_SECONDS) is None
    assert asked(Admin(NO_SUCH), now, cluster_admin.CERTAIN_SECONDS + 1) == Found(None, None)


def test_a_topic_that_one_broker_did_not_know_for_some_seconds_is_not_gone(now: list[float]) -> None:
    found = asked(Admin(*[NO_SUCH] * 20, Described()), now, 30)
    assert found == Found("the-id", None)


@pytest.mark.parametrize("in_between", [TIMED_OUT])
def test_brokers_that_do_not_answer_in_between_make_it_uncertain_again(
    now: list[float], in_between: KafkaException
) -> None:
    admin = Admin(*[NO_SUCH] * 20, in_between, NO_SUCH)
    assert asked(admin, now, cluster_admin.CERTAIN_SECONDS) is None


def test_of_a_retired_sub_topic_the_first_no_is_believed(now: list[float]) -> None:
    admin = Admin(NO_SUCH)
    assert asked(admin, now, 0.1, retired=True) == Found(None, None)
    assert admin.asked == 1
