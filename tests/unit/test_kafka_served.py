"""When brokers are taken to serve a topic that was just made, without brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

from kpsplit.clock import Deadline
from kpsplit.errors import DeadlineExceededError
from kpsplit.kafka.cluster_admin import await_served
from kpsplit.kafka.following import OneBroker
from tests.unit.test_absence import refused_settings

ONE_AWAY = (2, (2, 0))


class Admin:
    """Two of three brokers, each of which names leaders and in-sync replicas of the topic t."""

    def __init__(self, *said: tuple[int, tuple[int, ...]]) -> None:
        partitions = {
            number: SimpleNamespace(leader=leader, isrs=list(isrs), replicas=[0, 1, 2])
            for number, (leader, isrs) in enumerate(said)
        }
        self._topics = {"t": SimpleNamespace(error=None, partitions=partitions)}
        self.connection = self

    def brokers(self) -> dict[int, str]:
        return {0: "a:1", 2: "b:1"}

    def longest_pause(self, default: int) -> int:
        return default

    def open_admin(self, *_: Any, bootstrap_servers: str, **__: Any) -> Any:
        (number,) = (n for n, address in self.brokers().items() if address == bootstrap_servers)
        listed = SimpleNamespace(topics=self._topics, orig_broker_id=number)
        return SimpleNamespace(list_topics=lambda *_, **__: listed, describe_configs=refused_settings)


@pytest.mark.parametrize(
    ("said", "in_sync", "served"),
    [
        ([(0, (0, 1, 2))] * 2, None, True),
        ([ONE_AWAY] * 2, None, False),
        ([ONE_AWAY] * 2, 2, True),
        ([ONE_AWAY, (2, (2,))], 2, False),
        ([ONE_AWAY, (2, (2,))], 1, True),
        ([ONE_AWAY, (-1, (2, 0))], 2, False),
        ([ONE_AWAY], 2, False),
    ],
    ids=["all", "one-away", "enough", "one-alone", "one-is-enough", "no-leader", "too-few-partitions"],
)
def test_a_topic_is_served_when_all_its_replicas_are_in_sync_or_as_many_as_are_enough(
    said: list[tuple[int, tuple[int, ...]]], in_sync: int | None, served: bool
) -> None:
    admin: Any = Admin(*said)
    enough = {} if in_sync is None else {"in_sync": in_sync}
    if served:
        await_served(admin, {"t": 2}, Deadline(5), **enough)
        return
    with pytest.raises(DeadlineExceededError, match=r"broker 0 \(a:1\)"):
        await_served(admin, {"t": 2}, Deadline(0.05), **enough)


def test_what_another_broker_answers_is_no_answer() -> None:
    """A broker was away, and its client has gone over to another: a new one is made."""
    answering = iter([7, 3, 3])
    made: list[Any] = []

    def make() -> Any:
        client = SimpleNamespace(describe_configs=refused_settings)
        client.list_topics = lambda *_, timeout: SimpleNamespace(orig_broker_id=timeout and next(answering))
        made.append(client)
        return client

    one = OneBroker(3, make)
    with pytest.raises(KafkaException):
        one.list_topics(5)
    assert [one.list_topics(5).orig_broker_id for _ in range(2)] == [3, 3]
    assert len(made) == 2
