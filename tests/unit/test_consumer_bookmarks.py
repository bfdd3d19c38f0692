"""Bookmarks: how far a slot was handed out, as a text that a program keeps, and slots that begin there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from kpsplit.consumer.commit.writes import CommitMember, Processed, writes
from kpsplit.consumer.group.membership import State
from kpsplit.consumer.run.runner import _take_back_outputs
from kpsplit.consumer.session import ConsumerSession
from kpsplit.consumer.slots.assigned import (
    NoOffsetError,
    SlotStage,
    SlotStart,
    by_bookmarks,
    is_known,
    restated,
    slot_by_hand,
)
from kpsplit.errors import FutureVersionError, RecordError, UsageError
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.group_slots import Mode, OwnedSlot, Subscribed
from kpsplit.splitter.key_range import WHOLE, KeyRange, key_hash
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState, SubTopicState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.keys import OFFSETS_TOPIC, slots_topic
from kpsplit.splitter.records.offsets import Bookmark, decode_bookmark
from tests.unit.engine_world import KEYS, PARENT, SLOTS, TOPIC, World, record, slot
from tests.unit.samples import life
from tests.unit.test_consumer_offset_reset import REMOVED

FIRST, SECOND = WHOLE.split_evenly(2)
LINEAGE = PartitionState.unsplit(PARENT, "id").lineage


@pytest.fixture
def world() -> Iterator[World]:
    with World() as one:
        yield one


def at(range_: KeyRange, next_: int) -> Cursor:
    return Cursor(range_, {0: next_})


def bookmark(*cursors: Cursor, topic_id: str = "id") -> Bookmark:
    return Bookmark(PARENT, topic_id, cursors)


def test_a_bookmark_is_this_json_and_is_read_back() -> None:
    one = Bookmark(PARENT, "id", (Cursor(FIRST, {3: 87, 1: 1001}), at(SECOND, 5)))
    assert json.loads(one.encode()) == {
        "v": 1,
        "topic": PARENT.topic,
        "partition": PARENT.partition,
        "topic_id": "id",
        "pieces": [
            {
                "lo": FIRST.lo,
                "hi": FIRST.hi,
                "positions": [{"segment": 1, "next": 1001}, {"segment": 3, "next": 87}],
            },
            {"lo": SECOND.lo, "hi": SECOND.hi, "positions": [{"segment": 0, "next": 5}]},
        ],
    }
    assert decode_bookmark(one.encode()) == one


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{", ""),
        ('"next":5', '"next":-5'),
        ('"lo":0,', ""),
        ('"hi":4294967296', '"hi":0'),
        ('"pieces"', '"parts"'),
        ('{"next":5,"segment":0}', '{"next":5,"segment":0},{"next":6,"segment":0}'),
    ],
)
def test_a_bookmark_that_was_damaged_is_refused(before: str, after: str) -> None:
    text = bookmark(at(WHOLE, 5)).encode()
    assert before in text
    with pytest.raises(RecordError, match="bookmark"):
        decode_bookmark(text.replace(before, after, 1))


@pytest.mark.parametrize("stored", [None, b"{}", 5])
def test_what_a_store_returns_that_is_no_text_is_refused_as_no_bookmark(stored: Any) -> None:
    with pytest.raises(RecordError, match="a bookmark is a text, not"):
        decode_bookmark(stored)


def test_a_bookmark_of_a_newer_version_is_refused_as_such() -> None:
    with pytest.raises(FutureVersionError):
        decode_bookmark(bookmark(at(WHOLE, 5)).encode().replace('"v":1', '"v":2'))


def test_of_several_bookmarks_of_a_key_the_furthest_counts_and_what_has_none_is_as_it_was_found() -> None:
    quarter, other = FIRST.split_evenly(2)
    saved = [at(FIRST, 5), at(quarter, 9), at(quarter, 3)]
    assert by_bookmarks(LINEAGE, WHOLE, saved, [at(WHOLE, 1)]) == (
        at(quarter, 9),
        at(other, 5),
        at(SECOND, 1),
    )
    assert by_bookmarks(LINEAGE, other, saved, ()) == (at(other, 5),)
    assert by_bookmarks(LINEAGE, WHOLE, [at(SECOND, 2)], ()) == (at(SECOND, 2),)


def test_a_bookmark_of_a_later_segment_is_further_than_one_of_an_earlier() -> None:
    state = life().merged
    last = state.lineage.segments[-1]
    late = Cursor(WHOLE, {last.id: last.start + 4}).settled(state.lineage)
    for saved in ([at(WHOLE, 1), late], [late, at(WHOLE, 1)]):
        assert by_bookmarks(state.lineage, WHOLE, saved, ()) == (late,)


def test_a_slot_waits_for_what_is_found_where_its_bookmarks_do_not_say_everything() -> None:
    known = Subscribed(TOPIC, slots_topic(TOPIC), Mode.SLOTS, SLOTS)
    one = slot_by_hand(known, 0, 0)
    part, rest = one.slot.range.split_evenly(2)
    one.saved = (at(part, 7),)
    one.begin_by_bookmarks(LINEAGE)
    assert (one.stage, one.start, one.saved) == (SlotStage.WANTED, None, (at(part, 7),))
    one.saved = (at(part, 7), at(rest, 8))
    one.begin_by_bookmarks(LINEAGE)
    assert (one.stage, one.begun_at, one.saved) == (SlotStage.FOUND, (at(part, 7), at(rest, 8)), ())
    assert one.moved, "the next commit may take the group back"


def test_slots_by_hand_begin_at_their_bookmarks_and_the_others_where_the_group_stands(world: World) -> None:
    part, rest = slot(1).range.split_evenly(2)
    saved = [bookmark(at(slot(0).range, 6)), bookmark(at(part, 4))]
    calls = world.calls
    world.engine.ask(lambda: calls.assign_slots([(TOPIC, 0, index) for index in (0, 1)], saved)).result(10)
    world.polls(lambda: set(world.reader.owned) == {slot(0), slot(1)}, "the slots")
    assert world.reader.owned[slot(0)].positions == {0: 6}
    assert world.reader.owned[slot(1)].positions == {0: 0}, "the least of its halves"
    ahead = world.slots[slot(1)].begun_at
    assert {c.range: dict(c.positions).get(0, 0) for c in ahead} == {part: 4, rest: 0}


def enrolled(world: World, *, settled: bool) -> None:
    enrolment = Enrolment(TOPIC, "id", Partitioner.CONSISTENT_RANDOM, settled, SLOTS)
    world.metadata.view.enrolments[TOPIC] = enrolment
    world.metadata.position += 1


def test_a_partition_that_is_assigned_by_hand_is_read_while_its_enrolment_is_not_settled(
    world: World,
) -> None:
    enrolled(world, settled=False)
    world.engine.ask(lambda: world.calls.assign({PARENT: None}, more=False)).result(10)
    world.polls(lambda: world.reader.owned, "the partition")
    assert [one.mode for one in world.slots] == [Mode.WHOLE]
    world.reader.write(*(record(n) for n in range(3)))
    assert len(world.take(3)) == 3


def test_slots_by_hand_wait_until_an_enrolment_is_settled_and_are_read_then(world: World) -> None:
    enrolled(world, settled=False)
    session = ConsumerSession.__new__(ConsumerSession)
    session._events, session._buffer = world.events, world.buffer
    session.engine, session.calls = world.engine, world.calls
    asked = threading.Event()
    known = world.calls.known

    def ask(*args: Any) -> bool:
        asked.set()
        return known(*args)

    world.calls.known = ask  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as program:
        call = program.submit(session.assign_slots, [(TOPIC, 0, 1)], ())
        assert asked.wait(10)
        world.engine.ask(lambda: None).result(10)  # the answer is there
        assert not call.done()
        assert not list(world.slots)
        enrolled(world, settled=True)
        call.result(10)
    world.polls(lambda: set(world.reader.owned) == {slot(1)}, "the slot")


def test_a_bookmark_says_what_was_handed_out_and_is_there_while_the_slot_is_read(world: World) -> None:
    calls = world.calls

    def bookmarks() -> list[str | None]:
        mark = world.buffer.mark()
        return [one.bookmark for one in world.engine.ask(lambda: calls.slots(mark)).result(10)]

    world.group_offsets.starts_gate.clear()
    world.engine.ask(lambda: calls.assign_slots([(TOPIC, 0, 0)], ())).result(10)
    assert bookmarks() == [None]
    world.group_offsets.starts_gate.set()
    world.polls(lambda: world.reader.owned, "the slot")
    world.reader.write(*(record(n) for n in range(5)))
    world.take(3)
    assert bookmarks() == [bookmark(at(slot(0).range, 3)).encode()]


def commit_three_records(world: World) -> None:
    """Three records of what was assigned are handed out, processed and committed."""
    calls = world.calls
    world.polls(lambda: world.reader.owned, "what was assigned")
    world.reader.write(*(record(n) for n in range(3)))
    world.take(3)
    world.buffer.processed()
    world.engine.ask(lambda: calls.commit(calls.handed_out(world.buffer.mark()), None)).result(10)
    world.polls(lambda: world.group_offsets.commits, "the commit")


def test_what_was_assigned_by_hand_is_committed_as_by_no_member(world: World) -> None:
    world.engine.ask(lambda: world.calls.assign_slots([(TOPIC, 0, 0)], ())).result(10)
    commit_three_records(world)
    assert world.group_offsets.generations == [None]


def test_a_place_that_is_named_when_a_partition_is_assigned_may_take_the_group_back(world: World) -> None:
    world.engine.ask(lambda: world.calls.assign({PARENT: at(WHOLE, 2)}, more=False)).result(10)
    commit_three_records(world)
    assert world.group_offsets.moved == [{WHOLE}]


def test_on_assign_gives_bookmarks_to_each_slot_that_arrives_and_moves_none_that_is_read(
    world: World,
) -> None:
    saved = {0: 6, 1: 7, 2: 8}
    stages: list[dict[int, str]] = []

    def give() -> None:
        calls, mark = world.calls, world.buffer.mark()
        slots = world.engine.ask(lambda: calls.slots(mark)).result(10)
        stages.append({one.index: one.stage for one in slots})
        texts = [bookmark(at(slot(index).range, next_)) for index, next_ in saved.items()]
        names = [(one.topic, one.partition, one.index) for one in slots]
        world.engine.ask(lambda: calls.start_slots(names, texts)).result(10)

    world.subscribe()
    world.inside["assign"] = give
    for arrive, count in (((0, 1), 2), ((2,), 3)):
        world.coordinator.give(*arrive)
        wanted = {slot(index) for index in range(count)}
        world.polls(lambda w=wanted: world.state is State.STABLE and set(world.reader.owned) == w, "slots")  # type: ignore[misc]
        saved[0] = 1
    assert {one.index: c.positions[0] for one, c in world.reader.owned.items()} == {0: 6, 1: 7, 2: 8}
    assert stages == [{0: "found", 1: "found"}, {0: "reading", 1: "reading", 2: "found"}]


def test_bookmarks_of_a_topic_that_was_made_again_are_refused_and_those_ahead_of_the_view_wait(
    world: World,
) -> None:
    calls = world.calls
    assert calls.known([bookmark(at(WHOLE, 3)), bookmark(at(WHOLE, 3), topic_id="")])
    assert not calls.known([bookmark(Cursor(WHOLE, {1: 3}))])
    with pytest.raises(UsageError, match=r"another topic of this name; nothing was changed; delete them"):
        calls.known([bookmark(at(WHOLE, 3), topic_id="other")])
    world.metadata.ready = False
    assert not calls.known()


@pytest.mark.parametrize("look", [False, True], ids=["unseen", "seen"])
def test_to_look_at_the_slots_changes_nothing_of_what_is_committed(world: World, look: bool) -> None:
    part, rest = slot(0).range.split_evenly(2)
    found = SlotStart((at(part, 0), at(rest, 5)), committed=False)
    world.group_offsets.starts = lambda wanted, _: [found for _ in wanted]  # type: ignore[assignment]
    world.engine.ask(lambda: world.calls.assign_slots([(TOPIC, 0, 0)], ())).result(10)
    world.polls(lambda: world.reader.owned, "the slot")
    keys = [key for key in KEYS if key_hash(key) in part]
    world.reader.write(
        *(Message(topic=TOPIC, partition=0, offset=n, key=keys[n % len(keys)], value=b"") for n in range(6))
    )
    world.take(6)
    world.buffer._last[0] = 6  # as after consume(6): the application works on all of them
    if look:
        mark = world.buffer.mark()
        world.engine.ask(lambda: world.calls.slots(mark)).result(10)
    world.engine.ask(lambda: world.engine.committer.ask(world.slots.changed(list(world.slots)))).result(10)
    world.polls(lambda: world.group_offsets.commits, "the commit")
    assert world.group_offsets.commits == [{part: 0, rest: 5}]


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_second_subscription_goes_on_asking_for_the_bookmarks_of_slots_that_arrive(
    world: World, kind: type[Any]
) -> None:
    calls = world.calls
    owner = type("Owner", (), {})()
    asked: list[list[int]] = []

    def give(_owner: Any, _partitions: Any) -> None:
        mark = world.buffer.mark()
        slots = world.engine.ask(lambda: calls.slots(mark)).result(10)
        asked.append([one.index for one in slots])
        saved = [bookmark(at(slot(index).range, 6)) for index in range(SLOTS)]
        names: Any = [kind((one.topic, one.partition, one.index)) for one in slots]
        world.engine.ask(lambda: calls.start_slots(names, saved)).result(10)

    def subscribe() -> None:
        world.engine.membership.callbacks.use(owner, give, None, None)
        world.engine.subscribing.subscribe([TOPIC])

    world.engine.ask(subscribe).result(10)
    world.until(lambda: world.coordinator.topics, "the subscription")
    world.coordinator.give(0)
    world.polls(lambda: slot(0) in world.reader.owned, "the first slot")
    world.engine.ask(subscribe).result(10)
    world.coordinator.give(1)
    world.polls(lambda: slot(1) in world.reader.owned, "the second slot")
    assert asked == [[0], [0, 1]]
    assert [world.reader.owned[slot(index)].positions for index in (0, 1)] == [{0: 6}, {0: 6}]


def test_outputs_that_were_not_committed_take_a_slot_back_to_its_bookmark_and_not_before(
    world: World,
) -> None:
    part, rest = slot(0).range.split_evenly(2)
    found = SlotStart((at(slot(0).range, 4),), committed=True)
    world.group_offsets.starts = lambda wanted, _: [found for _ in wanted]  # type: ignore[assignment]
    saved = [bookmark(at(part, 9))]
    world.engine.ask(lambda: world.calls.assign_slots([(TOPIC, 0, 0)], saved)).result(10)
    world.polls(lambda: world.reader.owned, "the slot")
    participant: Any = SimpleNamespace(keeps=lambda _: True)
    world.engine.committer.participant = participant
    world.engine.ask(lambda: _take_back_outputs(world.engine)).result(10)
    world.engine.committer.participant = None
    world.polls(lambda: world.reader.owned, "the slot again")
    assert world.slots[slot(0)].begun_at == (at(part, 9), at(rest, 4))


def test_a_bookmark_outside_the_log_is_not_begun_at_again(world: World) -> None:
    outside, reset = at(WHOLE, 3), SlotStart((at(WHOLE, 10),))
    real, own = world.group_offsets.starts, world.reader.own

    def starts(wanted: Any, me: str | None) -> Any:
        return [reset if one.reset else real([one], me)[0] for one in wanted]

    def give() -> None:
        mark = world.buffer.mark()
        slots = world.engine.ask(lambda: world.calls.slots(mark)).result(10)
        names = [(one.topic, one.partition, one.index) for one in slots]
        world.engine.ask(lambda: world.calls.start_slots(names, [bookmark(outside)])).result(10)

    def report_what_is_outside(slot_: OwnedSlot, cursor: Cursor) -> None:
        own(slot_, cursor)
        if cursor == outside:
            world.engine.ask(lambda: world.engine.reading.report(REMOVED))

    world.group_offsets.starts = starts  # type: ignore[method-assign]
    world.reader.own = report_what_is_outside  # type: ignore[method-assign]
    world.reader.cursor = lambda slot_: world.reader.owned[slot_]  # type: ignore[method-assign]
    world.metadata.view.enrolments.clear()
    world.inside["assign"] = give
    world.subscribe()
    world.coordinator.give_partitions(TopicPartition(TOPIC, 0))
    world.polls(lambda: at(WHOLE, 10) in world.reader.owned.values(), "the place of the reset")
    assert world.count("offsets_reset") == 1


def test_a_bookmark_names_the_topic_that_its_slot_began_with(world: World) -> None:
    world.engine.ask(lambda: world.calls.assign_slots([(TOPIC, 0, 0)], ())).result(10)
    world.polls(lambda: world.reader.owned, "the slot")
    world.metadata.state = lambda parent, **_: PartitionState.unsplit(parent, "made again")  # type: ignore[method-assign]
    mark = world.buffer.mark()
    [one] = world.engine.ask(lambda: world.calls.slots(mark)).result(10)
    assert one.bookmark is not None
    assert decode_bookmark(one.bookmark).topic_id == "id"


def test_on_assign_cannot_begin_a_slot_that_is_not_this_members(world: World) -> None:
    with pytest.raises(UsageError, match=r"slot 3 of orders/0 is not this member's; nothing was changed"):
        world.calls.start_slots([(TOPIC, 0, 3)], [bookmark(at(WHOLE, 3))])


def test_a_view_that_is_not_fresh_refuses_no_bookmark_of_another_topic(world: World) -> None:
    world.metadata.fresh = lambda: False  # type: ignore[method-assign]
    assert not world.calls.known([bookmark(at(WHOLE, 3), topic_id="other")])


def test_a_program_that_keeps_bookmarks_is_asked_again_where_on_assign_raises(world: World) -> None:
    fails = []
    asked: list[int] = []

    def give() -> None:
        calls, mark = world.calls, world.buffer.mark()
        slots = world.engine.ask(lambda: calls.slots(mark)).result(10)
        asked.append(len(slots))
        if fails:
            raise OSError(fails.pop())
        saved = [bookmark(at(slot(index).range, 6)) for index in range(SLOTS)]
        names = [(one.topic, one.partition, one.index) for one in slots]
        world.engine.ask(lambda: calls.start_slots(names, saved)).result(10)

    world.subscribe()
    world.inside["assign"] = give
    world.coordinator.give(0)
    world.polls(lambda: slot(0) in world.reader.owned, "the first slot")
    fails += ["the store is away still", "the store is away"]
    world.coordinator.give(1)
    for reason in ("the store is away", "the store is away still"):
        with pytest.raises(OSError, match=f"^{reason}$"):
            world.polls(lambda: slot(1) in world.reader.owned, "what on_assign raises")
    world.polls(lambda: slot(1) in world.reader.owned, "the second slot")
    assert asked == [1, 2, 2, 2]
    assert world.reader.owned[slot(1)].positions == {0: 6}


def test_a_program_that_keeps_bookmarks_is_asked_again_where_a_slot_begins_anew_meanwhile(
    world: World,
) -> None:
    """What it gave before the slot began anew went with that."""
    asked: list[int] = []

    def give() -> None:
        asked.append(len(world.slots))
        names = [(TOPIC, 0, one.slot.index) for one in world.slots]
        saved = [bookmark(at(slot(index).range, 6)) for index in range(SLOTS)]
        world.engine.call(lambda: world.calls.start_slots(names, saved))
        if len(asked) == 1:
            held = list(world.slots)
            world.engine.call(lambda: world.slots.withdraw(held))
            world.engine.call(lambda: world.slots.read_again(held))
            world.until(lambda: {one.stage for one in world.slots} == {SlotStage.FOUND}, "its start")

    world.subscribe()
    world.inside["assign"] = give
    world.coordinator.give(0)
    world.polls(lambda: slot(0) in world.reader.owned, "the slot")
    assert (asked, world.reader.owned[slot(0)].positions) == ([1, 1], {0: 6})


def test_a_bookmark_that_on_assign_cannot_give_begins_no_slot(world: World) -> None:
    names = [[(TOPIC, 0, 0)], [(TOPIC, 0, 3)]]

    def give() -> None:
        saved, wanted = [bookmark(at(WHOLE, 6))], names.pop()
        world.engine.ask(lambda: world.calls.start_slots(wanted, saved)).result(10)

    world.subscribe()
    world.inside["assign"] = give
    world.coordinator.give(0)
    with pytest.raises(UsageError, match="is not this member's"):
        world.polls(lambda: world.reader.owned, "what on_assign raises")
    world.polls(lambda: world.reader.owned, "the slot")
    assert world.reader.owned[slot(0)].positions == {0: 6}


def has_no_offset(world: World) -> None:
    world.group_offsets.starts = lambda wanted, _: [NoOffsetError(w.lineage.parent) for w in wanted]  # type: ignore[assignment, misc]


def test_on_assign_gives_a_start_where_the_reset_policy_is_error(world: World) -> None:
    def give() -> None:
        saved = [bookmark(at(WHOLE, 6))]
        world.engine.ask(lambda: world.calls.start_slots([(TOPIC, 0, 0)], saved)).result(10)

    has_no_offset(world)
    world.subscribe()
    world.inside["assign"] = give
    world.coordinator.give(0)
    assert not world.polls(lambda: world.reader.owned, "the slot"), "no error event"
    assert world.reader.owned[slot(0)].positions == {0: 6}


def test_without_a_start_from_on_assign_the_error_comes_after_it(world: World) -> None:
    has_no_offset(world)
    world.subscribe()
    world.coordinator.give(0, 1)
    [event] = world.take(1)
    error = event.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    assert world.told == [("assign", [0])]
    assert [one.stage for one in world.slots] == [SlotStage.STOPPED, SlotStage.STOPPED]


def test_on_assign_is_called_again_for_a_partition_that_the_program_let_go(world: World) -> None:
    world.subscribe()
    world.coordinator.give(0)
    world.polls(lambda: world.reader.owned, "the slot")
    world.engine.ask(lambda: world.calls.unassign([TopicPartition(TOPIC, 0)])).result(10)
    assert not world.slots.in_sink()
    world.coordinator.give(1)
    world.polls(lambda: slot(1) in world.reader.owned, "another slot of it")
    assert world.told == [("assign", [0]), ("assign", [0])]


def test_a_partition_by_hand_commits_ranges_once_its_topic_is_enrolled(world: World) -> None:
    world.metadata.view.enrolments.clear()
    world.engine.ask(lambda: world.calls.assign({PARENT: None}, more=False)).result(10)
    world.polls(lambda: world.reader.owned, "the partition")
    assert [one.mode for one in world.slots] == [Mode.PLAIN]
    enrolled(world, settled=False)
    world.polls(lambda: [one.mode for one in world.slots] == [Mode.WHOLE], "the enrolment")
    commit_three_records(world)
    assert world.group_offsets.commits == [{WHOLE: 3}]


def test_a_bookmark_of_a_partition_by_hand_holds_when_its_topic_is_enrolled_and_split_later(
    world: World,
) -> None:
    """While it is plain its bookmark is an ordinary offset; from then on it is a place in the lineage."""
    enrolment, calls = world.metadata.view.enrolments.pop(TOPIC), world.calls

    def saved() -> Bookmark:
        [one] = world.engine.call(lambda: calls.slots(world.buffer.mark()))
        assert one.bookmark is not None
        return decode_bookmark(one.bookmark)

    world.engine.call(lambda: calls.assign({PARENT: at(WHOLE, 700)}, more=False))
    world.polls(lambda: world.reader.owned, "the partition")
    assert (saved().topic_id, places(saved())) == ("", [{0: 700}])
    merged = replace(MERGED, parent=PARENT)
    now = PartitionState.unsplit(PARENT, merged.topic_id)
    world.metadata.state = lambda parent, *, left=False: now  # type: ignore[method-assign]
    world.metadata.view.enrolments[TOPIC] = enrolment
    world.metadata.position += 1
    world.polls(lambda: [one.mode for one in world.slots] == [Mode.WHOLE], "it to follow the enrolment")
    assert (saved().topic_id, places(saved())) == (merged.topic_id, [{0: 700}])
    now, here = merged, Cursor(WHOLE, {OPEN.id: AFTER})
    world.engine.call(lambda: world.slots.sink.taken(OwnedSlot(PARENT, 0, 1), here))
    assert restated(saved(), merged, merged).cursors == (here,)


def test_a_partition_by_hand_whose_topic_is_enrolled_beside_a_subscription_waits_for_its_end(
    world: World,
) -> None:
    """Its range commits would be refused: they are no member's, and the group has one."""
    beside = PhysicalPartition("beside", 0)
    world.subscribe()
    world.coordinator.give(0)
    world.engine.ask(lambda: world.calls.assign({beside: at(WHOLE, 5)}, more=True)).result(10)

    def found() -> list[tuple[SlotStage, Mode]]:
        return [(one.stage, one.mode) for one in world.slots.of(beside)]

    world.polls(lambda: found() == [(SlotStage.READING, Mode.PLAIN)], "the partition by hand")
    enrolment = Enrolment("beside", "id", Partitioner.CONSISTENT_RANDOM, True, SLOTS)
    world.metadata.view.enrolments["beside"] = enrolment
    world.metadata.position += 1
    came = world.polls(lambda: found() == [(SlotStage.HELD, Mode.PLAIN)], "the enrolment")
    (event,) = came or world.take(1)
    assert (event.topic(), event.partition()) == ("beside", 0)
    assert "call unsubscribe() to read on" in event.error().str()
    world.engine.ask(world.engine.subscribing.leave).result(10)
    more = world.polls(lambda: found() == [(SlotStage.READING, Mode.WHOLE)], "the end of the subscription")
    assert not more


