"""Admin, event by event: what each makes of the state, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kpsplit.errors import InvariantError
from kpsplit.splitter.key_range import KEY_SPACE, WHOLE, KeyRange, ranges_between
from kpsplit.splitter.lineage import MAX_STRIDE, Progression, SegmentKind
from kpsplit.splitter.machine import MAX_REASON, apply
from kpsplit.splitter.partition_state import (
    Abort,
    Attempt,
    Commit,
    Cut,
    EndedBy,
    Event,
    Fence,
    Finish,
    Freeze,
    OperationKind,
    PartitionState,
    Phase,
    Prepare,
    Result,
    Retire,
    SubTopicState,
    Target,
    Thaw,
)
from tests.unit.samples import (
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
QUARTERS = WHOLE.split_evenly(4)
SPLIT = split_attempt(UNSPLIT, 0, QUARTERS)
MERGE = merge_attempt(LIFE.split, (2, 3, 4, 5), WHOLE)


def subtopic_states(state: PartitionState) -> list[SubTopicState]:
    return [t.state for t in state.subtopics]


def test_a_split_opens_an_overflow_behind_the_seal_and_a_phantom_per_range() -> None:
    opened = LIFE.split.lineage.segments[1:]
    assert [s.kind for s in opened] == [SegmentKind.OVERFLOW, *[SegmentKind.PHANTOM] * 4]
    assert [s.range for s in opened] == [WHOLE, *QUARTERS]
    assert [s.source for s in opened[1:]] == [phantom(i) for i in range(4)]
    assert all(s.predecessors == (0,) and s.opened_epoch == 1 for s in opened)


def test_the_cut_keeps_the_end_and_the_leader_epoch_of_the_marker() -> None:
    parent = LIFE.split.lineage.get(0)
    assert (parent.end, parent.end_leader_epoch, parent.closed_epoch) == (1000, 4, 1)


def test_records_are_held_only_while_the_fence_is_on() -> None:
    assert apply(UNSPLIT, Prepare(SPLIT)).fenced_segments() == ()
    assert fenced(UNSPLIT, SPLIT).fenced_segments() == (0,)
    assert committed(UNSPLIT, SPLIT, {0: 3}).fenced_segments() == ()


def test_a_roll_back_leaves_the_old_layout_and_an_abandoned_sub_topic() -> None:
    after = apply(fenced(UNSPLIT, SPLIT), Abort("s", EndedBy.TAKEOVER, "the operator was gone"))
    assert after.lineage == UNSPLIT.lineage
    assert after.phase is Phase.STEADY
    assert after.attempt is None
    assert subtopic_states(after) == [SubTopicState.ABANDONED]
    assert after.last is not None
    assert (after.last.result, after.last.ended_by) == (Result.ROLLED_BACK, EndedBy.TAKEOVER)


def test_the_name_of_an_abandoned_sub_topic_is_not_used_again() -> None:
    after = apply(fenced(UNSPLIT, SPLIT), Abort("s", EndedBy.OPERATOR, ""))
    assert after.next_split == 2
    with pytest.raises(InvariantError, match="used before"):
        apply(after, Prepare(replace(SPLIT, id="again")))


def test_a_merge_of_all_reopens_the_parent_behind_the_unseal_with_every_number_beyond_the_old_ones() -> None:
    reopened = LIFE.merged.lineage.segments[-1]
    assert reopened.kind is SegmentKind.PARENT
    assert (reopened.start, reopened.progression) == (1004, Progression(1089, 1))


def test_numbers_of_a_reopened_parent_are_never_below_kafkas_own_even_if_nothing_was_written() -> None:
    """Else a phantom of the next split could begin below the parent's log end."""
    merged = operated(LIFE.split, MERGE, {1: 1001, 2: 0, 3: 0, 4: 0, 5: 0})
    reopened = merged.lineage.segments[-1]
    assert reopened.progression.base >= reopened.start == 1002
    again = operated(merged, split_attempt(merged, reopened.id, QUARTERS, "t"), {reopened.id: 1500})
    assert all(s.logical(s.start) > 1500 for s in again.lineage.open_segments())


