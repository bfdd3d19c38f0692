"""Moves a group's positions: a range commit that may go back, and the ordinary offsets with it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from confluent_kafka import IsolationLevel

from kpsplit.errors import ConflictError, UsageError, behind_a_change
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.commit_writer import CommitWriter
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.group_members import describe_members
from kpsplit.kafka.groups import range_commits
from kpsplit.kafka.offset_log import offset_log_partitions
from kpsplit.splitter.commits import CommitFold, ordinary_offsets
from kpsplit.splitter.cursor import Cursor, steps_to
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.keys import slots_topic
from kpsplit.splitter.records.offsets import NO_GENERATION, Cause, Position, RangeCommit


class Whence(StrEnum):
    """Where a seek goes."""

    EARLIEST = "earliest"
    """To the first record that there still is."""
    LATEST = "latest"
    """Behind the last record that there is."""
    OFFSET = "offset"
    """To a logical offset."""
    TIMESTAMP = "timestamp"
    """To the first records that are not older."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a seek goes; ``number`` is the logical offset, or milliseconds since 1970."""

    whence: Whence
    number: int = 0


@dataclass(frozen=True, slots=True)
class Seek:
    """A seek that can be carried out: where the range then stands."""

    group: str
    state: PartitionState
    target: Target
    cursor: Cursor


def cursor_at(
    state: PartitionState,
    range_: KeyRange,
    target: Target,
    starts: Mapping[PhysicalPartition, int],
    ends: Mapping[PhysicalPartition, int],
    young: Mapping[PhysicalPartition, int],
) -> Cursor:
    """Return where a range stands after a seek: always where there are records, or at an end.

    Args:
        state: a fresh state.
        range_: the key range.
        target: where the seek goes.
        starts: the first offset of each log that there is; what was deleted with its topic counts as read.
        ends: the stable end of each log.
        young: of each log the offset of the first record that is not older than the target's time, if any.
    """

    def wanted(segment: Segment) -> int:
        end = segment.end if segment.end is not None else ends.get(segment.source, segment.start)
        if segment.source not in starts or target.whence is Whence.LATEST:
            return end
        first = min(max(segment.start, starts[segment.source]), end)
        if target.whence is Whence.OFFSET:
            return min(max(first, segment.start + steps_to(segment, target.number)), end)
        if target.whence is Whence.TIMESTAMP:
            return min(max(first, young.get(segment.source, end)), end)
        return first

    return Cursor.from_segments(state.lineage, range_, {s.id: wanted(s) for s in state.lineage})


class Seeker:
    """Plans and carries out seeks. Not thread safe."""

    def __init__(self, connection: Connection, admin: ClusterAdmin) -> None:
        self._connection = connection
        self._admin = admin

    def plan(self, group: str, state: PartitionState, range_: KeyRange, target: Target) -> Seek:
        """Return what a seek would do.

        Raises:
            UsageError: the group's name is empty. ConflictError: the group has members on the topic.
        """
        if not group:
            raise UsageError("no group named", hint="give --group NAME")
        self._refuse_active(group, state.parent, changed=False)
        sources = state.lineage.sources()
        starts = self._admin.start_offsets(sources)
        ends = self._admin.end_offsets(sources, IsolationLevel.READ_COMMITTED)
        young = {}
        if target.whence is Whence.TIMESTAMP:
            young = self._admin.offsets_at(starts, target.number)
        cursor = cursor_at(state, range_, target, starts, {p: e.offset for p, e in ends.items()}, young)
        return Seek(group, state, target, cursor)

    def carry_out(self, seek: Seek, operator: str, deadline: Deadline) -> None:
        """Write the range commit and the ordinary offsets, in one transaction.

        Raises:
            ConflictError: a member has joined meanwhile; if ``changed``, it may go on from where it stood.
            UnknownOutcomeError: look at the offsets.
        """
        parent, cursor = seek.state.parent, seek.cursor
        fold = range_commits(self._connection, self._admin, [parent], deadline)
        positions = {segment: Position(at) for segment, at in cursor.positions.items()}
        record = RangeCommit(seek.group, parent, cursor.range, positions, operator, NO_GENERATION, Cause.SEEK)
        writer = CommitWriter(
            self._connection,
            f"kpsplit.seek.{seek.group}.{uuid.uuid4().hex}",
            offset_log_partitions(self._admin),
        )
        writer.open(deadline)
        self._refuse_active(seek.group, parent, changed=False)
        offsets = ordinary_offsets(seek.state, [cursor, *_others(fold, seek)])
        stale = fold.stale_keys(seek.group, parent, [cursor.range])
        nobody = self._nobody(seek.group) if offsets else None
        writer.commit([record], stale, offsets, nobody, deadline)
        with behind_a_change():
            self._refuse_active(seek.group, parent, changed=True)

    def _nobody(self, group: str) -> object:
        """Return the metadata of a group without members."""
        consumer = self._connection.open_consumer("seek", group_id=group, enable_auto_commit=False)
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()

    def _refuse_active(self, group: str, parent: PhysicalPartition, *, changed: bool) -> None:
        if not describe_members(self._admin, group).on((parent.topic, slots_topic(parent.topic))):
            return
        if changed:
            raise ConflictError(
                f"a member of group {group} joined while {parent} was moved, and may not have seen it",
                hint=f"stop the group, look at: kpsplit offsets --group {group} {parent}",
                changed=True,
            )
        raise ConflictError(
            f"group {group} has active members on {parent.topic}", hint="stop them, then retry"
        )


def _others(fold: CommitFold, seek: Seek) -> list[Cursor]:
    """Return the cursors of the group for the rest of the key space."""
    moved = seek.cursor.range
    rest = [(WHOLE.lo, moved.lo), (moved.hi, WHOLE.hi)]
    pieces = [
        piece
        for lo, hi in rest
        if lo < hi
        for piece in fold.cursor(seek.group, seek.state.parent, KeyRange(lo, hi), seek.state.lineage)
    ]
    return [cursor for _, cursor in pieces if cursor is not None]