def test_a_plain_partition_by_hand_beside_a_subscription_begins_where_the_group_stands(world: World) -> None:
    """Its topic is none of the group's: how those are shared says nothing of it, also when it begins anew."""
    beside = PhysicalPartition("beside", 0)
    world.subscribe()
    world.coordinator.give(0)
    world.engine.call(lambda: world.calls.assign({beside: None}, more=True))
    world.polls(lambda: OwnedSlot(beside, 0, 1) in world.reader.owned, "the partition by hand")
    world.engine.call(lambda: world.slots.start_anew(world.slots.of(beside)))
    assert OwnedSlot(beside, 0, 1) not in world.reader.owned
    world.polls(lambda: OwnedSlot(beside, 0, 1) in world.reader.owned, "the partition once more")
    assert [one.mode for one in world.slots.of(beside)] == [Mode.PLAIN]


def test_slots_by_hand_are_committed_although_their_slots_topic_is_deleted(world: World) -> None:
    tokens: list[PhysicalPartition] = []
    real = world.group_offsets.commit

    def commit(processed: list[Any], *args: Any) -> None:
        tokens.extend(p.token for p in processed)
        real(processed, *args)

    world.group_offsets.commit = commit  # type: ignore[method-assign]
    world.engine.ask(lambda: world.calls.assign_slots([(TOPIC, 0, 3)], ())).result(10)
    world.polls(lambda: world.reader.owned, "the slot")
    changed = Enrolment(TOPIC, "id", Partitioner.CONSISTENT_RANDOM, True, 2, generation=2)
    world.metadata.view.enrolments[TOPIC] = changed
    world.metadata.position += 1
    commit_three_records(world)
    assert tokens == [PhysicalPartition(changed.slots_topic, 0)]


