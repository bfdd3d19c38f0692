"""Moves a group's positions: a range commit that may go back, and the ordinary offsets with it.

Or forgets them: all range commits and ordinary offsets of a group on a topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from confluent_kafka import IsolationLevel

from kpsplit.clock import Deadline
from kpsplit.control.returning import seek_obstacle
from kpsplit.control.session import ClusterSession
from kpsplit.errors import ConflictError, UnreachableError, UsageError, after_a_change
from kpsplit.kafka.commit_writer import CommitWriter
from kpsplit.kafka.coordinators import group_names, nearest_group
from kpsplit.kafka.groups import (
    delete_positions,
    describe_members,
    has_member_on,
    positions_of,
    range_commits,
    topics_of,
)
from kpsplit.kafka.offset_log import offset_log_partitions
from kpsplit.splitter.commits import MOST_WITHDRAWN, CommitFold, ordinary_offsets
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.keys import group_ids
from kpsplit.splitter.records.offsets import NO_GENERATION, Cause, CommitKey, Position, RangeCommit


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
class SeekTarget:
    """Where a seek goes; ``number`` is the logical offset, or milliseconds since 1970."""

    whence: Whence
    number: int = 0


@dataclass(frozen=True, slots=True)
class Seek:
    """A seek that can be carried out: where the range then stands."""

    group: str
    state: PartitionState
    target: SeekTarget
    cursor: Cursor
    at_end: bool = False
    """The target lies after all records, although it is not ``latest``."""


@dataclass(frozen=True, slots=True)
class Forgettable:
    """What there is of a group on a topic: the keys of its range commits, and its ordinary offsets.

    ``stands``: where it stands by both, so that it is seen whether it has committed since.
    """

    group: str
    topic: str
    commits: tuple[CommitKey, ...]
    offsets: tuple[PhysicalPartition, ...]
    stands: tuple[object, ...] = ()


def cursor_at(
    state: PartitionState,
    range_: KeyRange,
    target: SeekTarget,
    starts: Mapping[PhysicalPartition, int],
    ends: Mapping[PhysicalPartition, int],
    young: Mapping[PhysicalPartition, int],
) -> Cursor:
    """Return where a range stands after a seek: always where there are records, or at an end.

    Args:
        state: a fresh state.
        range_: of keys.
        target: where the seek goes.
        starts: the first offset of each log that there is, and that is not retired; the others count as read.
        ends: the stable end of each log.
        young: of each log the offset of the first record that is not older than the target's time, if any.
    """

    def wanted(segment: Segment) -> int:
        end = segment.end if segment.end is not None else ends.get(segment.source, segment.start)
        if segment.source not in starts or target.whence is Whence.LATEST:
            return end
        first = min(max(segment.start, starts[segment.source]), end)
        if target.whence is Whence.OFFSET:
            return min(max(first, segment.start + segment.progression.steps_to(target.number)), end)
        if target.whence is Whence.TIMESTAMP:
            return min(max(first, young.get(segment.source, end)), end)
        return first

    return Cursor.from_segments(state.lineage, range_, {s.id: wanted(s) for s in state.lineage})


class Seeker:
    """Plans and carries out seeks. Not thread safe."""

    def __init__(self, session: ClusterSession) -> None:
        self._session = session
        self._admin = session.admin

    def plan(
        self, group: str, parent: PhysicalPartition, range_: KeyRange, target: SeekTarget, new_group: bool
    ) -> Seek:
        deadline = self._session.begin()
        state = self._session.state(parent, deadline)
        self._refuse_active(group, parent.topic, deadline, changed=False)
        if not new_group:
            self._refuse_unknown(group, parent, deadline)
        sources = state.lineage.sources(state.retired())
        starts = self._admin.start_offsets(sources)
        self._refuse_doubtful({s.topic for s in sources if s not in starts}, deadline)
        ends = self._admin.end_offsets(sources, IsolationLevel.READ_COMMITTED)
        young = {}
        if target.whence is Whence.TIMESTAMP:
            young = self._admin.offsets_at(starts, target.number)
        known = starts, {p: e.offset for p, e in ends.items()}, young
        cursor = cursor_at(state, range_, target, *known)
        latest = cursor_at(state, range_, SeekTarget(Whence.LATEST), *known)
        exact = target.whence in (Whence.OFFSET, Whence.TIMESTAMP)
        seek = Seek(group, state, target, cursor, at_end=exact and cursor == latest)
        self._refuse_in_return(seek, deadline)
        return seek

    def _refuse_doubtful(self, missing: Iterable[str], deadline: Deadline) -> None:
        """Refuse to take for read what one broker does not know: it may be stale.

        Raises:
            UnreachableError, DeadlineExceededError: brokers do not agree that these topics are gone.
        """
        for topic, found in self._admin.certain(missing, deadline).items():
            if found is not None:
                raise UnreachableError(
                    f"the brokers do not agree on whether there is a topic {topic}", hint="retry"
                )

    def carry_out(self, seek: Seek) -> None:
        """Write the range commit and the ordinary offsets, in one transaction.

        Raises:
            ConflictError: a member has joined meanwhile, a sub-topic that is to be read was retired, or the
                topic returns and the group must not stand there; if ``changed``, the member may go on from
                where it stood, its records are not read, or the group does stand there.
            UnknownOutcomeError: look at the offsets.
        """
        parent, cursor = seek.state.parent, seek.cursor
        deadline = self._session.begin()
        now = self._session.state(parent, deadline)
        if now.topic_id != seek.state.topic_id:
            raise ConflictError(f"topic {parent.topic} was deleted and made again meanwhile", hint="retry")
        if now.epoch != seek.state.epoch:
            raise ConflictError(f"{parent} was split or merged meanwhile", hint="retry")
        _refuse_retired(seek, now, hint="retry")
        fold = range_commits(self._admin, [parent], deadline, seek.group)
        positions = {segment: Position(at) for segment, at in cursor.positions.items()}
        by = self._session.operator
        record = RangeCommit(seek.group, parent, cursor.range, positions, by, NO_GENERATION, Cause.SEEK)
        writer = self._writer(seek.group, deadline)
        self._refuse_active(seek.group, parent.topic, deadline, changed=False)
        self._refuse_in_return(seek, deadline)
        wanted = ordinary_offsets(seek.state, [cursor, *_others(fold, seek)])
        there = self._admin.start_offsets([parent, *wanted])
        offsets = {place: at for place, at in wanted.items() if place in there}
        stale = fold.stale_keys(seek.group, parent, [cursor.range])
        nobody = self._nobody(seek.group) if offsets else None
        deadline.check(f"the move of group {seek.group}")  # one that sleeps does not know who joins meanwhile
        writer.commit([record], stale, offsets, nobody, deadline)
        with after_a_change():
            self._refuse_active(seek.group, parent.topic, deadline, changed=True)
            # A retirement that looked before the transaction was written has not seen it.
            hint = f"the group is moved; look at: kpsplit offsets --group {seek.group} {parent.topic}"
            _refuse_retired(seek, self._session.state(parent, deadline), hint=hint)
            self._refuse_in_return(seek, deadline, so_far="the group is moved; ")

    def plan_forget(self, group: str, topic: str) -> Forgettable:
        return self._forgettable(group, topic, self._session.begin())

    def plan_forget_expired(self, topic: str) -> list[Forgettable]:
        """Return what there is of the groups that brokers know nothing of any more.

        Its range commits are read first: a group that comes back after that is known, or has none of them.
        """
        deadline = self._session.begin()
        states = self._session.states(topic, deadline)
        fold = range_commits(self._admin, [state.parent for state in states], deadline)
        groups = {name for state in states for name in fold.groups(state.parent)}
        expired = groups.difference(group_names(self._admin, deadline))
        return [_committed(fold, group, topic, states) for group in sorted(expired)]

    def _forgettable(self, group: str, topic: str, deadline: Deadline) -> Forgettable:
        states = self._session.states(topic, deadline)
        self._refuse_active(group, topic, deadline, changed=False)
        fold = range_commits(self._admin, [state.parent for state in states], deadline)
        found = _committed(fold, group, topic, states)
        enrolment = self._session.read(deadline).enrolments.get(topic)
        topics = set().union(*(topics_of(state, enrolment) for state in states))
        positions = positions_of(self._admin, group)
        offsets = tuple(sorted(p for p in positions if p.topic in topics))
        if not found.commits and not offsets:
            known = {name for state in states for name in fold.groups(state.parent)}
            raise UsageError(
                f"group {group} has committed nothing in {topic}", hint=self._name_hint(group, known)
            )
        return replace(found, offsets=offsets, stands=(*found.stands, *(positions[p] for p in offsets)))

    def forget(self, found: Forgettable) -> None:
        """Withdraw a group's range commits and have the coordinator forget its ordinary offsets.

        Raises:
            ConflictError: the group has committed something since, or a member has joined meanwhile; if
                ``changed``, it may go on from where it stood.
            UnknownOutcomeError: it may be done: run it again.
            KpsplitError: it was not done, or if ``changed`` in part: range commits go first.
        """
        deadline, what = self._session.begin(), f"the commits of group {found.group} to be removed"
        if self._forgettable(found.group, found.topic, deadline) != found:
            raise ConflictError(f"group {found.group} has committed meanwhile on {found.topic}", hint="retry")
        self._refuse_active(found.group, found.topic, deadline, changed=False)
        # One that sleeps in between does not know who has joined: nothing refuses what it removes of a group.
        if found.commits:
            writer = self._writer(found.group, deadline)
            for first in range(0, len(found.commits), MOST_WITHDRAWN):
                with after_a_change("run it again", done=first > 0):
                    deadline.check(what)
                    keys = found.commits[first : first + MOST_WITHDRAWN]
                    writer.commit([], keys, {}, None, deadline)
        with after_a_change("run it again", done=bool(found.commits)):
            if found.offsets:
                deadline.check(what)
                delete_positions(self._admin.connection, found.group, found.offsets)
        with after_a_change():
            self._refuse_active(found.group, found.topic, deadline, changed=True)

    def _writer(self, group: str, deadline: Deadline) -> CommitWriter:
        writer = CommitWriter(
            self._admin.connection,
            f"{group_ids('seek', group)}{uuid.uuid4().hex}",
            offset_log_partitions(self._admin),
        )
        writer.open(deadline)
        return writer

    def _refuse_in_return(self, seek: Seek, deadline: Deadline, so_far: str = "") -> None:
        recorded = self._session.read(deadline).enrolments.get(seek.state.parent.topic)
        obstacle = seek_obstacle(recorded, seek.state, seek.cursor)
        if obstacle is not None:
            raise ConflictError(obstacle.message, hint=f"{so_far}{obstacle.remedy}")

    def _refuse_unknown(self, group: str, parent: PhysicalPartition, deadline: Deadline) -> None:
        """Refuse a group that has neither members nor commits: a typo would hold up ``retire`` for ever."""
        if describe_members(self._admin, group).active or positions_of(self._admin, group):
            return
        fold = range_commits(self._admin, [parent], deadline)
        if group not in (known := fold.groups(parent)):
            hint = f"{self._name_hint(group, known)}, or give --new-group"
            raise UsageError(f"there is no group {group}: it has no commits and no members", hint=hint)

    def _name_hint(self, group: str, known: Iterable[str]) -> str:
        nearest = nearest_group(self._admin, group, known)
        return "check the name" if nearest is None else f"did you mean {nearest}?"

    def _nobody(self, group: str) -> object:
        consumer = self._admin.connection.open_consumer("seek", group_id=group, enable_auto_commit=False)
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()

    def _refuse_active(self, group: str, topic: str, deadline: Deadline, *, changed: bool) -> None:
        if not group:
            raise UsageError("no group named", hint="give --group NAME")
        enrolment = self._session.read(deadline).enrolments.get(topic)
        if not has_member_on(self._admin, group, topic, enrolment):
            return
        if changed:
            raise ConflictError(
                f"a member of group {group} joined meanwhile on {topic}, and may not have seen it",
                hint=f"stop the group, look at: kpsplit offsets --group {group} {topic}",
                changed=True,
            )
        raise ConflictError(f"group {group} has active members on {topic}", hint="stop them, then retry")


def _refuse_retired(seek: Seek, now: PartitionState, *, hint: str) -> None:
    """Raise ConflictError if a sub-topic was retired since the plan whose records the seek goes to."""
    retired = now.retired() - seek.state.retired()
    lineage = seek.state.lineage
    unread = {lineage.get(segment).source.topic for segment in seek.cursor.pending(lineage)}
    if lost := sorted(retired & unread):
        raise ConflictError(f"{lost[0]} was retired meanwhile: its records are gone", hint=hint)


def _committed(fold: CommitFold, group: str, topic: str, states: Iterable[PartitionState]) -> Forgettable:
    """Return what there is of a group without its ordinary offsets."""
    parents = [state.parent for state in states]
    keys = tuple(key for parent in parents for key in fold.keys(group, parent))
    pieces = tuple(piece for parent in parents for piece in fold.commits(group, parent))
    return Forgettable(group, topic, keys, (), pieces)


def _others(fold: CommitFold, seek: Seek) -> list[Cursor]:
    state, moved = seek.state, seek.cursor.range
    rest = [KeyRange(lo, hi) for lo, hi in ((WHOLE.lo, moved.lo), (moved.hi, WHOLE.hi)) if lo < hi]
    pieces = [
        piece for range_ in rest for piece in fold.cursor(seek.group, state.parent, range_, state.lineage)
    ]
    return [cursor for _, cursor in pieces if cursor is not None]
