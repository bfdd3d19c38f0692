"""A slot's writes between two commits."""

from __future__ import annotations

import pytest

from kpsplit.consumer.commit.writes import RecordPlace
from kpsplit.consumer.state.slot_state import Covers, Pending, room_left
from kpsplit.consumer.state.slots import Room
from kpsplit.errors import ConflictError


def at(offset: int) -> RecordPlace:
    """The place of a record."""
    return RecordPlace(0, 0, offset)


def below(offset: int) -> Covers:
    """What a commit of a position covers."""
    return lambda place: place.offset < offset


def test_the_latest_write_of_a_key_is_found_and_a_deletion_is_a_write() -> None:
    pending = Pending()
    pending.add({b"a": b"1", b"b": b"2"})
    pending.add({b"a": b"3", b"b": None})
    assert pending.find(b"a") == (True, b"3")
    assert pending.find(b"b") == (True, None)
    assert pending.find(b"c") == (False, None)


def test_a_commit_takes_the_latest_of_each_key_and_leaves_nothing_behind() -> None:
    pending = Pending()
    pending.add({b"a": b"1"}, at(1))
    pending.add({b"a": b"2", b"b": b"x"}, at(2))
    assert pending.cut() == {b"a": b"2", b"b": b"x"}
    pending.committed()
    assert len(pending) == 0
    assert pending.bytes == 0


def test_a_commit_takes_what_belongs_to_records_that_it_covers_and_to_none() -> None:
    pending = Pending()
    pending.add({b"a": b"covered"}, at(1))
    pending.add({b"a": b"not yet", b"b": b"not yet"}, at(2))
    pending.add({b"c": b"loose"})
    assert pending.cut(below(2)) == {b"a": b"covered", b"c": b"loose"}
    assert pending.find(b"a") == (True, b"not yet")
    pending.committed()
    assert pending.cut(below(3)) == {b"a": b"not yet", b"b": b"not yet"}


def test_writes_during_a_commit_wait_for_the_next_one() -> None:
    pending = Pending()
    pending.add({b"a": b"1"})
    assert pending.cut() == {b"a": b"1"}
    pending.add({b"a": b"2"})
    pending.committed()
    assert pending.find(b"a") == (True, b"2")
    assert pending.cut() == {b"a": b"2"}


def test_an_aborted_commit_puts_its_writes_back_below_newer_ones() -> None:
    pending = Pending()
    pending.add({b"a": b"1", b"b": b"1"})
    pending.cut()
    pending.add({b"a": b"2"})
    pending.aborted()
    assert pending.cut() == {b"a": b"2", b"b": b"1"}


def test_of_a_key_that_two_units_wrote_the_older_write_never_comes_back() -> None:
    pending = Pending()
    slow, fast = at(1), at(2)
    pending.add({b"a": b"older"}, slow)
    pending.add({b"a": b"newer"}, fast)
    pending.cut(lambda place: place == fast)
    pending.committed()
    assert pending.cut() == {}


def test_a_slot_has_one_commit_at_a_time() -> None:
    pending = Pending()
    pending.cut()
    with pytest.raises(ConflictError, match="under way"):
        pending.cut()


def test_bytes_counts_what_waits_through_overwriting_cutting_and_clearing() -> None:
    pending = Pending()
    pending.add({b"key": b"12345"})
    pending.add({b"key": b"1"})
    assert pending.bytes == 4
    pending.cut()
    pending.add({b"key": b"22"})
    assert pending.bytes == 5
    pending.committed()
    assert pending.bytes == 5
    pending.clear()
    assert (pending.bytes, len(pending)) == (0, 0)


def test_a_range_of_keys_excludes_its_end() -> None:
    pending = Pending()
    pending.add({b"a": b"1", b"b": b"2", b"c": None})
    assert pending.within(b"a", b"c") == {b"a": b"1", b"b": b"2"}
    assert pending.within(b"b", None) == {b"b": b"2", b"c": None}


def test_a_record_that_writes_a_key_again_leaves_one_write() -> None:
    pending = Pending()
    pending.add({b"key": b"1"}, at(1))
    pending.add({b"key": b"2"}, at(1))
    assert pending.bytes == 4
    assert pending.cut(below(2)) == {b"key": b"2"}


def test_what_waits_in_all_slots_together_is_bounded() -> None:
    one, other = Pending(), Pending()
    one.add({b"a": b"1234"})
    other.add({b"b": b"123"})
    assert room_left([one, other], 10) is Room.LEFT
    other.add({b"b": b"1234"})
    assert room_left([one, other], 10) is Room.FULL
    one.cut()
    assert room_left([one, other], 10) is Room.FULL, "a commit that is under way has made no room yet"
    one.aborted()
    assert room_left([one, other], 10) is Room.FULL, "nor has one that failed"
    one.cut()
    one.committed()
    assert room_left([one, other], 10) is Room.LEFT


def test_commits_that_find_nothing_to_take_make_no_room_until_one_does() -> None:
    one, other = Pending(), Pending()
    one.add({b"a": b"1234"}, at(5))
    other.add({b"b": b"1234"}, at(6))
    one.cut(below(5))
    one.committed()
    assert room_left([one, other], 10) is Room.FULL, "the other slot was in no commit"
    other.cut(below(5))
    other.committed()
    assert room_left([one, other], 10) is Room.STUCK
    one.cut(below(6))
    assert room_left([one, other], 10) is Room.FULL
    one.committed()
    assert room_left([one, other], 10) is Room.LEFT
