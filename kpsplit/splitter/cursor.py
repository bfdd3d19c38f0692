"""Where a reader of a key range stands in a lineage: ``{segment id: next physical offset}``.

Only segments whose ranges overlap the cursor's range are *relevant*; predecessors and successors are looked
at among those (protocol, section 10.2). What a cursor says of a segment:

* listed: everything before ``next`` is processed;
* absent, but something listed comes after it along the lineage: *drained*, all of it was processed;
* absent otherwise: not started. A missing position never means "drained".

A segment is *complete* when it is drained, or holds something and is listed at its end, or holds nothing and
all before it is complete. It is *ready* when all its relevant predecessors are complete, and *readable* when
it is ready and not complete. A reader that reads only readable segments, and moves the cursor as it
processes, delivers every record of its range once, and never before its predecessors (invariants 6 and 7).

The empty cursor has started nothing. A cursor says the same in every later view of the lineage. A view that
is older than the cursor does not know segments that are listed, and cannot say what is drained: nothing is
readable then until the view has been refreshed (``ahead_of``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kpsplit.errors import InvariantError
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position per segment for one key range; immutable, its mapping is not to be changed."""

    range: KeyRange
    positions: Mapping[int, int]

    @classmethod
    def at_start(cls, range_: KeyRange) -> Cursor:
        """Return the cursor of a range of which nothing was processed."""
        return cls(range_, {})

    @classmethod
    def at_end(cls, lineage: Lineage, range_: KeyRange, ends: Mapping[int, int]) -> Cursor:
        """Return the cursor after everything there is.

        Args:
            lineage: a fresh lineage.
            range_: the key range.
            ends: the log end of each open segment, overflows included, by segment id; where it is missing the
                segment is taken from its start.
        """
        open_ones = (s for s in lineage if s.is_open and s.range.overlaps(range_))
        return cls(range_, {s.id: max(s.start, ends.get(s.id, s.start)) for s in open_ones})

    @classmethod
    def from_logical(
        cls, lineage: Lineage, range_: KeyRange, logical: int, limits: Mapping[int, int] | None = None
    ) -> Cursor:
        """Return the cursor before the first record, on every key's path, not below a logical offset.

        Args:
            lineage: a fresh lineage.
            range_: the key range.
            logical: the logical offset; everything below it counts as processed.
            limits: by segment id, offsets that are not passed: the logs' ends, or what was handed out.
                Without a limit the cursor may stand beyond the log's end in an open segment, and records
                that are written there later, with lower numbers, would be passed over.
        """
        bounds = limits or {}
        wanted = {s.id: s.start + steps_to(s, logical) for s in _relevant(lineage, range_)}
        return cls.from_segments(lineage, range_, {i: min(at, bounds.get(i, at)) for i, at in wanted.items()})

    @classmethod
    def from_positions(
        cls, lineage: Lineage, range_: KeyRange, offsets: Mapping[PhysicalPartition, int]
    ) -> Cursor:
        """Return the cursor for one offset per physical partition: ordinary commits, or offsets of a time.

        Every segment of a partition without an offset is taken from its start: never drained by absence.
        """
        wanted = {s.id: offsets.get(s.source, s.start) for s in _relevant(lineage, range_)}
        return cls.from_segments(lineage, range_, wanted)

    @classmethod
    def from_segments(cls, lineage: Lineage, range_: KeyRange, wanted: Mapping[int, int]) -> Cursor:
        """Return the cursor for one offset per segment, each brought inside its segment.

        A segment without one is taken from its start.
        """
        positions = {s.id: _within(s, wanted.get(s.id, s.start)) for s in _relevant(lineage, range_)}
        return cls(range_, positions).settled(lineage)

    def ahead_of(self, lineage: Lineage) -> bool:
        """Return whether the writer of the cursor knew a newer lineage: refresh the view first."""
        return max(self.positions, default=0) > lineage.segments[-1].id

    def settled(self, lineage: Lineage) -> Cursor:
        """Return the cursor in its shortest form that says the same: what is committed.

        Every readable segment is listed. A complete one is left out only when all its relevant successors are
        listed or drained, so that "absent" keeps its meaning; one that was not started only when no segment
        after it is listed. The cursor itself while it is ``ahead_of`` the view.
        """
        if self.ahead_of(lineage):
            return self
        return Cursor(self.range, _settled(_Walk(self, lineage)))

    def readable(self, lineage: Lineage) -> dict[int, int]:
        """Return the next offset of every segment to read now; nothing while ``ahead_of`` the view."""
        if self.ahead_of(lineage):
            return {}
        walk = _Walk(self, lineage)
        return {s.id: walk.position(s) for s in walk.relevant if s.id not in walk.complete and walk.ready(s)}

    def complete(self, lineage: Lineage, segment_id: int) -> bool:
        """Return whether nothing of the range is left in a segment; a segment of other keys is complete."""
        segment = lineage.get(segment_id)
        if not segment.range.overlaps(self.range):
            return True
        return not self.ahead_of(lineage) and segment_id in _Walk(self, lineage).complete

    def ready(self, lineage: Lineage, segment_id: int) -> bool:
        """Return whether everything of the range that comes before a segment is complete."""
        return not self.ahead_of(lineage) and _Walk(self, lineage).ready(lineage.get(segment_id))

    def drained(self, lineage: Lineage) -> bool:
        """Return whether nothing is left in closed segments."""
        if self.ahead_of(lineage):
            return False
        walk = _Walk(self, lineage)
        return all(s.is_open or s.id in walk.complete for s in walk.relevant)

    def pending(self, lineage: Lineage) -> dict[int, int]:
        """Return the next offset of every segment that is not complete, readable now or later."""
        walk = _Walk(self, lineage)
        return {s.id: walk.position(s) for s in walk.relevant if s.id not in walk.complete}

    def moved(self, segment_id: int, next_: int) -> Cursor:
        """Return the cursor after everything before ``next_`` of a segment was processed.

        Raises:
            InvariantError: that would go back; only an explicit seek does, with a new cursor.
        """
        if next_ < self.positions.get(segment_id, 0):
            raise InvariantError(f"a cursor does not go back: segment {segment_id} to {next_}")
        return Cursor(self.range, {**self.positions, segment_id: next_})

    def narrowed(self, range_: KeyRange) -> Cursor:
        """Return the cursor for a part of its range.

        Raises:
            InvariantError: it is no part of it.
        """
        if not self.range.covers(range_):
            raise InvariantError(f"{range_} is no part of {self.range}")
        return Cursor(range_, self.positions)


