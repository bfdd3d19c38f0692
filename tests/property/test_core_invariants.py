"""The invariants (protocol, section 13) that concern the pure core, over random histories."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpsplit.errors import InvariantError
from kpsplit.splitter.key_range import WHOLE, union_of_adjacent
from kpsplit.splitter.lineage import Layout, Lineage, Segment, SegmentKind
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    TRANSITIONS,
    Abort,
    Commit,
    EndedBy,
    Event,
    EventKind,
    Fence,
    Finish,
    Freeze,
    PartitionState,
    Phase,
    Prepare,
    Retire,
    SubTopicState,
    Thaw,
)
from kpsplit.splitter.records.control import decode_state, encode_state
from kpsplit.splitter.records.offsets import boundaries, decode_boundary
from tests.property.strategies import History, commit_of, hashes, histories, states

OPEN_RECORDS = 8
"""How many records are simulated in a segment that has no end yet."""

SHOWN = 30
"""Of a longer segment only so many records at either end are simulated."""


def offsets(segment: Segment) -> Iterator[int]:
    """The physical offsets of the records simulated in a segment."""
    end = segment.start + OPEN_RECORDS if segment.end is None else segment.end
    everything = range(segment.start, end)
    yield from everything if len(everything) <= 2 * SHOWN else (*everything[:SHOWN], *everything[-SHOWN:])


def alive(lineage: Lineage, epoch: int) -> list[Segment]:
    """The segments that take keys in an epoch."""
    return [
        s
        for s in lineage
        if s.kind is not SegmentKind.OVERFLOW
        and s.opened_epoch <= epoch
        and (s.closed_epoch is None or epoch < s.closed_epoch)
    ]


@given(states())
def test_in_every_epoch_the_open_ranges_tile_the_key_space(state: PartitionState) -> None:
    for epoch in range(state.epoch + 1):
        assert union_of_adjacent(s.range for s in alive(state.lineage, epoch)) == WHOLE


@given(states(), st.lists(hashes, min_size=1, max_size=20))
def test_exactly_one_open_segment_accepts_a_key_in_every_epoch(
    state: PartitionState, keys: list[int]
) -> None:
    layout = Layout.of(state.lineage)
    for key in keys:
        for epoch in range(state.epoch + 1):
            assert sum(key in s.range for s in alive(state.lineage, epoch)) == 1
        assert [layout.segment_for(key)] == [s for s in alive(state.lineage, state.epoch) if key in s.range]


@given(states())
def test_logical_offsets_are_unique_and_name_one_segment_and_one_physical_offset(
    state: PartitionState,
) -> None:
    places: dict[int, tuple[Segment, int]] = {}
    for segment in state.lineage:
        for offset in offsets(segment):
            logical = segment.logical(offset)
            assert logical not in places
            places[logical] = (segment, offset)
            assert state.lineage.at(segment.source, offset) is segment
    for logical, place in places.items():
        assert state.lineage.find(logical) == place


@given(states(), st.integers(0, 5000))
def test_a_logical_offset_that_is_found_is_the_one_of_the_place(state: PartitionState, logical: int) -> None:
    place = state.lineage.find(logical)
    if place is not None:
        segment, offset = place
        assert segment.holds(offset)
        assert segment.logical(offset) == logical


@given(states())
def test_logical_offsets_rise_along_every_path_for_foreign_writers_too(state: PartitionState) -> None:
    """Every predecessor's greatest number is below the smallest of its successor, overflows included."""
    for segment in state.lineage:
        numbers = [segment.logical(o) for o in offsets(segment)]
        assert numbers == sorted(set(numbers))
        for predecessor in map(state.lineage.get, segment.predecessors):
            before = [predecessor.logical(o) for o in offsets(predecessor)]
            assert not before or before[-1] < segment.progression.base


@given(states(), hashes)
def test_a_keys_records_rise_over_its_whole_life_and_each_stretch_names_the_one_before(
    state: PartitionState, key: int
) -> None:
    path = sorted(
        (s for s in state.lineage if key in s.range and s.kind is not SegmentKind.OVERFLOW),
        key=lambda s: s.opened_epoch,
    )
    numbers = [s.logical(o) for s in path for o in offsets(s)]
    assert numbers == sorted(set(numbers))
    for before, after in pairwise(path):
        assert before.id in after.predecessors


