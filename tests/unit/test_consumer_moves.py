"""A commit says where the application has moved the group, maybe back; nothing else may take it back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaException, Message, TopicPartition

from kpsplit.consumer.commit.committer import Parts
from kpsplit.consumer.commit.writes import CommitMember, Processed, writes
from kpsplit.consumer.slots.assigned_slots import Cursors
from kpsplit.errors import KpsplitError, UnknownOutcomeError
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

    def commit_handed_out(self, mark: int | None = None) -> Future[Parts]:
        """Begin a commit of everything that was handed out, or was before a mark."""
        future: Future[Parts] = Future()
        before = self.world.buffer.mark() if mark is None else mark
        self.world.engine.ask(
            lambda: self.calls.commit(self.calls.chosen(None, None, before), future)
        ).result(10)
        return future

    def commit_message(self, message: Message) -> Future[Parts]:
        """Begin a commit up to a message."""
        future: Future[Parts] = Future()
        mark = self.world.buffer.mark()
        self.world.engine.ask(
            lambda: self.calls.commit(self.calls.chosen(message, None, mark), future)
        ).result(10)
        return future

    def under_way(self, begin: Callable[[], Future[Parts]]) -> Future[Parts]:
        """Begin a commit that is sent and gets no answer before the gate is opened."""
        self.world.group_offsets.commit_gate.clear()
        begun = self.world.group_offsets.begun
        future = begin()
        self.world.until(lambda: self.world.group_offsets.begun > begun, "the commit to be sent")
        return future

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
    scene.commit_handed_out().result(10)
    scene.seek(2)
    scene.world.take(1)
    scene.commit_handed_out().result(10)
    scene.world.take(1)
    scene.commit_handed_out().result(10)
    assert scene.told == [(6, False), (3, True), (4, False)]


def test_a_seek_forward_is_no_move_back(scene: Scene) -> None:
    scene.commit_handed_out().result(10)
    scene.seek(8)
    scene.world.take(1)
    scene.commit_handed_out().result(10)
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
    scene.commit_handed_out().result(10)
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
    scene.commit_handed_out().result(10)
    assert scene.told == [(5, False), (1, True), (6, False)]


def test_behind_a_seek_back_a_message_commits_what_is_before_it_and_no_more(scene: Scene) -> None:
    scene.commit_handed_out().result(10)
    scene.seek(2)
    message = scene.world.take(1)[0]
    mark = scene.world.buffer.mark()
    scene.commit(scene.world.engine.ask(lambda: scene.calls.after_message(message, mark)).result(10)).result(
        10
    )
    assert scene.told == [(6, False), (3, True)]


def offset(future: Future[Parts]) -> int:
    """The logical offset that a call was told as committed."""
    [part] = future.result(10)
    found: int = part.offset
    return found


def test_a_message_before_what_is_being_committed_takes_nothing_back(scene: Scene) -> None:
    everything = scene.under_way(scene.commit_handed_out)
    first = scene.commit_message(scene.first)
    scene.world.group_offsets.commit_gate.set()
    assert [offset(everything), offset(first)] == [6, 6]
    assert scene.told == [(6, False), (6, False)]


def test_a_call_is_answered_when_all_of_it_is_committed_whatever_others_ask_for(scene: Scene) -> None:
    before = scene.under_way(lambda: scene.commit_message(scene.first))
    everything = scene.commit_handed_out()
    first = scene.commit_message(scene.first)
    scene.world.group_offsets.commit_gate.set()
    assert [offset(before), offset(everything), offset(first)] == [2, 6, 6]
    assert scene.told == [(2, False), (6, False)]


def test_what_another_thread_was_handed_out_before_takes_nothing_back(scene: Scene) -> None:
    early = scene.world.buffer.mark()
    scene.world.take(2)
    everything = scene.under_way(scene.commit_handed_out)
    late = scene.commit_handed_out(early)
    scene.world.group_offsets.commit_gate.set()
    assert [offset(everything), offset(late)] == [8, 8]
    assert scene.told == [(8, False), (8, False)]


def test_an_automatic_commit_does_not_go_behind_what_the_application_has_committed() -> None:
    """A record that is being worked on counts for ``commit()``, and not yet for the automatic one."""
    with World(enable_auto_commit=True) as world:
        scene = Scene(world)
        scene.commit_handed_out().result(10)
        world.engine.committer._next = 0.0
        scene.world.until(lambda: world.engine.committer._next, "the automatic commit")
        world.take(1)
        world.engine.committer._next = 0.0
        scene.world.until(lambda: len(scene.told) > 1 or world.engine.committer._next, "one more")
    assert scene.told == [(6, False), (7, False)], "and none between: nothing was to be committed"


def test_an_automatic_commit_is_no_less_than_what_is_asked_for(scene: Scene) -> None:
    """It is what the workers are done with, which may be less than a call has named."""
    everything = scene.under_way(scene.commit_handed_out)
    less = {slot(0): (Cursor(MINE, {0: 5}),)}
    scene.world.engine.ask(lambda: scene.world.engine.committer.ask(less)).result(10)
    scene.world.group_offsets.commit_gate.set()
    assert offset(everything) == 6
    scene.world.until(lambda: len(scene.told) == 2, "the other")
    assert scene.told == [(6, False), (6, False)]


def test_behind_a_lower_offset_that_is_being_committed_a_message_commits_what_is_before_it(
    scene: Scene,
) -> None:
    scene.commit_offset(5).result(10)
    lower = scene.under_way(lambda: scene.commit_offset(1))
    message = scene.commit_message(scene.first)
    scene.world.group_offsets.commit_gate.set()
    assert [offset(lower), offset(message)] == [1, 2]
    assert scene.told == [(5, False), (1, True), (2, False)]


def test_a_seek_back_after_a_commit_of_unknown_outcome_is_committed_and_called_a_move(scene: Scene) -> None:
    """It may have taken effect: the place that was sought is then before what the group has."""
    scene.commit_message(scene.first).result(10)
    scene.world.group_offsets.failures.append(UnknownOutcomeError("no answer"))
    with pytest.raises(KafkaException):
        scene.commit_handed_out().result(10)
    scene.seek(2)
    assert offset(scene.commit_handed_out()) == 2
    assert scene.told == [(2, False), (2, True)]


def test_what_may_have_been_committed_is_committed_again_until_that_is_known(scene: Scene) -> None:
    def unsaved() -> Cursors:
        slots = scene.world.slots
        return scene.world.engine.ask(lambda: slots.changed(slots)).result(10)

    scene.commit_offset(5).result(10)
    scene.world.group_offsets.failures.append(UnknownOutcomeError("no answer"))
    with pytest.raises(KafkaException):
        scene.commit_offset(1).result(10)
    scene.world.group_offsets.failures.append(KpsplitError("certainly not committed"))
    with pytest.raises(KafkaException):
        scene.commit_offset(5).result(10)
    assert unsaved(), "it may be 1 as well, though 5 is the latest that is known"
    scene.commit_offset(5).result(10)
    assert not unsaved()


def test_a_message_before_what_may_have_been_committed_takes_nothing_back(scene: Scene) -> None:
    less = {slot(0): (Cursor(MINE, {0: 2}),)}
    scene.world.group_offsets.failures.append(UnknownOutcomeError("no answer"))
    with pytest.raises(KafkaException):
        scene.commit_handed_out().result(10)
    future: Future[Parts] = Future()
    scene.world.engine.ask(lambda: scene.calls.commit(less, future)).result(10)
    assert offset(future) == 6


def test_the_record_of_a_range_that_was_moved_has_its_cause() -> None:
    state = PartitionState.unsplit(PARENT, "id")
    cursors = (Cursor(slot(0).range, {0: 5}), Cursor(slot(1).range, {0: 9}))
    token = PhysicalPartition("slots", 0)
    processed = Processed(state, Mode.SLOTS, cursors, (), token, moved=frozenset([slot(0).range]))
    wanted = writes([processed], CommitMember("g", "me", 1), CommitFold())
    assert wanted is not None
    assert [r.cause for r in wanted.records] == [Cause.SEEK, Cause.PROGRESS]
