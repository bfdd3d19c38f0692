"""Segments and the lineage of a logical partition (protocol, sections 1 and 3).

A lineage is a DAG of segments. Segments are stretches of physical partitions; at any time at most one segment
of a physical partition is open. All values here are immutable: an operation makes a new lineage.

Logical offsets: every segment owns an arithmetic progression (protocol, section 3).

    logical(physical) = base + stride * (physical - start)

Worked example: a partition that was never split (base = start = 0, stride 1) ends at 1000 and is split into
four. Its progression goes to five heirs with stride 5: the overflow has base 1000, the phantoms 1001..1004.
Record 7 of the third phantom (base 1003) has the logical offset 1003 + 5 * 7 = 1038.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from kpsplit.errors import InvariantError
from kpsplit.splitter.key_range import WHOLE, KeyRange, union_of_adjacent

MAX_OFFSET = (1 << 63) - 1
"""Offsets, logical ones too, are signed 64-bit integers for every Kafka client."""

MAX_STRIDE = 1 << 31
"""No split that would make a greater stride is begun: each segment keeps room for 2**32 records."""


@dataclass(frozen=True, slots=True)
class Progression:
    """The numbers that a segment gives to its records: ``base``, ``base + stride``, and so on."""

    base: int
    stride: int

    def __post_init__(self) -> None:
        """Refuse a progression that does not rise, or that begins outside the 64-bit offsets."""
        if not 0 <= self.base <= MAX_OFFSET or not 1 <= self.stride <= MAX_OFFSET:
            raise InvariantError(f"no progression: base {self.base}, stride {self.stride}")

    def at(self, index: int) -> int:
        return self.base + self.stride * index

    def index_of(self, logical: int) -> int | None:
        """Return which record of the segment has this logical offset, None if the number is not ours."""
        index, rest = divmod(logical - self.base, self.stride)
        return index if rest == 0 and index >= 0 else None

    def heirs(self, length: int, count: int) -> tuple[Progression, ...]:
        first = self.at(length)
        return tuple(Progression(first + self.stride * j, self.stride * count) for j in range(count))

    def steps_to(self, logical: int) -> int:
        """Return how many of the numbers are below this one."""
        return max(0, -((self.base - logical) // self.stride))

    def from_beyond(self, floor: int) -> Progression:
        return Progression(self.at(self.steps_to(floor)), self.stride)


FIRST = Progression(0, 1)
"""Until the first split a logical offset is Kafka's own offset."""


def merged_progression(ends: Iterable[tuple[Progression, int]]) -> Progression:
    """Return the progression of a segment merged from others, given each one's progression and length.

    It is the densest of theirs, from its first number beyond all ends; the rest of the others is given up.
    """
    parts = list(ends)
    if not parts:
        raise InvariantError("a merge needs predecessors")
    floor = max(p.at(length) for p, length in parts)
    densest, _ = min(parts, key=lambda part: (part[0].stride, part[0].base))
    return densest.from_beyond(floor)


class SegmentKind(StrEnum):
    """Where a segment is stored and which writers write to it."""

    PARENT = "parent"
    """In the logical partition's own physical partition."""
    PHANTOM = "phantom"
    """In a partition of a sub-topic."""
    OVERFLOW = "overflow"
    """Behind a SEAL: records of writers that do not use kpsplit."""


