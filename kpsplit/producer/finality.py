"""When a record is final, pure: the rules that keep everything that was reported as delivered.

docs/protocol.md, 6.6 and 6.8. A record is reported to the application only when it is *final*:

(a) when its acknowledgement was taken in hand the lease was valid and the view showed its segment open and
    not fenced (or fenced, and the fence waits for the transaction under way): no operator can have cut before
    that moment, so the record lies below any cut; or
(b) the view shows where the segment ended, and the record's offset lies before that end.

Anything else stays pending. A record whose offset lies at or after its segment's end went astray. One that
was rejected (the hard seal, a deleted sub-topic) may still be in the log from an earlier try whose
acknowledgement was lost: it is *unplaced* until the log was looked at, and is never guessed over. Only one
that cannot stand before the end needs no look: a record that was sent earlier stands right before the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from kpsplit.splitter.lineage import Segment

P = TypeVar("P")


@dataclass(slots=True)
class Outgoing(Generic[P]):
    """A record that waits to be sent: its key hash (None: no key), sequence number and content."""

    key_hash: int | None
    sequence: int
    payload: P


@dataclass(slots=True)
class Acknowledged(Generic[P]):
    record: Outgoing[P]
    offset: int


class Answer(Enum):
    """What is known of a record whose report does not say where it stands."""

    WRITTEN = auto()
    """Acknowledged, without an offset: the acknowledgement of a later record, or of a retry, said so."""
    SEALED = auto()
    """Rejected as by a hard seal. An earlier try may be in the log."""
    GONE = auto()
    """Failed as where a topic was deleted. An earlier try may have been in the log."""


@dataclass(slots=True)
class Unplaced(Generic[P]):
    """A record of which it is not known where it stands, or whether it was written.

    It can only stand at ``earliest`` or after that.
    """

    record: Outgoing[P]
    answer: Answer
    earliest: int


@dataclass(slots=True)
class Final(Generic[P]):
    """A record whose fate is known: delivered to ``segment``, or failed.

    ``offset``: where it was delivered to; None if it failed, or if its place is not known.
    """

    record: Outgoing[P]
    segment: Segment
    offset: int | None
    failed: bool = False


class SegmentWriter(Generic[P]):
    """One segment as this producer writes to it.

    ``end``: where it ended by the view, None while it has no end. ``open``: new records may be sent now.
    ``fenced``: a fence is on that waits for no transaction. ``sent`` counts records given to librdkafka
    (guarded by the Producer's lock), ``done`` those whose fate librdkafka reported (written only by the
    thread that polls); a stale ``done`` only makes the fence wait a little longer. ``slow`` counts those that
    were not final when they were reported, or failed, ``final`` those of them that were delivered after all.
    ``pending``: acknowledged, not final yet; ``unplaced``: their place is not known yet. ``last_number`` and
    ``last_offset``: which record was acknowledged last, and where it stands; the number is written first, so
    that the two never claim too much. ``newest``: the highest number that may have been sent, as of when the
    segment was closed to new records or one that had waited was sent. ``in_order``: numbers rose so far.
    """

    __slots__ = (
        "done", "end", "fenced", "final", "in_order", "last_number", "last_offset", "newest", "open",
        "pending", "segment", "sent", "slow", "unplaced",
    )  # fmt: skip

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.end = segment.end
        self.open = False
        self.fenced = False
        self.sent = 0
        self.done = 0
        self.slow = 0
        self.final = 0
        self.pending: list[Acknowledged[P]] = []
        self.unplaced: list[Unplaced[P]] = []
        self.last_number = -1
        self.last_offset: int | None = None
        self.newest = -1
        self.in_order = True

    @property
    def delivered(self) -> int:
        return self.done - self.slow + self.final

    @property
    def in_flight(self) -> int:
        return self.sent - self.done

    @property
    def unresolved(self) -> bool:
        return self.in_flight > 0 or bool(self.pending) or bool(self.unplaced)

    def note_sent(self, sequence: int) -> None:
        """Count a record that librdkafka gets now, and that may have waited.

        A stray without a key may go to a segment that took higher numbers long before.
        """
        self.in_order = self.in_order and sequence >= self.newest
        self.newest = max(self.newest, sequence)
        self.sent += 1

    def forget_acknowledged(self) -> None:
        """Forget which record was acknowledged last: others without a stamp may have been sent since."""
        self.last_offset = None
        self.last_number = -1

    def earliest(self, sequence: int) -> int:
        """Return the first offset at which a record can stand: after the one that was acknowledged last.

        That holds for records that were sent later: brokers write what one producer sends in that order.
        While numbers only rise, they tell which was sent later.
        """
        offset = self.last_offset
        if offset is None or self.last_number >= sequence or not self.in_order:
            return self.segment.start
        return offset + 1


class FenceTransactions:
    """What the application's transactions change.

    ``deferred``: a fence waits for the end of the transaction under way.
    """

    def __init__(self) -> None:
        self.active = False
        self.deferred = False
        self._began = 0
        self._aborted: list[range] = []

    def begin(self, next_sequence: int, *, unresolved: bool) -> None:
        """Note the begin of a transaction. ``unresolved``: the fate of some earlier record is open."""
        self.active = True
        self._began = next_sequence
        if not unresolved:
            self._aborted.clear()

    def end(self, next_sequence: int, *, aborted: bool) -> None:
        self.active = self.deferred = False
        if aborted:
            self._aborted.append(range(self._began, next_sequence))

    def fence_seen(self, *, newly: bool, awaited: bool) -> None:
        """Take a view in which a fence is on. ``newly``: of another attempt than in the view before.

        ``awaited``: we have a valid lease, so the operator counts on our acknowledgement.
        """
        if newly:
            self.deferred = awaited and self.active

    def no_fence(self) -> None:
        self.deferred = False

    def abandoned(self, sequence: int) -> bool:
        return any(sequence in numbers for numbers in self._aborted)


Abandoned = Callable[[int], bool]
"""Returns whether a sequence number is of an aborted transaction: its record is never sent again."""


def while_open(writer: SegmentWriter[P], *, lease_valid: bool) -> list[Final[P]]:
    """Take what is final by rule (a) from a segment that has no end in the view.

    There a rejection is a failure like any other: the segment is neither sealed nor deleted.
    """
    # Under a fence or without a lease an operator may have cut the segment below the record already.
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
        # Its transaction was reported as gone: sending its record again would bring it back.
        elif abandoned(item.record.sequence):
            final.append(Final(item.record, writer.segment, None, failed=True))
        else:
            astray.append(item.record)
    writer.pending.clear()
    return final, astray


def rule_out(writer: SegmentWriter[P], end: int) -> None:
    """Place records that cannot stand before the end of their segment: as if after it."""
    _place(writer, {item.record.sequence: end for item in writer.unplaced if item.earliest >= end})


def place(writer: SegmentWriter[P], found: Mapping[int, int], end: int, *, complete: bool) -> list[Final[P]]:
    """Note where unplaced records were found; return those whose fate stays unknown, as failed.

    ``complete``: all of the log was read in which they can stand before the end, so what was not found does
    not. Otherwise, of the records that were failed by the deletion of a log, as many may have been written as
    had room before the end, and only the first of them: brokers write one producer's records in the order
    of sending, and a log that is gone takes nothing more. Where numbers do not tell which are the first, any
    of them may have been.
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
            room -= writer.in_order
    _place(writer, certain)
    lost = [Final(item.record, writer.segment, None, failed=True) for item in writer.unplaced]
    writer.unplaced.clear()
    return lost


