"""How far slots are processed, when records are handed out one after the other."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from kpsplit.consumer.fetch.batch import size_of
from kpsplit.consumer.fetch.progress import HandoutProgress, without
from kpsplit.kafka.logical_message import relabelled, wrapped
from kpsplit.splitter.reading import Cursor
from tests.unit.consumer_samples import FIRST, HIGH, SECOND, batch, message
from tests.unit.samples import PARENT, UNSPLIT, life

CHILD = life().split.lineage.get(2)
assert UNSPLIT


def owning(**at: int) -> HandoutProgress:
    progress = HandoutProgress()
    for slot in (FIRST, SECOND):
        progress.taken(slot, Cursor(slot.range, {0: at["position"]} if at else {}))
    return progress


def position(progress: HandoutProgress, slot=FIRST, mark: int | None = None) -> int | None:
    return progress.cursor(slot, mark).positions.get(0)


def test_a_slot_stands_where_it_began_until_something_is_processed() -> None:
    progress = owning(position=7)
    assert position(progress) == 7
    progress.add(batch([message(9), message(12)], 7, 20))
    assert position(progress) == 9, "nothing before it belongs to the slot"


def test_a_slot_moves_to_the_first_record_that_is_not_processed_and_at_last_to_the_batchs_end() -> None:
    progress = owning()
    progress.add(batch([message(2), message(5), message(6)], 0, 10))
    found = []
    for mark in range(4):
        progress.advance(3, mark)
        found.append(position(progress))
    assert found == [2, 5, 6, 10]


def test_a_mark_tells_what_is_processed_when_everything_before_it_is() -> None:
    progress = owning()
    progress.add(batch([message(2), message(5)], 0, 10))
    progress.add(batch([message(11)], 10, 12))
    assert [position(progress, mark=mark) for mark in range(4)] == [2, 5, 11, 12]
    assert position(progress) == 2


def test_an_empty_batch_counts_when_everything_before_it_is_processed() -> None:
    progress = owning()
    progress.add(batch([message(2)], 0, 3))
    progress.add(batch([], 3, 8))
    assert position(progress) == 2
    progress.advance(1, 1)
    assert position(progress) == 8


def test_a_child_is_not_listed_beyond_its_start_while_a_record_of_its_parent_is_in_work() -> None:
    progress = owning()
    progress.add(batch([message(0), message(1)], 0, 2))
    progress.add(batch([], 0, 9, segment=CHILD))
    progress.advance(2, 1)
    assert dict(progress.cursor(FIRST).positions) == {0: 1}
    progress.advance(2, 2)
    assert dict(progress.cursor(FIRST).positions) == {0: 2, CHILD.id: 9}


def test_what_was_read_again_for_another_slot_takes_nobody_back() -> None:
    progress = owning()
    progress.add(batch([message(50)], 0, 60, (FIRST,)))
    progress.add(batch([message(10, HIGH)], 0, 60))
    progress.advance(2, 1)
    assert (position(progress, FIRST), position(progress, SECOND)) == (60, 10)


def test_batches_of_an_earlier_stay_of_a_slot_do_not_move_it() -> None:
    progress = owning()
    progress.add(batch([message(3)], 0, 9))
    progress.drop([FIRST])
    progress.taken(FIRST, Cursor(FIRST.range, {0: 1}))
    progress.advance(1, 1)
    assert (position(progress, FIRST), position(progress, SECOND)) == (1, 9)


def test_the_next_batch_of_the_same_slots_moves_one_that_was_sought_and_not_one_that_left() -> None:
    progress, slots = owning(), (FIRST, SECOND)
    progress.add(batch([message(3)], 0, 9, slots))
    progress.taken(FIRST, Cursor(FIRST.range, {0: 1}))
    progress.add(batch([message(10)], 9, 12, slots))
    progress.drop([SECOND])
    progress.add(batch([message(12)], 12, 15, slots))
    progress.advance(3, 1)
    assert position(progress) == 10, "the batch behind the seek moves it"
    progress.taken(SECOND, Cursor(SECOND.range, {0: 2}))
    progress.advance(3, 3)
    assert (position(progress), position(progress, SECOND)) == (15, 2)


def test_marks_never_go_back() -> None:
    progress = owning()
    progress.add(batch([message(3), message(4)], 0, 9))
    progress.advance(2, 2)
    progress.advance(2, 1)
    assert (progress.processed, position(progress)) == (2, 9)


def test_what_was_not_handed_out_can_be_taken_back_and_the_rest_stays_exact() -> None:
    progress = owning()
    progress.add(batch([message(2), message(5), message(6, HIGH)], 0, 10))
    progress.add(batch([message(11)], 10, 12))
    progress.advance(1, 0)
    first, second = progress.withdraw()
    assert (first.start, first.end, len(first.messages)) == (5, 10, 2)
    assert (progress.added, progress.waiting_bytes) == (1, 0)
    progress.advance(1, 1)
    assert position(progress) == 5
    progress.add(without(first, frozenset([FIRST])))
    progress.add(without(second, frozenset([FIRST])))
    progress.advance(2, 2)
    assert (position(progress, FIRST), position(progress, SECOND)) == (5, 12)


def test_a_slot_is_in_work_while_a_record_of_a_batch_that_moves_it_is_not_processed() -> None:
    progress = owning()
    progress.add(batch([message(2), message(5, HIGH)], 0, 10))
    progress.add(batch([message(11, HIGH)], 10, 12, (SECOND,)))
    found = []
    for mark in range(4):
        progress.advance(3, mark)
        found.append((progress.in_work(FIRST), progress.in_work(SECOND)))
    assert found == [(True, True), (True, True), (False, True), (False, False)]


def test_a_record_that_waits_keeps_no_slot_in_work() -> None:
    progress = owning()
    progress.add(batch([message(2), message(5, HIGH)], 0, 10))
    assert not progress.in_work(FIRST)
    progress.advance(1, 1)
    assert not progress.in_work(FIRST)


def test_nothing_is_asked_of_records_that_the_application_has_changed() -> None:
    progress = owning()
    first, second = message(2), message(5)
    progress.add(batch([first, second], 0, 10))
    progress.advance(1, 0)
    first.set_key("text")  # type: ignore[arg-type]
    first.set_value(7)  # type: ignore[arg-type]
    assert progress.in_work(FIRST)
    assert [b.messages for b in progress.withdraw()] == [[second]]
    assert progress.in_work(FIRST)


def test_bytes_wait_until_their_batch_was_wholly_handed_out() -> None:
    progress = owning()
    one = batch([message(2), message(5)], 0, 10)
    progress.add(one)
    progress.advance(1, 0)
    assert progress.waiting_bytes == one.bytes
    progress.advance(2, 0)
    assert progress.waiting_bytes == 0


@pytest.mark.usefixtures("both_paths")
def test_a_wrapped_record_counts_for_as_much_memory_as_the_record_itself() -> None:
    raw = [Message(PARENT.topic, PARENT.partition, at, key=b"k" * at, value=b"v" * 10) for at in range(20)]
    size, of_some = size_of(raw), size_of(raw[10:])
    assert size_of(wrapped(raw, relabelled(UNSPLIT.lineage.get(0), PARENT))) == size
    assert of_some == size_of(raw[:10]) + 100


def test_the_size_of_records_is_known_after_a_deserialiser_has_changed_their_keys() -> None:
    messages = [Message(topic="orders", key=b"key", value=b"value") for _ in range(2)]
    with_keys = size_of(messages)
    messages[0].set_key(7)
    assert size_of(messages) == with_keys - len(b"key")
