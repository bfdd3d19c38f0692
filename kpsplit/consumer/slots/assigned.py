"""What is known of one slot that a member holds, with its start and its pieces. Pure.

A slot may begin in pieces that were committed at different positions. It is read from one cursor, the least
of its pieces (``commit.writes.least``). Until the reading has caught up with the piece that was furthest,
records that a piece has processed already are passed over, and no commit takes it back.

``commit(message=…)``, ``store_offsets(…)`` and ``seek(…)`` speak of one logical partition and one number. A
member holds some slots of it, and a number stands for a place on each key's path.

The objects are guarded by the engine's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial, reduce
from typing import Literal

from kpsplit.consumer.fetch.batch import Batch, message_hash, size_of
from kpsplit.errors import DeadlineExceededError, KpsplitError, UsageError
from kpsplit.kafka.logical_message import physical_offset
from kpsplit.splitter.group_slots import Mode, OwnedSlot, Subscribed
from kpsplit.splitter.key_range import (
    WHOLE,
    KeyRange,
    ranges_between,
    slot_number,
    slot_range,
    union_of_adjacent,
)
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.keys import OFFSETS_TOPIC
from kpsplit.splitter.records.offsets import Bookmark

EARLIEST: Literal["earliest"] = "earliest"
AssignedOffset = Cursor | Literal["earliest"]
"""A place, or the beginning of the partition at the time it is asked for: retention moves that."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A slot whose start is asked for; ``given``: where its partition begins if the group has no commit.

    ``predecessors``: by what members may have read its records until now: the partition as a whole, and
    slots of the partition by another number. ``reset``: its
    committed offset is of no use, it begins at ``auto.offset.reset``. ``retired``: the sub-topics that are
    deleted by the control topic.
    """

    lineage: Lineage
    mode: Mode
    range: KeyRange
    given: AssignedOffset | None = None
    predecessors: frozenset[PhysicalPartition] = frozenset()
    reset: bool = False
    retired: frozenset[str] = frozenset()

    def own(self, ordinary: Mapping[PhysicalPartition, int]) -> dict[PhysicalPartition, int]:
        """Return the group's ordinary offsets of the partition, and the ends of what was retired before them.

        A group that went on in the parent after a merge has read what came before the merge, or lost it.
        """
        lineage = self.lineage
        own = {source: ordinary[source] for source in lineage.sources() if source in ordinary}
        now = lineage.at(lineage.parent, own.get(lineage.parent, -1))
        before = () if now is None else lineage.ancestors(now.id)
        gone = (s for s in lineage if s.id in before and s.source.topic in self.retired)
        return {s.source: s.end for s in gone if s.end is not None} | own


@dataclass(frozen=True, slots=True)
class SlotStart:
    """Where a slot starts: one cursor per piece that was committed on its own.

    ``stale``: the commits are of a newer lineage than the view's. ``committed``: the log says so already.
    ``begun``: where the stay has begun, where another sink goes on in the middle of it.
    """

    pieces: tuple[Cursor, ...]
    stale: bool = False
    committed: bool = False
    begun: tuple[Cursor, ...] = ()


class NoOffsetError(Exception):
    """A partition has no committed offset, and ``auto.offset.reset`` is ``error``."""

    def __init__(self, parent: PhysicalPartition) -> None:
        super().__init__(str(parent))
        self.parent = parent


class StillOwnedError(DeadlineExceededError):
    """A member of the group may still work on the partition otherwise: its slots are not started yet."""

    def __init__(self, parent: PhysicalPartition) -> None:
        super().__init__(
            f"the slots of {parent} wait: the group rebalances, or a member of it has the partition itself "
            "or its former slots",
            hint="all members of a group that reads an enrolled topic must use kpsplit",
        )


StartError = KpsplitError | NoOffsetError
Found = SlotStart | StartError
"""What is found for a slot: where it starts, or why that is not known now."""


class SlotStage(StrEnum):
    """What this member does with a slot."""

    WANTED = "wanted"
    """Its start is not asked for yet."""
    ASKED = "asked"
    """Its start is being looked up."""
    FOUND = "found"
    """Its start is known; on_assign runs before it is read."""
    READING = "reading"
    HELD = "held"
    """Nothing is handed out: its topic is not shared by partition any more, or the view is too old."""
    LEAVING = "leaving"
    """It is taken away: nothing more is handed out."""
    STOPPED = "stopped"
    """It has no start, and the application has not given one; or it is ``gone``."""


STARTING = frozenset({SlotStage.WANTED, SlotStage.ASKED, SlotStage.FOUND})
"""The sink does not know these yet."""

IN_SINK = frozenset({SlotStage.READING, SlotStage.HELD, SlotStage.LEAVING})


@dataclass(slots=True)
class RestoreProgress:
    """How far restoring a slot's state has come.

    ``mark``: the sink's mark when the slot came; the store takes the slot once everything before it is
    finished. ``taken``: the store has it. ``refusal``: why it could not be restored; ``retry_at``: when that
    is tried again.
    """

    mark: int | None = None
    taken: bool = False
    refusal: str = ""
    retry_at: float = 0.0


@dataclass(slots=True)
class AssignedSlot:
    """One slot of this member: everything that is known of it, except what the reader and the sink hold.

    ``place`` is the partition of the group's topic that stands for it. ``epoch`` is the assignment epoch: a
    number that no other assignment of a slot has, new also when the slot begins anew; a commit that was asked
    for in another one is void. ``committed``: what the group's log says of it, as far as this member knows;
    empty while nothing was committed. ``gone``: it is taken away, or another member's: it is not read any
    more, whatever place the application names. ``final``: its last commit was asked for, and none begins
    after that. ``moves``: how often the application moved it to where the group may have been before;
    ``moves_committed``: how many of them are part of a commit. ``uncertain``: commits since the latest one
    that succeeded of which the outcome is not known, by their moves. ``reset``: its offset is outside the
    log, and it begins anew at ``auto.offset.reset`` when what was read of it is processed; until it does.
    ``topic_id``: that of its topic when it began, or followed an enrolment; empty while its places are
    ordinary offsets. ``ahead``: what its pieces had processed, until reading has caught up with the furthest.
    ``stored``: what ``store_offsets`` said, where records do not count as processed by themselves.
    ``saved``: what bookmarks of the application say, until its start is known.
    """

    slot: OwnedSlot
    place: PhysicalPartition
    mode: Mode
    stage: SlotStage = SlotStage.WANTED
    start: SlotStart | None = None
    committed: tuple[Cursor, ...] = ()
    by_hand: bool = False
    gone: bool = False
    final: bool = False
    moves: int = 0
    moves_committed: int = 0
    uncertain: dict[int, tuple[Cursor, ...]] = field(default_factory=dict)
    reset: bool = False
    ahead: PieceProgress | None = None
    stored: tuple[Cursor, ...] | None = None
    saved: tuple[Cursor, ...] = ()
    topic_id: str = ""
    epoch: int = 0
    restore: RestoreProgress = field(default_factory=RestoreProgress)

    @property
    def parent(self) -> PhysicalPartition:
        return self.slot.parent

    @property
    def in_sink(self) -> bool:
        """Whether the sink knows it: records of it may have been handed out."""
        return self.stage in IN_SINK

    @property
    def may_commit(self) -> bool:
        """Whether a commit of it may begin."""
        return self.in_sink and not self.final

    @property
    def moved(self) -> bool:
        """Whether the application has moved it since its latest commit."""
        return self.moves > self.moves_committed

    @property
    def stands(self) -> bool:
        """Whether it stands where its latest commit says, and stays.

        Not where the application has moved it since: that commit says nothing of the move, and committing it
        once more must not count as having committed the move.
        """
        here = self.stage in (SlotStage.READING, SlotStage.HELD) and not self.final
        sure = not self.by_hand and not self.moved and not self.uncertain
        return here and sure and bool(self.committed)

    @property
    def may_be_shared(self) -> bool:
        """Whether other members may have read its records otherwise than by this slot."""
        return self.mode in (Mode.SLOTS, Mode.WHOLE) and not self.by_hand

    @property
    def begun_at(self) -> tuple[Cursor, ...]:
        """Where it begins, by pieces, or where its stay has begun; nothing while that is not known."""
        if self.start is None:
            return ()
        return (self.in_sink and self.start.begun) or self.start.pieces

    @property
    def told(self) -> tuple[Cursor, ...]:
        """How far it is processed by the application's latest word: a place stored, committed or named."""
        if self.stored is not None or self.start is None:
            return self.stored or ()
        return (self.start.committed and self.committed) or self.start.pieces

    def must_follow(self, topic: Subscribed) -> bool:
        """Of one by hand: whether ranges of it are to be committed, because its topic is enrolled now."""
        return self.mode.plain and not topic.mode.plain

    def token(self, topic: Subscribed) -> PhysicalPartition:
        """Return the partition of a group's topic that a commit names for it.

        One of the present slots topic for what is assigned by hand: that keeps no former one from being
        deleted. Where there is none any more, one of a topic that no group reads: what is written for it, 0,
        is no place of the application's topic.
        """
        if self.mode is not Mode.SLOTS or not self.by_hand:
            return self.place
        if topic.mode is not Mode.SLOTS:
            return PhysicalPartition(OFFSETS_TOPIC, 0)
        return PhysicalPartition(topic.group_topic, slot_number(self.parent.partition, 0, topic.slots))

    def found(self, start: SlotStart) -> None:
        self.start = start
        self.committed = start.pieces if start.committed else ()
        self.stage = SlotStage.FOUND

    def begin_by_bookmarks(self, lineage: Lineage) -> None:
        """Have bookmarks say where it starts, and what was found where they say nothing.

        While nothing was found they wait, unless they say everything. One that begins anew because its offset
        is outside the log does not begin there again.
        """
        if self.reset:
            self.saved = ()
            return
        pieces = by_bookmarks(lineage, self.slot.range, self.saved, self.begun_at)
        if union_of_adjacent(c.range for c in pieces) == self.slot.range:
            self.start, self.saved, self.stage = SlotStart(pieces), (), SlotStage.FOUND
            self.moves += 1  # the group may stand anywhere

    def count_committed(self, cursors: tuple[Cursor, ...], moves: int) -> None:
        """A commit of these cursors has succeeded; it was asked for after so many moves."""
        self.committed, self.moves_committed = cursors, moves
        self.uncertain.clear()


