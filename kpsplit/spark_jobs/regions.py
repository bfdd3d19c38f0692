"""Which offsets of which logs are read, and what each of them is. Pure.

The regions of a physical partition tile its offsets [0, 2^63 - 1): each segment's stretch together with the
marker at its end, and what lies between and after them, which holds nothing of ours. They are the small table
that records are joined with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from kpsplit.errors import UsageError
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.splitter.lineage import MAX_OFFSET, PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState


@dataclass(frozen=True, slots=True)
class Region:
    """The offsets [first, behind) of one physical partition, as a logical partition's state has them."""

    state: PartitionState
    source: PhysicalPartition
    first: int
    behind: int
    segment: Segment | None

    def row(self) -> tuple[object, ...]:
        """Return the row of ``schemas.REGIONS``."""
        parent, s = self.state.parent, self.segment
        home = self.state.home(self.source).to_bytes(8, "big")
        place = (*_flat(self.source), self.first, self.behind, *_flat(parent), home)
        if s is None:
            return (*place, None, None, None, None, None, None, None, None, self.state.epoch)
        numbers = s.progression
        return (
            *(*place, s.id, s.range.lo, s.range.hi, s.start, s.end),
            *(numbers.base, numbers.stride, s.opened_epoch, self.state.epoch),
        )


def _flat(place: PhysicalPartition) -> tuple[str, int]:
    return place.topic, place.partition


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


def stretches(state: PartitionState, bounds: Mapping[int, tuple[int, int]]) -> list[Region]:
    """Return the parts of segments that are to be delivered: per segment id the offsets [first, behind)."""
    return [
        Region(state, s.source, first, behind, s)
        for s in state.lineage
        for first, behind in [bounds.get(s.id, (0, 0))]
        if first < behind
    ]


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
        numbers = segment.progression
        return segment.start + max(0, -((numbers.base - self.logical[partition]) // numbers.stride))


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
        case "earliest" | "latest":
            return None
        case Mapping():
            return None
    raise UsageError(
        f"{bound!r} is neither an offset nor a time",
        hint="give earliest, latest, a datetime, or {partition: logical offset}",
    )


def check_batch_bounds(start: Bound, end: Bound) -> None:
    """Raise if there can be no record between two bounds; Kafka's own source refuses the same.

    Raises:
        UsageError: a batch from ``latest``, or to ``earliest``.
    """
    if start == "latest":
        raise UsageError("a batch cannot start at latest", hint="give earliest, a time or logical offsets")
    if end == "earliest":
        raise UsageError("a batch cannot end at earliest", hint="give latest, a time or logical offsets")


def limit(bound: Bound, found: FirstOffsets | None, partitions: set[int]) -> Limit:
    """Return the limit that a bound names; ``found``: the logs' offsets of its time.

    Raises:
        UsageError: it names a partition that is not read.
    """
    if found is not None:
        return Limit({}, found)
    logical = bound if isinstance(bound, Mapping) else {}
    if unknown := sorted(set(logical) - partitions):
        raise UsageError(f"an offset is given for partition {unknown[0]}, which is not read")
    return Limit(logical)


def wanted(
    snapshot: Snapshot, start: Limit, end: Limit
) -> list[tuple[PartitionState, dict[int, tuple[int, int]]]]:
    """Return the offsets [first, behind) that are read, per logical partition and segment id.

    Raises:
        UsageError: a logical offset was asked for that is not in the logs any more.
    """
    _refuse_lost(snapshot, start, end)
    return [
        (state, {s.id: _stretch(snapshot, state, s, start, end) for s in state.lineage})
        for state in snapshot.states
    ]


def _stretch(
    snapshot: Snapshot, state: PartitionState, segment: Segment, start: Limit, end: Limit
) -> tuple[int, int]:
    first, behind = snapshot.readable(state, segment)
    partition = state.parent.partition
    return max(first, start.at(segment, partition, first)), min(behind, end.at(segment, partition, behind))


def _refuse_lost(snapshot: Snapshot, start: Limit, end: Limit) -> None:
    for lost in snapshot.lost():
        partition = lost.state.parent.partition
        behind = _FAR if lost.behind is None else lost.behind
        asked = start.at(lost.segment, partition, behind)
        if partition in start.logical and max(asked, lost.first) < min(
            behind, end.at(lost.segment, partition, behind)
        ):
            raise UsageError(
                f"{lost.state.parent}: records from {start.logical[partition]} on are gone ({lost})",
                hint="start at earliest, or at a later offset",
            )
