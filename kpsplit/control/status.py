"""What operations report, where partitions stand, and how far groups have come in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import ceil
from typing import TypeVar

from confluent_kafka import IsolationLevel

from kpsplit.clock import Deadline, monotonic
from kpsplit.control.plans import attempt_age
from kpsplit.errors import UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin, answer_within, no_partition
from kpsplit.kafka.groups import (
    Members,
    Owner,
    describe_members,
    known_groups,
    positions_of,
    range_commits,
)
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.control_plane import ControlView, Registrations
from kpsplit.splitter.group_slots import group_topics
from kpsplit.splitter.key_range import WHOLE, KeyRange, slot_range, without_slots
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import Outcome, PartitionState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.offsets import RangeCommit
from kpsplit.splitter.records.producers import PauseReport, ProducerRegistration


@dataclass(frozen=True, slots=True)
class Report:
    """How an operation ended. ``pauses``: per producer instance name, those that reported this attempt."""

    outcome: Outcome
    state: PartitionState
    pauses: dict[str, PauseReport]
    seconds: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of values in rising order, 0 if there are none."""
    return values[max(0, ceil(share * len(values)) - 1)] if values else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """How some durations are spread, in milliseconds."""

    count: int
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, milliseconds: Iterable[float]) -> Spread:
        values = sorted(milliseconds)
        most = values[-1] if values else 0.0
        return cls(len(values), percentile(values, 0.5), percentile(values, 0.99), most)


