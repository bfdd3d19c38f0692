"""What a reader does with a record."""

from __future__ import annotations

import pytest

from kpsplit.splitter.key_range import KEY_SPACE, WHOLE, KeyRange, key_hash, keyless_hash
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Abort, EndedBy, Freeze, PartitionState
from kpsplit.splitter.reading import (
    Deliver,
    Foreign,
    ForeignReason,
    SkipReason,
    SkipRecord,
    Verdict,
    Wait,
    classify,
    reader_hash,
    unsettled,
)
from kpsplit.splitter.records.data import Marker, MarkerKind, Stamp
from tests.unit.samples import (
    PARENT,
    UNSPLIT,
    committed,
    fenced,
    life,
    merge_attempt,
    operated,
    phantom,
    split_attempt,
)

LIFE = life()
SPLIT = split_attempt(UNSPLIT, 0, WHOLE.split_evenly(4))
STRAY, MARKER, ORPHAN = (
    SkipRecord(SkipReason.STRAY),
    SkipRecord(SkipReason.MARKER),
    SkipRecord(SkipReason.ORPHAN_MARKER),
)
NOBODYS = Foreign(ForeignReason.BEHIND_THE_END)


def stamped(epoch: int) -> Stamp:
    return Stamp(epoch, 1, 0)


def seal(attempt: str) -> Marker:
    return Marker(MarkerKind.SEAL, PARENT, attempt)


def delivered(state: PartitionState, segment: int, offset: int) -> Deliver:
    found = state.lineage.get(segment)
    return Deliver(found, found.logical(offset))


M = LIFE.merged


@pytest.mark.parametrize(
    ("source", "offset", "stamp", "verdict"),
    [
        (PARENT, 0, None, delivered(M, 0, 0)),
        (PARENT, 999, stamped(0), delivered(M, 0, 999)),
        (PARENT, 1001, stamped(0), STRAY),
        (PARENT, 1001, None, delivered(M, 1, 1001)),
        (PARENT, 1002, stamped(2), delivered(M, 1, 1002)),
        (phantom(2), 9, stamped(1), delivered(M, 4, 9)),
        (phantom(2), 11, stamped(1), STRAY),
        (phantom(2), 11, None, delivered(M, 6, 11)),
        (phantom(2), 13, stamped(1), STRAY),
        (phantom(2), 13, None, NOBODYS),
        (phantom(0), 9, stamped(2), STRAY),
        (phantom(0), 9, None, NOBODYS),
        (PARENT, 1004, stamped(3), delivered(M, 9, 1004)),
        (PARENT, 1004, stamped(2), STRAY),
        (PARENT, 1005, stamped(0), STRAY),
        (PARENT, 1005, None, delivered(M, 9, 1005)),
    ],
)
def test_a_record_is_placed_by_position_and_epoch(
    source: PhysicalPartition, offset: int, stamp: Stamp | None, verdict: Verdict
) -> None:
    for refreshed in (False, True):
        assert classify(M, source, offset, stamp, None, refreshed=refreshed) == verdict


@pytest.mark.parametrize("epoch", [0, 1, 2, 3, 99])
@pytest.mark.parametrize(
    ("source", "offset"), [(PARENT, 999), (PARENT, 1001), (PARENT, 1004), (phantom(2), 9), (phantom(2), 11)]
)
def test_a_stamp_that_was_made_for_another_place_counts_as_none(
    epoch: int, source: PhysicalPartition, offset: int
) -> None:
    """Somebody copied the record from another topic, another partition, or another segment's log."""
    other = Stamp(epoch, 1, 0, M.home(PhysicalPartition("elsewhere", 3)))
    for refreshed in (False, True):
        verdict = classify(M, source, offset, other, None, refreshed=refreshed)
        assert verdict == classify(M, source, offset, None, None, refreshed=refreshed)
        assert isinstance(verdict, Deliver)


def test_a_copy_behind_every_end_is_reported_not_taken_for_a_stray() -> None:
    assert classify(M, phantom(2), 13, Stamp(1, 1, 0, M.home(PARENT)), None) == NOBODYS
    assert classify(M, phantom(2), 13, Stamp(1, 1, 0, M.home(phantom(2))), None) == STRAY


@pytest.mark.parametrize("source", [PARENT, phantom(2)])
def test_a_stamp_that_was_made_for_its_place_counts_as_one_of_version_1_does(
    source: PhysicalPartition,
) -> None:
    for offset in (0, 9, 11, 13, 999, 1001, 1002, 1004):
        for epoch in range(5):
            old, new = Stamp(epoch, 1, 0), Stamp(epoch, 1, 0, M.home(source))
            for refreshed in (False, True):
                verdict = classify(M, source, offset, new, None, refreshed=refreshed)
                assert verdict == classify(M, source, offset, old, None, refreshed=refreshed)


def test_an_unstamped_record_of_the_overflow_of_a_phantom_is_delivered_from_it() -> None:
    verdict = classify(LIFE.nested, phantom(2), 11, None, None)
    assert verdict == delivered(LIFE.nested, 6, 11)


def test_the_marker_at_every_segments_end_is_skipped() -> None:
    for segment in M.lineage:
        if segment.end is not None:
            assert classify(M, segment.source, segment.end, None, seal("any")) == MARKER


