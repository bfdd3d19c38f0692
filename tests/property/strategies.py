"""Hypothesis strategies: states of a logical partition that random, valid sequences of events reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from kpsplit.splitter.key_range import KEY_SPACE, WHOLE, KeyRange, ranges_between
from kpsplit.splitter.lineage import MAX_STRIDE, PhysicalPartition, Segment, SegmentKind
from kpsplit.splitter.machine import apply
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
    Retire,
    SubTopicState,
    Target,
    Thaw,
)
from kpsplit.splitter.records.keys import subtopic_name

PARENT = PhysicalPartition("orders", 3)
MAX_EVENTS = 30

hashes = st.integers(0, KEY_SPACE - 1)
counts = st.integers(0, 6) | st.just(1000)


@st.composite
def key_ranges(draw: st.DrawFn) -> KeyRange:
    """Any range of the key space."""
    lo = draw(st.integers(0, KEY_SPACE - 1))
    return KeyRange(lo, draw(st.integers(lo + 1, KEY_SPACE)))


@st.composite
def tilings(draw: st.DrawFn, whole: KeyRange = WHOLE, most: int = 5) -> tuple[KeyRange, ...]:
    """Two or more ranges that tile ``whole``, in rising order."""
    inner = st.integers(whole.lo + 1, whole.hi - 1)
    cuts = draw(st.sets(inner, min_size=1, max_size=min(most - 1, whole.width - 1)))
    return ranges_between([whole.lo, *sorted(cuts), whole.hi])


@dataclass(frozen=True, slots=True)
class History:
    """A run of the machine: ``states[i + 1]`` is ``states[i]`` after ``events[i]``."""

    states: tuple[PartitionState, ...]
    events: tuple[Event, ...]

    @property
    def last(self) -> PartitionState:
        """The state at the end."""
        return self.states[-1]


def attempt_of(
    state: PartitionState,
    kind: OperationKind,
    sources: tuple[int, ...],
    ranges: tuple[KeyRange, ...],
    target: Target = Target.PHANTOMS,
) -> Attempt:
    """An attempt as an operator would make it in this state."""
    subtopic = subtopic_name(state.parent, state.next_split) if target is Target.PHANTOMS else None
    return Attempt(
        id=f"attempt-{state.revision}",
        kind=kind,
        operator="somebody@somewhere",
        started_ms=1_700_000_000_000,
        sources=sources,
        ranges=ranges,
        target=target,
        subtopic=subtopic,
        max_pause_ms=2000,
    )


def _union(segments: list[Segment]) -> KeyRange:
    return KeyRange(segments[0].range.lo, segments[-1].range.hi)


@st.composite
def _splits(draw: st.DrawFn, state: PartitionState) -> Event:
    can = [
        s
        for s in state.lineage.open_segments()
        if s.range.width > 5 and s.progression.stride < MAX_STRIDE // 8
    ]
    source = draw(st.sampled_from(can))
    return Prepare(attempt_of(state, OperationKind.SPLIT, (source.id,), draw(tilings(source.range))))


@st.composite
def _partial_merges(draw: st.DrawFn, state: PartitionState) -> Event:
    layout = list(state.lineage.open_segments())
    first = draw(st.integers(0, len(layout) - 2))
    chosen = layout[first : draw(st.integers(first + 2, len(layout)))]
    ids = tuple(s.id for s in chosen)
    return Prepare(attempt_of(state, OperationKind.MERGE, ids, (_union(chosen),)))


def merge_of_all(state: PartitionState) -> Prepare:
    """The merge of everything back into the parent."""
    ids = tuple(s.id for s in state.lineage.open_segments())
    return Prepare(attempt_of(state, OperationKind.MERGE, ids, (WHOLE,), Target.PARENT))


def commit_of(state: PartitionState, length: Callable[[], int]) -> Commit:
    """A commit whose segments end after ``length()`` records each."""
    assert state.attempt is not None
    ids = state.closing_segments()
    cuts = tuple(Cut(i, state.lineage.get(i).start + length(), 7) for i in ids)
    return Commit(state.attempt.id, cuts)


@st.composite
def _steady(draw: st.DrawFn, state: PartitionState) -> Event:
    layout = state.lineage.open_segments()
    choices: list[st.SearchStrategy[Event]] = [_splits(state)] * 4
    if layout[0].kind is not SegmentKind.PARENT:
        choices.append(st.just(merge_of_all(state)))
    if len(layout) > 1:
        choices += [_partial_merges(state)] * 3
    choices.append(st.just(Freeze("the log is truncated")))
    removable = [
        t.name for t in state.subtopics if t.state in (SubTopicState.SEALED, SubTopicState.ABANDONED)
    ]
    if removable:
        choices.append(st.sampled_from(removable).map(Retire))
    return draw(draw(st.sampled_from(choices)))


@st.composite
def next_events(draw: st.DrawFn, state: PartitionState) -> Event:
    """Any event that is legal in a state; progress is likelier than a roll-back."""
    if state.phase is Phase.STEADY:
        return draw(_steady(state))
    if state.phase is Phase.FROZEN:
        return Thaw()
    assert state.attempt is not None
    attempt = state.attempt.id
    if state.phase is Phase.COMMITTED:
        behind: list[Event] = [Finish(attempt), Finish(attempt), Freeze("no right to seal")]
        return draw(st.sampled_from(behind))
    if draw(st.integers(0, 9)) == 9:
        return Abort(attempt, draw(st.sampled_from(EndedBy)), draw(st.text(max_size=20)))
    if state.phase is Phase.PREPARING:
        return Fence(attempt, None if state.attempt.subtopic is None else "topic-id")
    return commit_of(state, lambda: draw(counts))


@st.composite
def histories(draw: st.DrawFn, least: int = 0, most: int = MAX_EVENTS) -> History:
    """Splits, nested splits, partial merges, merges into the parent, aborts, takeovers, retirements."""
    states, events = [PartitionState.unsplit(PARENT, "topic-id-of-orders")], []
    for _ in range(draw(st.integers(least, most))):
        event = draw(next_events(states[-1]))
        events.append(event)
        states.append(apply(states[-1], event))
    return History(tuple(states), tuple(events))


def states() -> st.SearchStrategy[PartitionState]:
    """Any state that is reachable."""
    return histories().map(lambda history: history.last)
