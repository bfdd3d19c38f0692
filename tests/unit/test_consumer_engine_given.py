"""Offsets of the program's own, given in on_assign: they hold for slots that arrive later as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException

from kpsplit.consumer.group.membership import State
from kpsplit.consumer.slots.assigned import SlotStage
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.reading import Cursor
from tests.unit.engine_world import PARENT, World, record, slot


@pytest.fixture
def world() -> Iterator[World]:
    with World() as one:
        one.group_offsets.has_commits = False
        one.subscribe()
        yield one


def gives(world: World, offset: int | None) -> None:
    """Have on_assign give an offset from now on; None: it leaves it to the group."""
    calls = world.calls
    cursor = None if offset is None else Cursor(WHOLE, {0: offset})
    world.inside["assign"] = lambda: world.engine.ask(lambda: calls.start({PARENT: cursor})).result(10)


def owned(world: World, *indexes: int) -> dict[int, int]:
    """Wait until the member reads these slots; return where each began."""
    wanted = set(map(slot, indexes))
    world.polls(lambda: world.state is State.STABLE and set(world.reader.owned) == wanted, "slots")
    return {one.index: cursor.positions[0] for one, cursor in world.reader.owned.items()}


def test_what_on_assign_gave_holds_for_slots_that_arrive_later(world: World) -> None:
    gives(world, 6)
    world.coordinator.give(0, 1)
    assert owned(world, 0, 1) == {0: 6, 1: 6}
    world.coordinator.give(2)
    assert owned(world, 0, 1, 2) == {0: 6, 1: 6, 2: 6}
    assert world.told == [("assign", [0])]


def test_slots_that_arrive_later_begin_where_the_group_has_committed_if_it_has(world: World) -> None:
    gives(world, 6)
    world.coordinator.give(0, 1)
    owned(world, 0, 1)
    world.group_offsets.has_commits = True
    world.coordinator.give(2)
    assert owned(world, 0, 1, 2) == {0: 6, 1: 6, 2: 0}


def test_slots_that_stay_keep_what_was_given_where_on_assign_is_not_asked_again(world: World) -> None:
    gives(world, 6)
    world.engine.membership.callbacks.on_revoke = None
    world.coordinator.give(0, 1)
    owned(world, 0, 1)
    world.coordinator.take(1)
    owned(world, 0)
    world.coordinator.give(1)
    assert owned(world, 0, 1) == {0: 6, 1: 6}


def test_a_newer_answer_of_on_assign_takes_the_place_of_an_older_one(world: World) -> None:
    gives(world, 6)
    world.coordinator.give(0, 1)
    owned(world, 0, 1)
    gives(world, 9)
    world.coordinator.take(1)
    assert owned(world, 0) == {0: 9}
    world.coordinator.give(1)
    assert owned(world, 0, 1) == {0: 9, 1: 9}


def test_a_partition_that_was_gone_is_asked_for_anew(world: World) -> None:
    gives(world, 6)
    world.coordinator.give(0)
    owned(world, 0)
    gives(world, None)
    world.coordinator.take(0)
    world.polls(lambda: world.count("slots_handed_over") == 1, "the hand-over")
    world.coordinator.give(0)
    assert owned(world, 0) == {0: 0}
    world.coordinator.give(1)
    assert owned(world, 0, 1) == {0: 0, 1: 0}


def test_what_a_seek_moves_is_what_is_there_then(world: World) -> None:
    calls = world.calls
    world.coordinator.give(0)
    owned(world, 0)
    world.engine.ask(lambda: calls.seek(PARENT, Cursor(WHOLE, {0: 7}))).result(10)
    world.coordinator.give(1)
    assert owned(world, 0, 1) == {0: 7, 1: 0}


def seeks(world: World) -> None:
    """Have the application name a place for the partition, as ``seek()`` does."""
    with suppress(KafkaException):
        world.engine.ask(lambda: world.calls.seek(PARENT, Cursor(WHOLE, {0: 0}))).result(10)


def test_a_slot_that_is_taken_away_while_on_assign_names_a_place_is_not_read(world: World) -> None:
    read: list[bool] = []

    def meanwhile() -> None:
        world.coordinator.take(0)
        world.until(lambda: world.state is State.REVOKING_PARTITION, "the revocation")
        calls = world.calls
        world.engine.ask(lambda: calls.start({PARENT: Cursor(WHOLE, {0: 0})})).result(10)

    world.inside["assign"] = meanwhile
    world.inside["revoke"] = lambda: read.append(slot(0) in world.reader.owned)
    world.group_offsets.commit_gate.clear()
    world.coordinator.give(0)
    world.polls(lambda: ("revoke", [0]) in world.told, "on_revoke")
    world.reader.write(record(0), record(1))
    assert world.polls(lambda: not world.coordinator.held(), "the hand-over") == []
    assert read == [False]
    assert world.count("internal_errors") == 0


def test_a_seek_in_a_hand_over_begins_no_slot_that_leaves(world: World) -> None:
    world.coordinator.give(0)
    owned(world, 0)
    world.group_offsets.starts_gate.clear()
    asked = world.group_offsets.asked
    world.coordinator.give(1)
    world.polls(lambda: world.group_offsets.asked > asked, "the question for the start of the new slot")
    owners: list[set[int]] = []

    def inside() -> None:
        seeks(world)
        world.group_offsets.starts_gate.set()
        world.until(lambda: world.engine.initializer._answer is None, "the answer")
        world.stats()  # a turn later
        owners.append({one.index for one in world.reader.owned})

    world.inside["revoke"] = inside
    world.coordinator.take(1)
    world.polls(lambda: world.coordinator.held() == {0}, "the hand-over")
    assert owners == [{0}]


def test_a_seek_begins_no_slot_that_another_member_has(world: World) -> None:
    world.coordinator.give(0)
    owned(world, 0)
    world.engine.ask(lambda: world.slots.withdraw([world.slots[slot(0)]])).result(10)
    seeks(world)
    assert world.slots[slot(0)].stage is SlotStage.STOPPED
    assert not world.reader.owned