@dataclass(frozen=True, slots=True, order=True)
class PhysicalPartition:
    """A partition of a real topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return ``topic/partition``."""
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Segment:
    """One key range during one period of the partition's life, in one stretch of a physical partition.

    ``id`` is never reused. ``start`` and ``end`` are physical offsets; ``end`` is None while the segment is
    open, then the offset of the marker after its last record. ``end_leader_epoch`` is the leader epoch in
    which that marker was written (None: not known); it shows a truncated log.
    """

    id: int
    kind: SegmentKind
    range: KeyRange
    source: PhysicalPartition
    start: int
    progression: Progression
    opened_epoch: int
    predecessors: tuple[int, ...] = ()
    end: int | None = None
    closed_epoch: int | None = None
    end_leader_epoch: int | None = None

    def __post_init__(self) -> None:
        """Refuse a segment that contradicts itself."""
        if self.end is not None and self.end < self.start:
            raise InvariantError(f"segment {self.id} ends at {self.end}, before its start {self.start}")
        if (self.end is None) != (self.closed_epoch is None):
            raise InvariantError(f"segment {self.id}: end and closed_epoch belong together")
        if self.closed_epoch is not None and self.closed_epoch <= self.opened_epoch:
            raise InvariantError(f"segment {self.id} is closed in an epoch before its own")

    @property
    def is_open(self) -> bool:
        """Return whether the segment has no end yet."""
        return self.end is None

    @property
    def accepts_keys(self) -> bool:
        """Return whether producers that use kpsplit write to it."""
        return self.is_open and self.kind is not SegmentKind.OVERFLOW

    def holds(self, offset: int) -> bool:
        """Return whether a physical offset lies inside the segment."""
        return self.start <= offset and (self.end is None or offset < self.end)

    def logical(self, offset: int) -> int:
        """Return the logical offset of a physical one; the segment's end maps to its next number."""
        return self.progression.at(offset - self.start)

    def physical(self, logical: int) -> int | None:
        """Return the physical offset that has this logical one, None if it is not in this segment."""
        index = self.progression.index_of(logical)
        if index is None or not self.holds(self.start + index):
            return None
        return self.start + index

    def length(self) -> int:
        """Return how many physical offsets a closed segment spans.

        Raises:
            InvariantError: the segment is open.
        """
        if self.end is None:
            raise InvariantError(f"segment {self.id} is still open")
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Lineage:
    """All segments of one logical partition, in the order of their ids (which is an order of the DAG)."""

    parent: PhysicalPartition
    segments: tuple[Segment, ...]

    @classmethod
    def unsplit(cls, parent: PhysicalPartition) -> Lineage:
        """Return the lineage of a partition that was never split."""
        first = Segment(
            id=0,
            kind=SegmentKind.PARENT,
            range=WHOLE,
            source=parent,
            start=0,
            progression=FIRST,
            opened_epoch=0,
        )
        return cls(parent, (first,))

    def __iter__(self) -> Iterator[Segment]:
        """Iterate over the segments, predecessors first."""
        return iter(self.segments)

    def get(self, segment_id: int) -> Segment:
        """Return a segment by its id.

        Raises:
            InvariantError: there is no such segment.
        """
        for segment in self.segments:
            if segment.id == segment_id:
                return segment
        raise InvariantError(f"{self.parent} has no segment {segment_id}")

    def open_segments(self) -> tuple[Segment, ...]:
        """Return the segments that accept keys, in the order of their ranges: the layout."""
        return tuple(sorted((s for s in self.segments if s.accepts_keys), key=lambda s: s.range))

    def open_overflows(self) -> tuple[Segment, ...]:
        """Return the overflow segments that are still open."""
        return tuple(s for s in self.segments if s.is_open and s.kind is SegmentKind.OVERFLOW)

    def at(self, source: PhysicalPartition, offset: int) -> Segment | None:
        """Return the segment that holds a physical offset, None for a marker or a foreign place."""
        for segment in reversed(self.segments):
            if segment.source == source and segment.holds(offset):
                return segment
        return None

    def find(self, logical: int) -> tuple[Segment, int] | None:
        """Return the segment and the physical offset of a logical offset, None if no record can have it."""
        for segment in self.segments:
            offset = segment.physical(logical)
            if offset is not None:
                return segment, offset
        return None

    def sources(self, retired: Collection[str] = ()) -> tuple[PhysicalPartition, ...]:
        """Return every physical partition that has ever held a segment, in the order of their first use.

        Left out are those of ``retired`` sub-topics: what they hold counts as read, deleted already or not.
        """
        return tuple(dict.fromkeys(s.source for s in self.segments if s.source.topic not in retired))

    def successors(self, segment_id: int) -> tuple[Segment, ...]:
        """Return the segments that name this one as a predecessor."""
        return tuple(s for s in self.segments if segment_id in s.predecessors)

    def ancestors(self, segment_id: int) -> set[int]:
        """Return the ids of everything that comes before a segment."""
        found = set(self.get(segment_id).predecessors)
        for segment in reversed(self.segments):
            if segment.id in found:
                found.update(segment.predecessors)
        return found

    def next_logical(self) -> int:
        """Return 1 + the greatest logical offset that any closed segment gave to a record (0 if none did)."""
        lasts = (s.logical(s.end - 1) for s in self.segments if s.end is not None and s.end > s.start)
        return max(lasts, default=-1) + 1

    def closing(self, ends: Iterable[tuple[int, int, int | None]], epoch: int) -> Lineage:
        """Return the lineage with segments closed: (id, end, leader epoch of the end)."""
        wanted = {segment_id: (end, leader_epoch) for segment_id, end, leader_epoch in ends}
        closed = tuple(
            replace(s, end=wanted[s.id][0], closed_epoch=epoch, end_leader_epoch=wanted[s.id][1])
            if s.id in wanted
            else s
            for s in self.segments
        )
        return Lineage(self.parent, closed)

    def opening(self, segments: Iterable[Segment]) -> Lineage:
        """Return the lineage with new segments after the existing ones."""
        return Lineage(self.parent, (*self.segments, *segments))

    def problems(self) -> list[str]:
        """Return what breaks the invariants of a lineage; empty for a sound one (protocol, section 13)."""
        return [*self._coverage_problems(), *self._stretch_problems(), *self._order_problems()]

    def check(self) -> Lineage:
        """Return self if it is sound.

        Raises:
            InvariantError: it is not; the message names the first problem.
        """
        problems = self.problems()
        if problems:
            raise InvariantError(f"lineage of {self.parent}: {problems[0]}")
        return self

    def _coverage_problems(self) -> Iterator[str]:
        """Sweep over the epochs: a record may hold thousands of segments, and come from anybody."""
        coverage, changes = _Coverage(), self._changes_of_ranges()
        for epoch in sorted(changes):
            for range_, by in changes[epoch]:
                coverage.change(range_, by)
            if not coverage.is_whole:
                yield f"epoch {epoch}: the open ranges do not tile the key space"

    def _changes_of_ranges(self) -> dict[int, list[tuple[KeyRange, int]]]:
        """Return by epoch which ranges are opened (1) and closed (-1); an overflow has none of its own."""
        changes: dict[int, list[tuple[KeyRange, int]]] = defaultdict(list)
        for s in self.segments:
            for epoch, by in ((s.opened_epoch, 1), (s.closed_epoch, -1)):
                if epoch is None:
                    continue
                at_epoch = changes[epoch]  # an overflow's too: every epoch is checked
                if s.kind is not SegmentKind.OVERFLOW:
                    at_epoch.append((s.range, by))
        return changes

    def _stretch_problems(self) -> Iterator[str]:
        stretches: dict[PhysicalPartition, list[Segment]] = defaultdict(list)
        for s in self.segments:
            stretches[s.source].append(s)
        for source, mine in stretches.items():
            for a, b in pairwise(sorted(mine, key=lambda s: s.start)):
                if a.end is None or a.end >= b.start:
                    yield f"segments {a.id} and {b.id} overlap in {source}"
        for s in self.segments:
            if (s.kind is SegmentKind.PARENT and s.source != self.parent) or (
                s.kind is SegmentKind.PHANTOM and s.source.topic == self.parent.topic
            ):
                yield f"segment {s.id} is a {s.kind} and cannot be stored in {s.source}"

    def _order_problems(self) -> Iterator[str]:
        seen: dict[int, Segment] = {}
        for s in self.segments:
            if seen and next(reversed(seen)) >= s.id:
                yield f"segment ids do not rise at {s.id}"
            for p in (seen.get(i) for i in s.predecessors):
                if p is None or p.end is None or p.closed_epoch is None:
                    yield f"segment {s.id} has a predecessor that is unknown or open"
                elif p.closed_epoch > s.opened_epoch or (
                    p.end > p.start and s.progression.base <= p.logical(p.end - 1)
                ):
                    yield f"segment {s.id} does not begin beyond its predecessor {p.id}"
            seen[s.id] = s