def test_a_merge_into_the_parent_closes_the_overflow_of_every_earlier_split() -> None:
    assert LIFE.nested.lineage.open_overflows() == tuple(LIFE.nested.lineage.get(i) for i in (1, 6))
    assert LIFE.merged.lineage.open_overflows() == ()


def test_a_merge_of_neighbours_opens_one_phantom_beyond_both_ends() -> None:
    both = KeyRange(0, 0x80000000)
    merged = operated(LIFE.split, merge_attempt(LIFE.split, (2, 3), both), {2: 8, 3: 5})
    new = merged.lineage.segments[-1]
    assert (new.kind, new.range, new.source, new.start) == (SegmentKind.PHANTOM, both, phantom(0, 2), 0)
    assert new.progression == Progression(1041, 5)
    assert new.predecessors == (2, 3)
    assert [s.id for s in merged.lineage.open_overflows()] == [1]


def test_a_merge_of_all_children_of_a_phantom_closes_that_phantoms_overflow_but_not_the_parents() -> None:
    third = LIFE.nested.lineage.get(4).range
    attempt = merge_attempt(LIFE.nested, (7, 8), third)
    merged = operated(LIFE.nested, attempt, {6: 11, 7: 3, 8: 2})
    assert [s.id for s in merged.lineage.open_overflows()] == [1]
    assert merged.lineage.segments[-1].predecessors == (6, 7, 8)


def test_a_merge_across_a_nested_splits_edge_leaves_its_overflow_open() -> None:
    attempt = merge_attempt(LIFE.nested, (8, 5), KeyRange(0xA0000000, KEY_SPACE))
    merged = operated(LIFE.nested, attempt, {5: 1, 8: 2})
    assert [s.id for s in merged.lineage.open_overflows()] == [1, 6]


def test_a_single_phantom_of_the_whole_key_space_can_be_merged_back_into_the_parent() -> None:
    one = operated(
        LIFE.split,
        merge_attempt(LIFE.split, (2, 3, 4, 5), KeyRange(0, KEY_SPACE), "one"),
        {
            1: 1001,
            2: 1,
            3: 1,
            4: 1,
            5: 1,
        },
    )
    assert one.lineage.segments[-1].kind is SegmentKind.PARENT
    into_phantom = replace(
        merge_attempt(LIFE.split, (2, 3, 4, 5), WHOLE, "p"),
        target=Target.PHANTOMS,
        subtopic="orders.split-3-2",
    )
    single = operated(LIFE.split, into_phantom, {2: 1, 3: 1, 4: 1, 5: 1})
    back = operated(single, merge_attempt(single, (6,), WHOLE), {1: 1001, 6: 0})
    assert [s.kind for s in back.lineage.open_segments()] == [SegmentKind.PARENT]


def test_a_sub_topic_is_sealed_when_its_last_segment_closes_and_only_then_retired() -> None:
    assert subtopic_states(LIFE.nested) == [SubTopicState.ACTIVE, SubTopicState.ACTIVE]
    assert subtopic_states(LIFE.merged) == [SubTopicState.SEALED, SubTopicState.SEALED]
    with pytest.raises(InvariantError):
        apply(LIFE.nested, Retire("orders.split-3-1"))
    retired = apply(LIFE.merged, Retire("orders.split-3-1"))
    assert subtopic_states(retired) == [SubTopicState.RETIRED, SubTopicState.SEALED]
    with pytest.raises(InvariantError):
        apply(retired, Retire("orders.split-3-1"))


def test_the_sub_topics_to_seal_are_known_between_commit_and_finish() -> None:
    state = committed(LIFE.split, MERGE, {1: 1001, 2: 0, 3: 0, 4: 0, 5: 0})
    assert [t.name for t in state.to_seal()] == ["orders.split-3-1"]


