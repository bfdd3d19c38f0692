"""The folded offset log: how far each group has come at each point of the key space (protocol, section 10.3).

Range commits of different widths overlap: slots, lanes inside a slot, a seek of everything. The record with
the greatest log offset wins, point by point. So a fold in the order of the log keeps, per group and logical
partition, the intervals that tile what was ever committed, each with the commit that wins there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.splitter.key_range import WHOLE, KeyRange, uncovered
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.offsets import (
    CommitKey,
    NewerCommit,
    RangeCommit,
    check_partition,
    is_of_others,
    key_start,
    parse_offset_key,
    read_commit,
)

MOST_WITHDRAWN = 1000
"""The most keys that are withdrawn in one transaction: a client that may write the log can write many."""

Piece = tuple[KeyRange, RangeCommit]
"""An interval of the key space and the commit that wins there."""


def cursor_of(commit: RangeCommit, range_: KeyRange) -> Cursor:
    """Return the cursor that a range commit gives to a part of its range."""
    positions = {segment: at.next for segment, at in commit.positions.items()}
    return Cursor(commit.range, positions).narrowed(range_)


def ordinary_offsets(state: PartitionState, cursors: Iterable[Cursor]) -> dict[PhysicalPartition, int]:
    """Return what a group commits in the ordinary way: per physical partition the least of its positions.

    A partition whose segments are complete for everybody gets the end of its last segment. Left out are
    partitions of retired sub-topics, and those with a segment in which a range without a cursor has a part:
    the next owner of that range still starts from the ordinary offsets, and has drained nothing.

    Args:
        state: a fresh state.
        cursors: one per range of the group, those of other members as in the offset log; without overlap.
    """
    known, lineage = list(cursors), state.lineage
    if any(c.ahead_of(lineage) for c in known):
        return {}
    left = [c.pending(lineage) for c in known]
    gaps = uncovered(c.range for c in known)
    gone = state.retired()
    return {
        source: _least(segments, left)
        for source, segments in _stretches(lineage).items()
        if source.topic not in gone and not any(s.range.overlaps(g) for s in segments for g in gaps)
    }


def _stretches(lineage: Lineage) -> dict[PhysicalPartition, list[Segment]]:
    found: dict[PhysicalPartition, list[Segment]] = {}
    for segment in lineage:
        found.setdefault(segment.source, []).append(segment)
    return {source: sorted(segments, key=lambda s: s.start) for source, segments in found.items()}


def _least(segments: list[Segment], left: Iterable[Mapping[int, int]]) -> int:
    ids = [s.id for s in segments]
    waiting = [pending[i] for pending in left for i in ids if i in pending]
    end = segments[-1].end
    return min(waiting, default=segments[-1].start if end is None else end)


@dataclass(slots=True)
class _Commits:
    """What one group has committed for one logical partition.

    ``pieces`` are the winners, in the order of the key space and without overlap; ``live`` are the ranges of
    all keys that have a value in the log, of commits that win nowhere too; ``newest`` is the log offset of
    the last record, ``last`` the last commit (None if a newer version wrote it).
    """

    pieces: list[tuple[KeyRange, RangeCommit | NewerCommit]] = field(default_factory=list)
    live: set[KeyRange] = field(default_factory=set)
    newest: int = -1
    last: RangeCommit | None = None

    def put(self, commit: RangeCommit | NewerCommit) -> None:
        self.last = commit if isinstance(commit, RangeCommit) else None
        first, end = self._overlapped(commit.range)
        old = self.pieces[first:end]
        left = [(KeyRange(r.lo, commit.range.lo), c) for r, c in old[:1] if r.lo < commit.range.lo]
        right = [(KeyRange(commit.range.hi, r.hi), c) for r, c in old[-1:] if commit.range.hi < r.hi]
        self.pieces[first:end] = [*left, (commit.range, commit), *right]
        self.live.add(commit.range)

    def withdraw(self, range_: KeyRange) -> None:
        """Forget the commit whose key has this range; where it won there is no commit any more."""
        self.live.discard(range_)
        first, end = self._overlapped(range_)
        self.pieces[first:end] = [p for p in self.pieces[first:end] if p[1].range != range_]

    def overlapping(self, range_: KeyRange) -> list[tuple[KeyRange, RangeCommit | NewerCommit]]:
        first, end = self._overlapped(range_)
        return [(KeyRange(max(r.lo, range_.lo), min(r.hi, range_.hi)), c) for r, c in self.pieces[first:end]]

    def _overlapped(self, range_: KeyRange) -> tuple[int, int]:
        """Return where in ``pieces`` those that overlap a range begin, and where they are over."""
        first = bisect_right(self.pieces, range_.lo, key=lambda piece: piece[0].hi)
        return first, bisect_left(self.pieces, range_.hi, lo=first, key=lambda piece: piece[0].lo)


class CommitFold:
    """The latest range commits of all groups. Not thread safe; owned by the thread that tails the log.

    All groups write the log, so one record must not stop the readers of others: a key decides
    whose it is before its value is looked at. Garbage is counted and skipped. A commit of a newer version
    counts in the range of its key like any other, and nobody knows where that range stands: ``cursors`` has
    None for it, and ``newer`` names it. A reader that would begin there asks ``newer`` first.

    Args:
        group: keep the commits of this group only, and look no further into others'; None: of all.
        partitions: how many the log has. A record in another one than its key's is garbage: nothing says
            which of two records in two partitions is the later one. None: all records are from the right one.
    """

    def __init__(self, group: str | None = None, partitions: int | None = None) -> None:
        self.garbage = 0
        self.last_garbage = ""
        self._group = group
        self._own = None if group is None else key_start(group)
        self._partitions = partitions
        self._known: dict[tuple[str, PhysicalPartition], _Commits] = {}

    def fold(
        self, key: bytes | None, value: bytes | None, log_offset: int, partition: int | None = None
    ) -> CommitKey | None:
        """Take the next record of the log; return its key if it is a range commit, or withdraws one.

        A record that comes again, because a part of the log is read twice, changes nothing. ``partition``:
        where it stands.
        """
        if self._own is not None and key is not None and is_of_others(key, self._own):
            return None
        try:
            subject = parse_offset_key(key)
            if not isinstance(subject, CommitKey) or self._group not in (None, subject.group):
                return None
            if self._partitions is not None:
                check_partition(subject, partition, self._partitions)
            self.take(subject, None if value is None else read_commit(subject, value), log_offset)
            return subject
        except RecordError as error:
            self.garbage += 1
            self.last_garbage = error.message
            return None

    def take(self, key: CommitKey, commit: RangeCommit | NewerCommit | None, log_offset: int) -> None:
        """Take the next commit that was read from the log; None: its key is withdrawn."""
        known = self._known.setdefault((key.group, key.parent), _Commits())
        if log_offset <= known.newest:
            return
        known.newest = log_offset
        if commit is None:
            known.withdraw(key.range)
        else:
            known.put(commit)

    def groups(self, parent: PhysicalPartition) -> tuple[str, ...]:
        return tuple(sorted(g for (g, p), known in self._known.items() if p == parent and known.pieces))

    def commits(self, group: str, parent: PhysicalPartition) -> tuple[Piece, ...]:
        """Return what a group has committed, in the order of the key space; the rest has no commit."""
        known = self._known.get((group, parent))
        return tuple((r, c) for r, c in known.pieces if isinstance(c, RangeCommit)) if known else ()

    def newer(
        self, group: str, parent: PhysicalPartition, range_: KeyRange = WHOLE
    ) -> FutureVersionError | None:
        """Return why nobody knows where a range stands: a newer kpsplit has committed a part of it."""
        known = self._known.get((group, parent))
        pieces = known.overlapping(range_) if known else []
        found = next((r for r, c in pieces if isinstance(c, NewerCommit)), None)
        if found is None:
            return None
        return FutureVersionError(
            f"a newer kpsplit has written the commit of group {group} for {found} of {parent}",
            hint="upgrade this kpsplit, or move the group: kpsplit seek; look at: kpsplit doctor",
        )

    def keys(self, group: str, parent: PhysicalPartition) -> tuple[CommitKey, ...]:
        """Return the keys of all commits of a group that the log holds, of those that win nowhere too."""
        known = self._known.get((group, parent))
        return tuple(CommitKey(group, parent, r) for r in sorted(known.live)) if known else ()

    def keys_of(self, topic: str) -> tuple[CommitKey, ...]:
        """Return the keys of all commits of all groups for a topic, of partitions that it had once too."""
        places = sorted(place for place in self._known if place[1].topic == topic)
        return tuple(key for place in places for key in self.keys(*place))

    def last(self, group: str, parent: PhysicalPartition) -> RangeCommit | None:
        known = self._known.get((group, parent))
        return None if known is None else known.last

    def cursors(
        self, group: str, parent: PhysicalPartition, range_: KeyRange = WHOLE
    ) -> list[tuple[KeyRange, Cursor | None]]:
        """Return the pieces that tile a range, each with its cursor as committed.

        None: without a commit, or with one of a newer version (``newer``).
        """
        pieces: list[tuple[KeyRange, Cursor | None]] = []
        at = range_.lo
        known = self._known.get((group, parent))
        for piece, commit in known.overlapping(range_) if known else ():
            if at < piece.lo:
                pieces.append((KeyRange(at, piece.lo), None))
            pieces.append((piece, cursor_of(commit, piece) if isinstance(commit, RangeCommit) else None))
            at = piece.hi
        if at < range_.hi:
            pieces.append((KeyRange(at, range_.hi), None))
        return pieces

    def cursor(
        self, group: str, parent: PhysicalPartition, range_: KeyRange, lineage: Lineage
    ) -> list[tuple[KeyRange, Cursor | None]]:
        """Return the pieces that tile a range, each with its settled cursor, None where there is no commit.

        Neighbours that stand at the same positions are one piece. A cursor that is ``ahead_of`` the lineage
        is returned as it was committed: the view has to be refreshed before anything is read.
        """
        pieces: list[tuple[KeyRange, Cursor | None]] = []
        for piece, cursor in self.cursors(group, parent, range_):
            settled = None if cursor is None else cursor.settled(lineage)
            joined = _joined(pieces[-1][1], settled) if pieces else None
            if joined is None:
                pieces.append((piece, settled))
            else:
                pieces[-1] = (joined.range, joined)
        return pieces

    def stale_keys(
        self, group: str, parent: PhysicalPartition, covering: Iterable[KeyRange]
    ) -> tuple[CommitKey, ...]:
        """Return keys whose records win nowhere once commits of ``covering`` are written after them.

        At most MOST_WITHDRAWN of them (of all partitions of a commit, too: ``commit.writes``): the next
        commit of the same ranges withdraws the next ones.

        Only such keys may be withdrawn, in the same transaction: a reader of any part of the log then still
        finds the newer commits. A key that the caller does not cover is not his to withdraw, whatever this
        fold says: its owner may just have committed it again.
        """
        known = self._known.get((group, parent))
        new = sorted(covering)
        stale = {r for r in known.live - set(new) if _covered(r, new)} if known is not None else ()
        return tuple(CommitKey(group, parent, range_) for range_ in sorted(stale)[:MOST_WITHDRAWN])


def _joined(left: Cursor | None, right: Cursor | None) -> Cursor | None:
    """Return one cursor for two neighbours that list the same positions, None if they differ."""
    if left is None or right is None or left.positions != right.positions:
        return None
    return Cursor(KeyRange(left.range.lo, right.range.hi), left.positions)


def _covered(range_: KeyRange, by: list[KeyRange]) -> bool:
    at = range_.lo
    for other in by[max(0, bisect_right(by, range_) - 1) :]:
        if other.lo <= at < other.hi:
            at = other.hi
    return at >= range_.hi
