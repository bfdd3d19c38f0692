"""When a record is final, pure (design, section 6): the rules that nothing reported as delivered is lost by.

A record is reported to the application only when it is *final*:

(a) when its acknowledgement was taken in hand the lease was valid and the view showed its segment open and
    not fenced (or fenced, and the fence waits for the transaction under way): no operator can have cut before
    that moment, so the record lies below any cut; or
(b) the view shows where the segment ended, and the record's offset lies before that end.

Anything else stays pending. A record whose offset lies at or behind its segment's end went astray. One that
was rejected (the hard seal, a deleted sub-topic) may still be in the log from an earlier try whose
acknowledgement was lost: it is *unplaced* until the log was looked at, and is never guessed over. Only one
that cannot stand before the end needs no look: a record that was sent earlier stands right before the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from kpsplit.producer.segment_writer import Acknowledged, Answer, Final, Outgoing, SegmentWriter, Unplaced

P = TypeVar("P")
Abandoned = Callable[[int], bool]
"""Tells whether a sequence number is of an aborted transaction: its record is never sent again."""


def while_open(writer: SegmentWriter[P], *, lease_valid: bool) -> list[Final[P]]:
    """Take what is final by rule (a) from a segment that has no end in the view.

    There a rejection is a failure like any other: the segment is neither sealed nor deleted.
    """
    if writer.fenced or not lease_valid:
        return []
    finals = [Final(item.record, writer.segment, item.offset) for item in writer.pending]
    finals += [
        Final(item.record, writer.segment, None, failed=item.answer is not Answer.WRITTEN)
        for item in writer.unplaced
    ]
    writer.pending.clear()
    writer.unplaced.clear()
    return finals


def by_end(
    writer: SegmentWriter[P], end: int, abandoned: Abandoned
) -> tuple[list[Final[P]], list[Outgoing[P]]]:
    """Take what is final by rule (b) from a segment that ended, and what went astray."""
    final: list[Final[P]] = []
    astray: list[Outgoing[P]] = []
    for item in writer.pending:
        if item.offset < end:
            final.append(Final(item.record, writer.segment, item.offset))
        elif abandoned(item.record.sequence):
            final.append(Final(item.record, writer.segment, None, failed=True))
        else:
            astray.append(item.record)
    writer.pending.clear()
    return final, astray


def rule_out(writer: SegmentWriter[P], end: int) -> None:
    """Place records that cannot stand before the end of their segment: as if behind it."""
    _place(writer, {item.record.sequence: end for item in writer.unplaced if item.earliest >= end})


def place(writer: SegmentWriter[P], found: Mapping[int, int], end: int, *, complete: bool) -> list[Final[P]]:
    """Note where unplaced records were found; return those that fail because nobody can tell any more.

    ``complete``: all of the log was read in which they can stand before the end, so what was not found does
    not. Otherwise, of the records that were failed by the deletion of a log, as many may have been written as
    had room before the end, and only the first of them: brokers write one producer's records in the order
    of sending, and a log that is gone takes nothing more.
    """
    room = end - min(item.earliest for item in writer.unplaced)
    certain: dict[int, int] = {}
    for item in sorted(writer.unplaced, key=lambda i: i.record.sequence):
        number = item.record.sequence
        if complete or number in found:
            certain[number] = found.get(number, end)
        elif item.answer is Answer.GONE:
            if room <= 0:
                certain[number] = end
            room -= 1
    _place(writer, certain)
    return give_up(writer, lambda _: False)


def give_up(
    writer: SegmentWriter[P],
    acknowledged: Callable[[Outgoing[P]], bool] = lambda _: True,
    unplaced: Callable[[Outgoing[P]], bool] = lambda _: True,
) -> list[Final[P]]:
    """Fail records: nobody will ever tell in time where they are. They are never sent again."""
    given_up = [item.record for item in writer.pending if acknowledged(item.record)]
    given_up += [item.record for item in writer.unplaced if unplaced(item.record)]
    if given_up:
        writer.pending[:] = [item for item in writer.pending if not acknowledged(item.record)]
        writer.unplaced[:] = [item for item in writer.unplaced if not unplaced(item.record)]
    return [Final(record, writer.segment, None, failed=True) for record in given_up]


def _place(writer: SegmentWriter[P], offsets: Mapping[int, int]) -> None:
    left: list[Unplaced[P]] = []
    for item in writer.unplaced:
        offset = offsets.get(item.record.sequence)
        if offset is None:
            left.append(item)
        else:
            writer.pending.append(Acknowledged(item.record, offset))
    writer.unplaced[:] = left
