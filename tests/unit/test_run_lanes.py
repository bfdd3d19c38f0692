"""Which record is worked on next, and how far each key range is."""

from __future__ import annotations

import pytest

from kpsplit.consumer.run.lanes import AHEAD_BYTES, Lane
from kpsplit.errors import InvariantError
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.reading import Cursor
from tests.unit.lane_samples import FIRST, PARENT, WHOLE_SLOT, Lanes, batch, keys_in, start

LOW, HIGH = WHOLE.split_evenly(2)
A, B = keys_in(LOW, 1)[0], keys_in(HIGH, 1)[0]


def scheduler(wanted: int = 2, lane_bytes: int = 1 << 20) -> Lanes:
    made = Lanes(wanted, lane_bytes)
    start(made)  # type: ignore[arg-type]
    return made


def take(lanes: Lanes) -> Lane:
    lane = lanes.next()
    assert lane is not None
    return lane


def positions(lanes: Lanes, slot: OwnedSlot = WHOLE_SLOT) -> dict[KeyRange, dict[int, int]]:
    return {c.range: dict(c.positions) for c in lanes.cursor(slot)}


def test_records_of_one_lane_are_given_out_one_at_a_time_in_order() -> None:
    lanes = scheduler()
    lanes.offer(batch([A, A, A]))
    first = take(lanes)
    assert (first.record.offset(), lanes.next()) == (0, None)
    lanes.done(first)
    assert take(lanes).record.offset() == 1


def test_the_lane_whose_next_record_was_read_first_goes_first() -> None:
    lanes = scheduler()
    lanes.offer(batch([A, B, A, B, B, A]))
    order = []
    while (lane := lanes.next()) is not None:
        order.append(lane.record.offset())
        lanes.done(lane)
    assert order == [0, 1, 2, 3, 4, 5]


def test_a_slow_lane_holds_back_its_own_range_only() -> None:
    lanes = scheduler()
    lanes.offer(batch([A, B, A, B]))
    slow = take(lanes)
    lanes.done(take(lanes))
    assert positions(lanes) == {LOW: {0: 0}, HIGH: {0: 3}}
    lanes.done(take(lanes))
    assert positions(lanes) == {LOW: {0: 0}, HIGH: {0: 4}}
    lanes.done(slow)
    assert positions(lanes) == {LOW: {0: 2}, HIGH: {0: 4}}


def test_neighbouring_lanes_that_stand_alike_are_one_piece() -> None:
    lanes = scheduler(wanted=16)
    lanes.offer(batch([A, B]))
    assert len(positions(lanes)) > 1
    while (lane := lanes.next()) is not None:
        lanes.done(lane)
    assert positions(lanes) == {WHOLE: {0: 2}}


def test_before_anything_was_read_a_slot_stands_where_it_started() -> None:
    lanes = Lanes(4, 1 << 20)
    lanes.taken(WHOLE_SLOT, Cursor(WHOLE, {0: 7}))
    assert positions(lanes) == {WHOLE: {0: 7}}


def test_an_empty_batch_moves_the_slots_that_it_was_read_for_and_no_other() -> None:
    slots = OwnedSlot(PARENT, 0, 2), OwnedSlot(PARENT, 1, 2)
    lanes = Lanes(4, 1 << 20)
    start(lanes, *slots)  # type: ignore[arg-type]
    lanes.offer(batch([], start=5, slots=slots[:1]))
    assert positions(lanes, slots[0]) == {LOW: {0: 5}}
    assert positions(lanes, slots[1]) == {HIGH: {}}


def test_records_of_a_parked_lane_wait_until_it_is_unparked() -> None:
    lanes = scheduler()
    lanes.offer(batch([A, A, B]))
    failing = take(lanes)
    lanes.park(failing)
    lanes.done(take(lanes))
    assert lanes.next() is None
    assert lanes.unpark(failing) == 1
    assert take(lanes).record.offset() == 0


