"""What an application says of single records or offsets, as cursors; pure (protocol, section 10).

``commit(message=…)``, ``store_offsets(…)`` and ``seek(…)`` speak of one logical partition and one number. A
member holds some slots of it, and a number stands for a place on each key's path.
"""

from __future__ import annotations

from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.lineage import Lineage


def behind_record(lineage: Lineage, before: Cursor, read: Cursor, segment_id: int, next_: int) -> Cursor:
    """Return a slot's cursor once all of a segment before ``next_`` is processed, with its predecessors.

    A record of a segment is given to a slot only when the slot has been given everything of the segment's
    predecessors; whoever says that it is processed says so of these, too.

    Args:
        lineage: a fresh lineage.
        before: what is processed already; it never goes back.
        read: what was handed out of the slot. Nothing behind it is passed: the record may be of another slot,
            and this one not as far yet.
        segment_id: the segment of the record.
        next_: the physical offset behind it.
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
