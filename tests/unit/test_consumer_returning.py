"""A member whose topic returns to plain clients: from slots to partitions, and on as a plain member."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from kpsplit.consumer.slots.assigned import SlotStage, SlotStart
from kpsplit.splitter.group_slots import Mode, OwnedSlot, Subscribed, subscribed
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState, SubTopicState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.keys import slots_topic
from tests.unit.engine_world import PARENT, SLOTS, TOPIC, World, record, slot
from tests.unit.lane_samples import keys_in
from tests.unit.samples import life
from tests.unit.test_consumer_slots_change import pass_turns
from tests.unit.test_run_engine import Scene, message

PARTITION = OwnedSlot(PARENT, 0, 1)
FORMER = frozenset(PhysicalPartition(slots_topic(TOPIC), number) for number in range(SLOTS))


def says(world: World, number: int) -> Enrolment:
    """The control topic has record (1), (2), (3) or (4) of the return now (protocol, section 10.16)."""
    view = world.metadata.view
    known = view.recorded(TOPIC)
    assert known is not None
    former = SLOTS if number < 3 else None
    recorded = replace(
        known, slots=None, generation=2, former_slots=former, settled=number in (2, 4), returning=True
    )
    view.enrolments.pop(TOPIC, None)
    (view.left if recorded.left else view.enrolments)[TOPIC] = recorded
    world.metadata.position += 1
    return recorded


def held_as(world: World, mode: Mode) -> bool:
    """Whether all that the member holds, something, is shared in this way."""
    return {held.mode for held in world.slots} == {mode}


def returned(world: World) -> list[Any]:
    """Read the partition as a whole; return what is asked for starts from now on."""
    says(world, 2)
    world.subscribe()
    assert world.coordinator.topics == [TOPIC]
    world.coordinator.give_partitions(TopicPartition(TOPIC, 0))
    world.polls(lambda: PARTITION in world.reader.owned, "the partition")
    wanted = world.group_offsets.wanted
    wanted.clear()
    return wanted


def test_a_member_goes_over_from_its_slots_to_the_partition_and_waits_for_the_former_slots() -> None:
    with World() as world:
        wanted = world.group_offsets.wanted
        world.subscribe()
        world.coordinator.give(0, 1)
        world.polls(lambda: {slot(0), slot(1)} <= world.reader.owned.keys(), "its slots")
        says(world, 1)
        world.coordinator.give(2)
        world.until(lambda: slot(2) in world.slots, "another slot")
        pass_turns(world, 5)
        assert world.reader.owned.keys() == {slot(0), slot(1)}, "it reads on, and begins nothing"
        says(world, 2)
        world.polls(lambda: world.coordinator.topics == [TOPIC], "the new subscription")
        assert world.told[-1] == ("revoke", [0]) and not world.reader.owned
        world.coordinator.take(0, 1, 2)
        world.coordinator.give_partitions(TopicPartition(TOPIC, 0))
        world.polls(lambda: world.reader.owned.keys() == {PARTITION}, "the partition")
        assert wanted[-1].mode is Mode.WHOLE and wanted[-1].predecessors == FORMER


def test_a_member_hands_its_partition_over_to_itself_and_goes_on_as_a_plain_one() -> None:
    """The coordinator takes nothing away: the topic that is subscribed to is the same."""
    with World() as world:
        wanted = returned(world)
        world.reader.write(record(0), record(1))
        assert len(world.take(2)) == 2
        says(world, 3)
        world.polls(lambda: held_as(world, Mode.MOVING), "the hand-over")
        assert ("revoke", [0]) in world.told and world.group_offsets.commits[-1] == {WHOLE: 2}
        commits = len(world.group_offsets.commits)
        pass_turns(world, 5)
        (held,) = world.slots
        assert held.mode is Mode.MOVING and not world.reader.owned and not wanted, "nothing for a lease"
        says(world, 4)
        world.polls(lambda: PARTITION in world.reader.owned, "the partition once more")
        assert [w.mode for w in wanted] == [Mode.PLAIN] and not wanted[0].predecessors
        assert [name for name, _ in world.told] == ["assign", "revoke", "assign"]
        assert world.coordinator.topics == [TOPIC] and not world.coordinator.left
        assert world.coordinator.held() == {0} and len(world.group_offsets.commits) == commits


def test_what_is_worked_on_is_finished_before_the_partition_is_handed_over() -> None:
    with World() as world:
        returned(world)
        world.reader.write(record(0))
        world.take(1)
        says(world, 3)
        told = len(world.told)
        end = time.monotonic() + 0.2
        world.until(lambda: time.monotonic() > end, "some time without a poll")
        assert len(world.told) == told and not held_as(world, Mode.MOVING)
        world.polls(lambda: held_as(world, Mode.MOVING), "the hand-over")
        assert world.group_offsets.commits[-1] == {WHOLE: 1}


def test_a_partition_that_is_named_for_another_member_is_not_taken_anew() -> None:
    """By the coordinator it may be another's: it stays as it is until that is decided."""
    with World() as world:
        wanted = returned(world)
        world.engine.call(lambda: world.slots.withdraw(list(world.slots)))
        says(world, 4)
        pass_turns(world, 5)
        assert [held.gone for held in world.slots] == [True]
        assert ("revoke", [0]) not in world.told and not wanted and not world.reader.owned
        world.engine.call(lambda: world.slots.read_again(list(world.slots)))
        world.polls(lambda: PARTITION in world.reader.owned, "the partition as a plain one")
        assert [w.mode for w in wanted] == [Mode.PLAIN]