@dataclass(frozen=True, slots=True)
class Retirable:
    """The sub-topics that ``retire`` would delete, and those that it would keep, with the reasons.

    ``undrained``: those that are kept only because groups have not drained them.
    """

    going: tuple[str, ...]
    kept: Mapping[str, str]
    undrained: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One logical partition now.

    ``ends``: per open segment's id (overflows too) the log end of its physical partition, None where it is
    missing. ``writers``: the topic's producers that did not close. ``attempt_age_seconds``: of the
    attempt under way, by the operator's wall clock, None if there is none. ``unread``: it has no slots, so no
    group reads it.
    """

    state: PartitionState
    enrolment: Enrolment
    ends: dict[int, int | None]
    writers: tuple[ProducerRegistration, ...]
    attempt_age_seconds: float | None
    unread: bool = False


def statuses(
    admin: ClusterAdmin,
    view: ControlView,
    registrations: Registrations,
    topic: str | None,
    partition: int | None,
    deadline: Deadline,
) -> list[PartitionStatus]:
    counts = admin.topics()
    if topic is not None and topic not in counts:
        counts[topic] = admin.partition_count(topic, deadline)
    if topic is not None and topic not in view.enrolments:
        raise view.not_enrolled(topic)
    places = [
        PhysicalPartition(name, number)
        for name in sorted(view.enrolments)
        if topic in (None, name)
        for number in range(counts.get(name, 0))
        if partition in (None, number)
    ]
    if not places and partition is not None:
        raise no_partition(PhysicalPartition(topic or "", partition), counts.get(topic or "", 0))
    found = [state for state in map(view.state, places) if state is not None]
    wanted = {s.source for state in found for s in state.lineage if s.is_open}
    ends = admin.end_offsets(p for p in wanted if p.partition < counts.get(p.topic, 0))
    offsets = {p: e.offset for p, e in ends.items()}
    enrolled = [view.enrolments[name] for name in dict.fromkeys(state.parent.topic for state in found)]
    writers = {e.topic: registrations.open(e.topic) for e in enrolled}
    unread = {e.topic: _unread(e, counts) for e in enrolled}
    return [
        PartitionStatus(
            state=state,
            enrolment=view.enrolments[state.parent.topic],
            ends={s.id: offsets.get(s.source) for s in state.lineage if s.is_open},
            writers=writers[state.parent.topic],
            attempt_age_seconds=attempt_age(state.attempt),
            unread=state.parent.partition in unread[state.parent.topic],
        )
        for state in found
    ]


def _unread(enrolment: Enrolment, counts: Mapping[str, int]) -> range:
    """Return the partitions of a topic that have no slots; none where we may not see its slots topic."""
    slots, has = enrolment.slots, counts.get(enrolment.slots_topic)
    if slots is None or has is None:
        return range(0)
    return without_slots(counts[enrolment.topic], slots, has)


class Basis(StrEnum):
    """What says where a group stands."""

    RANGE_COMMIT = "range commit"
    ORDINARY = "ordinary commit"
    NEWER = "commit of a newer kpsplit"
    NOTHING = "no commit"


@dataclass(frozen=True, slots=True)
class SegmentLeft:
    """What a key range still has before it in one segment.

    ``lag``: offsets from the position to the end, those of other key ranges and of markers too; None where
    the end is not known. ``ready``: it can be read now; otherwise it waits for segments before it.
    """

    segment: Segment
    next: int
    lag: int | None
    ready: bool

    @property
    def logical(self) -> int:
        return self.segment.logical(self.next)

    @property
    def draining(self) -> bool:
        """Return whether the segment is closed: a later one waits for it."""
        return not self.segment.is_open

    @property
    def stage(self) -> str:
        """Return ``waits``, ``drains``, or nothing for an open segment that is read."""
        if not self.ready:
            return "waits"
        return "drains" if self.draining else ""


@dataclass(frozen=True, slots=True)
class RangeProgress:
    """One key range. ``left`` is empty where there is no commit that can be read: then nothing is drained."""

    range: KeyRange
    basis: Basis
    left: tuple[SegmentLeft, ...]
    owner: Owner | None = None
    commit: RangeCommit | None = None

    @property
    def lag(self) -> int | None:
        """Offsets before the range in all segments, None if that is not known."""
        lags = [s.lag for s in self.left]
        return None if not lags or None in lags else sum(lag for lag in lags if lag is not None)

    def lag_in(self, segment: int) -> int:
        """Return the offsets before the range in one segment; 0 also where the end is not known."""
        return sum(s.lag or 0 for s in self.left if s.segment.id == segment)

    @property
    def to_drain(self) -> tuple[int, ...]:
        return tuple(s.segment.id for s in self.left if s.draining)


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """A group's progress in one logical partition; the ranges tile the key space.

    ``group_state``: ``stable``, ``empty`` (it has no members), or ``in rebalance``: who owns what is being
    decided, and a range without an owner waits for that.
    """

    state: PartitionState
    ranges: tuple[RangeProgress, ...]
    group_state: str

    @property
    def lag(self) -> int | None:
        """Offsets between the slowest range and the end, per segment, in all segments."""
        slowest: dict[int, int] = {}
        for range_ in self.ranges:
            if range_.lag is None:
                return None
            for left in range_.left:
                slowest[left.segment.id] = max(slowest.get(left.segment.id, 0), left.lag or 0)
        return sum(slowest.values())


def progress_of(
    state: PartitionState,
    group: str,
    fold: CommitFold,
    ordinary: Mapping[PhysicalPartition, int],
    owners: Sequence[tuple[KeyRange, Owner]],
    ends: Mapping[PhysicalPartition, int],
    group_state: str = "stable",
) -> PartitionProgress:
    """Return where a group stands.

    ``ordinary``: its ordinary offsets, which count where there is no range commit. ``ends``: the stable end
    of every physical partition that there is.
    """
    cuts = {r.lo for r, _ in owners} | {r.hi for r, _ in owners}
    pieces = fold.cursor(group, state.parent, WHOLE, state.lineage)
    ranges = []
    for whole, cursor in pieces:
        if fold.newer(group, state.parent, whole) is not None:
            basis, known = Basis.NEWER, None
        else:
            basis, known = _known(state, whole, cursor, ordinary)
        for range_ in _cut(whole, cuts):
            owner = next((o for r, o in owners if r.covers(range_)), None)
            left = () if known is None else _left(state, known.narrowed(range_), ends)
            commit = next((c for r, c in fold.commits(group, state.parent) if range_.lo in r), None)
            ranges.append(RangeProgress(range_, basis, left, owner, commit))
    return PartitionProgress(state, tuple(ranges), group_state)


def _known(
    state: PartitionState,
    range_: KeyRange,
    cursor: Cursor | None,
    ordinary: Mapping[PhysicalPartition, int],
) -> tuple[Basis, Cursor | None]:
    if cursor is not None:
        return Basis.RANGE_COMMIT, cursor
    if any(source in ordinary for source in state.lineage.sources()):
        return Basis.ORDINARY, Cursor.from_positions(state.lineage, range_, ordinary)
    return Basis.NOTHING, None


def _cut(range_: KeyRange, cuts: Iterable[int]) -> Iterator[KeyRange]:
    bounds = [range_.lo, *sorted(c for c in cuts if range_.lo < c < range_.hi), range_.hi]
    return (KeyRange(lo, hi) for lo, hi in pairwise(bounds))


def _left(
    state: PartitionState, cursor: Cursor, ends: Mapping[PhysicalPartition, int]
) -> tuple[SegmentLeft, ...]:
    readable = cursor.readable(state.lineage)
    left = []
    for segment_id, next_ in cursor.pending(state.lineage).items():
        segment = state.lineage.get(segment_id)
        end = segment.end if segment.end is not None else ends.get(segment.source)
        lag = None if end is None else max(0, end - next_)
        left.append(SegmentLeft(segment, next_, lag, segment_id in readable))
    return tuple(left)


def group_progress(
    admin: ClusterAdmin,
    read_view: Callable[[], ControlView],
    group: str,
    topic: str,
    partition: int | None,
    deadline: Deadline,
) -> list[PartitionProgress]:
    """Return how far a group has come in a topic's partitions, or in one of them.

    Raises:
        UsageError: there is no such topic or partition, or the group has neither commits nor members there.
        KpsplitError: the cluster could not be asked.
    """
    parents = _partitions(admin, topic, partition, deadline)
    fold = range_commits(admin, parents, deadline, group)
    ordinary = {group: positions_of(admin, group)}
    found = _progress(admin, read_view, parents, fold, ordinary, deadline)[group]
    if not any(r.owner or r.basis is not Basis.NOTHING for p in found for r in p.ranges):
        raise UsageError(
            f"group {group} has committed nothing in {topic}, and has no members there",
            hint="check the name of the group",
        )
    return found


def progress_of_groups(
    admin: ClusterAdmin,
    read_view: Callable[[], ControlView],
    topic: str,
    partition: int | None,
    deadline: Deadline,
) -> dict[str, list[PartitionProgress]]:
    """Return how far each group has come that has commits or members in a topic, by the group's name.

    Raises: as ``group_progress``; AuthorizationError: groups may be hidden from us.
    """
    parents = _partitions(admin, topic, partition, deadline)
    fold = range_commits(admin, parents, deadline)
    known = known_groups(admin, group_topics(topic, read_view().enrolments.get(topic)), deadline)
    groups = {*known, *(group for p in parents for group in fold.groups(p))}
    ordinary = {group: known.get(group, {}) for group in sorted(groups)}
    return _progress(admin, read_view, parents, fold, ordinary, deadline)


K = TypeVar("K")

SHORT_LOOK = 1.0
LONG_LOOK = 5.5
"""Seconds between two looks at positions: consumers commit every 5 s by default."""

_PART_OF_CALL = 0.25


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left to read: offsets, and about how many seconds that takes; None: it was not seen to move."""

    offsets: int
    seconds: int | None = None