class PieceProgress:
    """What the pieces of a slot had processed when it was taken.

    ``untouched``: nothing of it was handed out since, so its pieces stand wherever reading is, at one place.
    """

    def __init__(self, pieces: Sequence[Cursor], *, untouched: bool = True) -> None:
        self._pieces = tuple(pieces)
        self.untouched = untouched

    def without_processed(self, batch: Batch, lineage: Lineage) -> Batch:
        """Return a batch without what a piece has processed."""
        ends = [(c.range, _end(c, lineage, batch.segment)) for c in self._pieces]
        ends = [(r, end) for r, end in ends if end > batch.start and r.overlaps(batch.segment.range)]
        if ends:
            batch.messages = [
                m
                for m in batch.messages
                if not _within(ends, message_hash(m, batch.segment), physical_offset(m))
            ]
            batch.bytes = size_of(batch.messages)
        self.untouched = self.untouched and not batch.messages
        return batch

    def furthest(self, cursors: Iterable[Cursor], lineage: Lineage) -> list[Cursor]:
        """Return what is processed now, by pieces: what they had, and what was added."""
        found: list[Cursor] = []
        for cursor in cursors:
            for piece in self._pieces:
                both = _common(cursor.range, piece.range)
                if both is not None:
                    found.append(further(lineage, cursor.narrowed(both), piece.narrowed(both)))
        return found

    def caught_up(self, cursors: Iterable[Cursor], lineage: Lineage) -> bool:
        """Return whether what is processed now is nowhere before a piece."""
        now = list(cursors)
        return all(
            a.positions == b.narrowed(a.range).settled(lineage).positions
            for a in self.furthest(now, lineage)
            for b in now
            if b.range.covers(a.range)
        )