def test_a_stopped_lane_is_never_given_out_again_and_keeps_its_position() -> None:
    lanes = scheduler()
    lanes.offer(batch([A, B, A]))
    lanes.stop(take(lanes))
    lanes.done(take(lanes))
    lanes.offer(batch([A], start=3))
    assert lanes.next() is None
    assert positions(lanes) == {LOW: {0: 0}, HIGH: {0: 4}}


def test_a_released_slot_is_done_with_when_nothing_of_it_is_worked_on() -> None:
    lanes = scheduler()
    lanes.offer(batch([A, A, B]))
    busy = take(lanes)
    assert not lanes.release([WHOLE_SLOT])
    assert lanes.next() is None
    lanes.done(busy)
    assert lanes.release([WHOLE_SLOT])
    assert lanes.next() is None
    assert positions(lanes) == {LOW: {0: 1}, HIGH: {0: 2}}


def test_keys_that_come_back_wait_for_the_record_that_is_still_being_worked_on() -> None:
    lanes = scheduler()
    lanes.offer(batch([A]))
    revoked_queue = take(lanes)
    lanes.dropped([WHOLE_SLOT])
    start(lanes)  # type: ignore[arg-type]
    lanes.offer(batch([A, B]))
    assert lanes.next() is None
    assert lanes.done(revoked_queue) == 2
    assert take(lanes).record.offset() == 0


def test_a_slot_is_not_released_while_a_record_of_its_last_stay_is_worked_on() -> None:
    lanes = scheduler()
    lanes.offer(batch([A]))
    revoked_queue = take(lanes)
    start(lanes)  # type: ignore[arg-type]  # a seek
    assert not lanes.release([WHOLE_SLOT])
    lanes.done(revoked_queue)
    assert lanes.release([WHOLE_SLOT])


def test_what_an_orphan_did_does_not_move_the_slot_that_came_back() -> None:
    lanes = scheduler()
    lanes.offer(batch([A]))
    revoked_queue = take(lanes)
    start(lanes)  # type: ignore[arg-type]  # a seek
    lanes.offer(batch([A]))
    lanes.done(revoked_queue)
    assert positions(lanes)[LOW] == {0: 0}


def test_waiting_bytes_are_those_of_records_that_are_not_processed() -> None:
    lanes = scheduler()
    lanes.offer(batch([A, B], value=b"x" * 1000))
    waiting = lanes.waiting_bytes
    assert waiting > 2000
    lane = take(lanes)
    assert lanes.waiting_bytes == waiting
    lanes.done(lane)
    assert lanes.waiting_bytes == waiting // 2
    lanes.dropped([WHOLE_SLOT])
    assert lanes.waiting_bytes == 0


def test_a_backpressured_lane_of_a_slot_that_leaves_holds_nothing_back() -> None:
    lanes = scheduler(lane_bytes=1000)
    lanes.offer(batch([A, A], value=b"x" * 1000))
    assert lanes.backpressured_ranges()
    lanes.release([WHOLE_SLOT])
    assert not lanes.backpressured_ranges()


def test_a_lane_is_backpressured_from_its_share_on_until_half_of_it_is_worked_off() -> None:
    lanes = scheduler(lane_bytes=3000)
    lanes.offer(batch([A, A, A, B], value=b"x" * 1000))
    assert lanes.backpressured_ranges() == {PARENT: {LOW}}
    while (left := lanes.backpressured_ranges()) and lanes.waiting_bytes:
        assert left == {PARENT: {LOW}}
        lane = take(lanes)
        bytes_before = lane.bytes
        lanes.done(lane)
        assert (lane in lanes.backpressured) == (lane.range == LOW and lane.bytes > 1500), bytes_before
    assert not lanes.backpressured_ranges()


