"""How the library's thread looks at topics: what is wrong with one is no other one's affair."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from kpsplit.errors import AuthorizationError, KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.producer import topic_duty
from kpsplit.producer.coordinator import Coordinator
from kpsplit.producer.routes import TopicRoute
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment, Partitioner
from tests.unit.test_producer_dispatcher import Ground


class Tail:
    """A control topic that enrols some topics, read to its end."""

    def __init__(self, *topics: str) -> None:
        self.view = ControlView()
        for topic in topics:
            self.view.enrolments[topic] = Enrolment(topic, "id", Partitioner.CONSISTENT_RANDOM, True)

    def poll(self, seconds: float) -> None: ...

    def position(self) -> int:
        return -1


def library(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, counts: dict[str, Any], *topics: str
) -> Coordinator:
    """Return the library's thread, not started; ``counts``: of each topic's partitions, or the error."""

    def partition_count(_: object, topic: str) -> int:
        if isinstance(counts[topic], Exception):
            raise counts[topic]
        return int(counts[topic])

    monkeypatch.setattr(topic_duty, "partition_count", partition_count)
    monkeypatch.setattr(ControlView, "state", lambda _, parent: PartitionState.unsplit(parent, "id"))
    connection = Connection({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    coordinator = Coordinator(connection, ground.dispatcher, lambda _: 0, lambda: 0)
    coordinator._feed.tail = Tail(*topics)  # type: ignore[assignment]
    monkeypatch.setattr(coordinator._feed.registration, "add_topic", lambda *_: None)
    monkeypatch.setattr(coordinator._lease, "renew", lambda: None)
    return coordinator


def test_a_right_that_is_missing_for_one_topic_fails_no_record_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground = Ground()
    counts = {"secret": AuthorizationError("missing Describe on secret"), "slow": KpsplitError("no answer")}
    coordinator = library(ground, monkeypatch, counts, "secret", "slow")
    ground.dispatcher.held.hold_unrouted("slow", ground.content(b"waits"), -1)
    ground.dispatcher.held.hold_unrouted("secret", ground.content(b"fails"), -1)
    coordinator._turn()
    ground.dispatcher.callbacks.run()
    assert ground.told == [(KafkaError.TOPIC_AUTHORIZATION_FAILED, b"fails")]
    assert list(ground.dispatcher.unrouted) == ["slow"]
    assert coordinator.last_error is not None


def test_a_topic_that_is_gone_keeps_no_other_from_having_its_new_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground = Ground()
    counts = {"orders": KpsplitError("there is no topic orders"), "grown": 2}
    coordinator = library(ground, monkeypatch, counts, "orders", "grown")
    enrolment = Enrolment("grown", "id", Partitioner.CONSISTENT_RANDOM, True)
    grown = TopicRoute(enrolment, [coordinator._topics._new_fence(enrolment, 0, ControlView())])
    ground.dispatcher.add_route("grown", grown)
    ground.dispatcher.renew(monotonic() + 1000)
    coordinator._turn()
    assert grown.count == 2