@pytest.mark.parametrize("stamp", [None, stamped(0)])
def test_a_record_where_the_lineage_has_a_marker_is_reported(stamp: Stamp | None) -> None:
    """An unclean election cut the marker off and somebody wrote there again."""
    assert classify(M, PARENT, 1000, stamp, None) == Foreign(ForeignReason.NOT_THE_MARKER)


def test_at_a_marker_of_an_attempt_under_way_the_reader_waits_however_often_it_refreshes() -> None:
    state = fenced(UNSPLIT, SPLIT)
    for refreshed in (False, True):
        assert classify(state, PARENT, 10, None, seal("s"), refreshed=refreshed) == Wait()


def test_a_marker_that_the_view_knows_nothing_of_may_be_newer_than_the_view() -> None:
    """A reader that skipped it would deliver what stands behind a SEAL as if the segment went on."""
    assert classify(UNSPLIT, PARENT, 10, None, seal("s")) == Wait()
    split = committed(UNSPLIT, SPLIT, {0: 10})
    assert classify(split, PARENT, 10, None, seal("s"), refreshed=True) == MARKER


def test_a_marker_of_an_attempt_that_was_rolled_back_means_nothing() -> None:
    state = apply(fenced(UNSPLIT, SPLIT), Abort("s", EndedBy.TAKEOVER, "gone"))
    assert classify(state, PARENT, 10, None, seal("s")) == ORPHAN
    assert classify(state, PARENT, 11, stamped(0), None) == delivered(state, 0, 11)


def test_a_marker_of_an_attempt_that_the_log_has_forgotten_means_nothing_to_a_fresh_view() -> None:
    assert classify(M, PARENT, 500, None, seal("long ago"), refreshed=True) == ORPHAN


def test_a_second_marker_of_a_committed_attempt_means_nothing() -> None:
    state = committed(UNSPLIT, SPLIT, {0: 10})
    assert classify(state, PARENT, 11, None, seal("s")) == ORPHAN
    assert classify(state, phantom(0), 0, None, seal("s")) == ORPHAN


def test_a_marker_of_an_attempt_that_was_committed_and_then_frozen_is_not_waited_for() -> None:
    state = apply(committed(UNSPLIT, SPLIT, {0: 10}), Freeze("no right"))
    assert classify(state, PARENT, 11, None, seal("s"), refreshed=True) == ORPHAN


def test_an_orphan_marker_behind_the_end_of_a_merged_phantom_is_skipped_not_reported() -> None:
    assert classify(M, phantom(0), 9, None, seal("long ago"), refreshed=True) == ORPHAN


def test_a_stamp_of_an_epoch_that_the_view_has_not_reached_shows_that_the_view_is_old() -> None:
    assert classify(UNSPLIT, PARENT, 1005, stamped(2), None) == Wait()
    verdict = classify(UNSPLIT, PARENT, 1005, stamped(2), None, refreshed=True)
    assert verdict == Foreign(ForeignReason.UNKNOWN_EPOCH)


def test_a_physical_partition_that_the_view_does_not_know_asks_for_a_newer_view() -> None:
    assert classify(UNSPLIT, phantom(0), 0, None, None) == Wait()
    assert classify(UNSPLIT, phantom(0), 0, None, None, refreshed=True) == NOBODYS


def test_a_reader_that_begins_in_a_segment_whose_end_is_being_decided_has_to_wait() -> None:
    assert unsettled(fenced(UNSPLIT, SPLIT), PARENT)
    assert not unsettled(UNSPLIT, PARENT)
    assert not unsettled(committed(UNSPLIT, SPLIT, {0: 10}), PARENT)
    merge = merge_attempt(LIFE.split, (2, 3, 4, 5), WHOLE)
    assert unsettled(fenced(LIFE.split, merge), PARENT)
    part = merge_attempt(LIFE.split, (2, 3), KeyRange(0, 0x80000000))
    assert unsettled(fenced(LIFE.split, part), phantom(0))
    assert not unsettled(fenced(LIFE.split, part), phantom(2))
    assert not unsettled(fenced(LIFE.split, part), PARENT)


def test_a_reader_places_a_record_by_its_key_and_one_without_key_by_its_offset() -> None:
    assert reader_hash(b"abc", 7) == key_hash(b"abc")
    assert reader_hash(b"", 7) == key_hash(b"")
    assert reader_hash(None, 7) == keyless_hash(7)


@pytest.mark.parametrize(
    "within", [WHOLE, KeyRange(5, 6), KeyRange(0x40000000, 0x80000000), KeyRange(0, KEY_SPACE)]
)
def test_a_record_without_key_is_always_placed_inside_its_segment_so_that_somebody_reads_it(
    within: KeyRange,
) -> None:
    assert all(reader_hash(None, offset, within) in within for offset in range(1000))


def test_a_partition_can_be_split_right_behind_a_merge_and_old_stamps_are_strays_in_both() -> None:
    again = operated(M, split_attempt(M, 9, WHOLE.split_evenly(2), "t"), {9: 1010})
    assert classify(again, PARENT, 1005, stamped(2), None) == STRAY
    assert classify(again, PARENT, 1011, stamped(3), None) == STRAY
    assert classify(again, PARENT, 1011, None, None) == delivered(again, 10, 1011)