def give_up(writer: SegmentWriter[P], keep: Callable[[Outgoing[P]], bool]) -> list[Final[P]]:
    """Fail records whose fate is not known in time. They are never sent again: they may have been written."""
    late = [item.record for item in writer.pending if not keep(item.record)]
    late += [item.record for item in writer.unplaced if not keep(item.record)]
    if late:
        writer.pending[:] = [item for item in writer.pending if keep(item.record)]
        writer.unplaced[:] = [item for item in writer.unplaced if keep(item.record)]
    return [Final(record, writer.segment, None, failed=True) for record in late]


def _place(writer: SegmentWriter[P], offsets: Mapping[int, int]) -> None:
    left: list[Unplaced[P]] = []
    for item in writer.unplaced:
        offset = offsets.get(item.record.sequence)
        if offset is None:
            left.append(item)
        else:
            writer.pending.append(Acknowledged(item.record, offset))
    writer.unplaced[:] = left


MOST_RUNS = 10_000
"""In how many runs of consecutive numbers failures are remembered, per partition."""
MOST_NAMED = 150_000
"""More numbers do not fit into a certificate."""


class FailedNumbers:
    """The sequence numbers of records that failed, for the certificate, in bounded memory.

    ``count``: how many failed. Beyond the limits they are only counted.
    """

    __slots__ = ("_runs", "count")

    def __init__(self) -> None:
        self.count = 0
        self._runs: list[range] | None = []

    def __len__(self) -> int:
        """Return how many runs are remembered."""
        return len(self._runs or ())

    def add(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.count += 1
            self._note(number)

    def numbers(self) -> list[int] | None:
        """Return them in order, None if there were too many to remember, or to name."""
        if self._runs is None or self.count > MOST_NAMED:
            return None
        return sorted({number for run in self._runs for number in run})

    def _note(self, number: int) -> None:
        runs = self._runs
        if runs is None:
            return
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        elif len(runs) < MOST_RUNS:
            runs.append(range(number, number + 1))
        else:
            self._runs = None
