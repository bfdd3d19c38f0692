"""From where a partition is read for slots, who gets what, and where reading waits."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from confluent_kafka import Message

from kpsplit.consumer.fetch.batch import placed_hash
from kpsplit.consumer.fetch.fetch_state import FetchState
from kpsplit.consumer.fetch.gaps import (
    EndReached,
    ForeignFound,
    Found,
    GapFound,
    GapPolicy,
    LogBounds,
    ReadingEvent,
    Unreadable,
)
from kpsplit.kafka.logical_message import LogicalMessage, Place, physical_offset, place_of
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import WHOLE, KeyRange, key_hash
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Abort, EndedBy, PartitionState
from kpsplit.splitter.reading import Cursor, ForeignReason, GapReason
from tests.unit.consumer_samples import FIRST, HIGH, LOW, SECOND, WHOLE_SLOT, message, offsets
from tests.unit.samples import (
    PARENT,
    UNSPLIT,
    committed,
    fenced,
    life,
    merged,
    operated,
    phantom,
    split_attempt,
)

pytestmark = pytest.mark.usefixtures("both_paths")
LIFE = life()
SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2))


class Tracks(FetchState):
    """Tracks with their reports."""

    def __init__(self, state: PartitionState = UNSPLIT, **more: GapPolicy | bool) -> None:
        self.events: list[ReadingEvent] = []
        numbers = count(1)
        super().__init__(state, lambda: next(numbers), self.events.append, **more)  # type: ignore[arg-type]

    def begin(self, *slots: OwnedSlot, at: dict[int, int] | None = None) -> None:
        """Own slots, with a fresh view."""
        for slot in slots:
            self.own(slot, Cursor(slot.range, at or {}))
        self.refreshed(self.request_id)

    def give(self, *messages: Message, source=PARENT, start: int | None = None):
        """Give what was read from an offset on; from where reading stands if none is named."""
        start = self.wanted().get(source, 0) if start is None else start
        return self.take(source, start, list(messages), all(map(Message.key, messages)))

    def end(self, offset: int, source=PARENT):
        """The log was read to its end from where reading stands."""
        return self.at_end(source, self.wanted().get(source, 0), offset)

    def found(
        self,
        low: int,
        high: int,
        source=PARENT,
        topic_id: str = "id-of-orders",
        leader_epoch: int | None = None,
    ):
        return self.examine(source, Found(topic_id, LogBounds(low, high, high, leader_epoch)))

    def tell(self):
        """Tell the application of every gap."""
        gaps = [event.gap for event in self.events if isinstance(event, GapFound)]
        return [batch for gap in gaps for batch in self.told(gap)]


def test_a_partition_of_a_topic_that_is_not_enrolled_passes_through_untouched() -> None:
    tracks = Tracks(replace(UNSPLIT, topic_id=""))
    tracks.begin(FIRST, SECOND)
    given = [message(0), message(1, HIGH), message(3)]
    (batch,) = tracks.take(PARENT, 0, given, True)
    assert batch.messages is given
    assert (batch.start, batch.end, batch.slots) == (0, 4, (FIRST, SECOND))
    assert tracks.wanted() == {PARENT: 4}


def test_an_enrolled_topic_is_handed_out_without_stamps_whether_it_was_split_or_not() -> None:
    tracks = Tracks()
    tracks.begin(FIRST, SECOND)
    given = [message(0, epoch=0), message(1, HIGH), message(3, epoch=0)]
    (batch,) = tracks.take(PARENT, 0, given, True)
    assert [m.headers() for m in batch.messages] == [None, None, None]
    assert [m.offset() for m in batch.messages] == [0, 1, 3]
    assert (batch.start, batch.end, batch.slots) == (0, 4, (FIRST, SECOND))


def test_a_slot_is_given_the_records_of_its_keys_only() -> None:
    tracks = Tracks()
    tracks.begin(SECOND)
    (batch,) = tracks.give(message(0), message(1, HIGH), message(2))
    assert offsets([batch]) == [1]
    assert batch.end == 3


def test_a_slot_that_arrives_further_back_is_given_what_others_already_have_alone() -> None:
    tracks = Tracks()
    tracks.begin(FIRST, at={0: 100})
    tracks.give(message(100), message(101, HIGH))
    tracks.begin(SECOND, at={0: 50})
    assert tracks.wanted() == {PARENT: 50}
    batches = tracks.give(
        message(50), message(51, HIGH), message(101, HIGH), message(102), message(103, HIGH)
    )
    assert offsets(batches) == [51, 101, 102, 103]


@pytest.mark.parametrize("key", [None, LOW, HIGH])
def test_a_record_of_a_segment_is_always_placed_in_the_segments_range(key) -> None:
    range_ = KeyRange(0x40000000, 0x50000000)
    assert all(placed_hash(key, offset, range_) in range_ for offset in range(100))
    assert placed_hash(LOW, 0, WHOLE) == key_hash(LOW)


def test_a_key_in_a_segment_of_other_keys_is_given_to_exactly_one_slot() -> None:
    state = operated(UNSPLIT, SPLIT, {0: 0})
    phantoms = state.lineage.open_segments()
    wrong = message(0, HIGH, source=phantoms[0].source)
    given = 0
    for slot in (OwnedSlot(PARENT, i, 4) for i in range(4)):
        tracks = Tracks(state)
        tracks.begin(slot)
        if phantoms[0].source in tracks.wanted():
            given += len(offsets(tracks.give(wrong, source=phantoms[0].source)))
    assert given == 1


def test_children_are_read_when_the_parents_end_was_reached_and_not_before() -> None:
    state = operated(UNSPLIT, SPLIT, {0: 2})
    tracks = Tracks(state)
    tracks.begin(FIRST, SECOND)
    assert tracks.wanted() == {PARENT: 0}
    batches = tracks.give(message(0), message(1), message(2, None, marker="s"), message(3))
    assert [(b.segment.id, b.start, b.end) for b in batches] == [(0, 0, 2), (1, 3, 4)]
    assert isinstance(batches[1].messages[0], LogicalMessage)
    assert tracks.wanted() == {PARENT: 4, phantom(0): 0, phantom(1): 0}


def test_a_reopened_parent_waits_until_every_own_slot_has_drained_what_comes_before() -> None:
    tracks = Tracks(LIFE.merged)
    slots = [OwnedSlot(PARENT, i, 4) for i in range(2)]
    for slot in slots:
        tracks.own(slot, Cursor(slot.range, {1: 1003, 2: 8, 3: 2}))
    assert tracks.wanted() == {phantom(1): 2}
    assert tracks.give(
        message(3, source=phantom(1)), message(5, None, source=phantom(1), marker="m"), source=phantom(1)
    )
    assert tracks.wanted() == {PARENT: 1004}


def test_a_slot_that_was_never_concerned_does_not_hold_up_the_others() -> None:
    tracks = Tracks(LIFE.merged)
    ready = OwnedSlot(PARENT, 3, 4)
    tracks.own(ready, Cursor(ready.range, {9: 2000}))
    tracks.refreshed(tracks.request_id)
    assert tracks.wanted() == {PARENT: 2000}


def test_strays_are_skipped_and_counted_and_foreign_writers_delivered_from_the_overflow() -> None:
    state = operated(UNSPLIT, SPLIT, {0: 2})
    tracks = Tracks(state)
    tracks.begin(WHOLE_SLOT, at={0: 2, 1: 3})
    batches = tracks.give(message(3, epoch=0), message(4), message(5, epoch=0))
    assert [physical_offset(m) for m in batches[0].messages] == [4]
    assert batches[0].end == 6
    assert tracks.tally.strays == 2


@pytest.mark.parametrize("epoch", [0, 1, 99])
def test_a_copy_of_a_record_that_stood_elsewhere_is_delivered_whatever_its_epoch(epoch: int) -> None:
    elsewhere = UNSPLIT.home(PhysicalPartition("elsewhere", 3))
    tracks = Tracks(operated(UNSPLIT, SPLIT, {0: 2}))
    tracks.begin(WHOLE_SLOT, at={0: 2, 1: 3})
    batches = tracks.give(message(3, epoch=epoch, home=elsewhere), message(4, epoch=0, home=elsewhere))
    assert [physical_offset(m) for m in batches[0].messages] == [3, 4]
    assert (tracks.tally.strays, tracks.request_id) == (0, 0)


def test_at_a_marker_of_an_unknown_attempt_reading_waits_until_the_view_is_fresh() -> None:
    tracks = Tracks()
    tracks.begin(WHOLE_SLOT)
    batches = tracks.give(message(0), message(1, None, marker="s"), message(2))
    assert (offsets(batches), batches[0].end) == ([0], 1)
    assert tracks.wanted() == {}
    old, request_id = tracks.request_id - 1, tracks.request_id
    assert request_id
    tracks.refreshed(old)
    assert tracks.wanted() == {}
    tracks.refreshed(request_id)
    assert (tracks.request_id, tracks.wanted()) == (0, {PARENT: 1})
    assert offsets(tracks.give(message(1, None, marker="s"), message(2))) == [2]


def test_at_a_marker_of_an_attempt_under_way_reading_waits_for_the_outcome() -> None:
    tracks = Tracks(fenced(UNSPLIT, SPLIT))
    tracks.begin(WHOLE_SLOT)
    tracks.give(message(0), message(1, None, marker="s"))
    tracks.refreshed(tracks.request_id)
    assert (tracks.request_id, tracks.wanted()) == (0, {})
    tracks.update(committed(UNSPLIT, SPLIT, {0: 1}))
    assert tracks.wanted() == {PARENT: 2, phantom(0): 0, phantom(1): 0}


def test_a_marker_of_an_attempt_that_was_rolled_back_is_read_over() -> None:
    tracks = Tracks(fenced(UNSPLIT, SPLIT))
    tracks.begin(WHOLE_SLOT)
    tracks.give(message(0), message(1, None, marker="s"))
    tracks.update(apply(fenced(UNSPLIT, SPLIT), Abort("s", EndedBy.TAKEOVER, "gone")))
    assert offsets(tracks.give(message(1, None, marker="s"), message(2, None))) == [2]


def test_reading_does_not_begin_inside_an_open_segment_before_the_view_is_fresh() -> None:
    tracks = Tracks()
    tracks.own(WHOLE_SLOT, Cursor(WHOLE, {0: 1500}))
    assert tracks.wanted() == {}
    tracks.update(operated(UNSPLIT, SPLIT, {0: 1000}))
    assert tracks.wanted() == {PARENT: 1001, phantom(0): 0, phantom(1): 0}


def test_reading_does_not_begin_in_a_segment_whose_end_is_being_decided() -> None:
    tracks = Tracks(fenced(UNSPLIT, SPLIT))
    tracks.begin(WHOLE_SLOT, at={0: 10})
    assert (tracks.request_id, tracks.wanted()) == (0, {})
    tracks.update(apply(fenced(UNSPLIT, SPLIT), Abort("s", EndedBy.TAKEOVER, "gone")))
    assert tracks.wanted() == {PARENT: 10}


def test_going_back_to_where_it_has_read_needs_no_fresh_view() -> None:
    tracks = Tracks()
    tracks.begin(FIRST)
    tracks.give(message(0), message(7))
    tracks.own(SECOND, Cursor(SECOND.range, {0: 3}))
    assert (tracks.request_id, tracks.wanted()) == (0, {PARENT: 3})


def test_a_cursor_of_a_newer_lineage_waits_for_the_view_and_a_contradiction_is_reported() -> None:
    tracks = Tracks()
    tracks.own(WHOLE_SLOT, Cursor(WHOLE, {2: 5}))
    assert tracks.wanted() == {}
    tracks.refreshed(tracks.request_id)
    assert isinstance(tracks.events[0], Unreadable)
    assert (tracks.request_id, tracks.wanted()) == (0, {})
    tracks.update(operated(UNSPLIT, SPLIT, {0: 0}))
    tracks.refreshed(tracks.request_id)
    assert tracks.wanted()[phantom(0)] == 5


def test_a_record_in_the_place_of_a_marker_is_reported() -> None:
    tracks = Tracks(operated(UNSPLIT, SPLIT, {0: 1}))
    tracks.begin(WHOLE_SLOT)
    assert offsets(tracks.give(message(0), message(1)))[0] == 0
    assert tracks.events == [ForeignFound(PARENT, PARENT, 1, 1, ForeignReason.NOT_THE_MARKER)]


def test_a_stamp_of_a_newer_kpsplit_stops_the_physical_partition() -> None:
    tracks = Tracks(operated(UNSPLIT, SPLIT, {0: 1}))
    tracks.begin(WHOLE_SLOT, at={0: 1})
    newer = Message(topic="orders", partition=3, offset=2, key=b"k", value=b"v", headers=[("kps", b"\x63")])
    assert tracks.give(newer) == []
    (told,) = tracks.events
    assert isinstance(told, Unreadable)
    assert "newer" in str(told.error)
    assert PARENT not in tracks.wanted()


def test_expired_records_stop_reading_until_a_seek() -> None:
    tracks = Tracks()
    tracks.begin(WHOLE_SLOT)
    assert tracks.found(5, 9) == []
    (told,) = tracks.events
    assert isinstance(told, GapFound)
    assert (told.gap.start, told.gap.end, told.gap.reason) == (0, 5, GapReason.EXPIRED)
    assert told.error is not None
    assert tracks.wanted() == {}
    tracks.begin(WHOLE_SLOT, at={0: 6})
    assert tracks.wanted() == {PARENT: 6}


def test_expired_records_are_skipped_on_request_and_told_once() -> None:
    tracks = Tracks(on_gap=GapPolicy.SKIP_AND_REPORT)
    tracks.begin(FIRST)
    assert tracks.found(5, 9) == []
    (batch,) = tracks.tell()
    assert (batch.start, batch.end, batch.messages) == (0, 5, [])
    assert tracks.wanted() == {}, "nobody has seen which markers were there"
    tracks.refreshed(tracks.request_id)
    assert tracks.wanted() == {PARENT: 5}
    tracks.own(SECOND, Cursor(SECOND.range, {}))
    (batch,) = tracks.found(5, 9)
    assert (batch.start, batch.end) == (0, 5)
    assert len(tracks.events) == 1


def test_nothing_behind_a_gap_is_read_before_the_application_was_told_of_it() -> None:
    tracks = Tracks(operated(UNSPLIT, SPLIT, {0: 10}), on_gap=GapPolicy.SKIP_AND_REPORT)
    tracks.begin(WHOLE_SLOT)
    assert tracks.found(5, 9) == []
    assert (tracks.wanted(), tracks.request_id) == ({}, 0)
    assert tracks.cursor(WHOLE_SLOT).positions == {0: 0}
    tracks.tell()
    assert tracks.cursor(WHOLE_SLOT).positions == {0: 5}
    assert tracks.wanted() == {PARENT: 5}


def test_a_gap_that_waits_to_be_told_holds_up_no_other_log() -> None:
    tracks = Tracks(operated(UNSPLIT, SPLIT, {0: 10}), on_gap=GapPolicy.SKIP_AND_REPORT)
    tracks.begin(WHOLE_SLOT, at={0: 10})
    wanted = tracks.wanted()
    topic = tracks.state.subtopic(phantom(0).topic)
    assert topic is not None
    assert tracks.found(5, 9, phantom(0), topic.topic_id or "") == []
    assert isinstance(tracks.events[0], GapFound)
    assert tracks.wanted() == {place: at for place, at in wanted.items() if place != phantom(0)}


def test_what_one_slot_was_not_told_of_yet_holds_up_another_that_comes_meanwhile() -> None:
    tracks = Tracks(on_gap=GapPolicy.SKIP_AND_REPORT)
    tracks.begin(FIRST)
    tracks.found(5, 9)
    tracks.disown(FIRST)
    assert tracks.wanted() == {}
    tracks.own(SECOND, Cursor(SECOND.range, {}))
    assert tracks.wanted() == {PARENT: 0}, "it meets the gap itself"
    assert tracks.found(5, 9) == []
    assert len(tracks.events) == 1, "the same words are on their way"
    assert tracks.wanted() == {}
    (batch,) = tracks.tell()
    assert (batch.slots, batch.end) == ((SECOND,), 5)


def test_a_slot_that_takes_the_place_of_one_that_waits_at_a_gap_goes_on_with_what_that_was_told() -> None:
    tracks = Tracks(on_gap=GapPolicy.SKIP_AND_REPORT)
    tracks.begin(FIRST)
    tracks.found(5, 9)
    tracks.disown(FIRST)
    tracks.own(SECOND, Cursor(SECOND.range, {}))
    assert tracks.wanted() == {}
    (batch,) = tracks.tell()
    assert (batch.slots, batch.end) == ((SECOND,), 5)


def test_a_gap_is_told_again_where_a_slot_that_comes_later_stood_further_back() -> None:
    tracks = Tracks(on_gap=GapPolicy.SKIP_AND_REPORT)
    tracks.begin(FIRST, at={0: 3})
    tracks.found(5, 9)
    tracks.own(SECOND, Cursor(SECOND.range, {0: 1}))
    assert tracks.found(5, 9) == []
    first, second = (e.gap for e in tracks.events if isinstance(e, GapFound))
    assert [(gap.start, gap.end) for gap in (first, second)] == [(3, 5), (1, 5)]
    assert tracks.told(first) == [], "it missed more than that"
    (batch,) = tracks.told(second)
    assert (batch.start, batch.end) == (1, 5)


def test_a_slot_that_was_moved_while_a_gap_was_told_is_read_where_it_is_now() -> None:
    tracks = Tracks(on_gap=GapPolicy.SKIP_AND_REPORT)
    tracks.begin(WHOLE_SLOT)
    tracks.found(5, 9)
    tracks.begin(WHOLE_SLOT, at={0: 7})
    assert tracks.tell() == []
    assert tracks.wanted() == {PARENT: 7}


def test_a_slot_that_has_not_drained_what_comes_before_is_not_led_past_a_gap_that_another_met() -> None:
    tracks = Tracks(operated(UNSPLIT, SPLIT, {0: 10}), on_gap=GapPolicy.SKIP_AND_REPORT)
    first, second = OwnedSlot(PARENT, 0, 4), OwnedSlot(PARENT, 1, 4)
    tracks.begin(first, at={0: 10})
    topic = tracks.state.subtopic(phantom(0).topic)
    assert topic is not None
    tracks.found(5, 9, phantom(0), topic.topic_id or "")
    tracks.begin(second, at={0: 3})
    assert tracks.tell() == []
    assert tracks.cursor(second).positions == {0: 3}
    tracks.end(10)
    assert tracks.wanted()[phantom(0)] == 0
    (batch,) = tracks.found(5, 9, phantom(0), topic.topic_id or "")
    assert (set(batch.slots), batch.end) == ({first, second}, 5)
    assert len([e for e in tracks.events if isinstance(e, GapFound)]) == 1


def test_a_gap_reaches_no_further_than_its_segment_when_that_is_closed_while_the_gap_is_told() -> None:
    tracks = Tracks(on_gap=GapPolicy.SKIP_AND_REPORT)
    tracks.begin(WHOLE_SLOT)
    tracks.found(15, 20)
    tracks.update(operated(UNSPLIT, SPLIT, {0: 10}))
    assert PARENT not in tracks.wanted()
    (batch,) = tracks.tell()
    assert batch.end == 10
    assert set(tracks.wanted()) == {PARENT, phantom(0), phantom(1)}


def test_what_is_read_after_something_that_was_left_out_is_left_out_too() -> None:
    """The client gives records of the reopened parent, the rest of a phantom, then more of the parent."""
    tracks = Tracks(merged())
    tracks.begin(FIRST, SECOND)
    low = phantom(0)
    assert tracks.wanted() == {PARENT: 1, low: 0}
    first = [message(1), message(2, None, marker="s"), message(3, epoch=2), message(4, epoch=2)]
    (overflow,) = tracks.give(*first, start=1)
    assert (overflow.start, overflow.end) == (1, 2), "the phantom comes before the rest"
    tracks.give(message(0, source=low), source=low)
    assert tracks.give(message(5, epoch=2), message(6, epoch=2), start=5) == []
    assert tracks.at_end(PARENT, 7, 7) == [], "nor is the end reached"
    assert tracks.changed and tracks.wanted() == {PARENT: 3}
    (batch,) = tracks.give(*(message(n, epoch=2) for n in range(3, 7)))
    assert (batch.start, batch.end, len(batch.messages)) == (3, 7, 4)


def test_a_log_that_ends_before_its_segment_is_cut_off() -> None:
    tracks = Tracks(operated(UNSPLIT, SPLIT, {0: 10}), on_gap=GapPolicy.SKIP_AND_REPORT)
    tracks.begin(WHOLE_SLOT)
    tracks.give(message(0))
    assert not tracks.cut_short(PARENT)
    tracks.end(4)
    assert tracks.cut_short(PARENT)
    assert tracks.found(0, 20) == [], "a transaction is open"
    assert tracks.events == []
    tracks.found(0, 4)
    (batch,) = tracks.tell()
    assert (batch.start, batch.end) == (4, 10)
    assert tracks.events == [GapFound(PARENT, tracks.events[0].gap, 6, None)]  # type: ignore[union-attr]
    assert tracks.wanted()[phantom(0)] == 0


@pytest.mark.parametrize(("recorded", "answered"), [(5, 5), (5, 6), (5, None), (None, 4)])
@pytest.mark.parametrize("high", [3, 4])
def test_a_leader_that_was_deposed_before_the_segment_ended_cuts_nothing_off(
    recorded: int | None, answered: int | None, high: int
) -> None:
    """It was frozen, wakes up, and does not know yet how long the log has become."""
    state = operated(UNSPLIT, SPLIT, {0: 10})
    first, *others = state.lineage
    lineage = Lineage(PARENT, (replace(first, end_leader_epoch=recorded), *others))
    tracks = Tracks(replace(state, lineage=lineage), on_gap=GapPolicy.SKIP_AND_REPORT)
    tracks.begin(WHOLE_SLOT)
    tracks.give(message(0))
    tracks.end(4)
    if recorded is not None:
        assert tracks.found(0, high, leader_epoch=4) == []
        assert tracks.events == []
        assert tracks.wanted()[PARENT] == 4, "it is read on"
    tracks.found(0, high, leader_epoch=answered)
    assert [event.gap.reason for event in tracks.events if isinstance(event, GapFound)] == [GapReason.CUT_OFF]


def test_a_truncated_open_segment_is_never_skipped() -> None:
    tracks = Tracks(on_gap=GapPolicy.SKIP_AND_REPORT)
    tracks.begin(WHOLE_SLOT, at={0: 10})
    assert tracks.found(0, 7) == []
    assert isinstance(tracks.events[0], Unreadable)
    assert tracks.wanted() == {}


def test_a_topic_that_was_made_anew_is_not_read() -> None:
    tracks = Tracks()
    tracks.begin(WHOLE_SLOT)
    assert tracks.found(0, 7, topic_id="another") == []
    assert "made anew" in str(tracks.events[0].error)  # type: ignore[union-attr]


def test_holes_at_the_end_are_passed_and_the_end_is_told_when_all_of_it_is_reached() -> None:
    tracks = Tracks()
    tracks.begin(WHOLE_SLOT)
    tracks.give(message(0))
    (batch,) = tracks.end(3)
    assert (batch.start, batch.end, batch.messages) == (1, 3, [])
    assert tracks.events == [EndReached(PARENT, 3)]
    assert tracks.end(3) == []


def test_a_paused_partition_is_not_read_and_goes_on_where_it_was() -> None:
    tracks = Tracks()
    tracks.begin(WHOLE_SLOT)
    tracks.give(message(0))
    tracks.pause(True)
    assert tracks.wanted() == {}
    assert tracks.give(message(1)) == []
    tracks.pause(False)
    assert tracks.wanted() == {PARENT: 1}


def test_what_is_backpressured_holds_back_the_segments_that_have_its_keys_and_no_others() -> None:
    tracks = Tracks(operated(UNSPLIT, SPLIT, {0: 1}))
    tracks.begin(WHOLE_SLOT)
    tracks.give(message(0))
    tracks.end(2)
    everything = tracks.wanted()
    assert {phantom(0), phantom(1)} <= everything.keys()
    tracks.hold_back(frozenset([KeyRange(0, 16)]))
    assert everything.keys() - tracks.wanted().keys() == {PARENT, phantom(0)}
    tracks.hold_back(frozenset())
    assert tracks.wanted() == everything


def test_a_segment_is_read_on_for_slots_to_which_the_backpressured_keys_are_nothing() -> None:
    tracks = Tracks()
    tracks.begin(SECOND)
    tracks.hold_back(frozenset([FIRST.range]))
    assert tracks.wanted() == {PARENT: 0}
    tracks.hold_back(frozenset([SECOND.range]))
    assert tracks.wanted() == {}


def test_a_slot_that_left_is_given_nothing_more_and_its_cursor_was_exact() -> None:
    tracks = Tracks()
    tracks.begin(FIRST, SECOND)
    tracks.give(message(0), message(4, HIGH))
    assert tracks.cursor(SECOND).positions == {0: 5}
    tracks.disown(SECOND)
    assert tuple(tracks._cursors) == (FIRST,)
    assert offsets(tracks.give(message(5), message(6, HIGH))) == [5]
    tracks.disown(FIRST)
    assert tracks.wanted() == {}


def test_the_place_of_a_message_is_known_whether_it_was_wrapped_or_not() -> None:
    state = operated(UNSPLIT, SPLIT, {0: 1})
    tracks = Tracks(state)
    tracks.begin(WHOLE_SLOT)
    plain = [m for b in (*tracks.give(message(0)), *tracks.end(2)) for m in b.messages]
    child = [m for b in tracks.give(message(4, source=phantom(1)), source=phantom(1)) for m in b.messages]
    assert place_of(plain[0], state.lineage) == Place(0, 0, "orders", 3, 0)
    assert place_of(child[0], state.lineage) == Place(3, 1, "orders.split-3-1", 1, 4)
    assert (child[0].topic(), child[0].partition()) == ("orders", 3)
    assert child[0].offset() == state.lineage.get(3).logical(4)
    assert (child[0].value(), len(child[0]), child[0].error()) == (b"v", 1, None)


def test_behind_a_seek_back_the_end_is_told_when_all_was_read_again() -> None:
    tracks = Tracks(operated(UNSPLIT, SPLIT, {0: 0}))
    tracks.begin(WHOLE_SLOT)
    tracks.end(0)
    logs = [log for log in tracks.wanted() if log != PARENT]
    assert logs == [phantom(0), phantom(1)]

    def read_on(*which: PhysicalPartition) -> int:
        tracks.events.clear()
        for log in (PARENT, *which):
            tracks.end(1, log)
        return len(tracks.events)

    assert read_on(*logs) == 1
    tracks.begin(WHOLE_SLOT)
    assert read_on(logs[0]) == 0, "the other stands at its beginning again"
    assert read_on(logs[1]) == 1
