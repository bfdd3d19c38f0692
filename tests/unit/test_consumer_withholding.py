"""Slots that are held, and what is handed out of them again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kpsplit.consumer.events import Events
from kpsplit.consumer.slots.assigned import AssignedSlot, SlotStage
from kpsplit.consumer.slots.assigned_slots import AssignedSlots, StateBinding
from kpsplit.consumer.slots.initializer import EnrolmentGuard
from kpsplit.splitter.group_slots import Mode, OwnedSlot, Subscribed
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor

PARENT = PhysicalPartition("plain", 0)
SLOT = OwnedSlot(PARENT, 0, 1)


class Scene:
    """One slot of a plain topic; ``working``: the application still has records of it."""

    def __init__(self) -> None:
        self.working, self.fresh, self.taken, self.mode = False, True, 0, Mode.PLAIN
        self.known, self.begins, self.place = True, True, PARENT
        self.subscribed, self.events = False, Events(lambda: None)
        self.assigned = AssignedSlot(SLOT, PARENT, Mode.PLAIN, SlotStage.HELD)
        state = PartitionState.unsplit(PARENT, "id")
        metadata: Any = SimpleNamespace(
            fresh=lambda: self.fresh,
            subscribed=lambda topic: Subscribed(topic, self.place.topic, self.mode, 1, self.begins),
            state=lambda *_, **__: state,
            returning=lambda *_: False,
        )
        self.reader: Any = SimpleNamespace(update=lambda _: None, own=lambda *_: None, disown=lambda _: None)
        sink: Any = SimpleNamespace(
            release=lambda _: not self.working,
            cursor=self._cursor,
            dropped=self._drop,
            taken=self._take,
        )
        self.slots = AssignedSlots(metadata, self.reader, sink, StateBinding())
        self.slots.add([self.assigned])
        committer: Any = SimpleNamespace(settings=SimpleNamespace(auto_commit=False))
        self.enrolment_guard = EnrolmentGuard(self.slots, committer, self.events, lambda: self.subscribed)

    def _cursor(self, _: object) -> list[Cursor]:
        assert self.known, "the sink has forgotten it"
        return [Cursor(WHOLE, {0: 7})]

    def _drop(self, _: object) -> None:
        self.known = False

    def _take(self, *_: object) -> None:
        self.known = True
        self.taken += 1


def test_what_the_application_still_works_on_is_not_handed_out_again() -> None:
    scene = Scene()
    scene.working = True
    scene.enrolment_guard.turn()
    assert (scene.assigned.stage, scene.taken) == (SlotStage.HELD, 0)
    scene.working = False
    scene.enrolment_guard.turn()
    assert (scene.assigned.stage, scene.taken) == (SlotStage.READING, 1)


def test_a_slot_that_is_read_is_read_on_by_an_old_view_and_one_that_is_held_is_not_let_go() -> None:
    scene = Scene()
    scene.fresh = False
    scene.enrolment_guard.turn()
    assert scene.assigned.stage is SlotStage.HELD
    scene.fresh = True
    scene.enrolment_guard.turn()
    assert scene.assigned.stage is SlotStage.READING
    scene.fresh = False
    scene.enrolment_guard.turn()
    assert scene.assigned.stage is SlotStage.READING


@pytest.mark.parametrize(
    ("mode", "by_hand", "begins"),
    [(Mode.PLAIN, False, False), (Mode.SLOTS, False, False), (Mode.PLAIN, True, True)],
)
def test_only_what_was_assigned_by_hand_begins_by_an_old_view(
    mode: Mode, by_hand: bool, begins: bool
) -> None:
    """Its slots, or slots by another number, may be another member's by now."""
    scene = Scene()
    scene.fresh, scene.mode = False, mode
    scene.assigned.mode, scene.assigned.by_hand = mode, by_hand
    assert scene.slots.may_begin(scene.assigned) is begins
    scene.fresh = True
    assert scene.slots.may_begin(scene.assigned)


def test_a_partition_by_hand_is_held_once_when_its_topic_is_enrolled_beside_a_subscription() -> None:
    scene = Scene()
    scene.subscribed, scene.assigned.by_hand, scene.assigned.stage = True, True, SlotStage.READING
    for scene.mode in (Mode.PLAIN, Mode.MOVING, Mode.SLOTS, Mode.SLOTS):
        scene.enrolment_guard.turn()
    assert (scene.assigned.stage, scene.slots.withheld) == (SlotStage.HELD, 1)
    assert [scene.events.error() is None for _ in range(2)] == [False, True]
    scene.subscribed = False
    scene.enrolment_guard.turn()
    assert (scene.assigned.stage, scene.assigned.mode) == (SlotStage.READING, Mode.WHOLE)


@pytest.mark.parametrize(("begins", "place"), [(False, PARENT), (True, PhysicalPartition("newer", 0))])
def test_a_slot_of_a_number_that_is_changed_is_read_on_and_does_not_begin(
    begins: bool, place: PhysicalPartition
) -> None:
    scene = Scene()
    scene.mode, scene.assigned.mode, scene.assigned.stage = Mode.SLOTS, Mode.SLOTS, SlotStage.READING
    scene.begins, scene.place = begins, place
    scene.enrolment_guard.turn()
    assert scene.assigned.stage is SlotStage.READING
    assert not scene.slots.may_begin(scene.assigned)


def test_nothing_is_handed_out_of_a_partition_whose_topic_is_being_enrolled() -> None:
    scene = Scene()
    scene.enrolment_guard.turn()
    scene.mode = Mode.MOVING
    scene.enrolment_guard.turn()
    assert scene.assigned.stage is SlotStage.HELD
    assert scene.slots.withheld == 1


@pytest.mark.parametrize("step", ["update", "own"])
def test_a_slot_whose_letting_go_was_ended_by_an_exception_is_let_go_in_the_next_turn(step: str) -> None:
    scene = Scene()
    real = getattr(scene.reader, step)

    def fail(*_: object) -> None:
        setattr(scene.reader, step, real)
        raise MemoryError

    setattr(scene.reader, step, fail)
    with pytest.raises(MemoryError):
        scene.enrolment_guard.turn()
    scene.enrolment_guard.turn()
    assert scene.assigned.stage is SlotStage.READING