def test_a_member_that_sees_the_last_record_first_hands_over_by_the_state_of_before() -> None:
    with World() as world:
        wanted = returned(world)
        world.reader.write(record(0))
        world.take(1)
        says(world, 4)
        world.polls(lambda: wanted and PARTITION in world.reader.owned, "the partition as a plain one")
        assert {str(c) for c in world.group_offsets.commits} == {str({WHOLE: 1})}
        assert [w.mode for w in wanted] == [Mode.PLAIN]
        assert ("", True) not in world.reader.updated, "what is read along a lineage is judged by it"
        assert world.engine.call(lambda: world.slots.state(PARENT).topic_id) == "", "and no longer than that"


def test_an_idle_member_commits_one_place_though_the_slots_were_committed_apart() -> None:
    """The operator waits for it: the group stands at one place only then."""
    with World(auto_commit_interval_ms=10) as world:
        apart = tuple(Cursor(range_, {0: 0}) for range_ in WHOLE.split_evenly(2))
        world.group_offsets.starts = lambda asked, me: [SlotStart(apart, committed=True) for _ in asked]  # type: ignore
        says(world, 2)
        world.subscribe()
        world.coordinator.give_partitions(TopicPartition(TOPIC, 0))
        world.polls(lambda: world.group_offsets.commits, "a commit")
        assert world.group_offsets.commits[0] == {WHOLE: 0}


def test_a_member_commits_the_place_where_it_begins_a_partition_without_a_commit() -> None:
    with World(auto_commit_interval_ms=10) as world:
        begins = SlotStart((Cursor(WHOLE, {0: 5}),))
        world.group_offsets.starts = lambda asked, me: [begins for _ in asked]  # type: ignore
        says(world, 2)
        world.subscribe()
        world.coordinator.give_partitions(TopicPartition(TOPIC, 0))
        world.polls(lambda: world.group_offsets.commits, "a commit")
        assert world.group_offsets.commits[0] == {WHOLE: 5}


BY_ITSELF = (
    {"enable_auto_commit": False},
    {"enable_auto_offset_store": False, "auto_commit_interval_ms": 10},
)


def apart(world: World, **at: int) -> None:
    """The halves of the partition were committed apart; the member gets the partition as a whole."""
    halves = zip(WHOLE.split_evenly(2), at.values(), strict=True)
    begins = SlotStart(tuple(Cursor(half, {0: place}) for half, place in halves), committed=True)
    world.group_offsets.starts = lambda asked, me: [begins for _ in asked]  # type: ignore
    world.reader.written = min(at.values())
    says(world, 2)
    world.subscribe()
    world.coordinator.give_partitions(TopicPartition(TOPIC, 0))
    world.polls(lambda: PARTITION in world.reader.owned, "the partition")


@pytest.mark.parametrize("settings", BY_ITSELF)
def test_where_the_application_has_nothing_to_commit_its_member_commits_one_place(settings: Any) -> None:
    """Records that a piece had processed are passed over: else nobody would commit."""
    with World(**settings) as world:
        apart(world, low=5, high=3)
        pass_turns(world, 5)
        assert not world.group_offsets.commits, "not before it has caught up"
        world.reader.write(record(3), record(4))
        came = world.polls(lambda: world.group_offsets.commits, "a commit")
        assert world.group_offsets.commits == [{WHOLE: 5}] and not came
        pass_turns(world, 5)
        assert len(world.group_offsets.commits) == 1


