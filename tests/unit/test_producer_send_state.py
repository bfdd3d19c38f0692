"""What a producer sends and waits for in one partition; tests/sim explores its interleavings."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from kpsplit.producer import finality
from kpsplit.producer.fence_task import BUSY_SECONDS, HOLDING_SECONDS, Looks, PauseClock, only_holds
from kpsplit.producer.finality import Answer, FailedNumbers, Outgoing, SegmentWriter
from kpsplit.producer.send_state import PartitionSendState, Tally
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Abort, EndedBy, PartitionState
from tests.unit.samples import UNSPLIT, committed, fenced, merge_attempt, operated, split_attempt

LOW, HIGH = 0x10000000, 0xF0000000
SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(4))

SendState = PartitionSendState[str, SegmentWriter[str]]


def fence_of(state: PartitionState = UNSPLIT) -> SendState:
    return PartitionSendState(state, SegmentWriter, Tally())


def send(fence: SendState, key: int | None = LOW) -> tuple[Any, Outgoing[str]]:
    """Send the next record as the fast path does; it must be possible."""
    writer = fence.writer_for(key, fence.next_sequence)
    assert writer.open
    record = Outgoing(key, fence.next_sequence, f"r{fence.next_sequence}")
    fence.next_sequence += 1
    writer.sent += 1
    return writer, record


def released(fence: SendState, limit: int | None = None) -> list[tuple[int, int]]:
    """Send what may be sent; return (segment, sequence) of each record."""
    ready = fence.sendable(limit)
    for writer, record in ready:
        writer.note_sent(record.sequence)
    fence.sent([record for _, record in ready])
    return [(writer.segment.id, record.sequence) for writer, record in ready]


def numbers(finals: list[Any]) -> list[tuple[int, int | None]]:
    return [(f.record.sequence, f.offset) for f in finals]


def test_keys_go_to_their_segment_and_records_without_one_to_each_in_turn() -> None:
    fence = fence_of(operated(UNSPLIT, SPLIT, {0: 1000}))
    assert [fence.writer_for(k, 0).segment.id for k in (0, LOW, 0x40000000, HIGH, 0xFFFFFFFF)] == [
        2,
        2,
        3,
        5,
        5,
    ]
    assert [fence.writer_for(None, n).segment.id for n in range(5)] == [2, 3, 4, 5, 2]


def test_a_fence_holds_records_in_order_and_an_abort_lets_them_go() -> None:
    fence = fence_of()
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    assert not fence.writers[0].open
    fence.hold(LOW, "a")
    fence.hold(HIGH, "b")
    assert (fence.waiting(), fence.sendable(), fence.next_sequence) == (2, [], 2)
    rolled_back = apply(fenced(UNSPLIT, SPLIT), Abort("s", EndedBy.TAKEOVER, "gone"))
    fence.observe(rolled_back, lease_valid=True)
    assert not fence.writers[0].open
    assert released(fence) == [(0, 0), (0, 1)]
    assert fence.writers[0].open
    assert fence.statistics.held == 2 and fence.statistics.fences == 1


def test_a_record_that_is_held_for_an_open_segment_closes_it_until_it_is_sent() -> None:
    fence = fence_of()
    send(fence)
    writer = fence.writers[0]
    fence.hold(LOW, "waits")
    assert (writer.open, writer.newest, fence.at_rest()) == (False, 0, False)
    assert released(fence) == [(0, 1)] and writer.open


def test_what_was_held_goes_to_the_segments_of_the_new_layout() -> None:
    fence = fence_of()
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    for key in (HIGH, LOW, HIGH):
        fence.hold(key, "r")
    fence.observe(committed(UNSPLIT, SPLIT, {0: 1000}), lease_valid=True)
    assert [w.open for w in fence.writers] == [False, True, True, False]
    assert released(fence) == [(2, 1), (5, 0), (5, 2)]
    assert all(w.open for w in fence.writers)


def test_held_records_are_handed_out_in_portions() -> None:
    fence = fence_of()
    fence.suspend(True)
    for _ in range(5):
        fence.hold(LOW, "r")
    assert fence.sendable() == []
    fence.suspend(False)
    assert released(fence, 2) == [(0, 0), (0, 1)]
    assert not fence.writers[0].open
    assert released(fence, 2) == [(0, 2), (0, 3)]
    assert released(fence, 2) == [(0, 4)]
    assert fence.writers[0].open and released(fence, 2) == []


def test_a_report_is_final_only_under_a_lease_and_without_a_fence() -> None:
    fence = fence_of()
    writer, record = send(fence)
    assert fence.acknowledged(writer, record, 7, lease_valid=False) == []
    assert (writer.in_flight, fence.pending(), fence.busy()) == (0, 1, True)
    assert numbers(fence.resolve(lease_valid=True)) == [(0, 7)]
    writer, record = send(fence)
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    assert not fence.quiescent()
    assert fence.acknowledged(writer, record, 8, lease_valid=True) == []
    assert fence.quiescent()
    assert fence.resolve(lease_valid=True) == []
    assert numbers(fence.observe(committed(UNSPLIT, SPLIT, {0: 9}), lease_valid=True)) == [(1, 8)]
    assert fence.delivered()[0] == 2


def test_strays_are_sent_again_in_order_before_anything_newer() -> None:
    fence = fence_of()
    sent = [send(fence) for _ in range(3)]
    fence.suspend(True)
    fence.hold(LOW, "newer")
    fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=False)
    fence.suspend(False)
    assert released(fence) == [] and not fence.writers[0].open
    for (writer, record), offset in zip(sent[::-1], (4, 3), strict=False):
        assert fence.acknowledged(writer, record, offset, lease_valid=True) == []
    assert released(fence) == []
    assert numbers(fence.acknowledged(*sent[0], 0, lease_valid=True)) == [(0, 0)]
    assert released(fence) == [(2, 1), (2, 2), (2, 3)]
    assert fence.statistics.strays == 2 and fence.closing == []


def test_a_failure_is_final_at_once_and_opens_what_it_kept_closed() -> None:
    fence = fence_of()
    writer, record = send(fence)
    fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=True)
    assert not fence.writers[0].open
    assert numbers(fence.failed(writer, record)) == [(0, None)]
    assert fence.writers[0].open and fence.statistics.failed.numbers() == [0]


def merged_with_unplaced(*answers: Answer, end: int = 1002, acknowledged_at: int | None = None) -> Any:
    """A fence whose segment 1 ended while it was not told where its last records stand; its writer."""
    split = operated(UNSPLIT, SPLIT, {0: 1000})
    fence = fence_of(split)
    if acknowledged_at is not None:
        assert len(fence.acknowledged(*send(fence), acknowledged_at, lease_valid=True)) == 1
    for writer, record in [send(fence) for _ in answers]:
        fence.unplaced(writer, record, answers[len(writer.unplaced)], lease_valid=False)
    merge = merge_attempt(split, (2, 3, 4, 5), WHOLE)
    fence.observe(operated(split, merge, {1: 1002, 2: end, 3: 0, 4: 0, 5: 0}), lease_valid=True)
    return fence, writer


SEALED, GONE, WRITTEN = Answer.SEALED, Answer.GONE, Answer.WRITTEN


def test_rejected_records_wait_until_the_log_was_looked_at() -> None:
    fence, writer = merged_with_unplaced(SEALED, SEALED, end=5)
    assert released(fence) == []
    assert fence.unclear() == [writer] and fence.pending() == 2
    assert numbers(fence.looked_up(writer, {0: 4}, complete=True)) == [(0, 4)]
    assert released(fence) == [(6, 1)]


def test_a_rejected_record_is_not_looked_for_where_it_cannot_stand() -> None:
    """What was sent and acknowledged before it stands right before the segment's end."""
    fence, _ = merged_with_unplaced(SEALED, GONE, end=5, acknowledged_at=4)
    assert fence.unclear() == []
    assert released(fence) == [(6, 1), (6, 2)]


