"""Which offsets of which logs are read, and what each of them is. Pure.

The regions of a physical partition tile its offsets [0, 2^63 - 1): each segment's stretch together with the
marker at its end, and what lies between and after them, which holds nothing of ours. They are the small table
that records are joined with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum

from kpsplit.errors import UsageError
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.splitter.lineage import MAX_OFFSET, PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState


class Fate(IntEnum):
    """What becomes of a record, by its place and its stamp (``splitter.reading``); a number is narrow."""

    DATA = 0
    """Delivered."""
    STRAY = 1
    """Skipped: its producer sends it again."""
    MARKER = 2
    """The marker at a segment's end."""
    ORPHAN_MARKER = 3
    """A marker of an attempt that ended nothing here."""
    NOT_THE_MARKER = 4
    """Where the lineage has a marker: a record, or another partition's marker. Not the log that was cut."""
    UNKNOWN_EPOCH = 5
    """A stamp of an epoch that was never reached."""
    BEHIND_THE_END = 6
    """An unstamped record where nothing of this logical partition is stored."""
    NEWER = 7
    """A stamp or marker of a newer format: reading on would be guessing."""


@dataclass(frozen=True, slots=True)
class Region:
    """The offsets [first, behind) of one physical partition, as a logical partition's state has them."""

    state: PartitionState
    source: PhysicalPartition
    first: int
    behind: int
    segment: Segment | None

    def row(self) -> tuple[object, ...]:
        """Return the row of ``records.REGIONS``."""
        source, parent, s = self.source, self.state.parent, self.segment
        home = self.state.home(source).to_bytes(8, "big")
        place = source.topic, source.partition, self.first, self.behind, parent.topic, parent.partition, home
        if s is None:
            return (*place, *[None] * 8, self.state.epoch)
        numbers = s.progression.base, s.progression.stride
        held = s.id, s.range.lo, s.range.hi, s.start, s.end, *numbers, s.opened_epoch
        return (*place, *held, self.state.epoch)


def all_regions(state: PartitionState) -> list[Region]:
    """Return the regions of every physical partition of a logical one, with markers and what is nobody's."""
    return [region for source in state.lineage.sources() for region in _of_source(state, source)]


def _of_source(state: PartitionState, source: PhysicalPartition) -> Iterator[Region]:
    behind = 0
    for segment in sorted((s for s in state.lineage if s.source == source), key=lambda s: s.start):
        if behind < segment.start:
            yield Region(state, source, behind, segment.start, None)
        behind = MAX_OFFSET if segment.end is None else segment.end + 1
        yield Region(state, source, segment.start, behind, segment)
    if behind < MAX_OFFSET:
        yield Region(state, source, behind, MAX_OFFSET, None)


def ranges_to_scan(regions: Iterable[Region]) -> dict[PhysicalPartition, tuple[int, int]]:
    """Return the one stretch of each physical partition that holds all the regions given."""
    found: dict[PhysicalPartition, tuple[int, int]] = {}
    for r in regions:
        first, behind = found.get(r.source, (r.first, r.behind))
        found[r.source] = min(first, r.first), max(behind, r.behind)
    return found


Bound = str | int | datetime | Mapping[int, int]
"""``earliest``, ``latest``, a time (datetime, or ms since 1970), or a logical offset per partition."""

FirstOffsets = Mapping[PhysicalPartition, int]
"""The first offset of each log that is not older than a time; logs without one are left out."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One end of what is read, as it applies to segments.

    ``logical``: a logical offset per partition (left out: no limit). ``physical``: what was found for a
    time, None where no time was given.
    """

    logical: Mapping[int, int]
    physical: FirstOffsets | None = None

    def at(self, segment: Segment, partition: int, otherwise: int) -> int:
        """Return the physical offset of the limit in a segment, ``otherwise`` if there is none."""
        if self.physical is not None:
            return self.physical.get(segment.source, segment.end or _FAR)
        if partition not in self.logical:
            return otherwise
        return segment.start + segment.progression.steps_to(self.logical[partition])


_FAR = 1 << 62


def timestamp_ms(bound: Bound) -> int | None:
    """Return the time that a bound names, in milliseconds since 1970; None if it names none.

    Raises:
        UsageError: it is none of the forms.
    """
    match bound:
        case datetime():
            aware = bound if bound.tzinfo else bound.replace(tzinfo=UTC)
            return int(aware.timestamp() * 1000)
        case int() if not isinstance(bound, bool):
            return bound
        case "earliest" | "latest" | Mapping():
            return None
    raise UsageError(
        f"{bound!r} is neither an offset nor a time",
        hint="give earliest, latest, a datetime, or {partition: logical offset}",
    )


def check_batch_bounds(start: Bound, end: Bound) -> None:
    """Refuse a batch from ``latest``, or to ``earliest``, as Kafka's own source does."""
    if start == "latest":
        raise UsageError("a batch cannot start at latest", hint="give earliest, a time or logical offsets")
    if end == "earliest":
        raise UsageError("a batch cannot end at earliest", hint="give latest, a time or logical offsets")


def limit(bound: Bound, found: FirstOffsets | None, partitions: set[int]) -> Limit:
    """Return the limit that a bound names; ``found``: the logs' offsets of its time."""
    if found is not None:
        return Limit({}, found)
    return Limit(logical_offsets(bound, partitions))


def logical_offsets(bound: Bound, partitions: set[int]) -> Mapping[int, int]:
    """Return the logical offsets that a bound names. Raises UsageError: one is of none of the partitions."""
    logical = bound if isinstance(bound, Mapping) else {}
    if unknown := sorted(set(logical) - partitions):
        raise UsageError(f"an offset is given for partition {unknown[0]}, which is not read")
    return logical


def wanted(snapshot: Snapshot, start: Limit, end: Limit) -> list[Region]:
    """Return what is read of each segment.

    Raises:
        UsageError: a logical offset was asked for that is not in the logs any more.
    """
    _refuse_lost(snapshot, start, end)
    found = []
    for state in snapshot.states:
        number = state.parent.partition
        for s in state.lineage:
            first, behind = snapshot.readable(s)
            first, behind = max(first, start.at(s, number, first)), min(behind, end.at(s, number, behind))
            if first < behind:
                found.append(Region(state, s.source, first, behind, s))
    return found


def _refuse_lost(snapshot: Snapshot, start: Limit, end: Limit) -> None:
    for lost in snapshot.lost():
        partition = lost.state.parent.partition
        behind = _FAR if lost.behind is None else lost.behind
        first, last = (limit.at(lost.segment, partition, behind) for limit in (start, end))
        if partition in start.logical and max(first, lost.first) < min(behind, last):
            raise UsageError(
                f"{lost.state.parent}: records from {start.logical[partition]} on are gone ({lost})",
                hint="start at earliest, or at a later offset",
            )
