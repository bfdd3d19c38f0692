"""Cursors at the places where real systems of this kind went wrong."""

from __future__ import annotations

import pytest

from kpsplit.splitter.key_range import KEY_SPACE, WHOLE, KeyRange
from kpsplit.splitter.lineage import Lineage
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from tests.unit.samples import PARENT, UNSPLIT, life, merge_attempt, operated, phantom, split_attempt

LIFE = life()
QUARTERS = WHOLE.split_evenly(4)
LEFT = KeyRange(0, KEY_SPACE // 2)


def partly_merged() -> PartitionState:
    """Phantoms 2 and 3, ending at 8 and 5, merged into 6, which is split at 100 into 8 and 9 (overflow 7)."""
    merged = operated(LIFE.split, merge_attempt(LIFE.split, (2, 3), LEFT), {2: 8, 3: 5})
    ranges = (KeyRange(0, KEY_SPACE // 8), KeyRange(KEY_SPACE // 8, KEY_SPACE // 2))
    return operated(merged, split_attempt(merged, 6, ranges, "n"), {6: 100})


def test_nothing_started_begins_at_the_root() -> None:
    lineage = LIFE.merged.lineage
    cursor = Cursor.at_start(QUARTERS[0])
    assert cursor.readable(lineage) == {0: 0}
    assert not cursor.complete(lineage, 0)
    assert not cursor.ready(lineage, 2)
    assert not cursor.drained(lineage)
    assert cursor.settled(lineage).positions == {0: 0}


def test_children_become_readable_when_the_parent_is_read_to_its_end_and_not_before() -> None:
    lineage = LIFE.split.lineage
    assert Cursor(QUARTERS[2], {0: 999}).readable(lineage) == {0: 999}
    done = Cursor(QUARTERS[2], {0: 1000})
    assert done.readable(lineage) == {1: 1001, 4: 0}
    assert done.settled(lineage).positions == {1: 1001, 4: 0}


def test_a_merged_child_waits_for_every_one_of_its_parents() -> None:
    lineage = partly_merged().lineage
    one_done = Cursor(LEFT, {1: 1001, 2: 8, 3: 4})
    assert one_done.readable(lineage) == {1: 1001, 3: 4}
    assert not one_done.ready(lineage, 6)
    assert one_done.narrowed(QUARTERS[0]).readable(lineage) == {1: 1001, 6: 0}
    assert one_done.moved(3, 5).readable(lineage) == {1: 1001, 6: 0}


def test_a_complete_parent_stays_listed_while_its_merged_child_waits_for_another_one() -> None:
    """Left out it would count as not started, and be read again."""
    settled = Cursor(LEFT, {1: 1001, 2: 8, 3: 4}).settled(partly_merged().lineage)
    assert settled.positions == {1: 1001, 2: 8, 3: 4}


def test_a_complete_parent_stays_listed_while_only_its_overflow_is_behind_it() -> None:
    lineage = LIFE.merged.lineage
    settled = Cursor(QUARTERS[0], {1: 1003, 2: 7}).settled(lineage)
    assert settled.positions == {1: 1003, 2: 7}
    assert settled.readable(lineage) == {2: 7}
    assert settled.moved(2, 8).settled(lineage).positions == {9: 1004}


def test_what_is_not_listed_is_drained_only_if_something_behind_it_is() -> None:
    lineage = LIFE.merged.lineage
    assert Cursor(WHOLE, {9: 1004}).drained(lineage)
    assert Cursor(WHOLE, {9: 1004}).complete(lineage, 7)
    assert not Cursor(WHOLE, {1: 1001}).complete(lineage, 5)
    assert not Cursor(WHOLE, {}).complete(lineage, 9)


def test_a_segment_of_other_keys_is_complete() -> None:
    assert Cursor.at_start(QUARTERS[0]).complete(LIFE.split.lineage, 3)


def test_an_ordinary_offset_inside_the_overflow_says_nothing_of_the_phantoms() -> None:
    """A group that read the plain topic through the split: it never saw the phantoms' records."""
    cursor = Cursor.from_positions(LIFE.merged.lineage, WHOLE, {PARENT: 1002})
    assert cursor.readable(LIFE.merged.lineage) == {1: 1002, 2: 0, 3: 0, 4: 0, 5: 0}


def test_a_started_segment_behind_an_unfinished_one_keeps_its_position_and_what_is_between() -> None:
    """Offsets of a time may say so. The segment between must not look drained because of the one behind."""
    lineage = partly_merged().lineage
    cursor = Cursor.from_positions(
        lineage, LEFT, {PARENT: 1001, phantom(0): 8, phantom(1): 3, phantom(0, 3): 20}
    )
    assert cursor.readable(lineage) == {1: 1001, 3: 3}
    assert cursor.pending(lineage) == {1: 1001, 3: 3, 6: 0, 7: 101, 8: 20, 9: 0}
    rest = cursor.narrowed(KeyRange(KEY_SPACE // 8, KEY_SPACE // 2)).settled(lineage)
    assert rest.pending(lineage) == {1: 1001, 3: 3, 6: 0, 7: 101, 9: 0}
    assert rest.complete(lineage, 2)


def test_a_view_older_than_the_cursor_reads_nothing_and_loses_nothing() -> None:
    cursor = Cursor(WHOLE, {9: 1010})
    old: Lineage = LIFE.split.lineage
    assert cursor.ahead_of(old)
    assert cursor.readable(old) == {}
    assert not cursor.drained(old)
    assert not cursor.complete(old, 0)
    assert cursor.settled(old) == cursor
    assert not cursor.ahead_of(LIFE.merged.lineage)


def test_an_empty_closed_segment_holds_nobody_up() -> None:
    state = operated(
        LIFE.split, merge_attempt(LIFE.split, (2, 3, 4, 5), WHOLE), {1: 1001, 2: 0, 3: 0, 4: 0, 5: 0}
    )
    cursor = Cursor(WHOLE, {0: 1000})
    assert not Cursor(WHOLE, {0: 999}).ready(state.lineage, 6)
    assert cursor.readable(state.lineage) == {6: 1002}
    assert cursor.settled(state.lineage).positions == {6: 1002}


@pytest.mark.parametrize(
    ("logical", "expected"),
    [
        (0, {0: 0}),
        (999, {0: 999}),
        (1000, {1: 1001, 2: 0, 3: 0, 4: 0, 5: 0}),
        (1038, {1: 1009, 2: 8, 3: 8, 4: 7, 5: 7}),
    ],
)
def test_a_logical_offset_is_before_the_first_record_that_is_not_below_it(
    logical: int, expected: dict[int, int]
) -> None:
    assert (
        Cursor.from_logical(LIFE.split.lineage, WHOLE, logical, {}).readable(LIFE.split.lineage) == expected
    )


def test_a_logical_offset_beyond_a_log_stands_at_its_end_where_that_is_given() -> None:
    limits = {1: 1001, 2: 3, 3: 20}
    cursor = Cursor.from_logical(LIFE.split.lineage, WHOLE, 1038, limits)
    assert cursor.positions == {1: 1001, 2: 3, 3: 8, 4: 7, 5: 7}


def test_the_end_is_that_of_the_open_segments_overflows_included() -> None:
    cursor = Cursor.at_end(LIFE.split.lineage, QUARTERS[1], {1: 1005, 3: 12})
    assert cursor.positions == {1: 1005, 3: 12}
    assert cursor.drained(LIFE.split.lineage)
    assert Cursor.at_end(UNSPLIT.lineage, WHOLE, {}).positions == {0: 0}