def test_a_search_begins_behind_the_record_that_was_sent_before_and_acknowledged() -> None:
    fence, writer = merged_with_unplaced(SEALED, end=50, acknowledged_at=40)
    assert fence.unclear() == [writer] and [i.earliest for i in writer.unplaced] == [41]


def test_the_acknowledgement_of_a_later_record_says_nothing_about_where_an_earlier_one_stands() -> None:
    split = operated(UNSPLIT, SPLIT, {0: 1000})
    fence = fence_of(split)
    first, second = send(fence), send(fence)
    fence.acknowledged(*second, 7, lease_valid=True)
    fence.unplaced(*first, WRITTEN, lease_valid=False)
    assert [i.earliest for i in first[0].unplaced] == [0]


def overtaken() -> tuple[SendState, Any, Outgoing[str]]:
    """Let #3, a stray without a key, be sent again to a segment that has #4 in flight already."""
    halves = operated(UNSPLIT, split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2)), {0: 1000})
    fence = fence_of(halves)
    for offset in range(3):
        fence.acknowledged(*send(fence), offset, lease_valid=True)
    (stray_writer, stray), (writer, record) = send(fence, None), send(fence)
    still_there = send(fence, HIGH)
    gone = stray_writer.segment
    assert (writer.segment.id, gone.id) == (2, 3)
    again = replace(split_attempt(halves, gone.id, gone.range.split_evenly(2)), id="again")
    fence.observe(operated(halves, again, {gone.id: 0}), lease_valid=True)
    fence.acknowledged(stray_writer, stray, 1, lease_valid=True)
    assert still_there[0].unresolved and not writer.open, "new records wait for the stray"
    assert released(fence) == [(2, 3)]
    assert fence.writers[0] is writer and writer.open
    fence.acknowledged(writer, stray, 4, lease_valid=True)
    return fence, writer, record