@pytest.mark.parametrize("returned", [False, True])
def test_slots_by_hand_name_no_partition_of_their_topic_when_it_has_no_slots_any_more(
    world: World, returned: bool
) -> None:
    """Where another range has no commit, what is written for it is 0: plain clients would begin there."""
    world.engine.ask(lambda: world.calls.assign_slots([(TOPIC, 0, 3)], ())).result(10)
    world.polls(lambda: world.reader.owned, "the slot")
    known = world.metadata.view.enrolments.pop(TOPIC)
    if not returned:
        world.metadata.view.enrolments[TOPIC] = replace(
            known, slots=None, generation=2, former_slots=SLOTS, returning=True
        )
    world.metadata.position += 1
    topic = world.metadata.subscribed(TOPIC)
    [held] = world.slots
    assert held.token(topic).topic == OFFSETS_TOPIC
    state = PartitionState.unsplit(PARENT, "id")
    processed = Processed(state, held.mode, (Cursor(slot(3).range, {0: 3}),), (), held.token(topic))
    wrote = writes([processed], CommitMember("g", "me", 1), CommitFold())
    assert wrote is not None and wrote.offsets == {PhysicalPartition(OFFSETS_TOPIC, 0): 0}


def test_nothing_of_an_enrolled_topic_is_assigned_by_hand_beside_a_subscription(world: World) -> None:
    calls = world.calls
    world.subscribe()
    world.coordinator.give(0)
    world.polls(lambda: slot(0) in world.reader.owned, "the slot")
    for by_hand in (
        lambda: calls.assign({PARENT: None}, more=True),
        lambda: calls.assign_slots([(TOPIC, 0, 1)], ()),
    ):
        with pytest.raises(KafkaException, match=r"nothing was changed; call unsubscribe\(\) first"):
            world.engine.ask(by_hand).result(10)
    assert [one.slot for one in world.slots] == [slot(0)]
    world.engine.ask(world.engine.subscribing.leave).result(10)
    world.polls(lambda: world.state is State.UNSUBSCRIBED, "the end of the membership")
    world.engine.ask(lambda: calls.assign_slots([(TOPIC, 0, 1)], ())).result(10)
    world.polls(lambda: slot(1) in world.reader.owned, "the slot by hand")
    assert world.told == [("assign", [0]), ("revoke", [0])], "a program is not told of what it assigns"


