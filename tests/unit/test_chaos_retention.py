"""Retention in a chaos run: how far a group has come, what has to be told, and what it may have missed."""

from __future__ import annotations

from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.control.status import Basis, PartitionProgress, RangeProgress, SegmentLeft
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import GapReason
from tests.fault.chaos.retention import Extent, Removal, excused, expected_gaps, extents, reported_gap, untrue
from tests.unit.samples import PARENT, UNSPLIT, committed, phantom, split_attempt

LOW, HIGH = WHOLE.split_evenly(2)
ATTEMPT = split_attempt(UNSPLIT, 0, (LOW, HIGH))
SPLIT = committed(UNSPLIT, ATTEMPT, {0: 100})
"""Segment 0 is [0, 100) of the parent, 1 its overflow from 101 on, 2 and 3 are the phantoms."""
ENDS = {PARENT: 101, phantom(0): 40, phantom(1): 50}


def progress(*ranges: tuple[KeyRange, dict[int, int]], state: PartitionState = SPLIT) -> PartitionProgress:
    """How far a group is: by range, the next offset of each segment that it has before it."""
    found = [
        RangeProgress(
            range_,
            Basis.RANGE_COMMIT,
            tuple(SegmentLeft(state.lineage.get(s), at, None, True) for s, at in left.items()),
        )
        for range_, left in ranges
    ]
    return PartitionProgress(state, tuple(found), "stable")


def by_source(*found: Extent) -> dict[PhysicalPartition, Extent]:
    return {extent.source: extent for extent in found}


def test_the_slowest_range_says_how_far_a_closed_segment_is_read() -> None:
    overflow, low, high = 1, 2, 3
    found = by_source(
        *extents(
            progress(
                (LOW, {0: 60, overflow: 101, low: 0}),
                (HIGH, {0: 70, overflow: 101, high: 0}),
            ),
            ENDS,
        )
    )
    assert found[PARENT] == Extent(PARENT, 60, 101, draining=True)
    assert found[phantom(0)] == Extent(phantom(0), 0, 40, draining=False)


def test_behind_a_segment_that_all_have_read_its_marker_is_read_too() -> None:
    overflow, low, high = 1, 2, 3
    found = by_source(
        *extents(progress((LOW, {overflow: 101, low: 7}), (HIGH, {overflow: 101, high: 50})), ENDS)
    )
    assert found[PARENT] == Extent(PARENT, 101, 101, draining=False)
    assert found[phantom(0)].read_to == 7 and found[phantom(1)].read_to == 50


def test_a_group_with_a_range_that_has_no_commit_has_read_nothing_for_certain() -> None:
    assert extents(progress((LOW, {0: 60}), (HIGH, {})), ENDS) == []


def test_a_reader_has_to_tell_of_what_is_before_the_start_of_each_log() -> None:
    assert expected_gaps(SPLIT.lineage, {}) == []
    assert expected_gaps(SPLIT.lineage, {PARENT: 30}) == [Gap(0, PARENT, 0, 30, GapReason.EXPIRED)]
    assert expected_gaps(SPLIT.lineage, {PARENT: 101}) == [Gap(0, PARENT, 0, 100, GapReason.EXPIRED)]


def test_the_text_of_a_gap_is_read_back_and_other_warnings_are_not_gaps() -> None:
    gap = Gap(2, phantom(0), 10, 20, GapReason.CUT_OFF)
    assert reported_gap(f"KafkaError{{code=_AUTO_OFFSET_RESET, str='{PARENT}: {gap}'}}") == gap
    assert reported_gap("3 brokers are down") is None


def test_the_group_may_miss_what_it_was_told_of_and_nothing_else() -> None:
    gap = Gap(0, PARENT, 50, 60, GapReason.EXPIRED)
    unread = {PARENT: [Removal(0, 60, 40)]}
    assert excused(SPLIT.lineage, [gap], unread, set()) == set(range(50, 60))
    assert excused(SPLIT.lineage, [gap], unread, {51}) == {50, *range(52, 60)}
    assert excused(SPLIT.lineage, [gap], {PARENT: [Removal(0, 55, 40)]}, set()) == set(range(50, 55))
    assert excused(SPLIT.lineage, [], unread, set()) == set()


def test_what_was_removed_behind_the_groups_commits_excuses_nothing() -> None:
    """A gap that reaches too far passes over records that are there still, and are removed later."""
    removals = {PARENT: [Removal(0, 55, 40), Removal(55, 90, 90)]}
    gap = Gap(0, PARENT, 50, 60, GapReason.EXPIRED)
    assert excused(SPLIT.lineage, [gap], removals, set()) == set(range(50, 55))
    assert untrue(SPLIT.lineage, [gap], removals) == [gap]


def test_a_gap_that_nobody_made_is_untrue() -> None:
    gap = Gap(0, PARENT, 50, 60, GapReason.EXPIRED)
    removals = {PARENT: [Removal(0, 60, 40)]}
    assert untrue(SPLIT.lineage, [gap], removals) == []
    assert untrue(SPLIT.lineage, [gap], {PARENT: [Removal(0, 59, 40)]}) == [gap]
    assert untrue(SPLIT.lineage, [gap], {}) == [gap]
    cut_off = Gap(0, PARENT, 50, 60, GapReason.CUT_OFF)
    assert untrue(SPLIT.lineage, [cut_off], removals) == [cut_off]
    whole = Gap(0, PARENT, 50, 100, GapReason.EXPIRED)
    assert untrue(SPLIT.lineage, [whole], {PARENT: [Removal(0, 101, 40)]}) == []
    assert untrue(SPLIT.lineage, [whole], removals) == [whole]
