"""A partition of a topic that is not enrolled begins anew where its offset is outside its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from kpsplit.consumer.fetch.gaps import Found, GapFound, LogBounds, ReadingEvent, Unreadable, loss
from kpsplit.consumer.slots.assigned import SlotStage, SlotStart
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from tests.unit.engine_world import PARENT, TOPIC, World, record

SLOT = OwnedSlot(PARENT, 0, 1)
STATE = PartitionState.unsplit(PARENT, "id")


def outside(bounds: LogBounds | None) -> ReadingEvent:
    """What the reader reports at offset 3 of a log with these bounds (None: it is gone)."""
    lost = loss(STATE, STATE.lineage.get(0), 3, Found("id" if bounds else None, bounds))
    assert lost is not None
    if lost.gap is None:
        return Unreadable(PARENT, PARENT, lost.error, lost.reason)
    return GapFound(PARENT, lost.gap, 1, lost.error)


REMOVED, CUT = outside(LogBounds(10, 20, 20)), outside(LogBounds(0, 2, 2))


class Scene:
    """A member that reads the partition as a whole; it was handed out three records and works on the last."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.wanted: list[Any] = []
        real = world.group_offsets.starts

        def starts(wanted: list[Any], me: str | None) -> list[Any]:
            self.wanted += wanted
            return [SlotStart((Cursor(WHOLE, {0: 10}),)) if w.reset else real([w], me)[0] for w in wanted]

        world.group_offsets.starts = starts  # type: ignore[method-assign]
        world.reader.cursor = lambda _: Cursor(WHOLE, {0: world.reader.written})  # type: ignore[attr-defined]
        world.metadata.view.enrolments.clear()
        world.subscribe()
        world.coordinator.give_partitions(TopicPartition(TOPIC, 0))
        world.polls(lambda: SLOT in world.reader.owned, "the partition")
        world.reader.write(*(record(n) for n in range(3)))
        world.take(3)

    def report(self, event: ReadingEvent) -> None:
        """The reader has met this."""
        self.world.engine.ask(lambda: self.world.engine.reading.report(event)).result(10)

    @property
    def position(self) -> int:
        return self.world.reader.owned[SLOT].positions[0] if SLOT in self.world.reader.owned else -1


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with World(auto_offset_reset=getattr(request, "param", "earliest")) as world:
        yield Scene(world)


@pytest.mark.parametrize("event", [REMOVED, CUT])
def test_a_partition_begins_anew_when_what_was_read_of_it_is_processed(
    scene: Scene, event: ReadingEvent
) -> None:
    world = scene.world
    scene.report(event)
    world.engine.ask(lambda: None).result(10)
    world.engine.ask(lambda: None).result(10)
    assert scene.position == 0, "a record is being worked on"
    found = world.polls(lambda: scene.position == 10, "the new beginning")
    assert not found, "no error event"
    assert [w.reset for w in scene.wanted] == [False, True]
    [assigned] = world.slots
    assert not assigned.reset, "it would begin anew again"
    assert world.count("offsets_reset") == 1


def test_a_seek_before_that_takes_its_place(scene: Scene) -> None:
    world = scene.world
    scene.report(REMOVED)
    [assigned] = world.slots
    world.engine.ask(lambda: world.slots.start_at(assigned, SlotStart((Cursor(WHOLE, {0: 15}),)))).result(10)
    world.polls(lambda: scene.position == 15, "the place")
    world.engine.ask(lambda: None).result(10)
    assert (assigned.stage, scene.position, len(scene.wanted)) == (SlotStage.READING, 15, 1)


@pytest.mark.parametrize("scene", ["error"], indirect=True)
def test_where_the_reset_policy_is_error_it_is_an_error_event(scene: Scene) -> None:
    scene.report(REMOVED)
    [event] = scene.world.take(1)
    error = event.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    assert scene.position == 0


def test_a_topic_that_is_gone_is_an_error_event_and_no_reason_to_begin_anew(scene: Scene) -> None:
    scene.report(outside(None))
    [event] = scene.world.take(1)
    assert event.error() is not None
    assert scene.position == 0


def test_of_an_enrolled_topic_what_is_missing_is_told() -> None:
    with World(auto_offset_reset="earliest") as world:
        world.subscribe()
        world.coordinator.give(0)
        world.polls(lambda: world.reader.owned, "the slot")
        world.engine.ask(lambda: world.engine.reading.report(REMOVED)).result(10)
        [event] = world.take(1)
        assert event.error() is not None
        assert world.count("offsets_reset") == 0