def test_a_consumer_that_has_something_of_an_enrolled_topic_by_hand_cannot_subscribe(world: World) -> None:
    """Its commits would be made as a member's, beside those of the slots' owners."""
    calls, other = world.calls, PhysicalPartition("plain", 0)
    for by_hand in (
        lambda: calls.assign({PARENT: None, other: at(WHOLE, 5)}, more=False),
        lambda: calls.assign_slots([(TOPIC, 0, 1)], ()),
    ):
        world.engine.ask(by_hand).result(10)
        held = [one.slot for one in world.slots]
        with pytest.raises(KafkaException, match=rf"{TOPIC} is enrolled.*; call unassign\(\) first"):
            world.engine.ask(lambda: calls.subscribe(["elsewhere"])).result(10)
        world.polls(lambda: world.reader.owned, "what was assigned")
        assert [one.slot for one in world.slots] == held and not world.coordinator.topics
        world.engine.ask(lambda: calls.let_go(list(world.slots))).result(10)
    world.engine.ask(lambda: calls.subscribe([TOPIC])).result(10)
    world.until(lambda: world.coordinator.topics, "the subscription")
    world.engine.ask(lambda: calls.subscribe([TOPIC, "elsewhere"])).result(10)


def test_a_member_that_has_something_by_hand_leaves_its_group_when_the_application_stops_polling() -> None:
    beside = PhysicalPartition("beside", 0)
    for first in ("subscribe", "assign"):
        with World(max_poll_interval_ms=150) as world:
            calls = [
                world.subscribe,
                lambda: world.engine.ask(lambda: world.calls.assign({beside: None}, more=True)).result(10),
            ]
            for call in calls if first == "subscribe" else reversed(calls):
                call()
            world.coordinator.give(0)
            world.until(lambda: world.coordinator.left, "the member to leave")