def test_a_stray_without_a_key_that_was_overtaken_does_not_say_where_higher_numbers_stand() -> None:
    """#4 stands at 3, before #3 at 4; its acknowledgement comes late and does not say where."""
    fence, writer, record = overtaken()
    before, ended = fence.state, split_attempt(fence.state, 2, writer.segment.range.split_evenly(2))
    fence.observe(fenced(before, ended), lease_valid=True)
    assert fence.unplaced(writer, record, WRITTEN, lease_valid=True) == []
    assert fence.observe(committed(before, ended, {2: 5}), lease_valid=True) == []
    assert fence.unclear() == [writer] and [i.earliest for i in writer.unplaced] == [0]
    assert numbers(fence.looked_up(writer, {4: 3}, complete=True)) == [(4, 3)]
    assert fence.statistics.strays == 1, "only #3"


def test_of_what_a_deletion_failed_any_may_be_written_where_a_stray_was_overtaken() -> None:
    fence, writer, record = overtaken()
    later, newest = send(fence), send(fence)
    for one in (record, later[1], newest[1]):
        fence.unplaced(writer, one, GONE, lease_valid=False)
    ended = split_attempt(fence.state, 2, writer.segment.range.split_evenly(2))
    fence.observe(operated(fence.state, ended, {2: 1}), lease_valid=False)
    assert len(fence.looked_up(writer, {}, complete=False)) == 3 and not fence.waiting()


def test_what_was_held_in_a_fence_that_was_rolled_back_is_in_order() -> None:
    fence = fence_of()
    send(fence)
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    fence.hold(LOW, "a")
    fence.hold(None, "b")
    fence.observe(apply(fence.state, Abort("s", EndedBy.TAKEOVER, "gone")), lease_valid=True)
    assert released(fence) == [(0, 1), (0, 2)]
    send(fence)
    assert fence.writers[0].in_order


def test_records_that_may_be_in_a_log_that_is_gone_fail_and_are_not_sent_again() -> None:
    fence, writer = merged_with_unplaced(SEALED, SEALED, WRITTEN, end=1)
    finals = fence.looked_up(writer, {}, complete=False)
    assert numbers(finals) == [(0, None), (1, None), (2, None)] and all(f.failed for f in finals)
    assert fence.waiting() == 0 and fence.writers[0].open
    assert fence.statistics.failed.numbers() == [0, 1, 2]


def test_of_what_a_deletion_failed_no_more_may_be_written_than_had_room_before_the_end() -> None:
    """The rest is sent again, in order."""
    fence, writer = merged_with_unplaced(*[GONE] * 4, end=12, acknowledged_at=9)
    assert numbers(fence.looked_up(writer, {}, complete=False)) == [(1, None), (2, None)]
    assert released(fence) == [(6, 3), (6, 4)]


def test_what_is_found_although_the_logs_beginning_is_gone_is_delivered() -> None:
    fence, writer = merged_with_unplaced(SEALED, SEALED, end=5)
    finals = fence.looked_up(writer, {1: 4}, complete=False)
    assert sorted((f.record.sequence, f.offset, f.failed) for f in finals) == [(0, None, True), (1, 4, False)]


