"""What becomes of answers of brokers that are late, missing, or of a broker that lags behind."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import Deadline
from kpsplit.control.subtopics import co_locate
from kpsplit.errors import DeadlineExceededError, KpsplitError, UnknownOutcomeError, UnreachableError
from kpsplit.files import check_writable, write_whole
from kpsplit.kafka import cluster_admin, log_ends
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition


class FakeClient:
    """Answers every call by name: an exception is raised by the future, None never comes."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def poll(self, _seconds: float) -> int:
        return 0

    def __getattr__(self, call: str) -> Any:
        def ask(asked: Any, **_: Any) -> dict[Any, Future[Any]]:
            answer = self._answers[call]
            answer = answer() if callable(answer) else answer
            future: Future[Any] = Future()
            if isinstance(answer, Exception):
                future.set_exception(answer)
            elif answer is not None:
                future.set_result(answer)
            names = getattr(asked, "topic_names", None) or [getattr(a, "topic", a) for a in asked]
            return dict.fromkeys(names, future)

        return ask


def admin_of(**answers: Any) -> ClusterAdmin:
    admin = ClusterAdmin(Connection({"bootstrap.servers": "127.0.0.1:1"}))
    admin._client = FakeClient(**answers)  # type: ignore[assignment]
    return admin


def refused(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


def layout(partitions: int = 1) -> Any:
    node = SimpleNamespace(id=0)
    places = [SimpleNamespace(id=n, leader=node, replicas=[node], isr=[node]) for n in range(partitions)]
    return SimpleNamespace(name="orders", topic_id="T", partitions=places)


MISSING = refused(KafkaError.UNKNOWN_TOPIC_OR_PART)


def test_a_write_that_was_not_answered_may_have_been_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_ends, "GRACE", 0.0)
    admin = admin_of(delete_topics=None)
    with pytest.raises(UnknownOutcomeError, match="delete topic orders") as caught:
        admin.delete("orders", seconds=0.01)
    assert caught.value.changed is None
    with pytest.raises(UnreachableError) as read:
        admin.answer(Future(), "describe topic orders", 0.01)
    assert read.value.changed is False


def test_partitions_that_somebody_else_has_just_added_are_no_error() -> None:
    admin = admin_of(create_partitions=refused(KafkaError.INVALID_PARTITIONS))
    admin.add_partitions("orders", 4)


def test_partitions_that_cannot_be_added_are_an_error_of_kpsplit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_ends, "GRACE", 0.0)
    for answer in (refused(KafkaError.TOPIC_AUTHORIZATION_FAILED), None):
        with pytest.raises(KpsplitError, match="add partitions to topic orders"):
            admin_of(create_partitions=answer).add_partitions("orders", 4, seconds=0.01)


def test_a_topic_that_is_deleted_while_it_is_looked_at_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = admin_of(describe_configs=MISSING)
    looks = iter([admin_of(describe_topics=layout()).known("orders"), None])
    monkeypatch.setattr(admin, "known", lambda *_: next(looks))
    assert admin.find("orders") is None


def test_a_topic_whose_settings_a_stale_broker_does_not_know_is_asked_for_until_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = admin_of(describe_topics=layout(), describe_configs=lambda: next(answers))
    answers = iter([MISSING] * 1000)
    monkeypatch.setattr(cluster_admin, "_CERTAINTY_SECONDS", 0.05)
    monkeypatch.setattr(cluster_admin, "_PAUSE", 0.001)
    with pytest.raises(DeadlineExceededError, match="the settings of topic orders"):
        admin.find("orders")


def test_leaders_stay_where_a_stale_broker_does_not_know_the_parent() -> None:
    parent, source = PhysicalPartition("orders", 3), PhysicalPartition("orders.split-3-1", 0)
    for answer in (MISSING, layout(partitions=2)):
        told = co_locate(admin_of(describe_topics=answer), parent, [source], Deadline(5))
        assert told == "leaders stay where they are: orders/3 has no leader"


def test_what_a_pipeline_reads_can_be_written_by_its_name() -> None:
    reader, writer = os.pipe()
    path = Path(f"/dev/fd/{writer}")
    check_writable(path, "")
    write_whole(path, b"content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    os.close(writer)


def test_a_log_of_which_nobody_says_in_time_that_it_is_there_may_be_asked_for_again() -> None:
    no_leaders = refused(KafkaError._NOENT)
    client = FakeClient(list_offsets=no_leaders, describe_topics=refused(KafkaError._TIMED_OUT))
    client.list_offsets = lambda asked, **_: {  # type: ignore[attr-defined]
        part: _failed(no_leaders) for part in asked
    }
    client.list_topics = lambda *_, **__: None  # type: ignore[attr-defined]
    admin = admin_of()
    admin._client = client  # type: ignore[assignment]
    with pytest.raises(UnreachableError, match="orders/0"):
        admin.end_offsets([PhysicalPartition("orders", 0)], seconds=0.2)


def _failed(error: Exception) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