_RETIRED = tuple(replace(t, state=SubTopicState.RETIRED) for t in life().merged.subtopics)
MERGED = replace(life().merged, subtopics=_RETIRED)
OPEN = MERGED.lineage.open_segments()[0]
PLAIN = PartitionState.unsplit(PARENT, "")
AFTER = OPEN.start + 5


def places(one: Bookmark) -> list[dict[int, int]]:
    return [dict(c.positions) for c in one.cursors]


def test_a_bookmark_holds_when_its_topic_is_back_with_plain_clients() -> None:
    """Its segments are no more; where it stands in the topic itself is an ordinary offset."""
    never_split = restated(bookmark(at(FIRST, 7), at(SECOND, 9)), PLAIN, PartitionState.unsplit(PARENT, "id"))
    assert (never_split.topic_id, places(never_split)) == ("", [{0: 7}, {0: 9}])
    saved = bookmark(Cursor(FIRST, {OPEN.id: AFTER}), topic_id=MERGED.topic_id)
    found = restated(saved, PLAIN, MERGED)
    assert (found.topic_id, places(found)) == ("", [{0: AFTER}])
    assert is_known(saved, PLAIN, MERGED, fresh=True)
    assert restated(saved, MERGED, MERGED) is saved


def test_a_bookmark_from_before_the_latest_merge_says_where_it_stands_in_the_topic_itself() -> None:
    """Old ones are given too, of slots that there are no more; of each key the furthest counts."""
    early = bookmark(Cursor(FIRST, {0: 3}), Cursor(SECOND, {4: 2}), topic_id=MERGED.topic_id)
    assert places(restated(early, PLAIN, MERGED)) == [{0: 3}, {0: MERGED.lineage.get(1).start}]


