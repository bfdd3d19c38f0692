"""When a record is final, pure (design, section 6): the rules that nothing reported as delivered is lost by.

A record is reported to the application only when it is *final*:

(a) when its acknowledgement was taken in hand the lease was valid and the view showed its segment open and
    not fenced (or fenced, and the fence waits for the transaction under way): no operator can have cut before
    that moment, so the record lies below any cut; or
(b) the view shows where the segment ended, and the record's offset lies before that end.

Anything else stays pending. A record whose offset lies at or behind its segment's end went astray. One that
was rejected (the hard seal) may still be in the log from an earlier try whose acknowledgement was lost: it
waits until the log was looked at, and is never guessed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from kpsplit.producer.segment_writer import Acknowledged, Final, Outgoing, SegmentWriter

P = TypeVar("P")


def while_open(writer: SegmentWriter[P], *, lease_valid: bool) -> list[Final[P]]:
    """Take what is final by rule (a) from a segment that has no end in the view."""
    if writer.fenced or not lease_valid:
        return []
    return _take(writer, lambda _: True, lambda item: item.offset)


def by_end(
    writer: SegmentWriter[P], end: int, abandoned: Callable[[int], bool]
) -> tuple[list[Final[P]], list[Outgoing[P]]]:
    """Take what is final by rule (b) from a segment that ended, and what went astray.

    ``abandoned`` tells whether a sequence number is of an aborted transaction: those fail instead of going
    astray. What was rejected stays.
    """
    final: list[Final[P]] = []
    astray: list[Outgoing[P]] = []
    unclear: list[Acknowledged[P]] = []
    for item in writer.pending:
        if item.offset is None:
            unclear.append(item)
        elif item.offset < end:
            final.append(Final(item.record, writer.segment, item.offset))
        elif abandoned(item.record.sequence):
            final.append(Final(item.record, writer.segment, None))
        else:
            astray.append(item.record)
    writer.pending[:] = unclear
    return final, astray


def give_up(
    writer: SegmentWriter[P], which: Callable[[Acknowledged[P]], bool] = lambda _: True
) -> list[Final[P]]:
    """Fail pending records: nobody will ever tell in time where they are. They are never sent again."""
    return _take(writer, which, lambda _: None)


def place(writer: SegmentWriter[P], found: Mapping[int, int], end: int) -> None:
    """Note where rejected records were found after all; the others are not written: as if behind the end."""
    for item in writer.pending:
        if item.offset is None:
            item.offset = found.get(item.record.sequence, end)


def rejected(item: Acknowledged[P]) -> bool:
    """Tell whether a pending record was rejected and its log was not looked at yet."""
    return item.offset is None


def _take(
    writer: SegmentWriter[P],
    which: Callable[[Acknowledged[P]], bool],
    offset: Callable[[Acknowledged[P]], int | None],
) -> list[Final[P]]:
    taken = [Final(item.record, writer.segment, offset(item)) for item in writer.pending if which(item)]
    if taken:
        writer.pending[:] = [item for item in writer.pending if not which(item)]
    return taken
