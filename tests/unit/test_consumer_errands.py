"""The thread for what has to wait for brokers, and the client for questions."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit.consumer.broker_executor import BrokerExecutor, QueryClient
from kpsplit.splitter.lineage import PhysicalPartition


def test_whatever_a_job_raises_the_next_one_is_run() -> None:
    executor = BrokerExecutor("test", None)

    def leave() -> None:
        raise SystemExit

    left, next_one = executor.run(leave), executor.run(lambda: 7)
    with pytest.raises(SystemExit):
        left.result(10)
    assert next_one.result(10) == 7
    executor.close(10)


def test_jobs_that_two_threads_give_first_are_run_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would commit and look up starts at the same time, by clients that are used by one thread."""

    class SlowlyMade(threading.Thread):
        def __init__(self, *args: object, **kwargs: object) -> None:
            time.sleep(0.2 * (threading.current_thread() is not threading.main_thread()))
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    runners: set[int] = set()
    both = threading.Barrier(2)

    def job() -> None:
        runners.add(threading.get_ident())
        time.sleep(0.2)

    def give() -> None:
        both.wait(10)
        futures.append(executor.run(job))

    givers, futures = [threading.Thread(target=give) for _ in range(2)], []
    monkeypatch.setattr(threading, "Thread", SlowlyMade)
    executor = BrokerExecutor("test", None)
    for giver in givers:
        giver.start()
    for giver in givers:
        giver.join(10)
    for future in futures:
        future.result(10)
    executor.close(10)
    assert len(runners) == 1


class Leaders:
    """A client that knows no leader of some partitions: it says so of each, and leaves the time there."""

    def __init__(self, **errors: KafkaError) -> None:
        self._errors = errors

    def open_consumer(self, _role: str, **_settings: object) -> Leaders:
        return self

    def offsets_for_times(self, asked: list[TopicPartition], timeout: float) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(
                topic=part.topic,
                partition=part.partition,
                offset=part.offset if (error := self._errors.get(part.topic)) else 7,
                error=error,
            )
            for part in asked
        ]


def first_at(**errors: KafkaError) -> dict[str, int]:
    client: Any = Leaders(**errors)
    places = [PhysicalPartition(topic, 0) for topic in ("a", "b")]
    found = QueryClient(client, "g").first_at(places, 1_700_000_000_000, 5.0)
    return {place.topic: offset for place, offset in found.items()}


def test_the_time_that_is_asked_for_is_not_taken_for_an_offset() -> None:
    """An application that asks where to begin would begin after the end of the log."""
    assert first_at() == {"a": 7, "b": 7}
    assert first_at(b=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)) == {"a": 7}
    with pytest.raises(KafkaException) as raised:
        first_at(b=KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    assert raised.value.args[0].code() == KafkaError.LEADER_NOT_AVAILABLE
