"""A commit says where the application has moved the group, maybe back; nothing else may take it back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from confluent_kafka import TopicPartition

from kpsplit.consumer.commit.committer import Parts
from kpsplit.consumer.commit.writes import CommitMember, Processed, writes
from kpsplit.consumer.slots.assigned_slots import Cursors
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.group_slots import Mode
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.offsets import Cause
from tests.unit.engine_world import PARENT, TOPIC, World, record, slot

MINE = slot(0).range


class Scene:
    """A member with one slot, of which it was handed out six records and has processed five."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls = world.calls
        world.subscribe()
        world.coordinator.give(0)
        world.polls(lambda: world.reader.owned, "the slot")
        world.reader.write(*(record(n) for n in range(10)))
        _, self.first, *_ = world.take(6)

    def commit(self, cursors: Cursors) -> Future[Parts]:
        """Begin a commit."""
        future: Future[Parts] = Future()
        self.world.engine.ask(lambda: self.calls.commit(self.calls.keep(cursors), future)).result(10)
        return future

    def commit_offset(self, offset: int) -> Future[Parts]:
        """Begin a commit of an offset, as ``commit(offsets=…)`` does."""
        future: Future[Parts] = Future()
        cursors = self.behind(offset)
        self.world.engine.ask(
            lambda: self.calls.commit(self.calls.keep(cursors, exactly=True), future)
        ).result(10)
        return future

    def commit_handed_out(self) -> None:
        """Commit everything that was handed out."""
        self.commit(self.calls.handed_out(self.world.buffer.mark())).result(10)

    def seek(self, offset: int) -> None:
        """Move the slot; records from there on come again."""
        self.world.engine.ask(lambda: self.calls.seek(PARENT, Cursor(WHOLE, {0: offset}))).result(10)
        self.world.reader.written = offset
        self.world.reader.write(*(record(n) for n in range(offset, offset + 4)))

    def behind(self, offset: int) -> Cursors:
        """What says that everything below an offset is processed."""
        part, mark = TopicPartition(TOPIC, 0, offset), self.world.buffer.mark()
        return self.world.engine.ask(lambda: self.calls.below_offsets([part], mark)).result(10)

    @property
    def told(self) -> list[tuple[int, bool]]:
        """The position that each commit wrote, and whether it called the slot moved."""
        group_offsets = self.world.group_offsets
        return [(c[MINE], MINE in m) for c, m in zip(group_offsets.commits, group_offsets.moved, strict=True)]


@pytest.fixture
def scene() -> Iterator[Scene]:
    with World(enable_auto_commit=False) as world:
        yield Scene(world)


def test_the_first_commit_behind_a_seek_back_calls_the_slot_moved_and_no_later_one(scene: Scene) -> None:
    scene.commit_handed_out()
    scene.seek(2)
    scene.world.take(1)
    scene.commit_handed_out()
    scene.world.take(1)
    scene.commit_handed_out()
    assert scene.told == [(6, False), (3, True), (4, False)]


def test_a_seek_forward_is_no_move_back(scene: Scene) -> None:
    scene.commit_handed_out()
    scene.seek(8)
    scene.world.take(1)
    scene.commit_handed_out()
    assert scene.told == [(6, False), (9, False)]


def test_a_commit_that_was_under_way_when_the_application_seeked_does_not_tell_of_it(scene: Scene) -> None:
    scene.world.group_offsets.commit_gate.clear()
    under_way = scene.commit(scene.behind(5))
    scene.world.until(lambda: scene.world.group_offsets.begun, "it to be sent")
    asked = scene.commit(scene.behind(6))
    scene.seek(2)
    scene.world.take(1)
    scene.world.group_offsets.commit_gate.set()
    under_way.result(10)
    asked.result(10)
    scene.commit_handed_out()
    assert scene.told == [(5, False), (6, False), (3, True)]


def test_an_offset_below_what_is_committed_is_a_move_and_one_beyond_it_is_none(scene: Scene) -> None:
    scene.commit_offset(3).result(10)
    scene.commit_offset(5).result(10)
    scene.commit_offset(2).result(10)
    assert scene.told == [(3, False), (5, False), (2, True)]


def test_behind_a_commit_of_a_lower_offset_a_message_commits_what_is_before_it(scene: Scene) -> None:
    scene.commit_offset(5).result(10)
    scene.commit_offset(1).result(10)
    mark = scene.world.buffer.mark()
    cursors = scene.world.engine.ask(lambda: scene.calls.after_message(scene.first, mark)).result(10)
    scene.commit(cursors).result(10)
    assert scene.told == [(5, False), (1, True), (2, False)]


def test_behind_a_commit_of_a_lower_offset_what_was_handed_out_is_committed_as_ever(scene: Scene) -> None:
    scene.commit_offset(5).result(10)
    scene.commit_offset(1).result(10)
    scene.commit_handed_out()
    assert scene.told == [(5, False), (1, True), (6, False)]


def test_behind_a_seek_back_a_message_commits_what_is_before_it_and_no_more(scene: Scene) -> None:
    scene.commit_handed_out()
    scene.seek(2)
    message = scene.world.take(1)[0]
    mark = scene.world.buffer.mark()
    scene.commit(scene.world.engine.ask(lambda: scene.calls.after_message(message, mark)).result(10)).result(
        10
    )
    assert scene.told == [(6, False), (3, True)]


def test_the_record_of_a_range_that_was_moved_has_its_cause() -> None:
    state = PartitionState.unsplit(PARENT, "id")
    cursors = (Cursor(slot(0).range, {0: 5}), Cursor(slot(1).range, {0: 9}))
    token = PhysicalPartition("slots", 0)
    processed = Processed(state, Mode.SLOTS, cursors, (), token, moved=frozenset([slot(0).range]))
    wanted = writes([processed], CommitMember("g", "me", 1), CommitFold())
    assert wanted is not None
    assert [r.cause for r in wanted.records] == [Cause.SEEK, Cause.PROGRESS]
