"""Everything that is known of a topic without reading its data, as one consistent picture. Plain values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.lineage import PhysicalPartition, Segment, SegmentKind
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import GapReason
from kpsplit.splitter.records.offsets import Boundary, CommitKey, NewerCommit, RangeCommit
from kpsplit.splitter.records.producers import ProducerRegistration


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The offsets [low, high) of a log; before ``stable`` every transaction is decided."""

    low: int
    stable: int
    high: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The offsets [first, behind) of a segment that cannot be read (``behind`` None: not known)."""

    state: PartitionState
    segment: Segment
    first: int
    behind: int | None
    reason: GapReason

    def __str__(self) -> str:
        last = "" if self.behind is None else f" to {self.behind - 1}"
        extent = f"offsets {self.first}{last} of {self.segment.source}"
        return f"segment {self.segment.id}: {extent}: {self.reason.phrase}"


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A range commit and where it stands in the offset log (None: the key was withdrawn there)."""

    key: CommitKey
    commit: RangeCommit | NewerCommit | None
    log: PhysicalPartition
    log_offset: int


@dataclass(frozen=True)
class Snapshot:
    """One picture: the control topic was read after all log ends, and those after all commits.

    ``states``: of the logical partitions that were asked for, each at rest or with an attempt that has
    written no marker. ``bounds``: of the physical partitions that exist. ``gone``: those that cannot be
    read at all. ``garbage``: records of kpsplit's own topics that could not be read, in words.
    """

    topic: str
    states: tuple[PartitionState, ...]
    bounds: Mapping[PhysicalPartition, LogEnds]
    gone: Mapping[PhysicalPartition, GapReason] = field(default_factory=dict)
    producers: tuple[ProducerRegistration, ...] = ()
    commits: tuple[LoggedCommit, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    garbage: tuple[str, ...] = ()
    unread: frozenset[PhysicalPartition] = frozenset()

    def ends(self, place: PhysicalPartition) -> LogEnds | None:
        """Return the ends of a log; None: nothing of ours can be read of it."""
        return None if place in self.gone else self.bounds.get(place)

    @cached_property
    def fold(self) -> CommitFold:
        """All range commits as they are in force."""
        fold = CommitFold()
        for logged in sorted(self.commits, key=lambda commit: commit.log_offset):
            fold.take(logged.key, logged.commit, logged.log_offset)
        return fold

    def committed(self, groups: Collection[str] | None = None) -> list[tuple[str, PartitionState]]:
        """Return which of some groups (None: of all) have range commits in force, in which partition.

        One whose commits were all withdrawn (``kpsplit forget``) has none, although the log may hold them.
        """
        found = [(group, state) for state in self.states for group in self.fold.groups(state.parent)]
        found.sort(key=lambda one: (one[0], one[1].parent))
        return [(group, state) for group, state in found if groups is None or group in groups]

    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group for group, _ in self.committed()))

    def owners(self) -> dict[PhysicalPartition, int]:
        return {s.source: state.parent.partition for state in self.states for s in state.lineage}

    def readable(self, segment: Segment) -> tuple[int, int]:
        """Return the offsets [first, behind) of a segment that can be read; empty if nothing can."""
        bounds = self.ends(segment.source)
        if bounds is None:
            return segment.start, segment.start
        end = bounds.stable if segment.end is None else min(segment.end, bounds.high)
        first = max(segment.start, bounds.low)
        return first, max(first, end)

    def holds(self, place: PhysicalPartition, offset: int) -> bool:
        """Return whether what a log has at an offset has neither expired nor gone with its topic."""
        bounds = self.ends(place)
        return bounds is not None and bounds.low <= offset

    def lost(self) -> list[Lost]:
        return [lost for state in self.states for s in state.lineage for lost in self._lost_of(state, s)]

    def _lost_of(self, state: PartitionState, segment: Segment) -> list[Lost]:
        bounds = self.ends(segment.source)
        if bounds is None:
            reason = self.gone.get(segment.source, GapReason.MISSING)
            nothing = segment.end == segment.start
            return [] if nothing else [Lost(state, segment, segment.start, segment.end, reason)]
        found = []
        if bounds.low > segment.start:
            behind = bounds.low if segment.end is None else min(bounds.low, segment.end)
            found.append(Lost(state, segment, segment.start, behind, GapReason.EXPIRED))
        if segment.end is not None and bounds.high <= segment.end:
            found.append(
                Lost(state, segment, max(bounds.high, segment.start), segment.end + 1, GapReason.CUT_OFF)
            )
        return [lost for lost in found if lost.behind is None or lost.first < lost.behind]


def without_boundary(
    states: Iterable[PartitionState], boundaries: Iterable[Boundary]
) -> list[tuple[PartitionState, Segment]]:
    """Return the segments that an operation opened, and whose boundary record is not there.

    Of several segments of one range only the latest: compaction removes the records of the others.
    """
    there = {(b.parent, b.range, b.opened_segment) for b in boundaries}
    found = []
    for state in states:
        opened = [s for s in state.lineage if s.predecessors and s.kind is not SegmentKind.OVERFLOW]
        latest = {s.range: s for s in opened}
        found += [(state, s) for s in latest.values() if (state.parent, s.range, s.id) not in there]
    return found
