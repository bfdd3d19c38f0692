"""Most brokers, each asked by itself, decide whether a topic is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from kpsplit.kafka.cluster_admin import most_brokers_lack
from kpsplit.kafka.connection import Connection

TOPIC = "orders.split-3-1"


class Cluster:
    """Brokers by whether they know the topic; None: no answer. Stands for the connection and its clients."""

    def __init__(self, *known: bool | None) -> None:
        self.known = known

    def shared_admin(self) -> Any:
        brokers = {n: SimpleNamespace(host="broker", port=n) for n in range(len(self.known))}
        return SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(brokers=brokers))

    def open_admin(self, _role: str, **settings: Any) -> Any:
        known = self.known[int(settings["bootstrap_servers"].removeprefix("broker:"))]

        def list_topics(timeout: float) -> Any:
            if known is None:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return SimpleNamespace(topics={"orders", TOPIC} if known else {"orders"})

        return SimpleNamespace(list_topics=list_topics)


@pytest.mark.parametrize(
    ("known", "gone"),
    [
        ((False, False, False), True),
        ((False, False, None), True),
        ((False, None, None), False),
        ((False, False, True), False),
        ((None, None, None), False),
        ((False, None), False),
        ((False,), True),
    ],
)
def test_a_topic_is_gone_when_most_brokers_do_not_know_it_and_none_does(
    known: tuple[bool | None, ...], gone: bool
) -> None:
    assert most_brokers_lack(Cluster(*known), TOPIC) is gone  # type: ignore[arg-type]


def test_each_broker_of_a_mock_cluster_is_asked() -> None:
    mock = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0})
    brokers = mock.list_topics(timeout=10).brokers.values()
    connection = Connection({"bootstrap.servers": ",".join(f"{b.host}:{b.port}" for b in brokers)})
    assert most_brokers_lack(connection, TOPIC)
    mock.produce(TOPIC, b"value")
    assert mock.flush(10) == 0
    assert not most_brokers_lack(connection, TOPIC)
