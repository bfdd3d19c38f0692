"""Makes plans: which segments, which ranges, what the sample predicts, which checks hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kpsplit.clock import Deadline, wall_ms
from kpsplit.control.facts import FactsGatherer
from kpsplit.control.plans import (
    LONGEST_LABEL,
    WRITERS,
    Check,
    Drain,
    HotKey,
    Plan,
    Sample,
    new_attempt_id,
    partitioner_check,
    sample_partition,
    shortened,
    under_way,
    writers_check,
)
from kpsplit.control.preconditions import LOG_WHOLE, Facts, checks, refusal
from kpsplit.control.session import ClusterSession
from kpsplit.control.status import Remaining, look_twice
from kpsplit.errors import ConflictError, InvariantError, KpsplitError, UsageError, many
from kpsplit.kafka.groups import Positions, committed_positions
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.key_range import (
    WHOLE,
    KeyRange,
    Sizing,
    assess,
    balanced,
    even_ranges,
    union_of_adjacent,
)
from kpsplit.splitter.lineage import PhysicalPartition, Segment, SegmentKind
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Attempt,
    OperationKind,
    PartitionState,
    Phase,
    Prepare,
    Target,
)
from kpsplit.splitter.records.keys import subtopic_name
from kpsplit.splitter.steps import numbered


def left_to_read(facts: Facts, positions: Mapping[str, Positions]) -> dict[str, int]:
    closing = [(s, facts.logs[s.source]) for s in facts.closing if s.source in facts.logs]
    places = {s.source for s, _ in closing}
    left = {}
    for group, known in positions.items():
        if any(place.topic == facts.parent.topic or place in places for place in known):
            left[group] = sum(
                max(0, (log.end or 0) - max(known.get(s.source, 0), log.start or 0, s.start))
                for s, log in closing
            )
    return left


def drains_of(left: Mapping[str, Remaining]) -> tuple[Drain, ...]:
    """Return the drains of groups, the longest first."""
    found = (Drain(group, one.offsets, one.seconds) for group, one in left.items())
    return tuple(sorted(found, key=lambda d: (d.seconds is not None, -(d.seconds or 0), -d.left, d.group)))


_PRECISION = 6
_SAMPLED = ("partitioner", WRITERS, "useful")
"""The checks that the sample decides; the others look at the cluster as it is."""


class Planner:
    """Makes plans. Not thread safe."""

    def __init__(self, session: ClusterSession) -> None:
        self._session = session
        self._admin = session.admin
        self._facts = FactsGatherer(session.admin)

    def split(
        self,
        parent: PhysicalPartition,
        parts: int,
        of: KeyRange | None,
        even: bool,
        sample: int,
        known: Sizing | None,
    ) -> Plan:
        deadline = self._session.begin()
        view = self._session.read(deadline)
        even_ranges(WHOLE, parts)  # refuses a wrong number of ranges before anything else is asked
        state, count = self._state(parent, view, OperationKind.SPLIT, deadline)
        segment = segment_to_split(state, of)
        logical = parent.partition, count
        home = state.home(segment.source)
        seen = sample_partition(self._admin, segment.source, sample, logical, deadline, home)
        sized = _sized(seen, segment.range, parts, even) if known is None else _fitting(known, segment)
        attempt = _draft(state, OperationKind.SPLIT, (segment.id,), sized.ranges, Target.PHANTOMS)
        partitioner = partitioner_check(seen, view.enrolments[parent.topic].partitioner, count)
        sampled = partitioner, writers_check(seen), _useful(sized)
        return self._plan(view, attempt, state, deadline, sampled, sized)

    def merge(self, parent: PhysicalPartition, range_: KeyRange | None) -> Plan:
        deadline = self._session.begin()
        view = self._session.read(deadline)
        state, _ = self._state(parent, view, OperationKind.MERGE, deadline)
        merged = segments_to_merge(state, range_)
        ranges = (KeyRange(merged[0].range.lo, merged[-1].range.hi),)
        target = Target.PARENT if ranges == (WHOLE,) else Target.PHANTOMS
        sources = tuple(s.id for s in merged)
        attempt = _draft(state, OperationKind.MERGE, sources, ranges, target)
        return self._plan(view, attempt, state, deadline, (), None)

    def failed_now(self, plan: Plan, view: ControlView, force: bool, deadline: Deadline) -> Check | None:
        """Check a plan again, all but its sample; return the gravest check that forbids running it."""
        sampled = tuple(c for c in plan.checks if c.name in _SAMPLED)
        state, _ = self._state(plan.parent, view, plan.kind, deadline)
        attempt = _draft(state, plan.kind, plan.sources, plan.ranges, plan.target)
        return self._gravest(plan.parent, view, attempt, deadline, sampled, force)

    def forbidden_now(
        self, parent: PhysicalPartition, attempt: Attempt, view: ControlView, deadline: Deadline
    ) -> Check | None:
        """Check an attempt that is to begin anew; return the gravest check that nothing passes over."""
        self._state(parent, view, attempt.kind, deadline)
        return self._gravest(parent, view, attempt, deadline, (), force=True)

    def _gravest(
        self,
        parent: PhysicalPartition,
        view: ControlView,
        attempt: Attempt,
        deadline: Deadline,
        sampled: tuple[Check, ...],
        force: bool,
    ) -> Check | None:
        facts = self._facts.gather(parent, view, attempt, attempt.kind, deadline)
        failed = [c for c in (*checks(facts), *sampled) if not c.ok and not (force and c.forceable)]
        return next((c for c in failed if c.name == LOG_WHOLE), failed[0] if failed else None)

    def _state(
        self, parent: PhysicalPartition, view: ControlView, kind: OperationKind, deadline: Deadline
    ) -> tuple[PartitionState, int]:
        """Return the state, and the topic's partition count; or refuse what cannot even be planned."""
        facts = self._facts.gather(parent, view, None, kind, deadline)
        for check in checks(facts):
            if not check.ok and check.name == "enrolled":
                raise view.not_enrolled(parent.topic)
            if not check.ok and check.name in ("topic", "partition", "same topic"):
                raise refusal(check)
        if facts.state is None or facts.topic is None:
            raise view.not_enrolled(parent.topic)
        return facts.state, len(facts.topic.partitions)

    def _plan(
        self,
        view: ControlView,
        attempt: Attempt,
        state: PartitionState,
        deadline: Deadline,
        sampled: tuple[Check, ...],
        sized: Sizing | None,
    ) -> Plan:
        parent = state.parent
        facts = self._facts.gather(parent, view, attempt, attempt.kind, deadline)
        samples = sized.samples if sized else 0
        drains: tuple[Drain, ...] = ()
        note = sized.reason if sized else ""
        if attempt.kind is OperationKind.MERGE:
            drains, note = self._draining(facts, deadline)
        return Plan(
            parent=parent,
            kind=attempt.kind,
            epoch=state.epoch,
            topic_id=state.topic_id,
            sources=attempt.sources,
            ranges=attempt.ranges,
            target=attempt.target,
            subtopic=attempt.subtopic,
            shares=tuple(round(s, _PRECISION) for s in sized.shares) if sized and samples else None,
            heaviest=_hot_keys(sized) if sized else (),
            sampled=samples,
            useful=sized.useful if sized else True,
            note=shortened(note),
            checks=(*checks(facts), *sampled),
            made_ms=wall_ms(),
            drains=drains,
        )

    def _draining(self, facts: Facts, deadline: Deadline) -> tuple[tuple[Drain, ...], str]:
        """Return how much groups have to read before they go on with what the merge opens, and a note."""
        places = {s.source for s in facts.closing}
        text = f"closes {many(len(facts.closing), 'segment')} in {many(len(places), 'partition')}"
        try:
            drains = drains_of(
                look_twice(lambda: left_to_read(facts, committed_positions(self._admin, deadline)), deadline)
            )
        except KpsplitError as error:
            return (), f"{text}; how far groups have read is not known ({error.message})"
        if not drains:
            return (), f"{text}; no group has committed positions there"
        longest = drains[0]
        return drains, (
            f"{text}; {many(len(drains), 'group')} to drain them first, "
            f"{longest.group} has {many(longest.left, 'record')} to read"
        )