def test_bookmarks_of_another_topic_of_the_name_mean_other_records() -> None:
    other = bookmark(at(WHOLE, 7), topic_id="other")
    assert restated(other, PLAIN, MERGED) is other
    assert not is_known(other, PLAIN, MERGED, fresh=False)
    with pytest.raises(UsageError, match="of another topic of this name"):
        is_known(other, PLAIN, MERGED, fresh=True)


def test_a_bookmark_of_a_plain_topic_holds_when_it_is_enrolled_again() -> None:
    """The lineage goes on: segment 0 is what came before the first split only."""
    plain = Bookmark(MERGED.parent, "", (at(FIRST, AFTER),))
    found = restated(plain, MERGED, MERGED)
    assert found.topic_id == MERGED.topic_id
    assert [c.pending(MERGED.lineage) for c in found.cursors] == [{OPEN.id: AFTER}]
    first = restated(plain, PartitionState.unsplit(PARENT, "id"), PLAIN)
    assert places(first) == [{0: AFTER}]


def test_a_program_begins_by_its_bookmarks_when_its_topic_is_back_with_plain_clients(world: World) -> None:
    known = world.metadata.view.enrolments.pop(TOPIC)
    world.metadata.view.left[TOPIC] = replace(known, slots=None, generation=2, returning=True)
    world.metadata.state = lambda parent, *, left=False: MERGED if left else PLAIN  # type: ignore[method-assign]
    saved = [
        bookmark(Cursor(slot(number).range, {OPEN.id: AFTER + number}), topic_id=MERGED.topic_id)
        for number in range(SLOTS)
    ]
    assert world.engine.call(lambda: world.calls.known(saved, [(TOPIC, 0, 0)]))
    world.engine.call(lambda: world.calls.assign_slots([(TOPIC, 0, 0)], saved))
    world.polls(lambda: world.reader.owned, "the partition")
    assert world.reader.owned == {OwnedSlot(PARENT, 0, 1): Cursor(WHOLE, {0: AFTER})}


