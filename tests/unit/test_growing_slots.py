"""A topic that grows: who adds its slots, and what is reported where nobody may."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kpsplit.clock import Deadline
from kpsplit.control import own_topics as module
from kpsplit.control.own_topics import GrowingSlots, SlotsTopics
from kpsplit.errors import AuthorizationError, DeadlineExceededError
from kpsplit.kafka.cluster_admin import PartitionFacts, TopicFacts
from kpsplit.splitter.key_range import unread_text, without_slots
from kpsplit.splitter.records.control import SlotDivision
from kpsplit.splitter.records.keys import slots_topic
from tests.unit.engine_world import SLOTS, TOPIC, Topics, World

NAME = slots_topic("orders")
DIVISION = SlotDivision(NAME, 2)


class Scene:
    """A topic with two slots per partition, looked at every 100 s; the time is the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partitions: int, slots: int) -> None:
        self.now = 0.0
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        self.topics = Topics(**{"orders": partitions, NAME: slots})
        self.growing = GrowingSlots(lambda: self.topics, 100.0)  # type: ignore[arg-type]

    def turns(self, count: int = 3) -> list[Any]:
        """Several turns at the same time."""
        return [error for _ in range(count) for error in self.growing.turn({"orders": DIVISION})]


@pytest.mark.parametrize(
    ("partitions", "slots", "has", "unread"),
    [(3, 4, 12, []), (3, 4, 8, [2]), (3, 4, 11, [2]), (3, 4, 0, [0, 1, 2]), (2, 4, 12, [])],
)
def test_a_partition_has_slots_once_all_of_them_are_there(
    partitions: int, slots: int, has: int, unread: list[int]
) -> None:
    assert list(without_slots(partitions, slots, has)) == unread


def test_partitions_are_named_as_people_name_them() -> None:
    assert "partition 3 of topic orders: it has" in unread_text("orders", range(3, 4))
    assert "partitions 3 to 5 of topic orders: they have" in unread_text("orders", range(3, 6))


def test_a_member_adds_the_slots_of_partitions_that_were_added(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 1, 2)
    assert (scene.turns(), scene.topics.added, scene.growing.grown) == ([], [], False)
    scene.topics.counts["orders"] = 3
    scene.now = 99.0
    assert (scene.turns(), scene.topics.added) == ([], [])
    scene.now = 100.0
    assert (scene.turns(), scene.topics.added) == ([], [(NAME, 6)])
    scene.now = 101.0
    assert scene.turns() == []
    assert (dict(scene.growing.unread), scene.growing.grown) == ({}, True)
    scene.now = 300.0
    assert (scene.turns(), len(scene.topics.added)) == ([], 1)


def test_a_member_that_may_not_add_slots_reports_the_partitions_at_every_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, 3, 2)
    scene.topics.refusal = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    for now in (0.0, 100.0, 200.0):
        scene.now = now
        (error,) = scene.turns(10)
        assert isinstance(error, AuthorizationError)
        assert "no group reads partitions 1 to 2 of topic orders: they have no slots" in error.message
        assert error.hint == "run: kpsplit enroll orders"
        assert dict(scene.growing.unread) == {"orders": range(1, 3)}
    scene.topics.counts[NAME] = 6  # somebody has run it
    scene.now = 300.0
    assert (scene.turns(), dict(scene.growing.unread), scene.growing.grown) == ([], {}, True)


def test_a_member_that_comes_second_reports_nothing_and_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 3, 2)
    scene.topics.refusal = KafkaError(KafkaError.INVALID_PARTITIONS)
    assert scene.turns() == []
    scene.topics.counts[NAME] = 6
    scene.now = 1.0
    assert (scene.turns(), dict(scene.growing.unread), scene.growing.grown) == ([], {}, True)


def test_a_topic_that_cannot_be_looked_at_keeps_no_other_from_growing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, 3, 2)
    for _ in range(3):
        assert scene.growing.turn({"missing": SlotDivision("no.such", 2), "orders": DIVISION}) == []
    assert scene.topics.added == [(NAME, 6)]


def test_the_engine_adds_slots_and_tells_error_cb_where_it_may_not() -> None:
    with World(topic_metadata_refresh_interval_ms=1000) as world:
        told: list[KafkaError] = []
        world.events.error_cb = told.append
        world.topics.refusal = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        world.topics.counts[TOPIC] = 2
        world.subscribe()
        world.polls(lambda: told, "the report")
        assert told[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert "no group reads partition 1 of topic orders" in told[0].str()
        assert world.stats()["without_slots"] == {TOPIC: [1]}
        world.topics.refusal = None
        world.polls(lambda: world.topics.added, "the slots")
        assert world.topics.added == [(slots_topic(TOPIC), 2 * SLOTS)]
        world.until(lambda: world.coordinator.looks, "a look of the group consumer")
        assert world.stats()["without_slots"] == {}


@pytest.mark.parametrize("has", [None, 8], ids=["created", "grown"])
def test_a_slots_topic_that_is_not_served_in_time_was_changed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, has: int | None
) -> None:
    """Created, or given the slots of partitions that were added: then members of groups have them."""
    division = SlotDivision(NAME, 4)
    there = {} if has is None else {division.topic: has}
    cluster: Any = SimpleNamespace(
        brokers=lambda: {0: "a:1"},
        topics=lambda: dict(there),
        create=lambda *_, **__: True,
        describe=lambda name: TopicFacts(name, "id", (PartitionFacts(0, (0,), (0,)),) * (has or 0)),
        end_offsets=lambda _: {},
        add_partitions=lambda *_: None,  # brokers do not show it yet
    )

    def not_served(*_: object) -> None:
        raise DeadlineExceededError("broker 0 (a:1) does not serve it in time")

    monkeypatch.setattr(module, "await_served", not_served)
    topic = TopicFacts("orders", "id", (PartitionFacts(0, (0,), (0,)),) * 4)
    with pytest.raises(DeadlineExceededError) as caught:
        SlotsTopics(cluster).ensure(topic, division, has is not None, Deadline(0.05))
    assert caught.value.changed is True