@pytest.mark.parametrize("settings", BY_ITSELF)
def test_what_was_handed_out_is_committed_by_the_application_only(settings: Any) -> None:
    high = keys_in(WHOLE.split_evenly(2)[1], 1)[0]
    with World(**settings) as world:
        apart(world, low=5, high=3)
        world.reader.write(message(3, high), record(4))
        world.take(1)
        world.polls(lambda: world.slots.sink.cursor(PARTITION)[0].positions == {0: 5}, "it to be processed")
        pass_turns(world, 30)
        assert not world.group_offsets.commits


def test_places_are_left_to_the_application_where_it_keeps_them_or_the_topic_does_not_return() -> None:
    """A program with bookmarks may commit nothing at all. An old enrolment has no slots."""
    with World(**BY_ITSELF[0]) as world:
        apart(world, low=3, high=3)
        [held] = world.slots
        level = world.engine.enrolment_guard._level
        world.engine.call(lambda: setattr(held, "committed", ()))
        assert world.engine.call(level) == {PARTITION: (Cursor(WHOLE, {0: 3}),)}
        world.engine.call(lambda: setattr(held, "moves", 1))
        assert not world.engine.call(level)
        world.engine.call(lambda: setattr(held, "moves", 0))
        known = world.metadata.view.enrolments[TOPIC]
        world.metadata.view.enrolments[TOPIC] = replace(known, former_slots=None, returning=False)
        assert not world.engine.call(level)


def test_an_application_that_commits_by_itself_does_so_inside_on_revoke() -> None:
    with World(enable_auto_commit=False) as world:
        wanted = returned(world)
        world.reader.write(record(0), record(1))
        world.take(2)

        def commit() -> None:
            calls, future = world.calls, Future[Any]()
            handed_out = calls.handed_out(world.buffer.mark())
            world.engine.ask(lambda: calls.commit(handed_out, future)).result(10)
            future.result(10)

        world.inside["revoke"] = commit
        says(world, 3)
        world.polls(lambda: held_as(world, Mode.MOVING), "the hand-over")
        assert world.group_offsets.commits == [{WHOLE: 2}]
        world.inside.clear()
        says(world, 4)
        world.polls(lambda: wanted and PARTITION in world.reader.owned, "the partition as a plain one")
        assert world.group_offsets.commits == [{WHOLE: 2}]


def test_workers_do_first_what_was_read_so_that_nothing_is_done_again() -> None:
    """A plain partition is committed at one place: what one worker has done beyond it would come again."""
    low, high = (keys_in(half, 1)[0] for half in WHOLE.split_evenly(2))
    with World() as world:
        says(world, 2)
        scene = Scene(world, TopicPartition(TOPIC, 0))
        scene.attach(scene.attached)
        world.reader.write(message(0, low), message(1, high), message(2, high))
        slow = scene.take()
        scene.work_queue.done(scene.take())
        says(world, 3)
        world.until(lambda: not world.reader.owned, "reading to stop")
        pass_turns(world, 5)
        assert held_as(world, Mode.WHOLE) and ("revoke", [0]) not in world.told
        scene.work_queue.done(scene.take())
        pass_turns(world, 5)
        assert held_as(world, Mode.WHOLE)
        scene.work_queue.done(slow)
        world.polls(lambda: held_as(world, Mode.MOVING), "the hand-over")
        assert world.group_offsets.commits[-1] == {WHOLE: 3}


def test_what_is_assigned_by_hand_is_read_on_along_its_lineage_when_the_topic_is_left() -> None:
    with World() as world:
        enrolled = world.metadata.view.enrolments.pop(TOPIC)
        world.engine.call(lambda: world.calls.assign({PARENT: None}, more=False))
        world.polls(lambda: PARTITION in world.reader.owned and held_as(world, Mode.PLAIN), "the partition")
        world.metadata.view.enrolments[TOPIC] = enrolled
        world.until(lambda: held_as(world, Mode.WHOLE), "it to follow the enrolment")
        says(world, 4)
        pass_turns(world, 3)
        assert world.engine.call(lambda: world.slots.state(PARENT).topic_id) == "id"
        assert PARTITION in world.reader.owned and held_as(world, Mode.WHOLE)


def enrolled_again(world: World) -> PartitionState:
    """The topic was split, merged and left before, and is enrolled again: its lineage goes on."""
    known = Enrolment(TOPIC, "id", Partitioner.CONSISTENT_RANDOM, False, SLOTS, 2)
    state = life().merged
    state = replace(state, subtopics=tuple(replace(t, state=SubTopicState.RETIRED) for t in state.subtopics))
    world.metadata.state = lambda parent, *, left=False: state  # type: ignore[method-assign]
    world.metadata.view.left.pop(TOPIC, None)
    world.metadata.view.enrolments[TOPIC] = known
    world.metadata.position += 1
    return state