def segment_to_split(state: PartitionState, of: KeyRange | None) -> Segment:
    """Return the open segment that is to be split.

    Raises:
        UsageError: none has exactly this range, or none is named and there are several.
    """
    layout = state.lineage.open_segments()
    if of is None and len(layout) == 1:
        return layout[0]
    known = " or ".join(f"--of {s.range.lo:08x}:{s.range.hi:08x}" for s in layout[:8])
    known += " or …" if len(layout) > 8 else ""
    if of is None:
        raise UsageError(
            f"{state.parent} is split already, into {many(len(layout), 'range')}",
            hint=f"name the range to split again: {known}",
        )
    for segment in layout:
        if segment.range == of:
            return segment
    raise UsageError(f"{state.parent} has no open range {of}", hint=f"name one: {known}")


def segments_to_merge(state: PartitionState, range_: KeyRange | None) -> Sequence[Segment]:
    """Return the open segments that are to be merged, in the order of their ranges.

    Raises:
        UsageError: there is nothing to merge, or the range does not begin and end where open ranges do.
    """
    layout = state.lineage.open_segments()
    if any(s.kind is SegmentKind.PARENT for s in layout):
        raise UsageError(f"{state.parent} is not split", hint="there is nothing to merge")
    if range_ is None:
        return layout
    chosen = [s for s in layout if range_.covers(s.range)]
    if union_of_adjacent(s.range for s in chosen) != range_:
        known = ", ".join(str(s.range) for s in layout[:8]) + (", …" if len(layout) > 8 else "")
        raise UsageError(
            f"{range_} does not begin and end where open ranges of {state.parent} do",
            hint=f"these are {known}",
        )
    if len(chosen) < 2 and range_ != WHOLE:
        raise UsageError(f"{range_} is one open range already", hint="name at least two adjacent ones")
    return chosen


