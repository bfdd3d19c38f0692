"""Makes plans: which segments, which ranges, what the sample predicts, which checks hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from kpsplit.clock import Deadline, monotonic, wall_ms
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
    writers_check,
)
from kpsplit.control.preconditions import LOG_WHOLE, Facts, checks, refusal
from kpsplit.errors import ConflictError, KpsplitError, UsageError, many
from kpsplit.kafka.cluster_admin import ClusterAdmin
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
from kpsplit.splitter.partition_state import (
    Attempt,
    OperationKind,
    PartitionState,
    Target,
    whole_range_merge,
)
from kpsplit.splitter.records.keys import subtopic_name

SHORT_LOOK = 1.0
LONG_LOOK = 5.5
"""Seconds between two looks at positions: consumers commit every 5 s by default."""

_PART_OF_CALL = 0.25


def left_to_read(facts: Facts, positions: Mapping[str, Positions]) -> dict[str, int]:
    """Return how many offsets each group has before it in the segments that would close."""
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


def estimated(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> tuple[Drain, ...]:
    """Return the drains of groups from two looks at the same stretch of log, the longest first.

    What is written meanwhile is left out: once the fence is on nothing is added.
    """
    drains = []
    for group, left in after.items():
        read = before.get(group, left) - left
        takes = round(left * seconds / read) if read > 0 else None
        drains.append(Drain(group, left, takes if left else 0))
    return tuple(sorted(drains, key=lambda d: (d.seconds is not None, -(d.seconds or 0), -d.left, d.group)))


def look_twice(look: Callable[[], dict[str, int]], deadline: Deadline) -> tuple[Drain, ...]:
    """Look at what groups have before them, and again a moment later; longer if one did not move.

    Raises:
        KpsplitError: what ``look`` raises.
    """
    before, began = look(), monotonic()
    after, longest = before, deadline.left() * _PART_OF_CALL
    for until in (SHORT_LOOK, LONG_LOOK):
        if any(after[g] and after[g] == before.get(g) for g in after):
            time.sleep(max(0.0, min(until, longest) - (monotonic() - began)))
            after = look()
    return estimated(before, after, monotonic() - began)


_PRECISION = 6


class Planner:
    """Makes plans. Not thread safe."""

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin
        self._facts = FactsGatherer(admin)

    def split(
        self,
        parent: PhysicalPartition,
        view: ControlView,
        parts: int,
        of: KeyRange | None,
        even: bool,
        sample: int,
        deadline: Deadline,
        known: Sizing | None = None,
    ) -> Plan:
        """Plan a split; as ``Admin.plan_split``."""
        even_ranges(WHOLE, parts)  # refuses a wrong number of ranges before anything else is asked
        state = self._state(parent, view, OperationKind.SPLIT, deadline)
        segment = segment_to_split(state, of)
        seen = self._sample(state, segment, sample, deadline)
        sized = _sized(seen, segment.range, parts, even) if known is None else _fitting(known, segment)
        attempt = _draft(state, OperationKind.SPLIT, (segment.id,), sized.ranges, Target.PHANTOMS)
        return self._plan(view, attempt, state, deadline, seen, sized)

    def merge(
        self,
        parent: PhysicalPartition,
        view: ControlView,
        range_: KeyRange | None,
        deadline: Deadline,
    ) -> Plan:
        """Plan a merge; as ``Admin.plan_merge``."""
        state = self._state(parent, view, OperationKind.MERGE, deadline)
        merged = segments_to_merge(state, range_)
        ranges = (KeyRange(merged[0].range.lo, merged[-1].range.hi),)
        target = Target.PARENT if whole_range_merge(ranges) else Target.PHANTOMS
        sources = tuple(s.id for s in merged)
        attempt = _draft(state, OperationKind.MERGE, sources, ranges, target)
        return self._plan(view, attempt, state, deadline, None, None)

    def failed_now(self, plan: Plan, view: ControlView, force: bool, deadline: Deadline) -> Check | None:
        """Check a plan again, all but its sample; return the gravest check that forbids running it."""
        old = {c.name: c for c in plan.checks}
        found = (old.get("partitioner"), old.get(WRITERS), old.get("useful"))
        state = self._state(plan.parent, view, plan.kind, deadline)
        attempt = _draft(state, plan.kind, plan.sources, plan.ranges, plan.target)
        return self._gravest(plan.parent, view, attempt, deadline, found, force)

    def forbidden_now(
        self, parent: PhysicalPartition, attempt: Attempt, view: ControlView, deadline: Deadline
    ) -> Check | None:
        """Check an attempt that is to begin anew; return the gravest check that nothing passes over."""
        self._state(parent, view, attempt.kind, deadline)
        return self._gravest(parent, view, attempt, deadline, (None, None, None), force=True)

    def _gravest(
        self,
        parent: PhysicalPartition,
        view: ControlView,
        attempt: Attempt,
        deadline: Deadline,
        found: tuple[Check | None, Check | None, Check | None],
        force: bool,
    ) -> Check | None:
        facts = self._facts.gather(parent, view, attempt, attempt.kind, deadline, found)
        failed = [c for c in checks(facts) if not c.ok and not (force and c.forceable)]
        return next((c for c in failed if c.name == LOG_WHOLE), failed[0] if failed else None)

    def _state(
        self, parent: PhysicalPartition, view: ControlView, kind: OperationKind, deadline: Deadline
    ) -> PartitionState:
        """Return the partition's state, or refuse what cannot even be planned."""
        facts = self._facts.gather(parent, view, None, kind, deadline)
        for check in checks(facts):
            if not check.ok and check.name == "enrolled":
                raise view.not_enrolled(parent.topic)
            if not check.ok and check.name in ("topic", "partition", "same topic"):
                raise refusal(check)
        if facts.state is None:
            raise view.not_enrolled(parent.topic)
        return facts.state

    def _sample(self, state: PartitionState, segment: Segment, most: int, deadline: Deadline) -> Sample:
        parent, place = state.parent, segment.source
        logical = (parent.partition, self._admin.topics().get(parent.topic, 1))
        home = state.home(place)
        return sample_partition(self._admin, place, most, logical, deadline, home)

    def _plan(
        self,
        view: ControlView,
        attempt: Attempt,
        state: PartitionState,
        deadline: Deadline,
        seen: Sample | None,
        sized: Sizing | None,
    ) -> Plan:
        parent = state.parent
        partitioner = strange = None
        enrolment = view.enrolments.get(parent.topic)
        if seen is not None and enrolment is not None:
            count = self._admin.topics().get(parent.topic, 1)
            partitioner = partitioner_check(seen, enrolment.partitioner, count)
            strange = writers_check(seen)
        found = (partitioner, strange, _useful(sized))
        facts = self._facts.gather(parent, view, attempt, attempt.kind, deadline, found)
        sampled = sized.samples if sized else 0
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
            shares=tuple(round(s, _PRECISION) for s in sized.shares) if sized and sampled else None,
            heaviest=_hot_keys(sized) if sized else (),
            sampled=sampled,
            useful=sized.useful if sized else True,
            note=shortened(note),
            checks=checks(facts),
            made_ms=wall_ms(),
            drains=drains,
        )

    def _draining(self, facts: Facts, deadline: Deadline) -> tuple[tuple[Drain, ...], str]:
        """Return how much groups have to read before they go on with what the merge opens, and a note."""
        places = {s.source for s in facts.closing}
        text = f"closes {many(len(facts.closing), 'segment')} in {many(len(places), 'partition')}"
        try:
            drains = look_twice(
                lambda: left_to_read(facts, committed_positions(self._admin, deadline)), deadline
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


def _useful(sized: Sizing | None) -> Check | None:
    if sized is None:
        return None
    if sized.useful:
        return Check("useful", True, sized.reason or "every range gets its part of the load", forceable=True)
    return Check(
        "useful", False, sized.reason, "one key stays in one range; split anyway with --force", forceable=True
    )


def _hot_keys(sized: Sizing) -> tuple[HotKey, ...]:
    return tuple(
        HotKey(h.hash, round(h.share, _PRECISION), shortened(h.label or "", LONGEST_LABEL))
        for h in sized.heaviest
    )
