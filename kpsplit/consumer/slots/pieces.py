"""Pieces of one slot at different positions, and what a commit of a single record means for a slot. Pure.

A slot is read from one cursor, the least of its pieces (``commit.writes.least``). Until the reading has
caught up with the piece that was furthest, records that a piece has processed already are passed over, and no
commit takes it back.

``commit(message=…)``, ``store_offsets(…)`` and ``seek(…)`` speak of one logical partition and one number. A
member holds some slots of it, and a number stands for a place on each key's path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kpsplit.consumer.fetch.batch import Batch, message_hash, size_of
from kpsplit.kafka.logical_message import physical_offset
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import Lineage, Segment


class PieceProgress:
    """What the pieces of a slot had processed when it was taken."""

    def __init__(self, pieces: Sequence[Cursor]) -> None:
        self._pieces = tuple(pieces)

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
    passed = _predecessors(lineage, segment_id)
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


def _predecessors(lineage: Lineage, segment_id: int) -> set[int]:
    found: set[int] = set()
    waiting = list(lineage.get(segment_id).predecessors)
    while waiting:
        segment = waiting.pop()
        if segment not in found:
            found.add(segment)
            waiting.extend(lineage.get(segment).predecessors)
    return found