def test_workers_are_supplied_while_half_of_the_lanes_have_a_record_for_one() -> None:
    lanes = scheduler(wanted=4, lane_bytes=AHEAD_BYTES)
    keys = [keys_in(range_, 1)[0] for range_ in WHOLE.split_evenly(4)]
    lanes.offer(batch(keys[:1], value=b"x" * AHEAD_BYTES))
    assert not lanes.supplied, "one key's records keep one worker busy"
    lanes.offer(batch(keys[1:3], start=1))
    assert lanes.supplied
    taken = [take(lanes), take(lanes)]
    assert not lanes.supplied, "one lane is left"
    lanes.done(taken[1])
    lanes.give_back(taken[0])
    assert lanes.supplied
    lanes.done(take(lanes))
    lanes.offer(batch(keys, start=3))
    assert not lanes.supplied, "all lanes are ready, with a few small records"


def test_a_slot_is_divided_further_when_others_have_left() -> None:
    slots = [OwnedSlot(PARENT, i, 8) for i in range(8)]
    lanes = Lanes(8, 1 << 20)
    start(lanes, *slots)  # type: ignore[arg-type]
    keys = keys_in(slots[0].range, 50)
    lanes.offer(batch(keys, slots=tuple(slots)))
    assert sum(1 for lane in lanes.lanes() if lane.slot_queue.slot == slots[0]) == 1
    lanes.dropped(slots[1:])
    lanes.offer(batch([], start=50, slots=(slots[0],)))
    assert sum(1 for _ in lanes.lanes()) == 8
    given: list[int] = []
    busy = []
    while (lane := lanes.next()) is not None:
        busy.append(lane)
    assert len(busy) > 1
    while busy:
        given.append(busy[0].record.offset())
        lanes.done(busy.pop(0))
        if (lane := lanes.next()) is not None:
            busy.append(lane)
    assert sorted(given) == list(range(50))


def test_what_a_policy_remembers_of_a_record_goes_with_it_when_its_lane_is_divided() -> None:
    """Else it would be given its attempts anew at each division."""
    lanes = scheduler(wanted=1)
    lanes.offer(batch([A, B, A]))
    failed = take(lanes)
    lanes.park(failed)
    failed.memory = "failed once"
    lanes.unpark(failed)
    lanes._wanted = 8
    lanes.offer(batch([], start=3))
    again, other = take(lanes), take(lanes)
    assert (again.record.offset(), again.memory) == (0, "failed once")
    assert (other.record.offset(), other.memory) == (1, None)


def test_a_lane_that_is_worked_on_or_failed_is_not_divided() -> None:
    lanes = scheduler(wanted=1)
    lanes.offer(batch([A, A]))
    busy = take(lanes)
    lanes._wanted = 8
    lanes.offer(batch([B], start=2))
    assert lanes.next() is None
    lanes.done(busy)
    lanes.offer(batch([], start=3))
    assert sum(1 for _ in lanes.lanes()) == 8
    assert [take(lanes).record.offset(), take(lanes).record.offset()] == [1, 2]


def test_records_without_a_key_have_lanes_too() -> None:
    lanes = scheduler(wanted=16)
    lanes.offer(batch([None] * 100))
    given = set()
    while (lane := lanes.next()) is not None:
        given.add(lane.record.offset())
        assert FIRST.range.covers(lane.range)
        lanes.done(lane)
    assert given == set(range(100))


def test_giving_back_what_nobody_works_on_is_an_error() -> None:
    lanes = scheduler()
    lanes.offer(batch([A]))
    lane = take(lanes)
    lanes.done(lane)
    with pytest.raises(InvariantError):
        lanes.done(lane)


def test_a_batch_that_was_taken_halfway_keeps_no_range_from_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lanes = scheduler(lane_bytes=10)
    lanes.prepare(PARENT)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(lanes, "_ready_again", raising)
        lanes.offer(batch([A]))
    assert not lanes.backpressured_ranges()


def raising(lane: Lane) -> int:
    raise MemoryError
