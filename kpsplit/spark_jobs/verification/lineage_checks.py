"""Checks of the small tables against each other: the lineage, and the offset log's boundary records. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from math import gcd

from kpsplit.spark_jobs.snapshot import Snapshot, without_boundary
from kpsplit.spark_jobs.verification.findings import Check, Finding, Severity
from kpsplit.spark_jobs.verification.start import JudgedFrom, is_defect, lost
from kpsplit.splitter.key_range import unread_text
from kpsplit.splitter.lineage import MAX_OFFSET, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.offsets import Boundary, SegmentEnd


def lineage_sound(snapshot: Snapshot) -> Iterator[Finding]:
    """Return what contradicts the invariants of lineages, but for those of logical offsets."""
    for state in snapshot.states:
        for problem in state.lineage.problems():
            if not _is_of_offsets(problem):
                yield Finding(Check.LINEAGE_SOUND, Severity.FINDING, state.parent, problem)
        yield from _gaps_at_cuts(state)


def logical_offsets_unique(snapshot: Snapshot) -> Iterator[Finding]:
    """Return logical offsets that do not rise along the lineage, or that two segments give."""
    for state in snapshot.states:
        for problem in filter(_is_of_offsets, state.lineage.problems()):
            yield Finding(Check.LOGICAL_OFFSETS_UNIQUE, Severity.FINDING, state.parent, problem)
        yield from _offsets_used_twice(state)


def _is_of_offsets(problem: str) -> bool:
    return "does not begin beyond" in problem


def _gaps_at_cuts(state: PartitionState) -> Iterator[Finding]:
    """A physical partition goes on right after each marker."""
    for source in state.lineage.sources():
        mine = sorted((s for s in state.lineage if s.source == source), key=lambda s: s.start)
        for a, b in pairwise(mine):
            if a.end is not None and b.start > a.end + 1:
                first, last = a.end + 1, b.start - 1
                message = (
                    f"offsets {first} to {last} of {source} lie between segments {a.id} and {b.id}, in none"
                )
                yield _finding(Check.LINEAGE_SOUND, state, message, b.id, first, last)


def _offsets_used_twice(state: PartitionState) -> Iterator[Finding]:
    for a, b in combinations(state.lineage, 2):
        shared = first_shared(a, b)
        if shared is not None:
            message = f"segments {a.id} and {b.id} both give logical offset {shared}"
            yield _finding(Check.LOGICAL_OFFSETS_UNIQUE, state, message, b.id, shared, shared)


def first_shared(a: Segment, b: Segment) -> int | None:
    """Return the least logical offset that two segments both give to a record, None if there is none."""
    first, second = a.progression, b.progression
    low = max(first.base, second.base)
    high = min(_last(a), _last(b))
    if low > high:
        return None
    divisor = gcd(first.stride, second.stride)
    if (second.base - first.base) % divisor:
        return None
    step = second.stride // divisor
    turns = (
        (second.base - first.base) // divisor * pow(first.stride // divisor, -1, step) % step
        if step > 1
        else 0
    )
    found = first.base + first.stride * turns
    least_common = first.stride * step
    found += max(0, -((found - low) // least_common)) * least_common
    return found if found <= high else None


def _last(segment: Segment) -> int:
    return MAX_OFFSET if segment.end is None else segment.logical(segment.end - 1)


def boundaries_agree(snapshot: Snapshot) -> Iterator[Finding]:
    """Return boundary records that say something else than the lineage, and those that are not there."""
    for state, s in without_boundary(snapshot.states, snapshot.boundaries):
        message = f"segment {s.id} was opened in epoch {s.opened_epoch}, but {s.range} has no boundary record"
        yield _finding(Check.BOUNDARIES_AGREE, state, message, s.id, s.range.lo, s.range.hi - 1)
    states = {state.parent: state for state in snapshot.states}
    for boundary in snapshot.boundaries:
        state = states[boundary.parent]
        if boundary.epoch <= state.epoch and not _agrees(state, boundary):
            message = (
                f"the boundary record of {boundary.range} in epoch {boundary.epoch} contradicts the lineage"
            )
            yield _finding(
                Check.BOUNDARIES_AGREE,
                state,
                message,
                boundary.opened_segment,
                boundary.range.lo,
                boundary.range.hi - 1,
            )


def slots_findings(snapshot: Snapshot) -> Iterator[Finding]:
    """Return the partitions that were added and that no group reads yet."""
    for parent in sorted(snapshot.unread):
        text = unread_text(parent.topic, range(parent.partition, parent.partition + 1))
        message = f"{text}; run: kpsplit enroll {parent.topic}"
        yield Finding(Check.COMMITS_REACH_THE_END, Severity.NOTE, parent, message)


def _agrees(state: PartitionState, boundary: Boundary) -> bool:
    opened = next((s for s in state.lineage if s.id == boundary.opened_segment), None)
    if opened is None or (opened.range, opened.source, opened.start) != (
        boundary.range,
        boundary.opened,
        boundary.start,
    ):
        return False
    ends = {
        SegmentEnd(s.id, s.source, s.end, s.end_leader_epoch)
        for s in state.lineage
        if s.end is not None and s.closed_epoch == boundary.epoch and s.range.overlaps(boundary.range)
    }
    return ends == set(boundary.ends)


def lost_findings(snapshot: Snapshot, start: JudgedFrom) -> Iterator[Finding]:
    """Return what cannot be read.

    What retention or ``retire`` removed is given: a note. In a run since a time it may have been written
    since: then it should have been judged. What was cut off, or is gone otherwise, must not be.
    """
    removed = Severity.NOTE if start.since is None else Severity.UNPROVEN
    for one in lost(snapshot, start):
        last = None if one.behind is None else one.behind - 1
        count = 1 if one.behind is None else one.behind - one.first
        yield Finding(
            *(
                Check.STRETCHES_COMPLETE,
                Severity.FINDING if is_defect(one) else removed,
                one.state.parent,
                str(one),
            ),
            one.segment.id,
            first=one.first,
            last=last,
            count=count,
        )


def _finding(
    check: Check, state: PartitionState, message: str, segment: int, first: int, last: int
) -> Finding:
    return Finding(
        check,
        Severity.FINDING,
        state.parent,
        message,
        segment,
        first=first,
        last=last,
        count=last - first + 1,
    )