def by_bookmarks(
    lineage: Lineage, range_: KeyRange, saved: Sequence[Cursor], found: Sequence[Cursor]
) -> tuple[Cursor, ...]:
    """Return where a range starts, by pieces: of each key what is furthest in bookmarks, else what was found.

    A program need not delete the bookmarks of slots that there are no more: positions never go back.
    """
    ranges = [c.range for c in (*saved, *found)]
    cuts = sorted({range_.lo, range_.hi, *(at for r in ranges for at in (r.lo, r.hi) if at in range_)})
    pieces: list[Cursor] = []
    for piece in ranges_between(cuts):
        known = [c for c in saved if c.range.covers(piece)] or [c for c in found if c.range.covers(piece)]
        if known:
            own = [c.narrowed(piece).settled(lineage) for c in known]
            pieces.append(reduce(partial(further, lineage), own))
    return tuple(pieces)


def restated(bookmark: Bookmark, now: PartitionState, last: PartitionState) -> Bookmark:
    """Return a bookmark in the terms of a partition whose topic was enrolled, or left, since it was saved.

    One that is of another topic of the name, or names segments that are not known, stays as it is.

    Args:
        bookmark: of a partition that was not enrolled it has one ordinary offset for each key.
        now: the partition as it is read now. Of one that is not enrolled there is only what lies in the topic
            itself, so a bookmark from before the latest merge says where it stands there.
        last: as it was read until its topic was left, if it was.
    """
    if bookmark.topic_id == now.topic_id:
        return bookmark
    if not bookmark.topic_id:
        return replace(bookmark, topic_id=now.topic_id, cursors=from_plain(bookmark.cursors, now))
    ahead = any(c.ahead_of(last.lineage) for c in bookmark.cursors)
    if now.topic_id or bookmark.topic_id != last.topic_id or ahead:
        return bookmark
    own = {s.id for s in last.lineage if s.source == last.parent}
    left = [(c.range, c.pending(last.lineage)) for c in bookmark.cursors]
    cursors = tuple(Cursor(r, {0: min(pending[i] for i in own & pending.keys())}) for r, pending in left)
    return replace(bookmark, topic_id="", cursors=cursors)


