"""Where a reader stands in a lineage, and what it does with a record.

**Where it stands** is a ``Cursor``: ``{segment id: next physical offset}`` for one key range.

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

**What it does with a record** (protocol, section 9.1): deliver, skip, wait, or report. That is decided by the
record's place and its stamp alone, so that every reader decides alike:

1. Where a segment ends there is its marker: skipped. A record of another kind there contradicts the lineage
   (the log was truncated and written anew): reported.
2. Any other marker belongs to an attempt that opened nothing here, or not yet. Under way: wait for its
   outcome. Known to be over: skipped. Not known: the view may be older than the marker, so it is
   refreshed first.
3. A stamp that was made for another physical partition counts as none: another program copied the record.
4. A stamp of an epoch that the view has not reached: the view is old and is refreshed first.
5. After every end that the partition has: stamped, a stray; unstamped, foreign and reported.
6. Inside a segment: a stamp older than the segment is a stray; everything else is delivered. (No producer
   stamps a record for an overflow, so what producers leave there is always older.)

A reader goes through a physical partition in the order of offsets and does not step over ``Wait``: what
stands after the marker of an attempt under way is decided by its outcome. A reader that *begins* at a
place it has not reached so (a seek) refreshes its view and waits while ``unsettled`` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kpsplit.errors import InvariantError
from kpsplit.splitter.key_range import WHOLE, KeyRange, key_hash, keyless_hash
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState, Phase
from kpsplit.splitter.records.data import Marker, Stamp


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position per segment for one key range; immutable, its mapping is not to be changed."""

    range: KeyRange
    positions: Mapping[int, int]

    @classmethod
    def at_start(cls, range_: KeyRange) -> Cursor:
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
        cls, lineage: Lineage, range_: KeyRange, logical: int, limits: Mapping[int, int]
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
        wanted = {s.id: s.start + s.progression.steps_to(logical) for s in _relevant(lineage, range_)}
        return cls.from_segments(lineage, range_, {i: min(at, limits.get(i, at)) for i, at in wanted.items()})

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
        if len(lineage.segments) == 1:
            return Cursor(self.range, self.pending(lineage))
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
        return not self.ahead_of(lineage) and _Walk(self, lineage).ready(lineage.get(segment_id))

    def drained(self, lineage: Lineage) -> bool:
        if self.ahead_of(lineage):
            return False
        walk = _Walk(self, lineage)
        return all(s.is_open or s.id in walk.complete for s in walk.relevant)

    def pending(self, lineage: Lineage) -> dict[int, int]:
        """Return the next offset of every segment that is not complete, readable now or later."""
        if len(lineage.segments) == 1:  # never split, as most are: nothing to walk along
            only = lineage.segments[0]
            return {only.id: _within(only, self.positions.get(only.id, only.start))}
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
        """Return the cursor for a part of its range."""
        if not self.range.covers(range_):
            raise InvariantError(f"{range_} is no part of {self.range}")
        return Cursor(range_, self.positions)


def _relevant(lineage: Lineage, range_: KeyRange) -> list[Segment]:
    return [s for s in lineage if s.range.overlaps(range_)]


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
        return (p for p in segment.predecessors if p in self._ids)

    def ready(self, segment: Segment) -> bool:
        return all(p in self.complete for p in self.predecessors(segment))

    def position(self, segment: Segment) -> int:
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


class SkipReason(StrEnum):
    MARKER = "marker"
    """The marker at a segment's end."""
    ORPHAN_MARKER = "orphan_marker"
    """A marker of an attempt that is over and ended nothing here."""
    STRAY = "stray"
    """A record of a producer that sends it again to the right segment."""


class ForeignReason(StrEnum):
    """What contradicts the lineage."""

    BEHIND_THE_END = "behind_the_end"
    """An unstamped record where nothing of this logical partition is stored."""
    NOT_THE_MARKER = "not_the_marker"
    """A record where the lineage has a marker: the log is not the one that was cut."""
    UNKNOWN_EPOCH = "unknown_epoch"
    """A stamp of an epoch that was never reached."""


class GapReason(StrEnum):
    """Why records that a segment had cannot be read."""

    EXPIRED = "expired"
    """The log begins later: retention removed them, or somebody deleted them."""
    RETIRED = "retired"
    """The sub-topic was retired after every group had drained it."""
    MISSING = "missing"
    """The topic is gone although nobody retired it."""
    MADE_ANEW = "made_anew"
    """The topic was deleted and made again: what it holds now is something else."""
    CUT_OFF = "cut_off"
    """The log ends before the segment does: it was truncated."""

    @property
    def phrase(self) -> str:
        return _PHRASES[self]


_PHRASES = {
    GapReason.EXPIRED: "retention removed them",
    GapReason.RETIRED: "the sub-topic was retired",
    GapReason.MISSING: "the topic is gone although nobody retired it",
    GapReason.MADE_ANEW: "the topic was deleted and made again",
    GapReason.CUT_OFF: "the log ends before the segment does",
}