def test_what_is_assigned_anew_begins_as_its_topic_is_read_now(world: World) -> None:
    """What was assigned before the topic was left is read on along the lineage: its places are of that."""
    world.engine.call(lambda: world.calls.assign_slots([(TOPIC, 0, 0)], ()))
    world.polls(lambda: world.reader.owned, "the slot")
    world.metadata.state = lambda parent, *, left=False: MERGED if left else PLAIN  # type: ignore[method-assign]
    world.slots.state = lambda parent: MERGED  # type: ignore[method-assign]
    asked: list[Any] = []
    wanted = world.calls.wanted

    def ask(*args: Any, **how: Any) -> Any:
        asked.extend(found := wanted(*args, **how))
        return found

    world.calls.wanted = ask  # type: ignore[method-assign]
    session = ConsumerSession.__new__(ConsumerSession)
    session._events, session._buffer = world.events, world.buffer
    session.engine, session.calls = world.engine, world.calls
    session.look_up = lambda *_: {PARENT: None}  # type: ignore[method-assign]
    session.assign([TopicPartition(TOPIC, 0, 5)], more=False)
    assert [one.lineage for one in asked] == [PLAIN.lineage]
    (held,) = wanted([TopicPartition(TOPIC, 0)])
    assert held.lineage == MERGED.lineage, "and what is held is asked about as it is read"