class _Coverage:
    """How many of some ranges cover each key hash, by where that number changes and by how much."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = defaultdict(int)

    def change(self, range_: KeyRange, by: int) -> None:
        """Add a range (1), or take one away (-1)."""
        for at, step in ((range_.lo, by), (range_.hi, -by)):
            self._steps[at] += step
            if not self._steps[at]:
                del self._steps[at]

    @property
    def is_whole(self) -> bool:
        return self._steps == {WHOLE.lo: 1, WHOLE.hi: -1}


@dataclass(frozen=True, slots=True)
class Layout:
    """The open segments of a logical partition, in the order of their ranges.

    ``bounds`` are the lower ends of all ranges but the first, so that a bisection finds a key's segment.
    """

    segments: tuple[Segment, ...]
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, lineage: Lineage) -> Layout:
        """Return the layout; InvariantError if the open ranges do not tile the key space."""
        segments = lineage.open_segments()
        if union_of_adjacent(s.range for s in segments) != WHOLE:
            raise InvariantError(f"{lineage.parent}: the open ranges do not tile the key space")
        return cls(segments, tuple(s.range.lo for s in segments[1:]))

    def index_for(self, key_hash: int) -> int:
        return bisect_right(self.bounds, key_hash)

    def segment_for(self, key_hash: int) -> Segment:
        return self.segments[self.index_for(key_hash)]