@dataclass(frozen=True, slots=True)
class Deliver:
    """The record belongs to the segment and has this logical offset."""

    segment: Segment
    logical_offset: int


@dataclass(frozen=True, slots=True)
class SkipRecord:
    """The record is not delivered; strays are counted."""

    reason: SkipReason


@dataclass(frozen=True, slots=True)
class Wait:
    """Read the control topic to its present end, then decide again with ``refreshed=True``."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """The record is not delivered, and that is reported: nobody is known to send it again."""

    reason: ForeignReason


Verdict = Deliver | SkipRecord | Wait | Foreign


def classify(
    state: PartitionState,
    source: PhysicalPartition,
    offset: int,
    stamp: Stamp | None,
    marker: Marker | None,
    *,
    refreshed: bool = False,
) -> Verdict:
    """Return what to do with the record at a physical offset.

    Args:
        state: the reader's view of the logical partition.
        source: the physical partition that the record was read from.
        offset: its physical offset.
        stamp: its stamp, None if it has none.
        marker: what it says if it is a marker, else None.
        refreshed: whether the view was read to the control topic's end *after* the record had arrived. An
            attempt records its fence before it writes a marker, so such a view knows every attempt that can
            have written it. False is always safe; it may ask for a refresh that was not needed.
    """
    stamp = own_stamp(state, source, stamp)
    if any(s.source == source and s.end == offset for s in state.lineage):
        return SkipRecord(SkipReason.MARKER) if marker else Foreign(ForeignReason.NOT_THE_MARKER)
    if marker is not None:
        over = refreshed or _is_last(state, marker.attempt_id)
        known = over and not _under_way(state, marker.attempt_id)
        return SkipRecord(SkipReason.ORPHAN_MARKER) if known else Wait()
    if stamp is not None and stamp.epoch > state.epoch:
        return Foreign(ForeignReason.UNKNOWN_EPOCH) if refreshed else Wait()
    segment = state.lineage.at(source, offset)
    if segment is None:
        return _outside(state, source, stamp, refreshed)
    if stamp is not None and _is_stray(segment, stamp):
        return SkipRecord(SkipReason.STRAY)
    return Deliver(segment, segment.logical(offset))


def own_stamp(state: PartitionState, source: PhysicalPartition, stamp: Stamp | None) -> Stamp | None:
    """Return the stamp if it was made for this physical partition, else None: the record is a copy."""
    return stamp if stamp is not None and stamp.is_at(state.home(source)) else None


def unsettled(state: PartitionState, source: PhysicalPartition) -> bool:
    """Return whether an attempt under way may have put a marker into the open segment of a partition.

    A reader that begins inside that segment cannot know on which side of the marker it is, and waits.
    """
    if state.phase is not Phase.FENCED:
        return False
    return any(state.lineage.get(i).source == source for i in state.closing_segments())


def reader_hash(key: bytes | None, offset: int, within: KeyRange = WHOLE) -> int:
    """Return the key hash by which a reader places a record of a segment.

    A record with no key may stand in any segment; the hash of its offset is brought into the segment's range
    (``within``), so that the reader of that range takes it and no other. For the whole key space that is
    the hash of the offset itself.
    """
    if key is not None:
        return key_hash(key)
    return within.lo + keyless_hash(offset) % within.width


def _under_way(state: PartitionState, attempt_id: str) -> bool:
    attempt = state.attempt
    return attempt is not None and attempt.id == attempt_id and state.phase in (Phase.PREPARING, Phase.FENCED)


def _is_last(state: PartitionState, attempt_id: str) -> bool:
    return state.last is not None and state.last.attempt.id == attempt_id


def _is_stray(segment: Segment, stamp: Stamp) -> bool:
    return stamp.epoch < segment.opened_epoch


def _outside(
    state: PartitionState, source: PhysicalPartition, stamp: Stamp | None, refreshed: bool
) -> Verdict:
    if not refreshed and source not in state.lineage.sources():
        return Wait()
    return SkipRecord(SkipReason.STRAY) if stamp else Foreign(ForeignReason.BEHIND_THE_END)


def wrong_topic(state: PartitionState, source: PhysicalPartition, topic_id: str | None) -> GapReason | None:
    """Return why nothing of a topic can be read, None if it is the one that the lineage means.

    Args:
        state: the logical partition that has segments there.
        source: the physical partition.
        topic_id: Kafka's id of the topic that has the name now, None if there is none.
    """
    if state.is_retired(source.topic):
        return GapReason.RETIRED
    if topic_id is None:
        return GapReason.MISSING
    meant = state.topic_id_of(source.topic)
    return GapReason.MADE_ANEW if meant and topic_id != meant else None
