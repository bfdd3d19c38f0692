"""Range commits: inside the data, never back, no gap along the lineage; how far groups have come. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from kpsplit.spark_jobs.snapshot import LoggedCommit, Snapshot
from kpsplit.spark_jobs.verification.findings import Finding, Severity
from kpsplit.spark_jobs.verification.start import JudgedFrom
from kpsplit.splitter.commits import CommitFold, cursor_of
from kpsplit.splitter.key_range import KEY_SPACE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor, GapReason
from kpsplit.splitter.records.offsets import Cause, RangeCommit

JudgedCommits = Sequence[tuple[PartitionState, LoggedCommit, bool]]
"""Range commits as ``in_order`` returns them."""


def in_order(snapshot: Snapshot, groups: Collection[str] | None, start: JudgedFrom) -> JudgedCommits:
    """Return the range commits of some groups (None: of all) by partition, in the order of the log.

    Each comes with whether it is judged. A commit from before the time is in force, but is not judged.
    """
    found: list[tuple[PartitionState, LoggedCommit, bool]] = []
    for state in snapshot.states:
        first = start.commits_read.get(state.parent.partition, 0)
        here = (c for c in snapshot.commits if c.key.parent == state.parent)
        mine = [c for c in here if groups is None or c.key.group in groups]
        found += [(state, c, c.log_offset >= first) for c in sorted(mine, key=lambda c: c.log_offset)]
    return found


def commits_within_data(snapshot: Snapshot, commits: JudgedCommits) -> Iterator[Finding]:
    """Return the range commits that lie outside the data.

    The offset log is compacted: what it still holds is looked at. Where a group's commits were all withdrawn,
    those from before that are passed over: they may speak of another topic that had this name.
    """
    over = _withdrawn(commits)
    for state, logged, is_new in commits:
        last = over.get((logged.key.group, logged.key.parent), -1)
        if is_new and logged.log_offset > last and isinstance(logged.commit, RangeCommit):
            yield from _outside_data(snapshot, state, logged.commit)


def _withdrawn(commits: JudgedCommits) -> dict[tuple[str, PhysicalPartition], int]:
    """Return where in the offset log the last commit of a group in a partition was withdrawn."""
    fold, found = CommitFold(), dict[tuple[str, PhysicalPartition], int]()
    for _, logged, _ in commits:
        fold.take(logged.key, logged.commit, logged.log_offset)
        if logged.commit is None and not fold.keys(logged.key.group, logged.key.parent):
            found[logged.key.group, logged.key.parent] = logged.log_offset
    return found


def commits_move_forward(commits: JudgedCommits) -> Iterator[Finding]:
    """Return the range commits that go back."""
    fold = CommitFold()
    for state, logged, is_new in commits:
        if is_new and isinstance(logged.commit, RangeCommit):
            yield from _going_back(fold, state, logged.commit)
        fold.take(logged.key, logged.commit, logged.log_offset)


def commits_leave_no_gap(snapshot: Snapshot, groups: Collection[str] | None) -> Iterator[Finding]:
    """Return where a group goes on after a segment that it has not finished, or says nothing of a range."""
    for group, state in snapshot.committed(groups):
        yield from _gaps(snapshot.fold, group, state)


def commits_reach_the_end(snapshot: Snapshot, groups: Collection[str] | None) -> Iterator[Finding]:
    for group, state in snapshot.committed(groups):
        yield from _unfinished(snapshot, snapshot.fold, group, state)


def _outside_data(snapshot: Snapshot, state: PartitionState, commit: RangeCommit) -> Iterator[Finding]:
    segments = {s.id: s for s in state.lineage}
    for number, position in sorted(commit.positions.items()):
        segment = segments.get(number)
        wrong = "no such segment" if segment is None else _outside(snapshot, segment, commit, position.next)
        if wrong:
            message = f"{commit.range} is committed up to {position.next} of segment {number}: {wrong}"
            yield _finding(state, commit, message, number, position.next)


def _outside(snapshot: Snapshot, segment: Segment, commit: RangeCommit, next_: int) -> str | None:
    if not segment.range.overlaps(commit.range):
        return f"it holds {segment.range}"
    if next_ < segment.start:
        return f"it starts at {segment.start}"
    bounds = snapshot.bounds.get(segment.source)
    end = segment.end if segment.end is not None else (bounds.high if bounds else None)
    return f"it ends at {end}" if end is not None and next_ > end else None


def _going_back(fold: CommitFold, state: PartitionState, commit: RangeCommit) -> Iterator[Finding]:
    """Compare with what the group had committed for the same keys; a seek may go anywhere."""
    if commit.cause is not Cause.PROGRESS:
        return
    for piece, before in fold.cursors(commit.group, commit.parent, commit.range):
        now = cursor_of(commit, piece)
        if before is None or before.ahead_of(state.lineage) or now.ahead_of(state.lineage):
            continue
        had, has = before.pending(state.lineage), now.pending(state.lineage)
        for segment, next_ in has.items():
            last = had.get(segment)
            if last is None or next_ < last:
                up_to = "its end" if last is None else str(last)
                committed = f"{piece} of segment {segment} was committed up to {up_to}"
                message = f"{committed}, then up to {next_} again"
                yield _finding(state, commit, message, segment, next_)


def _gaps(fold: CommitFold, group: str, state: PartitionState) -> Iterator[Finding]:
    for piece, cursor in fold.cursors(group, state.parent):
        if cursor is None:
            newer = fold.newer(group, state.parent, piece)
            message = f"group {group} has no range commit for {piece}: not begun, or lost"
            message = message if newer is None else newer.message
            yield Finding(Severity.UNPROVEN, state.parent, message, group=group)
        elif not cursor.ahead_of(state.lineage):
            yield from _skipped(group, state, cursor, piece)


def _skipped(group: str, state: PartitionState, cursor: Cursor, piece: KeyRange) -> Iterator[Finding]:
    """A position after a segment's start needs all its predecessors to be finished."""
    left = cursor.pending(state.lineage)
    for segment in state.lineage:
        if cursor.positions.get(segment.id, 0) <= segment.start or not segment.range.overlaps(piece):
            continue
        for number in segment.predecessors:
            before = state.lineage.get(number)
            if before.range.overlaps(piece) and number in left:
                done = f"segment {number} is done only up to {left[number]}"
                message = f"{piece} goes on in segment {segment.id}, but {done}"
                finding = Finding(Severity.FINDING, state.parent, message, number, group=group)
                last = None if before.end is None else before.end - 1
                yield replace(finding, first=left[number], last=last)


