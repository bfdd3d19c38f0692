"""Readers of a random history: every record has one verdict, and the same one whatever was read before."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kpsplit.splitter.lineage import SegmentKind
from kpsplit.splitter.partition_state import Phase
from kpsplit.splitter.reading import Deliver, Foreign, SkipReason, SkipRecord, Wait, classify
from kpsplit.splitter.records.data import Marker, MarkerKind, Stamp
from tests.property.strategies import PARENT, History, histories

RECORDS = 6


@given(histories())
def test_every_record_inside_a_segment_is_delivered_to_it_by_a_current_view(history: History) -> None:
    state = history.last
    for segment in state.lineage:
        stamp = None if segment.kind is SegmentKind.OVERFLOW else Stamp(segment.opened_epoch, 1, 0)
        end = segment.start + RECORDS if segment.end is None else min(segment.end, segment.start + RECORDS)
        for offset in range(segment.start, end):
            verdict = classify(state, segment.source, offset, stamp, None)
            assert verdict == Deliver(segment, segment.logical(offset))


@given(histories(), st.integers(0, 60))
def test_a_stamped_record_is_delivered_only_inside_a_segment_of_its_epoch(
    history: History, offset: int
) -> None:
    state = history.last
    for source in state.lineage.sources():
        for epoch in range(state.epoch + 1):
            verdict = classify(state, source, offset, Stamp(epoch, 1, 0, state.home(source)), None)
            if isinstance(verdict, Deliver):
                assert verdict.segment.opened_epoch <= epoch
            elif not isinstance(verdict, Foreign):
                assert verdict == SkipRecord(SkipReason.STRAY)


@given(histories(), st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_a_stamp_that_was_made_for_another_place_changes_no_verdict(
    history: History, offset: int, epoch: int
) -> None:
    places = history.last.lineage.sources()
    for view in history.states:
        for source in places:
            for other in places:
                stamp = Stamp(epoch, 1, 0, view.home(other))
                for refreshed in (False, True):
                    verdict = classify(view, source, offset, stamp, None, refreshed=refreshed)
                    plain = classify(view, source, offset, None, None, refreshed=refreshed)
                    assert other == source or verdict == plain


@given(histories(), st.integers(0, 1100))
def test_an_unstamped_record_of_the_parents_partition_is_always_delivered(
    history: History, offset: int
) -> None:
    """Nobody's data are lost: the parent's partition is open somewhere at every time."""
    state = history.last
    at_marker = any(s.source == PARENT and s.end == offset for s in state.lineage)
    verdict = classify(state, PARENT, offset, None, None, refreshed=True)
    assert isinstance(verdict, Foreign if at_marker else Deliver)


@given(histories(), st.integers(0, 60))
def test_what_was_delivered_once_keeps_its_logical_offset_in_every_later_view(
    history: History, offset: int
) -> None:
    """A later view gives a record of the same segment the same logical offset."""
    for early, late in pairwise(history.states):
        for source in early.lineage.sources():
            before = classify(early, source, offset, None, None)
            after = classify(late, source, offset, None, None)
            segment = late.lineage.at(source, offset)
            if isinstance(before, Deliver) and segment is not None and segment.id == before.segment.id:
                assert isinstance(after, Deliver)
                assert after.logical_offset == before.logical_offset


@given(histories(), st.integers(2000, 3000))
def test_a_marker_is_waited_for_exactly_while_its_attempt_may_still_commit(
    history: History, offset: int
) -> None:
    for state in history.states:
        last = state.last.attempt if state.last else None
        for attempt in filter(None, (state.attempt, last)):
            marker = Marker(MarkerKind.SEAL, PARENT, attempt.id)
            under_way = state.attempt == attempt and state.phase in (Phase.PREPARING, Phase.FENCED)
            verdict = classify(state, PARENT, offset, None, marker, refreshed=True)
            at_end = any(s.source == PARENT and s.end == offset for s in state.lineage)
            assert at_end or isinstance(verdict, Wait) == under_way
