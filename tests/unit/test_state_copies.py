"""How far a copy of a changelog is, and since when it is known to be complete."""

from __future__ import annotations

from kpsplit.consumer.state.follower import Copy
from kpsplit.consumer.state.slots import SlotId
from kpsplit.consumer.state.storage import RestoreMarker

EVERY = 60_000


def copy_at(position: int, end: int) -> Copy:
    marker = RestoreMarker("id", position, as_of_ms=1000)
    return Copy(SlotId("orders", 0, 0, 1), None, ("changelog", 0), marker, end, asked_ms=5000)


def test_a_copy_is_restored_when_it_has_read_what_there_was_when_the_slot_was_taken() -> None:
    copy = copy_at(10, end=12)
    copy.take(b"k", b"1", 10)
    assert not copy.restored
    copy.passed(12)
    assert copy.restored
    assert copy.waiting == {b"k": b"1"}


def test_of_a_key_the_last_record_is_stored() -> None:
    copy = copy_at(0, end=3)
    for offset, value in enumerate((b"1", b"2", None)):
        copy.take(b"k", value, offset)
    assert copy.waiting == {b"k": None}
    assert copy.position == 3


def test_the_time_of_a_copy_that_is_behind_is_not_moved_on() -> None:
    copy = copy_at(10, end=100)
    copy.take(b"k", b"1", 10)
    assert copy.next_marker(9000) == RestoreMarker("id", 11, 1000)


def test_a_restored_copy_is_complete_as_of_the_question_for_the_end() -> None:
    copy = copy_at(10, end=11)
    copy.take(b"k", b"1", 10)
    assert copy.next_marker(9000) == RestoreMarker("id", 11, 5000)


def test_a_copy_that_saw_the_end_is_complete_as_of_then_and_never_goes_back() -> None:
    copy = copy_at(10, end=11)
    copy.saw_end(14)
    assert copy.next_marker(9000) == RestoreMarker("id", 14, 9000)
    copy.saw_end(3)
    assert copy.position == 14


def test_a_copy_is_stored_when_it_moved_or_when_its_time_is_old() -> None:
    copy = copy_at(10, end=11)
    assert not copy.worth_storing(1000 + EVERY, EVERY)
    copy.saw_end(10)
    assert not copy.worth_storing(1000 + EVERY - 1, EVERY)
    assert copy.worth_storing(1000 + EVERY, EVERY)
    copy.passed(11)
    assert copy.worth_storing(1000, EVERY)