def _unfinished(snapshot: Snapshot, fold: CommitFold, group: str, state: PartitionState) -> Iterator[Finding]:
    """Yield where a group stands before the end of the data: it lags, or data went before it had read them.

    Both are legal (retention and ``retire --force`` take what a group that is gone never reads), so a note.
    """
    left: dict[int, list[tuple[KeyRange, int, bool]]] = defaultdict(list)
    for piece, cursor in fold.cursors(group, state.parent):
        if cursor is not None and not cursor.ahead_of(state.lineage):
            for number, next_ in cursor.pending(state.lineage).items():
                left[number].append((piece, next_, number in cursor.positions))
    for segment in state.lineage:
        end = _end_of_data(snapshot, segment)
        waiting = [(next_, piece, begun) for piece, next_, begun in left[segment.id] if next_ < end]
        if not waiting:
            continue
        first, piece, _ = min(waiting)
        others = f" and {len(waiting) - 1} more ranges" if len(waiting) > 1 else ""
        message = f"group {group} stands at {first} of segment {segment.id} for {piece}{others}"
        message += f"; the segment ends at {end}"
        retired = snapshot.gone.get(segment.source) is GapReason.RETIRED
        missed = retired and any(begun and at > segment.start for at, _, begun in waiting)
        if retired:
            message += ", and its sub-topic was retired" + (
                " while the group was reading it" if missed else ""
            )
        finding = Finding(Severity.NOTE, state.parent, message, segment.id, group=group, key_hash=piece.lo)
        yield replace(finding, first=first, last=end - 1, count=end - first)


def _end_of_data(snapshot: Snapshot, segment: Segment) -> int:
    if segment.end is not None:
        return segment.end
    bounds = snapshot.bounds.get(segment.source)
    return segment.start if bounds is None else bounds.stable


def _finding(state: PartitionState, commit: RangeCommit, message: str, segment: int, offset: int) -> Finding:
    return Finding(
        Severity.FINDING, state.parent, message, segment, group=commit.group, first=offset, last=offset
    )


@dataclass(frozen=True, slots=True)
class Drained:
    """One group in one partition: the share of the key space that has drained, and what is left at most."""

    group: str
    parent: PhysicalPartition
    share: float
    left: int


def drained(snapshot: Snapshot) -> Iterator[Drained]:
    """Return how far every group has come in every partition for which it has range commits."""
    for group, state in snapshot.committed():
        pieces = snapshot.fold.cursors(group, state.parent)
        done = sum(r.width for r, c in pieces if c is not None and c.drained(state.lineage))
        left = max(_left(state, cursor or Cursor(piece, {})) for piece, cursor in pieces)
        yield Drained(group, state.parent, done / KEY_SPACE, left)


def _left(state: PartitionState, cursor: Cursor) -> int:
    """Return how many offsets of closed segments one range has still to read."""
    if cursor.ahead_of(state.lineage):
        return 0
    waiting = cursor.pending(state.lineage)
    return sum(s.end - waiting[s.id] for s in state.lineage if s.end is not None and s.id in waiting)