def test_a_plain_member_commits_where_it_stands_when_its_topic_is_enrolled_again() -> None:
    """Its place is an ordinary offset, beyond all that the lineage has closed."""
    with World() as world:
        world.metadata.view.enrolments.clear()
        begins = SlotStart((Cursor(WHOLE, {0: 5000}),))
        world.group_offsets.starts = lambda asked, me: [begins for _ in asked]  # type: ignore
        world.subscribe()
        world.coordinator.give_partitions(TopicPartition(TOPIC, 0))
        world.polls(lambda: PARTITION in world.reader.owned, "the partition")
        world.reader.written = 5000
        world.reader.write(record(0))
        world.take(1)
        committed: list[int] = []

        def commit(*, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
            committed.extend(part.offset for part in offsets)
            return offsets

        world.coordinator.commit = commit  # type: ignore[method-assign, assignment]
        enrolled_again(world)
        world.until(lambda: {held.stage for held in world.slots} == {SlotStage.HELD}, "it to be held")
        world.poll()
        end = time.monotonic() + 0.2
        world.until(lambda: time.monotonic() > end, "the commit to be sent")
    assert committed and set(committed) <= {5000, 5001}


def test_what_is_assigned_by_hand_goes_on_where_it_stands_when_its_topic_is_enrolled_again() -> None:
    """In the lineage that is a place in the open segment. What is being worked on is finished first."""
    with World() as world:
        world.metadata.view.enrolments.clear()
        begins = SlotStart((Cursor(WHOLE, {0: 5000}),))
        world.group_offsets.starts = lambda asked, me: [begins for _ in asked]  # type: ignore
        world.engine.call(lambda: world.calls.assign({PARENT: None}, more=False))
        world.polls(lambda: PARTITION in world.reader.owned, "the partition")
        world.reader.written = 5000
        world.reader.write(message(5000, b"a"), message(5001, b"b"))
        world.take(1)
        state = enrolled_again(world)
        end = time.monotonic() + 0.2
        world.until(lambda: time.monotonic() > end, "some time without a poll")
        (held,) = world.slots
        assert (held.mode, held.topic_id) == (Mode.PLAIN, "") and not world.reader.owned
        world.polls(lambda: PARTITION in world.reader.owned, "the partition once more")
        open_ = state.lineage.open_segments()[0].id
        assert (held.mode, held.topic_id) == (Mode.WHOLE, state.topic_id)
        assert world.reader.owned[PARTITION].pending(state.lineage) == {open_: 5001}
        assert [c.pending(state.lineage) for c in held.begun_at] == [{open_: 5000}]


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize(("number", "alone"), [(2, True), (4, True), (0, False)])
def test_lanes_are_committed_as_one_place_only_where_the_topic_returns(
    number: int, alone: bool, final: bool
) -> None:
    """The next owner is told all, and brings them to one place. Where no slots topic ever was they stay."""
    with World() as world:
        returned(world)
        (held,) = world.slots
        if number:
            says(world, number)
        else:
            known = world.metadata.view.enrolments[TOPIC]
            world.metadata.view.enrolments[TOPIC] = replace(
                known, returning=False, former_slots=None, generation=1
            )
        low, high = WHOLE.split_evenly(2)
        lanes = (Cursor(low, {0: 3}), Cursor(high, {0: 5}))
        held.final = final
        alone = alone and not final
        assert world.slots.settled(held, lanes) == ((Cursor(WHOLE, {0: 3}),) if alone else lanes)


RETURNING = ((1, "slots"), (2, "whole"), (3, "moving"), (4, "plain"))


@pytest.mark.parametrize(("number", "mode"), RETURNING)
@pytest.mark.parametrize("over", [False, True])
def test_the_records_say_how_the_topic_is_shared(number: int, mode: str, over: bool) -> None:
    """A record that is not settled counts as settled for who has known it for a lease."""
    with World() as world:
        recorded = says(world, number)
    found = subscribed(TOPIC, None if recorded.left else recorded, lease_over=over)
    if over and not recorded.settled:
        mode = dict(RETURNING)[number + 1]
    assert found.mode.value == mode
    assert found.begins == (mode != "slots")
    assert found.group_topic == (slots_topic(TOPIC) if mode == "slots" else TOPIC)
    assert isinstance(found, Subscribed)
    assert found.predecessors(0) == (FORMER if mode == "whole" else frozenset()) or mode == "slots"