def test_a_partition_frozen_behind_its_commit_point_can_still_retire_its_sub_topics_later() -> None:
    state = committed(LIFE.split, MERGE, {1: 1001, 2: 0, 3: 0, 4: 0, 5: 0})
    frozen = apply(state, Freeze("no right to alter the topic"))
    assert (frozen.phase, frozen.frozen_reason) == (Phase.FROZEN, "no right to alter the topic")
    thawed = apply(frozen, Thaw())
    assert (thawed.phase, thawed.frozen_reason, thawed.attempt) == (Phase.STEADY, None, None)
    assert subtopic_states(apply(thawed, Retire("orders.split-3-1"))) == [SubTopicState.RETIRED]


@pytest.mark.parametrize("reason", ["x" * 100_000, "half a character: \ud800"])
def test_no_reason_is_too_long_or_too_odd_to_be_recorded(reason: str) -> None:
    aborted = apply(fenced(UNSPLIT, SPLIT), Abort("s", EndedBy.OPERATOR, reason))
    frozen = apply(UNSPLIT, Freeze(reason))
    assert aborted.last is not None
    for text in (aborted.last.reason, frozen.frozen_reason):
        assert text is not None
        assert len(text.encode()) <= MAX_REASON


def halves(lo: int, middle: int, hi: int) -> tuple[KeyRange, ...]:
    return ranges_between([lo, middle, hi])


NO_ATTEMPTS: dict[str, tuple[PartitionState, Attempt]] = {
    "a segment that is not there": (UNSPLIT, replace(SPLIT, sources=(9,))),
    "no segment": (UNSPLIT, replace(SPLIT, sources=())),
    "no range": (UNSPLIT, replace(SPLIT, ranges=())),
    "the same segment twice": (UNSPLIT, replace(SPLIT, sources=(0, 0))),
    "a closed segment": (LIFE.split, replace(split_attempt(LIFE.split, 0, QUARTERS))),
    "an overflow": (LIFE.split, split_attempt(LIFE.split, 1, QUARTERS)),
    "a hole in the new ranges": (UNSPLIT, replace(SPLIT, ranges=QUARTERS[:3])),
    "new ranges that overlap": (UNSPLIT, replace(SPLIT, ranges=(*QUARTERS, QUARTERS[3]))),
    "new ranges in falling order": (UNSPLIT, replace(SPLIT, ranges=QUARTERS[::-1])),
    "a split into one": (UNSPLIT, replace(SPLIT, ranges=(WHOLE,))),
    "a split into 65": (UNSPLIT, replace(SPLIT, ranges=WHOLE.split_evenly(65))),
    "a split into the parent": (UNSPLIT, replace(SPLIT, target=Target.PARENT, subtopic=None)),
    "a split of two segments": (
        LIFE.split,
        replace(split_attempt(LIFE.split, 2, halves(0, 5, 0x80000000)), sources=(2, 3)),
    ),
    "a split without a sub-topic": (UNSPLIT, replace(SPLIT, subtopic=None)),
    "a split into the parent's own topic": (UNSPLIT, replace(SPLIT, subtopic="orders")),
    "a merge of segments that are no neighbours": (LIFE.split, merge_attempt(LIFE.split, (2, 4), WHOLE)),
    "a merge of one into a phantom": (LIFE.split, merge_attempt(LIFE.split, (2,), QUARTERS[0])),
    "a merge into two": (
        LIFE.split,
        replace(merge_attempt(LIFE.split, (2, 3), QUARTERS[0]), ranges=halves(0, 5, 0x80000000)),
    ),
    "a merge of a part into the parent": (
        LIFE.split,
        replace(
            merge_attempt(LIFE.split, (2, 3), KeyRange(0, 0x80000000)), target=Target.PARENT, subtopic=None
        ),
    ),
    "a merge of what was never split": (UNSPLIT, merge_attempt(UNSPLIT, (0,), WHOLE)),
    "a merge into the parent with a sub-topic": (LIFE.split, replace(MERGE, subtopic="orders.split-3-2")),
}


@pytest.mark.parametrize("name", NO_ATTEMPTS)
def test_what_could_never_be_committed_is_not_even_begun(name: str) -> None:
    state, attempt = NO_ATTEMPTS[name]
    with pytest.raises(InvariantError):
        apply(state, Prepare(attempt))