def from_plain(cursors: Iterable[Cursor], now: PartitionState) -> tuple[Cursor, ...]:
    """Return places of a partition that was not enrolled in the terms of its lineage."""
    plain = StartRequest(now.lineage, Mode.PLAIN, WHOLE, retired=now.retired())
    at = [(c.range, plain.own({now.parent: c.positions.get(0, 0)})) for c in cursors]
    return tuple(Cursor.from_positions(now.lineage, range_, own) for range_, own in at)


def is_known(bookmark: Bookmark, now: PartitionState, last: PartitionState, *, fresh: bool) -> bool:
    """Return whether everything is known that a bookmark names; see ``restated``. ``fresh``: the view is.

    Raises:
        UsageError: it is of a topic that was deleted and made again since.
    """
    meant = restated(bookmark, now, last)
    if meant.topic_id and meant.topic_id != now.topic_id:
        if not fresh:
            return False  # it may have been made again since the view was read
        raise UsageError(
            f"bookmarks of {now.parent} are of another topic of this name; nothing was changed",
            hint="delete them: they mean other records",
        )
    return not any(cursor.ahead_of(now.lineage) for cursor in meant.cursors)


def never_before(
    lineage: Lineage, known: Sequence[Cursor], cursors: tuple[Cursor, ...]
) -> tuple[Cursor, ...]:
    """Return cursors of a slot, by pieces what is further where some are before what is known.

    As they are where the view is too old to tell.
    """
    if not known or any(c.ahead_of(lineage) for c in (*known, *cursors)):
        return cursors
    before = PieceProgress(known)
    return cursors if before.caught_up(cursors, lineage) else tuple(before.furthest(cursors, lineage))


