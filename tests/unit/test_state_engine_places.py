"""Which records a commit covers, told by their places alone."""

from __future__ import annotations

from dataclasses import replace

from confluent_kafka import Message

from kpsplit.consumer.commit.payload import place_of
from kpsplit.consumer.commit.writes import CommitCoverage, Processed, RecordPlace
from kpsplit.kafka.logical_message import is_identity, wrapped_one
from kpsplit.splitter.group_slots import Mode
from kpsplit.splitter.key_range import KEY_SPACE, WHOLE, KeyRange, key_hash
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Progression
from kpsplit.splitter.reading import Cursor
from tests.unit.samples import PARENT, UNSPLIT, life

LIFE = life().merged
LOW, HIGH = KeyRange(0, KEY_SPACE // 2), KeyRange(KEY_SPACE // 2, KEY_SPACE)
TOKEN = PhysicalPartition("__kpsplit.slots.orders", 6)


def cover(*cursors: Cursor, mode: Mode = Mode.SLOTS) -> CommitCoverage:
    return CommitCoverage(Processed(UNSPLIT, mode, tuple(cursors), (), TOKEN))


def raw(offset: int, key: bytes | None = b"k") -> Message:
    return Message(topic=PARENT.topic, partition=PARENT.partition, offset=offset, key=key, value=b"v")


def test_a_record_is_covered_when_its_own_range_is_processed_behind_it() -> None:
    found = cover(Cursor(LOW, {0: 5}), Cursor(HIGH, {0: 9}))
    assert found.holds(RecordPlace(LOW.lo, 0, 4)) and not found.holds(RecordPlace(LOW.lo, 0, 5))
    assert found.holds(RecordPlace(HIGH.lo, 0, 8)) and not found.holds(RecordPlace(HIGH.lo, 0, 9))


def test_a_record_of_a_range_that_is_not_committed_is_not_covered() -> None:
    assert not cover(Cursor(LOW, {0: 5})).holds(RecordPlace(HIGH.lo, 0, 0))


def test_one_ordinary_offset_covers_what_lies_below_it_in_every_range() -> None:
    found = cover(Cursor(LOW, {0: 5}), Cursor(HIGH, {0: 9}), mode=Mode.PLAIN)
    assert found.holds(RecordPlace(HIGH.lo, 0, 4)) and not found.holds(RecordPlace(HIGH.lo, 0, 8))


def test_a_message_that_was_handed_on_untouched_is_found_by_its_offset() -> None:
    place = place_of(raw(4))
    assert place == RecordPlace(key_hash(b"k"), None, 4)
    assert cover(Cursor(WHOLE, {0: 5})).holds(place)
    assert not cover(Cursor(WHOLE, {0: 4})).holds(place)


def test_wrapped_and_untouched_messages_of_every_segment_are_covered_by_the_same_rule() -> None:
    for segment in LIFE.lineage:
        offset = segment.start
        for key in (b"k", None):
            message = raw(offset, key)
            if not is_identity(segment, PARENT):
                message = wrapped_one(message, segment, PARENT)
            place = place_of(message)
            before = Cursor(segment.range, {segment.id: offset})
            behind = Cursor(segment.range, {segment.id: offset + 1})
            for cursor, covered in ((before, False), (behind, True)):
                processed = Processed(LIFE, Mode.SLOTS, (cursor,), (), TOKEN)
                if segment.end is None or segment.end > offset:
                    assert CommitCoverage(processed).holds(place) is covered, (segment, key)


def test_an_untouched_message_of_a_reopened_parent_belongs_to_the_segment_that_holds_its_offset() -> None:
    [first] = UNSPLIT.lineage.segments
    reopened = replace(
        first, id=7, start=12, progression=Progression(12, 1), opened_epoch=2, predecessors=(0,)
    )
    lineage = Lineage(PARENT, (replace(first, end=10, closed_epoch=1), reopened))
    assert is_identity(reopened, PARENT)
    processed = Processed(replace(UNSPLIT, lineage=lineage), Mode.SLOTS, (Cursor(WHOLE, {7: 15}),), (), TOKEN)
    found = CommitCoverage(processed)
    assert found.holds(place_of(raw(9))) and found.holds(place_of(raw(14)))
    assert not found.holds(place_of(raw(15)))