@given(states())
def test_in_one_physical_partition_later_records_have_greater_numbers(state: PartitionState) -> None:
    """So a foreign writer's records rise from the parent through the overflow into the reopened parent."""
    for source in state.lineage.sources():
        mine = sorted((s for s in state.lineage if s.source == source), key=lambda s: s.start)
        numbers = [s.logical(o) for s in mine for o in offsets(s)]
        assert numbers == sorted(set(numbers))


@given(states())
def test_a_phantom_begins_beyond_the_log_end_of_what_was_split(state: PartitionState) -> None:
    """In logical numbers, and for the parent in Kafka's own as well."""
    for segment in state.lineage:
        if segment.kind is SegmentKind.PHANTOM:
            for split in map(state.lineage.get, segment.predecessors):
                assert split.end is not None
                is_split = len(segment.predecessors) == 1
                end = split.logical(split.end)
                assert segment.progression.base > end if is_split else segment.progression.base >= end
                if split.kind is SegmentKind.PARENT:
                    assert segment.progression.base > split.end


@given(states())
def test_a_merge_names_every_segment_that_must_be_drained_before_it(state: PartitionState) -> None:
    for segment in state.lineage:
        overlapping = {
            s.id
            for s in state.lineage
            if s.closed_epoch == segment.opened_epoch and s.range.overlaps(segment.range)
        }
        assert set(segment.predecessors) == overlapping


@given(states())
def test_segments_of_one_physical_partition_leave_room_for_the_marker_between_them(
    state: PartitionState,
) -> None:
    for source in state.lineage.sources():
        taken = [o for s in state.lineage if s.source == source for o in offsets(s)]
        markers = [s.end for s in state.lineage if s.source == source and s.end is not None]
        assert len(set(taken) | set(markers)) == len(taken) + len(markers)


@given(histories())
def test_epochs_revisions_and_segment_ids_are_never_reused(history: History) -> None:
    for i, (before, after) in enumerate(pairwise(history.states)):
        assert after.revision == before.revision + 1
        took_effect = isinstance(history.events[i], Commit)
        assert after.epoch == before.epoch + took_effect
        assert (
            after.lineage.segments[: len(before.lineage.segments)] == before.lineage.segments or took_effect
        )
        assert [s.id for s in after.lineage] == list(range(len(after.lineage.segments)))


@given(histories())
def test_replaying_any_prefix_of_the_log_gives_the_state_that_was_recorded(history: History) -> None:
    """From the first state, and from any recorded one: what a crash leaves is always enough to go on."""
    replayed = history.states[0]
    for event, recorded in zip(history.events, history.states[1:], strict=True):
        before = replayed
        replayed = apply(replayed, event)
        assert replayed == recorded
        replayed = decode_state(encode_state(recorded))
        assert replayed == recorded
        assert decode_state(encode_state(recorded), before) == recorded


@given(histories())
def test_every_prefix_leads_to_the_old_layout_or_the_new_one_writable(history: History) -> None:
    """Whatever the log says when everybody dies: one or two events and the partition rests."""
    for state in history.states:
        rested = state
        if rested.phase in (Phase.PREPARING, Phase.FENCED):
            assert rested.attempt is not None
            rested = apply(rested, Abort(rested.attempt.id, EndedBy.TAKEOVER, "gone"))
        elif rested.phase is Phase.COMMITTED:
            assert rested.attempt is not None
            rested = apply(rested, Finish(rested.attempt.id))
        elif rested.phase is Phase.FROZEN:
            rested = apply(rested, Thaw())
        assert rested.phase is Phase.STEADY
        assert rested.lineage == state.lineage
        assert rested.fenced_segments() == ()
        assert union_of_adjacent(s.range for s in rested.lineage.open_segments()) == WHOLE