def test_a_record_that_was_acknowledged_without_its_offset_is_delivered_where_its_segment_is_open() -> None:
    fence = fence_of(operated(UNSPLIT, SPLIT, {0: 1000}))
    (final,) = fence.unplaced(*send(fence), WRITTEN, lease_valid=True)
    assert (final.offset, final.failed, fence.delivered()[2]) == (None, False, 1)


def test_a_record_that_was_acknowledged_without_its_offset_is_looked_for_where_its_segment_ended() -> None:
    fence, writer = merged_with_unplaced(WRITTEN, WRITTEN, end=5)
    assert numbers(fence.looked_up(writer, {0: 4}, complete=True)) == [(0, 4)]
    assert released(fence) == [(6, 1)], "it is in the log, and not before the end: so behind it"


def test_a_rejection_in_an_open_segment_is_a_failure_like_any_other() -> None:
    fence = fence_of(operated(UNSPLIT, SPLIT, {0: 1000}))
    assert numbers(fence.unplaced(*send(fence), SEALED, lease_valid=True)) == [(0, None)]
    assert fence.statistics.failed.numbers() == [0]


def test_giving_up_fails_what_is_held_and_what_went_astray() -> None:
    fence = fence_of()
    writer, record = send(fence)
    fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=True)
    fence.hold(LOW, "held")
    fence.acknowledged(writer, record, 3, lease_valid=True)
    assert [r.sequence for r in fence.drop_waiting(lambda r: r.sequence == 0)] == [1]
    assert not fence.writers[0].open
    assert [r.sequence for r in fence.drop_waiting()] == [0]
    assert fence.waiting() == 0 and fence.writers[0].open
    assert fence.statistics.failed.numbers() == [0, 1]


def test_pending_records_can_be_given_up_for_good() -> None:
    fence = fence_of()
    fence.acknowledged(*send(fence), 3, lease_valid=False)
    assert numbers(fence.give_up_pending()) == [(0, None)]
    assert fence.pending() == 0 and fence.statistics.failed.numbers() == [0]


def test_a_fence_waits_for_a_segment_that_closed_while_the_producer_slept() -> None:
    fence = fence_of()
    writer, record = send(fence)
    split = operated(UNSPLIT, SPLIT, {0: 1})
    fence.observe(split, lease_valid=False)
    fence.observe(fenced(split, merge_attempt(split, (2, 3, 4, 5), WHOLE)), lease_valid=True)
    assert not fence.quiescent()
    assert numbers(fence.acknowledged(writer, record, 0, lease_valid=True)) == [(0, 0)]
    assert fence.quiescent()


def test_a_transaction_that_began_before_the_fence_goes_on_and_defers_it() -> None:
    fence = fence_of()
    fence.transaction(True)
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    assert fence.writers[0].open and not fence.quiescent()
    assert numbers(fence.acknowledged(*send(fence), 0, lease_valid=True)) == [(0, 0)]
    assert fence.acknowledged(*send(fence), 1, lease_valid=False) == []
    assert not fence.quiescent() and fence.pending() == 1
    fence.transaction(False)
    assert fence.quiescent() and not fence.writers[0].open
    assert fence.resolve(lease_valid=True) == [], "the fence holds now, and says nothing about the past"


def test_a_fence_is_deferred_no_longer_than_the_lease() -> None:
    """Another partition's operator may remove the registration then, and this one's goes on without us."""
    fence = fence_of()
    fence.transaction(True)
    writer, record = send(fence)
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    assert not fence.quiescent()
    fence.suspend(True)
    fence.suspend(False)
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    assert not fence.writers[0].open, "it holds, although the transaction goes on"
    assert fence.acknowledged(writer, record, 3, lease_valid=True) == [], "it may lie after the cut"
    assert fence.quiescent()
    assert numbers(fence.observe(committed(UNSPLIT, SPLIT, {0: 4}), lease_valid=True)) == [(0, 3)]


def test_a_fence_that_was_there_before_us_holds_in_a_transaction_at_once() -> None:
    fence = fence_of()
    fence.suspend(True)
    fence.transaction(True)
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=False)
    fence.suspend(False)
    assert not fence.writers[0].open