def estimated(before: Mapping[K, int], after: Mapping[K, int], seconds: float) -> dict[K, Remaining]:
    """Return what is left by two looks at the same stretches of log.

    What is written meanwhile is left out: nothing is added to a stretch once it is fenced.
    """
    found = {}
    for key, left in after.items():
        read = before.get(key, left) - left
        takes = round(left * seconds / read) if read > 0 else None
        found[key] = Remaining(left, takes if left else 0)
    return found


def look_twice(look: Callable[[], Mapping[K, int]], deadline: Deadline) -> dict[K, Remaining]:
    """Look at what is left to read, and again a moment later; longer if one did not move."""
    before, began = look(), monotonic()
    after, longest = before, deadline.left() * _PART_OF_CALL
    for until in (SHORT_LOOK, LONG_LOOK):
        if any(after[g] and after[g] == before.get(g) for g in after):
            time.sleep(max(0.0, min(until, longest) - (monotonic() - began)))
            after = look()
    return estimated(before, after, monotonic() - began)


@dataclass(frozen=True, slots=True)
class GroupDrain:
    """What a group has still to read of a closed segment; its ranges go on with later ones after that.

    ``range``, ``owner``: the one that is furthest from the end.
    """

    segment: Segment
    group: str
    left: Remaining
    range: KeyRange
    owner: Owner | None


