"""From where to where a logical partition is read: logical offsets, times, or all there is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from kpsplit.errors import UsageError
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState

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
        f"{bound!r} says no offset", hint="give earliest, latest, a datetime, or {partition: logical offset}"
    )


def check_batch_bounds(start: Bound, end: Bound) -> None:
    """Do nothing for bounds between which there can be records; Kafka's own source refuses the same others.

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