def test_the_next_attempt_knows_of_us_and_waits_for_the_transaction() -> None:
    fence = fence_of()
    fence.suspend(True)
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=False)
    fence.suspend(False)
    rolled_back = apply(fence.state, Abort(SPLIT.id, EndedBy.TAKEOVER, "gone"))
    fence.observe(rolled_back, lease_valid=True)
    fence.transaction(True)
    another = replace(split_attempt(rolled_back, 0, WHOLE.split_evenly(4)), id="another")
    fence.observe(fenced(rolled_back, another), lease_valid=True)
    assert fence.writers[0].open and not fence.quiescent()


def test_a_transaction_that_begins_in_the_fence_is_held() -> None:
    fence = fence_of()
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    fence.transaction(True)
    assert not fence.writers[0].open and fence.quiescent()


@pytest.mark.parametrize("aborted", [True, False])
def test_records_of_an_aborted_transaction_are_never_sent_again(aborted: bool) -> None:
    fence = fence_of()
    fence.transaction(True)
    writer, record = send(fence)
    fence.transaction(False, aborted=aborted)
    fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=True)
    finals = fence.acknowledged(writer, record, 5, lease_valid=True)
    assert numbers(finals) == ([(0, None)] if aborted else [])
    assert released(fence) == ([] if aborted else [(2, 0)])


def test_what_the_log_says_later_counts_whatever_its_revision() -> None:
    fence = fence_of()
    taken_back = apply(fenced(UNSPLIT, SPLIT), Abort(SPLIT.id, EndedBy.TAKEOVER, "gone"))
    fence.observe(committed(UNSPLIT, SPLIT, {0: 1000}), lease_valid=True)
    writer, record = send(fence)
    assert fence.acknowledged(writer, record, 0, lease_valid=False) == []
    assert taken_back.revision == fence.state.revision and taken_back.epoch < fence.state.epoch
    assert fence.observe(taken_back, lease_valid=True) == [], "nobody reads what lies in the phantom"
    assert fence.state is taken_back and released(fence) == [(0, record.sequence)]