def test_a_split_that_would_leave_no_room_for_logical_offsets_is_refused_before_the_fence() -> None:
    state = UNSPLIT
    with pytest.raises(InvariantError, match="too often"):
        for depth in range(8):
            segment = state.lineage.segments[-1]
            assert segment.progression.stride <= MAX_STRIDE
            lo, hi = segment.range.lo, segment.range.hi
            narrow = ranges_between([*range(lo, lo + 64), hi])
            attempt = split_attempt(state, segment.id, narrow, f"d{depth}")
            state = operated(state, attempt, {segment.id: segment.start + 1000})
    assert state.epoch == 5


FENCED = fenced(LIFE.split, MERGE)
COMMITTED = committed(LIFE.split, MERGE, {1: 1001, 2: 0, 3: 0, 4: 0, 5: 0})
ENDS = (Cut(1, 1001), Cut(2, 0), Cut(3, 0), Cut(4, 0), Cut(5, 0))

NO_EVENTS: dict[str, tuple[PartitionState, Event]] = {
    "a second attempt beside one under way": (FENCED, Prepare(MERGE)),
    "the fence of another attempt": (apply(UNSPLIT, Prepare(SPLIT)), Fence("other", "id")),
    "a fence that does not name the sub-topic": (apply(UNSPLIT, Prepare(SPLIT)), Fence("s", None)),
    "a fence with a sub-topic where there is none": (apply(LIFE.split, Prepare(MERGE)), Fence("m", "id")),
    "the cuts of another attempt": (FENCED, Commit("other", ENDS)),
    "a cut missing": (FENCED, Commit("m", ENDS[1:])),
    "a cut too many": (FENCED, Commit("m", (*ENDS, Cut(0, 1000)))),
    "a cut twice": (FENCED, Commit("m", (*ENDS, ENDS[0]))),
    "a cut before the start": (FENCED, Commit("m", (Cut(1, 1000), *ENDS[1:]))),
    "a negative cut": (FENCED, Commit("m", (*ENDS[:4], Cut(5, -1)))),
    "a commit without a fence": (apply(LIFE.split, Prepare(MERGE)), Commit("m", ENDS)),
    "the end of another attempt": (COMMITTED, Finish("other")),
    "a roll-back behind the commit point": (COMMITTED, Abort("m", EndedBy.OPERATOR, "")),
    "a roll-back of another attempt": (FENCED, Abort("other", EndedBy.TAKEOVER, "")),
    "a roll-back of nothing": (UNSPLIT, Abort("s", EndedBy.OPERATOR, "")),
    "the retirement of an unknown sub-topic": (LIFE.merged, Retire("orders.split-3-9")),
    "the retirement of a sub-topic in use": (LIFE.split, Retire("orders.split-3-1")),
    "a thaw of what is not frozen": (UNSPLIT, Thaw()),
    "an attempt on a frozen partition": (apply(UNSPLIT, Freeze("truncated")), Prepare(SPLIT)),
    "a freeze in the fence, which would hold writers for ever": (FENCED, Freeze("truncated")),
}


@pytest.mark.parametrize("name", NO_EVENTS)
def test_an_illegal_event_is_refused_and_leaves_the_state_as_it_was(name: str) -> None:
    state, event = NO_EVENTS[name]
    before = replace(state)
    with pytest.raises(InvariantError):
        apply(state, event)
    assert state == before


def test_progress_of_one_attempt_never_counts_for_another() -> None:
    first = apply(fenced(UNSPLIT, SPLIT), Abort("s", EndedBy.OPERATOR, ""))
    second = fenced(first, split_attempt(first, 0, QUARTERS, "second"))
    with pytest.raises(InvariantError, match="not under way"):
        apply(second, Commit("s", (Cut(0, 10),)))


def test_what_users_call_split_and_merge_is_one_machine() -> None:
    assert {SPLIT.kind, MERGE.kind} == set(OperationKind)
    assert fenced(UNSPLIT, SPLIT).phase is FENCED.phase is Phase.FENCED
