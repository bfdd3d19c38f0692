"""What operations report, where partitions stand, and how far groups have come in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from confluent_kafka import IsolationLevel

from kpsplit.clock import Deadline
from kpsplit.control.plans import attempt_age
from kpsplit.errors import UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin, no_partition
from kpsplit.kafka.groups import Owner, describe_members, owners, positions_of, range_commits
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.control_plane import ControlView, Registrations
from kpsplit.splitter.key_range import WHOLE, KeyRange, without_slots
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import Outcome, PartitionState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.keys import slots_topic
from kpsplit.splitter.records.offsets import RangeCommit
from kpsplit.splitter.records.producers import PauseReport, ProducerRegistration


@dataclass(frozen=True, slots=True)
class Report:
    """How an operation ended. ``pauses``: per producer instance name, those that reported this attempt."""

    outcome: Outcome
    state: PartitionState
    pauses: dict[str, PauseReport]
    seconds: float


@dataclass(frozen=True, slots=True)
class Retirable:
    """The sub-topics that ``retire`` would delete, and those that it would keep, with the reasons."""

    going: tuple[str, ...]
    kept: Mapping[str, str]


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
    """Return the status of partitions; as ``Admin.status``.

    Raises:
        UsageError: there is no such topic, it is not enrolled, or has no such partition.
    """
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
    return [_status(state, view, registrations, offsets, counts) for state in found]


def _status(
    state: PartitionState,
    view: ControlView,
    registrations: Registrations,
    ends: dict[PhysicalPartition, int],
    counts: dict[str, int],
) -> PartitionStatus:
    topic, number = state.parent.topic, state.parent.partition
    enrolment = view.enrolments[topic]
    slots, has = enrolment.slots, counts.get(slots_topic(topic))  # None as well where we may not see it
    unread = slots is not None and has is not None and number in without_slots(counts[topic], slots, has)
    return PartitionStatus(
        state=state,
        enrolment=enrolment,
        ends={s.id: ends.get(s.source) for s in state.lineage if s.is_open},
        writers=registrations.open(topic),
        attempt_age_seconds=attempt_age(state.attempt),
        unread=unread,
    )


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
        """The position as a logical offset."""
        return self.segment.logical(self.next)

    @property
    def draining(self) -> bool:
        """Return whether the segment is closed: a later one waits for it."""
        return not self.segment.is_open


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

    @property
    def to_drain(self) -> tuple[int, ...]:
        """The closed segments that it has not read to their ends."""
        return tuple(s.segment.id for s in self.left if s.draining)


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """A group's progress in one logical partition; the ranges tile the key space."""

    state: PartitionState
    ranges: tuple[RangeProgress, ...]

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
) -> PartitionProgress:
    """Return where a group stands.

    Args:
        state: a fresh state.
        group: its id.
        fold: the offset log.
        ordinary: the group's ordinary offsets; they count where there is no range commit.
        owners: which member owns which range.
        ends: the stable end of every physical partition that there is.
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
            ranges.append(RangeProgress(range_, basis, left, owner, _commit(fold, group, state, range_)))
    return PartitionProgress(state, tuple(ranges))


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


def _commit(fold: CommitFold, group: str, state: PartitionState, range_: KeyRange) -> RangeCommit | None:
    """Return the commit at the start of a range."""
    return next((c for r, c in fold.commits(group, state.parent) if range_.lo in r), None)


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
    ordinary = positions_of(admin, group)
    members = describe_members(admin, group)
    view = read_view()  # after the commits, so that it knows every segment that they list
    states = [view.state(p) or PartitionState.unsplit(p, "") for p in parents]
    sources = {source for state in states for source in state.lineage.sources()}
    ends = admin.end_offsets(sources, IsolationLevel.READ_COMMITTED)
    stable = {place: end.offset for place, end in ends.items()}
    enrolment = view.enrolments.get(topic)
    found = [
        progress_of(s, group, fold, ordinary, owners(members, s.parent, enrolment), stable) for s in states
    ]
    if not any(r.owner or r.basis is not Basis.NOTHING for p in found for r in p.ranges):
        raise UsageError(
            f"group {group} has committed nothing in {topic}, and has no members there",
            hint="check the name of the group",
        )
    return found


def _partitions(
    admin: ClusterAdmin, topic: str, partition: int | None, deadline: Deadline
) -> list[PhysicalPartition]:
    count = admin.partition_count(topic, deadline)
    if partition is not None and partition >= count:
        raise no_partition(PhysicalPartition(topic, partition), count)
    return [PhysicalPartition(topic, p) for p in (range(count) if partition is None else (partition,))]