def test_a_hundred_thousand_held_records_are_released_in_one_pass_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted, not timed: what a portion costs does not grow with what is left."""
    fence = fence_of()
    fence.suspend(True)
    for _ in range(100_000):
        fence.hold(LOW, "r")
    fence.suspend(False)
    calls = 0
    real = PartitionSendState.writer_for

    def counting(self: Any, key: int | None, sequence: int) -> Any:
        nonlocal calls
        calls += 1
        return real(self, key, sequence)

    monkeypatch.setattr(PartitionSendState, "writer_for", counting)
    portions = 0
    while released(fence, 500):
        portions += 1
    assert portions == 200 and calls == 0


class Counted(Outgoing[str]):
    """A record that counts how often its number is asked for."""

    asked = 0

    @property
    def sequence(self) -> int:  # type: ignore[override]
        Counted.asked += 1
        return self._number

    @sequence.setter
    def sequence(self, number: int) -> None:
        self._number = number


def asked_to_release(count: int) -> int:
    """How often the numbers of so many strays are asked for until all are sent again, ten in each turn."""
    fence = fence_of()
    writer = fence.writers[0]
    records = [Counted(LOW, n, "r") for n in range(count)]
    writer.sent = fence.next_sequence = count
    fence.suspend(True)
    fence.observe(operated(UNSPLIT, SPLIT, {0: 1}), lease_valid=False)
    Counted.asked = 0
    for record in records:
        fence.acknowledged(writer, record, 5, lease_valid=False)
    fence.suspend(False)
    sent: list[int] = []
    while ready := fence.sendable(10):
        fence.sent([record for _, record in ready])
        sent += [record._number for _, record in ready]  # type: ignore[attr-defined]
    assert sent == list(range(count))
    return Counted.asked


def test_the_work_of_sending_strays_again_grows_as_their_number() -> None:
    assert asked_to_release(1000) < 5 * asked_to_release(250)


class Scans(list[Any]):
    """A list that counts how many of its items are looked at."""

    looked_at = 0

    def __iter__(self) -> Any:
        for item in super().__iter__():
            Scans.looked_at += 1
            yield item


def test_a_report_does_not_look_at_all_records_that_wait_for_a_look_at_the_log() -> None:
    split = operated(UNSPLIT, SPLIT, {0: 1000})
    fence = fence_of(split)
    sent = [send(fence) for _ in range(1000)]
    merge = merge_attempt(split, (2, 3, 4, 5), WHOLE)
    fence.observe(operated(split, merge, {1: 2002, 2: 5000, 3: 0, 4: 0, 5: 0}), lease_valid=True)
    writer = sent[0][0]
    writer.unplaced = Scans()
    for number, (_, record) in enumerate(sent):
        if number % 2:
            fence.unplaced(writer, record, SEALED, lease_valid=True)
        else:
            fence.acknowledged(writer, record, number, lease_valid=True)
    assert len(writer.unplaced) == 500 and Scans.looked_at == 0


def test_a_fence_with_nothing_in_flight_only_holds() -> None:
    fence = fence_of()
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    fence.hold(LOW, "a")
    assert fence.busy() and only_holds(fence)


def test_a_fence_that_waits_for_an_acknowledgement_does_more() -> None:
    fence = fence_of()
    writer, record = send(fence)
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    assert not only_holds(fence)
    fence.acknowledged(writer, record, 7, lease_valid=True)
    assert fence.pending() and only_holds(fence)  # its report waits for the outcome, in the control topic


def test_each_look_for_reports_waits_longer_until_something_is_new() -> None:
    """A hundred producers that look every two milliseconds leave the brokers no processor."""
    looks = Looks()
    waits = [looks.next() for _ in range(20)]
    assert waits[0] == BUSY_SECONDS and waits[-1] == HOLDING_SECONDS
    assert all(b >= a for a, b in pairwise(waits))
    assert all(b <= sum(waits[:n]) + 2 * BUSY_SECONDS for n, b in enumerate(waits)), (
        "late by its share at most"
    )
    looks.begin()
    assert looks.next() == BUSY_SECONDS


def test_held_records_that_may_go_are_not_waited_with() -> None:
    fence = fence_of()
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    fence.hold(LOW, "a")
    fence.observe(apply(fenced(UNSPLIT, SPLIT), Abort("s", EndedBy.TAKEOVER, "gone")), lease_valid=True)
    assert fence.busy() and not only_holds(fence)


def failed(*numbers: int) -> FailedNumbers:
    noted = FailedNumbers()
    noted.add(numbers)
    return noted


def test_numbers_that_failed_are_told_in_order_and_once() -> None:
    noted = failed(7, 8, 9, 2, 3, 8)
    assert (noted.numbers(), noted.count) == ([2, 3, 7, 8, 9], 6)


def test_an_outage_costs_no_memory_however_many_records_fail_in_a_row() -> None:
    noted = failed(*range(50_000))
    assert noted.numbers() == list(range(50_000)) and len(noted) == 1


def test_who_fails_here_and_there_for_ever_is_counted_and_named_no_more() -> None:
    noted = failed(*range(0, 4 * finality.MOST_RUNS, 2))
    assert noted.count == 2 * finality.MOST_RUNS
    assert (noted.numbers(), len(noted)) == (None, 0)
    noted.add([5])
    assert noted.count == 2 * finality.MOST_RUNS + 1


def test_more_numbers_than_a_certificate_can_hold_are_counted_and_named_no_more() -> None:
    noted = failed(*range(finality.MOST_NAMED + 1))
    assert (noted.numbers(), noted.count) == (None, finality.MOST_NAMED + 1)


def test_the_pause_of_a_second_attempt_is_reported_as_its_own() -> None:
    """Records that the first attempt held may still wait when the second one fences."""
    fence, clock = fence_of(), PauseClock()
    fence.observe(fenced(UNSPLIT, SPLIT), lease_valid=True)
    clock.observe(fence)
    fence.hold(LOW, "a")
    rolled_back = apply(fenced(UNSPLIT, SPLIT), Abort("s", EndedBy.OPERATOR, "lost"))
    fence.observe(rolled_back, lease_valid=True)
    clock.observe(fence)
    assert clock.over(fence) is None, "a record waits"
    second = split_attempt(rolled_back, 0, WHOLE.split_evenly(2), "t")
    fence.observe(fenced(rolled_back, second), lease_valid=True)
    clock.observe(fence)
    fence.hold(LOW, "b")
    fence.observe(operated(rolled_back, second, {0: 5}), lease_valid=True)
    fence.sent([record for _, record in fence.sendable()])
    ended = clock.over(fence)
    assert ended is not None and (ended[1].attempt, ended[1].held) == ("t", 1)
    assert len(clock.pauses_ms) == 2, "no pause is missing in the statistics"