def _end(cursor: Cursor, lineage: Lineage, segment: Segment) -> int:
    """Return up to where a cursor has processed a segment."""
    left = cursor.pending(lineage).get(segment.id)
    if left is not None:
        return left
    return _FAR if segment.end is None else segment.end


_FAR = 1 << 63


def _within(ends: Sequence[tuple[KeyRange, int]], hash_: int, offset: int) -> bool:
    return any(offset < end and hash_ in range_ for range_, end in ends)


def _common(a: KeyRange, b: KeyRange) -> KeyRange | None:
    return KeyRange(max(a.lo, b.lo), min(a.hi, b.hi)) if a.overlaps(b) else None


def after_record(lineage: Lineage, before: Cursor, read: Cursor, segment_id: int, next_: int) -> Cursor:
    """Return a slot's cursor once all of a segment before ``next_`` is processed, with its predecessors.

    A record of a segment is given to a slot only when the slot has been given everything of the segment's
    predecessors. So when it is processed, these are.

    Args:
        lineage: a fresh lineage.
        before: what is processed already; it never goes back.
        read: what was handed out of the slot. Nothing after it is passed: the record may be of another slot,
            and this one not as far yet.
        segment_id: the segment of the record.
        next_: the physical offset after it.
    """
    segment = lineage.get(segment_id)
    if not segment.range.overlaps(before.range) or before.ahead_of(lineage):
        return before
    if not read.ready(lineage, segment_id) or before.complete(lineage, segment_id):
        return before
    passed = lineage.ancestors(segment_id)
    positions = {i: at for i, at in before.positions.items() if i not in passed}
    handed_out = min(next_, read.pending(lineage).get(segment_id, next_))
    positions[segment_id] = max(handed_out, positions.get(segment_id, segment.start))
    return Cursor(before.range, positions).settled(lineage)


def further(lineage: Lineage, a: Cursor, b: Cursor) -> Cursor:
    """Return what is processed if both cursors of one range are right."""
    left_a, left_b = a.pending(lineage), b.pending(lineage)
    positions: dict[int, int] = {}
    for segment in lineage:
        if not segment.range.overlaps(a.range):
            continue
        if segment.id in left_a and segment.id in left_b:
            positions[segment.id] = max(left_a[segment.id], left_b[segment.id])
        else:
            positions[segment.id] = segment.start if segment.end is None else segment.end
    return Cursor(a.range, positions).settled(lineage)


def slot_by_hand(topic: Subscribed, partition: int, index: int) -> AssignedSlot:
    """Return one slot of a logical partition, assigned by hand.

    Raises:
        UsageError: the topic has no such slot.
    """
    slot_range(index, topic.slots)
    slot = OwnedSlot(PhysicalPartition(topic.topic, partition), index, topic.slots)
    number = slot_number(partition, index, topic.slots)
    return AssignedSlot(slot, PhysicalPartition(topic.group_topic, number), topic.mode, by_hand=True)


def by_hand(topic: Subscribed, partition: int) -> AssignedSlot:
    """Return the whole of a logical partition, assigned by hand.

    It shares nothing with anyone, so it does not wait until an enrolment is settled.
    """
    parent = PhysicalPartition(topic.topic, partition)
    mode = Mode.PLAIN if topic.mode.plain else Mode.WHOLE
    return AssignedSlot(OwnedSlot(parent, 0, 1), parent, mode, by_hand=True)