@given(histories())
def test_an_attempt_that_was_prepared_can_always_be_committed(history: History) -> None:
    """Nothing is fenced that could only be rolled back."""
    for state in history.states:
        if state.phase is Phase.PREPARING and state.attempt is not None:
            fenced = apply(state, Fence(state.attempt.id, None if state.attempt.subtopic is None else "id"))
            committed = apply(fenced, commit_of(fenced, lambda: 0))
            assert committed.epoch == state.epoch + 1
            assert decode_state(encode_state(committed)) == committed


def illegal(state: PartitionState) -> Iterator[Event]:
    """One event of each kind that the table forbids in this phase, and some that name a wrong attempt."""
    attempt = state.attempt.id if state.attempt else "attempt-0"
    every: dict[EventKind, Event] = {
        EventKind.FENCE: Fence(attempt, "id"),
        EventKind.COMMIT: Commit(attempt, ()),
        EventKind.ABORT: Abort(attempt, EndedBy.OPERATOR, ""),
        EventKind.FINISH: Finish(attempt),
        EventKind.RETIRE: Retire("orders.split-3-1"),
        EventKind.FREEZE: Freeze("because"),
        EventKind.THAW: Thaw(),
    }
    yield from (event for kind, event in every.items() if (state.phase, kind) not in TRANSITIONS)
    yield from (
        Fence("other", "id"),
        Commit("other", ()),
        Abort("other", EndedBy.REQUEST, ""),
        Finish("other"),
    )
    yield Retire("orders.split-3-999")
    if state.attempt is not None:
        yield Prepare(state.attempt)
        yield Commit(attempt, ())


@given(histories())
def test_any_illegal_event_is_refused_and_leaves_the_state_as_it_was(history: History) -> None:
    state = history.last
    before = encode_state(state)
    for event in illegal(state):
        with pytest.raises(InvariantError):
            apply(state, event)
    assert encode_state(state) == before


@given(histories(), st.data())
def test_cuts_that_are_not_exactly_those_of_the_closing_segments_are_refused(
    history: History, data: st.DataObject
) -> None:
    for state in history.states:
        if state.phase is Phase.FENCED:
            commit = commit_of(state, lambda: 3)
            drop = data.draw(st.integers(0, len(commit.cuts) - 1))
            fewer = commit.cuts[:drop] + commit.cuts[drop + 1 :]
            for cuts in (fewer, (*commit.cuts, commit.cuts[drop])):
                with pytest.raises(InvariantError):
                    apply(state, Commit(commit.attempt_id, cuts))


@given(states())
def test_a_sub_topic_is_given_up_only_when_nothing_of_it_is_open(state: PartitionState) -> None:
    in_use = {s.source.topic for s in state.lineage if s.is_open}
    for subtopic in state.subtopics:
        if subtopic.state in (SubTopicState.SEALED, SubTopicState.RETIRED, SubTopicState.ABANDONED):
            assert subtopic.name not in in_use


@given(states())
def test_boundaries_tile_what_the_last_operation_closed_and_name_every_end_in_it(
    state: PartitionState,
) -> None:
    found = boundaries(state)
    if state.epoch == 0:
        return
    ends = {e.segment for b in found for e in b.ends}
    assert ends == {s.id for s in state.lineage if s.closed_epoch == state.epoch}
    for boundary in found:
        assert decode_boundary(boundary.encode()) == boundary


def test_random_histories_contain_every_kind_of_operation() -> None:
    seen: set[str] = set()

    @settings(max_examples=60, database=None, derandomize=True)
    @given(histories(least=25))
    def collect(history: History) -> None:
        for before, event in zip(history.states, history.events, strict=False):
            seen.add(event.kind)
            if isinstance(event, Commit) and before.attempt is not None:
                nested = before.lineage.get(before.attempt.sources[0]).kind
                seen.add(f"{before.attempt.kind} of {nested} into {before.attempt.target}")

    collect()
    assert seen >= set(EventKind)
    assert seen >= {
        "split of parent into phantoms",
        "split of phantom into phantoms",
        "merge of phantom into phantoms",
        "merge of phantom into parent",
    }
