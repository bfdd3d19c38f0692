"""How far each group has drained what splits and merges closed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.key_range import KEY_SPACE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.offsets import CommitKey


@dataclass(frozen=True, slots=True)
class Drained:
    """One group in one partition: the share of the key space that has drained, and what is left at most."""

    group: str
    parent: PhysicalPartition
    share: float
    left: int


def drained(snapshot: Snapshot) -> Iterator[Drained]:
    """Return how far every group has come in every partition for which it has range commits."""
    fold = CommitFold()
    for logged in sorted(snapshot.commits, key=lambda c: (c.log_partition, c.log_offset)):
        key = CommitKey(logged.group, logged.parent, logged.range)
        fold.take(key, logged.commit, logged.log_offset)
    for state in snapshot.states:
        for group in fold.groups(state.parent):
            pieces = fold.cursors(group, state.parent)
            done = sum(
                r.width for r, cursor in pieces if cursor is not None and cursor.drained(state.lineage)
            )
            left = max((_left(state, cursor) for _, cursor in pieces), default=0)
            yield Drained(group, state.parent, done / KEY_SPACE, left)


def _left(state: PartitionState, cursor: Cursor | None) -> int:
    """Return how many offsets of closed segments one range has still to read."""
    if cursor is None or cursor.ahead_of(state.lineage):
        return 0
    waiting = cursor.pending(state.lineage)
    return sum(s.end - waiting[s.id] for s in state.lineage if s.end is not None and s.id in waiting)