def _draft(
    state: PartitionState,
    kind: OperationKind,
    sources: tuple[int, ...],
    ranges: tuple[KeyRange, ...],
    target: Target,
) -> Attempt:
    name = subtopic_name(state.parent, state.next_split) if target is Target.PHANTOMS else None
    return Attempt(new_attempt_id(), kind, "", wall_ms(), sources, ranges, target, name, 1)


def _sized(seen: Sample, whole: KeyRange, parts: int, even: bool) -> Sizing:
    if even:
        return assess(seen.points, even_ranges(whole, parts), seen.labels)
    return balanced(seen.points, whole, parts, seen.labels)


def _fitting(known: Sizing, segment: Segment) -> Sizing:
    if union_of_adjacent(known.ranges) != segment.range:
        raise ConflictError(
            f"the ranges were made for another range than {segment.range}, which is split", hint="plan again"
        )
    return known


def _useful(sized: Sizing) -> Check:
    if sized.useful:
        return Check("useful", True, sized.reason or "every range gets its part of the load", forceable=True)
    remedy = "one key stays in one range; split anyway with --force"
    return Check("useful", False, sized.reason, remedy, forceable=True)


def _hot_keys(sized: Sizing) -> tuple[HotKey, ...]:
    return tuple(
        HotKey(h.hash, round(h.share, _PRECISION), shortened(h.label or "", LONGEST_LABEL))
        for h in sized.heaviest
    )


def refuse_moved_on(plan: Plan, state: PartitionState) -> None:
    """Do nothing if the plan still fits the state.

    Raises:
        ConflictError: an operation is in progress, or the partition is not as it was when the plan was made.
    """
    busy = under_way(state)
    if busy is not None:
        parent = state.parent
        raise ConflictError(
            busy,
            hint=f"wait; if its operator is dead run: kpsplit resume {parent}, or kpsplit abort {parent}",
        )
    if state.epoch != plan.epoch:
        raise ConflictError(
            f"{state.parent} is at epoch {state.epoch}; the plan was made for epoch {plan.epoch}",
            hint="plan again",
        )
    if state.topic_id != plan.topic_id:
        raise ConflictError(f"topic {state.parent.topic} is not the one of the plan", hint="plan again")
    if state.phase is Phase.STEADY:
        try:
            apply(state, Prepare(numbered(plan.attempt("", 1), state)))
        except InvariantError as error:  # a saved plan that somebody has edited
            raise ConflictError(f"the plan does not fit: {error.message}", hint="plan again") from None
