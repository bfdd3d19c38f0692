"""Pieces of one slot that were committed at different positions, pure (protocol, section 10).

A slot is read from one cursor, the least of its pieces (``writes.least``). Until the reading has caught
up with the piece that was furthest, records that a piece has processed already are passed over, and no
commit takes it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kpsplit.consumer.fetch.batch import Batch, message_hash, size_of
from kpsplit.consumer.slots.marks import further
from kpsplit.kafka.logical_message import physical_offset
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import Lineage, Segment


class Ahead:
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
        """Tell whether what is processed now is nowhere behind a piece."""
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
