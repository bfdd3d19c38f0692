"""State changes only by applying events, so replaying the log is the recovery (protocol, sections 5 to 8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kpsplit.errors import InvariantError
from kpsplit.splitter.key_range import MAX_RANGES, MIN_RANGES, WHOLE, KeyRange, union_of_adjacent
from kpsplit.splitter.lineage import (
    MAX_STRIDE,
    Lineage,
    PhysicalPartition,
    Progression,
    Segment,
    SegmentKind,
    merged_progression,
)
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
    Outcome,
    PartitionState,
    Prepare,
    Result,
    Retire,
    SubTopic,
    SubTopicState,
    Target,
    Thaw,
    next_phase,
)

MAX_REASON = 2000
"""Longer reasons of an abort or a freeze are cut off."""


def apply(state: PartitionState, event: Event) -> PartitionState:
    """Return the state after an event.

    Raises:
        InvariantError: the event is illegal in this state or contradicts it; nothing may be recorded then.
    """
    phase = next_phase(state.phase, event.kind)
    after = replace(_changed(state, event), phase=phase, revision=state.revision + 1)
    after.lineage.check()
    return after


def _changed(state: PartitionState, event: Event) -> PartitionState:
    match event:
        case Prepare(attempt):
            return _prepared(state, attempt)
        case Fence(attempt_id, topic_id):
            return _fenced(state, _current(state, attempt_id), topic_id)
        case Commit(attempt_id, cuts):
            return _committed(state, _current(state, attempt_id), cuts)
        case Abort(attempt_id, ended_by, reason):
            return _aborted(state, _current(state, attempt_id), ended_by, reason)
        case Finish(attempt_id):
            _current(state, attempt_id)
            return replace(state, attempt=None, subtopics=_with_emptied_sealed(state))
        case Retire(name):
            return _retired(state, name)
        case Freeze(reason):
            return replace(state, frozen_reason=_short(reason))
        case Thaw():
            return replace(state, attempt=None, frozen_reason=None, subtopics=_with_emptied_sealed(state))


def _current(state: PartitionState, attempt_id: str) -> Attempt:
    if state.attempt is None or state.attempt.id != attempt_id:
        raise InvariantError(f"{state.parent}: attempt {attempt_id} is not under way")
    return state.attempt


def _prepared(state: PartitionState, attempt: Attempt) -> PartitionState:
    sources = [state.lineage.get(i) for i in attempt.sources]
    if not all(s.accepts_keys for s in sources):
        raise InvariantError(f"{state.parent}: a segment to be closed is not open")
    closing, opening = union_of_adjacent(s.range for s in sources), union_of_adjacent(attempt.ranges)
    if closing is None or closing != opening:
        raise InvariantError(f"{state.parent}: the new ranges do not tile the old ones")
    if not _well_formed(attempt, sources):
        raise InvariantError(
            f"{state.parent}: {attempt.kind} of these segments into these ranges is no operation"
        )
    stride = sources[0].progression.stride * (len(attempt.ranges) + 1)
    if attempt.kind is OperationKind.SPLIT and stride > MAX_STRIDE:
        raise InvariantError(f"{state.parent}: segment {sources[0].id} was split too often to be split again")
    if (attempt.subtopic is None) != (attempt.target is Target.PARENT):
        raise InvariantError(f"{state.parent}: an attempt has a sub-topic unless it goes back to the parent")
    if attempt.subtopic is None:
        return replace(state, attempt=attempt)
    if state.subtopic(attempt.subtopic) or attempt.subtopic == state.parent.topic:
        raise InvariantError(f"{state.parent}: sub-topic {attempt.subtopic} was used before")
    created = SubTopic(attempt.subtopic, state.next_split, len(attempt.ranges), SubTopicState.PREPARED)
    return replace(
        state, attempt=attempt, next_split=state.next_split + 1, subtopics=(*state.subtopics, created)
    )


def _well_formed(attempt: Attempt, sources: list[Segment]) -> bool:
    """Return whether an attempt has one of the three shapes that can be committed; no other is begun."""
    ranges = len(attempt.ranges)
    if list(attempt.ranges) != sorted(attempt.ranges):
        return False
    if attempt.kind is OperationKind.SPLIT:
        return attempt.target is Target.PHANTOMS and len(sources) == 1 and MIN_RANGES <= ranges <= MAX_RANGES
    if attempt.target is Target.PARENT:
        unsplit = any(s.kind is SegmentKind.PARENT for s in sources)
        return attempt.ranges == (WHOLE,) and not unsplit
    return ranges == 1 and len(sources) > 1


def _fenced(state: PartitionState, attempt: Attempt, topic_id: str | None) -> PartitionState:
    if (topic_id is None) != (attempt.subtopic is None):
        raise InvariantError(f"{state.parent}: the fence must name the id of the sub-topic, if there is one")
    return replace(state, subtopics=_subtopics(state, attempt.subtopic, topic_id=topic_id))


def _subtopics(of: PartitionState, name: str | None, **changes: Any) -> tuple[SubTopic, ...]:
    """Return the sub-topics with changes to the one of a name."""
    return tuple(replace(t, **changes) if t.name == name else t for t in of.subtopics)


def _committed(state: PartitionState, attempt: Attempt, cuts: tuple[Cut, ...]) -> PartitionState:
    ids = state.closing_segments()
    if sorted(c.segment for c in cuts) != sorted(ids):
        raise InvariantError(f"{state.parent}: the cuts are not those of the segments that close")
    epoch = state.epoch + 1
    closed = state.lineage.closing(((c.segment, c.offset, c.leader_epoch) for c in cuts), epoch)
    opened = _opened(closed, attempt, ids, epoch)
    subtopics = _subtopics(state, attempt.subtopic, state=SubTopicState.ACTIVE)
    outcome = Outcome(attempt, Result.COMMITTED, EndedBy.OPERATOR, "")
    return replace(state, epoch=epoch, lineage=closed.opening(opened), subtopics=subtopics, last=outcome)


def _opened(closed: Lineage, attempt: Attempt, ids: tuple[int, ...], epoch: int) -> list[Segment]:
    if attempt.target is Target.PARENT:
        return [_reopened_parent(closed, attempt, ids, epoch)]
    if attempt.kind is OperationKind.SPLIT:
        return _heirs(closed, attempt, epoch)
    return [_merged_phantom(closed, attempt, ids, epoch)]


def _heirs(closed: Lineage, attempt: Attempt, epoch: int) -> list[Segment]:
    source = closed.get(attempt.sources[0])
    numbers = source.progression.heirs(source.length(), len(attempt.ranges) + 1)
    first_id = closed.segments[-1].id + 1
    overflow = Segment(
        id=first_id,
        kind=SegmentKind.OVERFLOW,
        range=source.range,
        source=source.source,
        start=source.start + source.length() + 1,
        progression=numbers[0],
        opened_epoch=epoch,
        predecessors=(source.id,),
    )
    phantoms = [
        _phantom(attempt, j, first_id + 1 + j, range_, numbers[j + 1], epoch, (source.id,))
        for j, range_ in enumerate(attempt.ranges)
    ]
    return [overflow, *phantoms]


def _merged_phantom(closed: Lineage, attempt: Attempt, ids: tuple[int, ...], epoch: int) -> Segment:
    parts = [closed.get(i) for i in ids]
    numbers = merged_progression((p.progression, p.length()) for p in parts)
    next_id = closed.segments[-1].id + 1
    return _phantom(attempt, 0, next_id, attempt.ranges[0], numbers, epoch, tuple(sorted(ids)))


def _phantom(
    attempt: Attempt,
    index: int,
    segment_id: int,
    range_: KeyRange,
    numbers: Progression,
    epoch: int,
    predecessors: tuple[int, ...],
) -> Segment:
    if attempt.subtopic is None:
        raise InvariantError("phantoms need a sub-topic")
    return Segment(
        id=segment_id,
        kind=SegmentKind.PHANTOM,
        range=range_,
        source=PhysicalPartition(attempt.subtopic, index),
        start=0,
        progression=numbers,
        opened_epoch=epoch,
        predecessors=predecessors,
    )


def _reopened_parent(closed: Lineage, attempt: Attempt, ids: tuple[int, ...], epoch: int) -> Segment:
    """Return the segment after the UNSEAL, numbered beyond all that went before and never below Kafka's own.

    The latter matters when the phantoms stayed almost empty: markers use up physical offsets but no logical
    ones, and a later split must again begin beyond the parent's log end, in Kafka's numbers too.
    """
    ends = [s.end for s in closed if s.id in ids and s.source == closed.parent]
    if len(ends) != 1 or ends[0] is None:
        raise InvariantError(f"{closed.parent}: no open segment of the parent ends at the UNSEAL")
    return Segment(
        id=closed.segments[-1].id + 1,
        kind=SegmentKind.PARENT,
        range=attempt.ranges[0],
        source=closed.parent,
        start=ends[0] + 1,
        progression=Progression(max(closed.next_logical(), ends[0] + 1), 1),
        opened_epoch=epoch,
        predecessors=tuple(sorted(ids)),
    )


def _aborted(state: PartitionState, attempt: Attempt, ended_by: EndedBy, reason: str) -> PartitionState:
    subtopics = _subtopics(state, attempt.subtopic, state=SubTopicState.ABANDONED)
    outcome = Outcome(attempt, Result.ROLLED_BACK, ended_by, _short(reason))
    return replace(state, attempt=None, last=outcome, subtopics=subtopics)


def _with_emptied_sealed(state: PartitionState) -> tuple[SubTopic, ...]:
    emptied = {t.name for t in state.to_seal()}
    return tuple(replace(t, state=SubTopicState.SEALED) if t.name in emptied else t for t in state.subtopics)


def _retired(state: PartitionState, name: str) -> PartitionState:
    subtopic = state.subtopic(name)
    if subtopic is None or subtopic.state not in (SubTopicState.SEALED, SubTopicState.ABANDONED):
        raise InvariantError(f"{state.parent}: {name} is not a sealed or abandoned sub-topic")
    return replace(state, subtopics=_subtopics(state, name, state=SubTopicState.RETIRED))


def _short(reason: str) -> str:
    """Make any reason (an error's text, say) fit a control record: recording it must not fail."""
    return reason.encode("utf-8", "replace").decode()[:MAX_REASON]