def _relevant(lineage: Lineage, range_: KeyRange) -> list[Segment]:
    return [s for s in lineage if s.range.overlaps(range_)]


def steps_to(segment: Segment, logical: int) -> int:
    """Return how many offsets of a segment, were it endless, have logical ones below this."""
    numbers = segment.progression
    return max(0, -((numbers.base - logical) // numbers.stride))


def _within(segment: Segment, offset: int) -> int:
    last = offset if segment.end is None else min(offset, segment.end)
    return max(segment.start, last)


class _Walk:
    """One pass over the relevant segments, in the order of the lineage and back."""

    def __init__(self, cursor: Cursor, lineage: Lineage) -> None:
        self.listed = cursor.positions
        self.relevant = _relevant(lineage, cursor.range)
        self._ids = {s.id for s in self.relevant}
        self.passed: set[int] = set()
        for segment in reversed(self.relevant):
            if segment.id in self.listed or segment.id in self.passed:
                self.passed.update(segment.predecessors)
        self.complete: set[int] = set()
        for segment in self.relevant:
            if self._is_complete(segment):
                self.complete.add(segment.id)

    def predecessors(self, segment: Segment) -> Iterator[int]:
        """Return the ids of the relevant predecessors."""
        return (p for p in segment.predecessors if p in self._ids)

    def ready(self, segment: Segment) -> bool:
        """Return whether all relevant predecessors are complete."""
        return all(p in self.complete for p in self.predecessors(segment))

    def position(self, segment: Segment) -> int:
        """Return the next offset of a segment that is not drained."""
        return _within(segment, self.listed.get(segment.id, segment.start))

    def drained(self, segment: Segment) -> bool:
        """Return whether a segment is absent and something after it is listed."""
        return segment.id not in self.listed and segment.id in self.passed

    def _is_complete(self, segment: Segment) -> bool:
        if self.drained(segment):
            return True
        if segment.end is None or self.position(segment) < segment.end:
            return False
        # Where nothing is stored the start is the end: to be listed there does not say what came before.
        processed = segment.id in self.listed and segment.end > segment.start
        return processed or self.ready(segment)


def _settled(walk: _Walk) -> dict[int, int]:
    kept = {
        s.id: walk.position(s)
        for s in walk.relevant
        if s.id in walk.listed or (walk.ready(s) and not walk.drained(s))
    }
    absent_for_good = {s.id for s in walk.relevant if walk.drained(s)}
    successors = _successors(walk)
    for segment in reversed(walk.relevant):
        after = successors[segment.id]
        if segment.id not in kept:
            continue
        if segment.id in walk.complete and after and all(a in kept or a in absent_for_good for a in after):
            del kept[segment.id]
            absent_for_good.add(segment.id)
        elif _not_started(walk, segment) and not any(a in kept or a in absent_for_good for a in after):
            del kept[segment.id]
    return kept


def _successors(walk: _Walk) -> dict[int, list[int]]:
    after: dict[int, list[int]] = {s.id: [] for s in walk.relevant}
    for segment in walk.relevant:
        for before in walk.predecessors(segment):
            after[before].append(segment.id)
    return after


def _not_started(walk: _Walk, segment: Segment) -> bool:
    """Return whether leaving a segment out says no more than that it waits for what comes before it.

    A predecessor that is absent is drained *because* this segment is listed.
    """
    waits = walk.position(segment) <= segment.start and not walk.ready(segment)
    return waits and all(p in walk.listed for p in walk.predecessors(segment))
