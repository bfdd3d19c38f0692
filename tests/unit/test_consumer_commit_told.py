"""What the application is told of a commit: nothing of a slot that was gone before it was written."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpsplit.consumer.commit.committer import Parts
from kpsplit.consumer.commit.writes import CommitPayloadError
from kpsplit.errors import FencedError
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.reading import Cursor
from tests.unit.engine_world import PARENT, World, record, slot


def begun(world: World) -> World:
    """A member with two slots of one partition that was handed out five records and has processed all."""
    world.subscribe()
    world.coordinator.give(0, 1)
    world.polls(lambda: len(world.reader.owned) == 2, "the slots")
    world.reader.write(*(record(n) for n in range(5)))
    world.take(5)
    world.buffer.wait(0)
    return world


@pytest.fixture
def world() -> Iterator[World]:
    with World(enable_auto_commit=False) as one:
        yield begun(one)


def commit(world: World) -> Future[Parts]:
    """Begin a commit of everything that was handed out, as a synchronous ``commit()`` does."""
    calls = world.calls
    future: Future[Parts] = Future()
    world.engine.ask(lambda: calls.commit(calls.handed_out(world.buffer.mark()), future)).result(10)
    return future


def refused(future: Future[Parts]) -> int:
    """The code of the error that a commit was answered with."""
    error = future.exception(10)
    assert isinstance(error, KafkaException)
    code: int = error.args[0].code()
    return code


def lost(world: World, *indexes: int) -> None:
    """Slots are lost; the member goes on with the others."""
    before = world.count("slots_lost")
    world.coordinator.lose(*indexes)
    world.polls(lambda: world.count("slots_lost") == before + len(indexes), "the loss")


def test_a_commit_that_waited_while_one_of_its_slots_was_lost_is_refused_and_commits_the_others(
    world: World,
) -> None:
    world.group_offsets.commit_gate.clear()
    first = commit(world)
    world.until(lambda: world.group_offsets.begun, "the first commit to be sent")
    second = commit(world)
    lost(world, 1)
    world.group_offsets.commit_gate.set()
    assert refused(second) == KafkaError.ILLEGAL_GENERATION
    assert first.exception(10) is None, "it was sent while both slots were held"
    world.until(lambda: len(world.group_offsets.commits) == 2, "the second commit")
    assert world.group_offsets.commits[-1] == {slot(0).range: 5}


def test_a_refused_commit_that_is_repeated_for_what_is_left_is_no_success(world: World) -> None:
    world.group_offsets.failures.append(FencedError("the group has moved on", retriable=True))
    world.group_offsets.commit_gate.clear()
    future = commit(world)
    world.until(lambda: world.group_offsets.begun, "the commit to be sent")
    lost(world, 1)
    world.group_offsets.commit_gate.set()
    assert refused(future) == KafkaError.ILLEGAL_GENERATION
    world.until(lambda: world.group_offsets.commits, "the repetition")
    assert world.group_offsets.commits == [{slot(0).range: 5}]


def test_a_commit_all_of_whose_slots_were_lost_is_not_called_one_of_nothing(world: World) -> None:
    world.group_offsets.commit_gate.clear()
    commit(world)
    world.until(lambda: world.group_offsets.begun, "the first commit to be sent")
    second = commit(world)
    lost(world, 0, 1)
    world.group_offsets.commit_gate.set()
    assert refused(second) == KafkaError.ILLEGAL_GENERATION


def test_a_commit_of_before_a_slot_began_anew_is_refused_although_the_slot_is_committed_again(
    world: World,
) -> None:
    """What the later commit covers is less: the slot begins anew before what the first was asked for."""
    world.group_offsets.commit_gate.clear()
    commit(world)
    world.until(lambda: world.group_offsets.begun, "the first commit to be sent")
    before = commit(world)

    def begin_anew() -> None:
        world.slots.start_anew([world.slots[slot(0)]])
        world.calls.seek(PARENT, Cursor(WHOLE, {0: 2}))

    world.engine.ask(begin_anew).result(10)
    world.polls(lambda: slot(0) in world.reader.owned, "the slot to begin anew")
    world.reader.written = 2
    world.reader.write(record(2))
    world.take(1)
    world.buffer.wait(0)
    after = commit(world)
    world.group_offsets.commit_gate.set()
    assert refused(before) == KafkaError.ILLEGAL_GENERATION
    assert after.exception(10) is None
    assert world.group_offsets.commits[-1][slot(0).range] == 3


def test_on_commit_hears_of_slots_that_were_lost_before_their_commit() -> None:
    told: list[Any] = []
    with World(enable_auto_commit=False, on_commit=lambda error, _: told.append(error)) as world:
        begun(world)
        world.group_offsets.commit_gate.clear()
        commit(world)
        world.until(lambda: world.group_offsets.begun, "the first commit to be sent")
        calls = world.calls
        world.engine.ask(lambda: calls.commit(calls.handed_out(world.buffer.mark()), None)).result(10)
        lost(world, 1)
        world.group_offsets.commit_gate.set()
        world.polls(lambda: told, "on_commit")
    assert [error.code() for error in told] == [KafkaError.ILLEGAL_GENERATION]


def test_what_a_commit_says_of_a_partition_holds_for_all_slots_of_the_member(world: World) -> None:
    """One number per partition: a slot that is not in this commit is not further than it stands."""
    calls = world.calls
    future: Future[Parts] = Future()

    def of_one_slot() -> None:
        cursors = calls.handed_out(world.buffer.mark())
        calls.commit({s: c for s, c in cursors.items() if s == slot(0)}, future)

    world.engine.ask(of_one_slot).result(10)
    assert [part.offset for part in future.result(10)] == [0]
    assert world.group_offsets.commits == [{slot(0).range: 5}]


def test_what_keeps_every_commit_from_being_written_is_told_once_to_error_cb(world: World) -> None:
    told: list[Any] = []
    world.events.error_cb = told.append
    for _ in range(2):
        world.group_offsets.failures.append(
            CommitPayloadError("an output is for topic gone, which does not exist")
        )
        commit(world).exception(10)
    world.engine.ask(lambda: None).result(10)
    world.polls(lambda: told and not world.events, "error_cb")
    assert ["topic gone" in error.str() for error in told] == [True]