def slowest(groups: Mapping[str, Sequence[PartitionProgress]]) -> dict[tuple[str, int], RangeProgress]:
    """Return, by group and closed segment, the range that has most of it before it."""
    found: dict[tuple[str, int], RangeProgress] = {}
    for group, partitions in groups.items():
        for range_ in (r for p in partitions for r in p.ranges):
            for id_ in range_.to_drain:
                one = found.get((group, id_))
                if one is None or one.lag_in(id_) < range_.lag_in(id_):
                    found[group, id_] = range_
    return found


def group_drains(
    look: Callable[[], Mapping[str, Sequence[PartitionProgress]]], deadline: Deadline
) -> list[GroupDrain]:
    """Return what groups have still to read of a partition's closed segments, by two looks at them."""
    last: dict[tuple[str, int], RangeProgress] = {}

    def lags() -> dict[tuple[str, int], int]:
        nonlocal last
        last = slowest(look())
        return {(group, id_): one.lag_in(id_) for (group, id_), one in last.items()}

    found = []
    for (group, id_), left in sorted(look_twice(lags, deadline).items(), key=lambda one: one[0][::-1]):
        one = last[group, id_]
        (segment,) = (s.segment for s in one.left if s.segment.id == id_)
        found.append(GroupDrain(segment, group, left, one.range, one.owner))
    return found


def _progress(
    admin: ClusterAdmin,
    read_view: Callable[[], ControlView],
    parents: Sequence[PhysicalPartition],
    fold: CommitFold,
    ordinary: Mapping[str, Mapping[PhysicalPartition, int]],
    deadline: Deadline,
) -> dict[str, list[PartitionProgress]]:
    """Return how far groups have come in partitions of one topic; ``ordinary``: their ordinary offsets."""
    members = {}
    for group in ordinary:
        deadline.check("the members of the consumer groups")
        members[group] = describe_members(admin, group, answer_within(deadline))
    view = read_view()  # after the commits, so that it knows every segment that they list
    states = [view.state(p) or PartitionState.unsplit(p, "") for p in parents]
    sources = {source for state in states for source in state.lineage.sources()}
    ends = admin.end_offsets(sources, IsolationLevel.READ_COMMITTED)
    stable = {place: end.offset for place, end in ends.items()}
    found = {}
    for group, offsets in ordinary.items():
        of = members[group]
        shares = [(s, owners(of, s.parent, view.enrolments.get(s.parent.topic))) for s in states]
        found[group] = [progress_of(s, group, fold, offsets, o, stable, of.state) for s, o in shares]
    return found


def owners(
    members: Members, parent: PhysicalPartition, enrolment: Enrolment | None
) -> list[tuple[KeyRange, Owner]]:
    """Return which member owns which key range of a logical partition, neighbours of one owner joined."""
    divisions = () if enrolment is None else enrolment.divisions
    if not divisions:
        whole = members.assigned.get(parent)
        return [(WHOLE, whole)] if whole else []
    found: list[tuple[KeyRange, Owner]] = []
    places = [(d.slots, index, p) for d in divisions for index, p in enumerate(d.places(parent.partition))]
    for slots, index, place in places:
        owner = members.assigned.get(place)
        range_ = slot_range(index, slots)
        if owner is None:
            continue
        if found and found[-1][1] == owner and found[-1][0].hi == range_.lo:
            range_ = KeyRange(found.pop()[0].lo, range_.hi)
        found.append((range_, owner))
    return found


def _partitions(
    admin: ClusterAdmin, topic: str, partition: int | None, deadline: Deadline
) -> list[PhysicalPartition]:
    count = admin.partition_count(topic, deadline)
    if partition is not None and partition >= count:
        raise no_partition(PhysicalPartition(topic, partition), count)
    return [PhysicalPartition(topic, p) for p in (range(count) if partition is None else (partition,))]
