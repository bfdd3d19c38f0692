"""What a producer sends and waits for in one logical partition, pure.

Theory of operation (docs/protocol.md, 6.5 to 6.9). A producer writes each record to the segment
that its view of the control topic names, and reports it when it is final (``finality``: the rules). Until
then it is pending in its segment's writer. A record that went astray waits in the backlog: it is sent again
to the right segment with its old sequence number, before anything newer of those keys. A segment that opens
stays blocked until every record of the closed segments (``closing``) that it overlaps is resolved.

Transactions. A fence that is seen inside a transaction is *deferred*: the transaction goes on writing, its
records are final as before, and the fence holds and is acknowledged when it has ended. Otherwise an
application that flushes before it commits would wait for the end of the fence, and the fence for that of the
transaction. That is safe because an operator waits for each producer with transactions that answered its
PREPARE in time, until the producer acknowledges the fence or the attempt is rolled back. A producer that has
a valid lease for the segments when it sees the fence has answered in time. In every other case the fence
holds at once: the operator may go on without us, and may cut the log at any moment. A deferred one holds
from when the lease is over: another partition's operator may remove the registration that keeps ours waiting.
The transaction is committed only with records that are final. Records of an aborted one are never sent again.

Not thread safe: the Producer's lock guards every call. No I/O, no clock: the caller says whether the lease is
valid. ``Payload`` is whatever the caller wants to get back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from kpsplit.producer import finality
from kpsplit.producer.finality import (
    Acknowledged,
    Answer,
    FailedNumbers,
    FenceTransactions,
    Final,
    Outgoing,
    SegmentWriter,
    Unplaced,
)
from kpsplit.splitter.lineage import Layout, Segment
from kpsplit.splitter.partition_state import PartitionState

P = TypeVar("P")
W = TypeVar("W", bound="SegmentWriter[Any]")
Item = TypeVar("Item")


class Tally:
    """What the send states of a Producer say together, so that nobody has to go through thousands of them.

    ``count``: how many records wait, in all their backlogs and for topics that are not looked up yet.
    ``strays``: how many went astray so far; it never falls, whichever topics are routed.
    ``active``: those that may have something to do for the library's thread; all others are ``at_rest``.
    """

    __slots__ = ("active", "count", "strays")

    def __init__(self) -> None:
        self.count = self.strays = 0
        self.active: dict[PartitionSendState[Any, Any], None] = {}


class Backlog(Generic[P]):
    """What waits to be sent. ``queues``: per segment id what waits for it, held records and strays.

    A queue is sent in the order of the sequence numbers. So what went astray goes before anything newer of
    its key, and what is sent is always the head of its queue. ``tally`` counts the records of several
    backlogs together.
    """

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.queues: dict[int, deque[Outgoing[P]]] = {}
        self._unsorted: set[int] = set()

    def __len__(self) -> int:
        """Return how many records wait."""
        return sum(map(len, self.queues.values()))

    def waits_for(self, segment: int) -> bool:
        return bool(self.queues.get(segment))

    def queue_of(self, segment: int) -> deque[Outgoing[P]]:
        """Return what waits for a segment; callers add the newest record, and count it in ``tally``."""
        return self.queues.setdefault(segment, deque())

    def add_strays(self, records: list[Outgoing[P]], segment_of: Callable[[Outgoing[P]], int]) -> None:
        for record in records:
            segment = segment_of(record)
            queue = self.queue_of(segment)
            # Sorted only when it is read: thousands of strays may come one after the other.
            if queue and queue[-1].sequence > record.sequence:
                self._unsorted.add(segment)
            queue.append(record)
        self.tally.count += len(records)
        self.tally.strays += len(records)

    def waiting_for(self, segment: int) -> Iterable[Outgoing[P]]:
        if segment in self._unsorted:
            self._unsorted.discard(segment)
            self.queues[segment] = deque(_in_order(self.queues.get(segment, ())))
        return self.queues.get(segment, ())

    def remove_sent(self, records: Iterable[Outgoing[P]]) -> None:
        """Forget records that were handed out by ``waiting_for``: the first of their segments."""
        before = len(self)
        gone = {r.sequence for r in records}
        for queue in self.queues.values():
            while queue and queue[0].sequence in gone:
                queue.popleft()
        self._tidy()
        self.tally.count -= before - len(self)

    def drop(self, keep: Callable[[Outgoing[P]], bool]) -> list[Outgoing[P]]:
        dropped = [r for queue in self.queues.values() for r in queue if not keep(r)]
        if dropped:
            self.queues = {i: deque(r for r in queue if keep(r)) for i, queue in self.queues.items()}
            self._tidy()
            self.tally.count -= len(dropped)
        return dropped

    def assign(self, segments: set[int], segment_of: Callable[[Outgoing[P]], int]) -> None:
        if set(self.queues) <= segments:
            return
        # One order over all old queues: a new segment may take records of several of them.
        everything = _in_order(r for queue in self.queues.values() for r in queue)
        self.queues, self._unsorted = {}, set()
        for record in everything:
            self.queue_of(segment_of(record)).append(record)

    def leave(self) -> None:
        """Stop counting in the shared tally: nothing of this will be sent."""
        self.tally.count -= len(self)
        self.tally = Tally()
        self.tally.count = len(self)

    def _tidy(self) -> None:
        self.queues = {segment: queue for segment, queue in self.queues.items() if queue}


def _in_order(records: Iterable[Outgoing[P]]) -> list[Outgoing[P]]:
    return sorted(records, key=lambda r: r.sequence)


@dataclass(slots=True, kw_only=True)
class SendCounts:
    """What a producer has counted in one partition since its start. ``layout_stats()`` has each field."""

    fences: int = 0
    """How many fences it has seen go up."""
    held: int = 0
    """How many records had to wait for a segment to open."""
    strays: int = 0
    """How many records went astray and were sent again."""


@dataclass(slots=True, kw_only=True)
class FenceStatistics(SendCounts):
    """The counts, and what certificates report: records delivered per segment id, numbers that failed."""

    delivered: dict[int, int] = field(default_factory=dict)
    failed: FailedNumbers = field(default_factory=FailedNumbers)


class PartitionSendState(Generic[P, W]):
    """All segments of one logical partition as this producer writes to them.

    ``writers``: of the open segments, in the order of their ranges; ``closing``: of closed segments that have
    unresolved records. ``topic_id``: Kafka's id of the topic in which the numbers begin. ``suspended``: the
    lease is not valid, nothing new is sent. ``tally`` counts what waits in several of them together.
    """

    __slots__ = (
        "_make_writer", "backlog", "bounds", "closing", "layout", "next_sequence", "state", "statistics",
        "suspended", "topic_id", "transactions", "writers",
    )  # fmt: skip

    def __init__(self, state: PartitionState, make_writer: Callable[[Segment], W], tally: Tally) -> None:
        self.state = state
        self.topic_id = state.topic_id
        self.next_sequence = 0
        self.suspended = False
        self.backlog: Backlog[P] = Backlog(tally)
        self.transactions = FenceTransactions()
        self.statistics = FenceStatistics()
        self.closing: list[W] = []
        self.writers: list[W] = []
        self._make_writer = make_writer
        self._adopt(state)

    # -- routing -----------------------------------------------------------------------------------

    def writer_for(self, key_hash: int | None, sequence: int) -> W:
        """Return the writer that takes a record; one without a key may go anywhere."""
        if key_hash is None:
            # By its number: sent again in the same layout, it goes to the same segment.
            return self.writers[sequence % len(self.writers)]
        return self.writers[self.layout.index_for(key_hash)]

    def hold(self, key_hash: int | None, payload: P) -> None:
        """Keep a new record, in an open segment as well; its sequence number is given now."""
        record = Outgoing(key_hash, self.next_sequence, payload)
        self.backlog.tally.active[self] = None
        writer = self.writer_for(key_hash, record.sequence)
        keep = self.backlog.queue_of(writer.segment.id).append
        if writer.open:  # nothing newer may pass the record
            writer.open, writer.newest = False, self.next_sequence - 1
        self.next_sequence += 1  # a signal handler may raise after any call: all of this or nothing
        self.statistics.held += 1
        self.backlog.tally.count += 1
        keep(record)

    def waiting(self) -> int:
        return len(self.backlog)

    def sendable(self, limit: int | None = None) -> list[tuple[W, Outgoing[P]]]:
        """Return what may be sent now, at most ``limit`` records, in this order; say so with ``sent``."""
        found: list[tuple[W, Outgoing[P]]] = []
        if not self.backlog:
            return found
        for writer in self.writers:
            if not self._blocked(writer):
                left = None if limit is None else limit - len(found)
                waiting = self.backlog.waiting_for(writer.segment.id)
                found += ((writer, record) for record in islice(waiting, left))
        return found

    def sent(self, records: list[Outgoing[P]]) -> None:
        """Note that waiting records were given to librdkafka (or refused); opens what they kept closed."""
        self.backlog.remove_sent(records)
        self._reopen()

    def drop_waiting(self, keep: Callable[[Outgoing[P]], bool] = lambda _: False) -> list[Outgoing[P]]:
        """Give up records that wait (purge, time-out): they fail. Strays as well: none has a report yet."""
        dropped = self.backlog.drop(keep)
        if dropped:
            self.statistics.failed.add(r.sequence for r in dropped)
            self._reopen()
        return dropped

    def refuse(self, record: Outgoing[P]) -> None:
        """Note that librdkafka refused a waiting record: it fails, and those after it may go on."""
        self.statistics.failed.add((record.sequence,))

    # -- reports -----------------------------------------------------------------------------------

    def acknowledged(
        self, writer: W, record: Outgoing[P], offset: int, *, lease_valid: bool
    ) -> list[Final[P]]:
        """Take an acknowledgement in hand that is not final at once; return what is final.

        The record is counted as done here, in one step with its being pending: a look that saw it as neither
        in flight nor pending would open the next segment before it is resolved.
        """
        self._pend(writer, writer.pending, Acknowledged(record, offset))
        writer.last_number, writer.last_offset = record.sequence, offset
        return self._resolve(writer, lease_valid=lease_valid)

    def unplaced(
        self, writer: W, record: Outgoing[P], answer: Answer, *, lease_valid: bool
    ) -> list[Final[P]]:
        """Take an answer in hand that does not tell where a record stands, or whether it was written."""
        earliest = writer.earliest(record.sequence)
        if writer.end is not None and earliest >= writer.end:
            self._pend(writer, writer.pending, Acknowledged(record, writer.end))
        else:
            self._pend(writer, writer.unplaced, Unplaced(record, answer, earliest))
        return self._resolve(writer, lease_valid=lease_valid)

    def failed(self, writer: W, record: Outgoing[P]) -> list[Final[P]]:
        """Take a failure in hand: it is final at once (the record may have been written, as ever)."""
        writer.done += 1
        writer.slow += 1
        self.statistics.failed.add((record.sequence,))
        self._retire_resolved()
        return [Final(record, writer.segment, None, failed=True)]

    def pending(self) -> int:
        """Return how many records that librdkafka reported are not final yet."""
        return sum(len(w.pending) + len(w.unplaced) for w in self.all_writers())

    def give_up_pending(self, keep: Callable[[Outgoing[P]], bool] = lambda _: False) -> list[Final[P]]:
        """Fail what librdkafka reported and is not final: the end of its segment is not known in time.

        It may have been written, so it is never sent again.
        """
        finals: list[Final[P]] = []
        for writer in self.all_writers():
            finals += self._counted(writer, finality.give_up(writer, keep))
        self._retire_resolved()
        return finals

    def give_up(self) -> list[Final[P]]:
        """Fail everything that is not final or waits: nothing will ever be sent again."""
        finals = self.give_up_pending()
        for record in self.drop_waiting():
            segment = self.writer_for(record.key_hash, record.sequence).segment
            finals.append(Final(record, segment, None, failed=True))
        return finals

    def unreported(self) -> int:
        """Note that librdkafka has nothing any more; return how many reports got lost on their way.

        An exception of a signal handler may end a report before it began. The fate of such a record stays
        unknown, but it must not keep the fence from being acknowledged for ever.
        """
        lost = 0
        for writer in (*self.writers, *self.closing):
            if writer.sent != writer.done:
                lost += writer.in_flight
                writer.slow += writer.in_flight
                writer.done = writer.sent
        if lost:
            self._retire_resolved()
        return lost

    # -- the view and the lease --------------------------------------------------------------------

    def observe(self, state: PartitionState, *, lease_valid: bool) -> list[Final[P]]:
        """Take what the control topic says next; return what became final by it.

        The order of the log decides, not the revision: what comes later counts.
        """
        was_fenced = bool(self.state.fenced_segments())
        self._adopt(state, awaited=lease_valid and not self.suspended)
        if state.fenced_segments() and not was_fenced:
            self.statistics.fences += 1
        return self.resolve(lease_valid=lease_valid)

    def resolve(self, *, lease_valid: bool) -> list[Final[P]]:
        """Look at everything pending again (the view or the lease is newer); return what became final."""
        finals: list[Final[P]] = []
        for writer in self.all_writers():
            if writer.end is not None:
                finality.rule_out(writer, writer.end)
            finals += self._resolve(writer, lease_valid=lease_valid)
        return finals

    def suspend(self, suspended: bool) -> None:
        """Close or reopen everything: without a valid lease nothing new is sent, and no fence is deferred."""
        if suspended:
            # Another partition's operator may remove our registration now; then nobody waits for us.
            self.transactions.no_fence()
            self._fence_writers()
        self.suspended = suspended
        self._reopen()

    def transaction(self, active: bool, *, aborted: bool = False) -> None:
        """Note the begin or end of an application's transaction: inside one, a fence waits for its end."""
        if active:
            unresolved = any(w.unresolved for w in self.all_writers())
            self.transactions.begin(self.next_sequence, unresolved=unresolved)
        else:
            self.transactions.end(self.next_sequence, aborted=aborted)
        if self.state.attempt is not None:
            self._fence_writers()
            self._reopen()

    def quiescent(self) -> bool:
        """Return whether the fence may be acknowledged: nothing of the fenced segments is in flight."""
        fenced = [w for w in self.writers if w.fenced]
        return not self.transactions.deferred and all(w.in_flight == 0 for w in (*fenced, *self.closing))

    def busy(self) -> bool:
        """Return whether acknowledgements must be taken in hand now, whether the application polls or not."""
        fenced = any(w.fenced and w.unresolved for w in self.writers)
        return fenced or bool(self.closing) or self.pending() > 0 or self.waiting() > 0

    def at_rest(self) -> bool:
        """Return whether the library's thread has nothing to do here until this is ``active`` again."""
        return self.state.attempt is None and not self.busy()

    def unresolved(self) -> bool:
        """Return whether anything waits, is in flight, or is not final."""
        return self.waiting() > 0 or any(w.unresolved for w in self.all_writers())

    def all_writers(self) -> list[W]:
        return [*self.writers, *self.closing]

    def delivered(self) -> dict[int, int]:
        """Return how many records per segment id were reported to the application as delivered."""
        for writer in self.all_writers():
            self._remember(writer)
        return dict(self.statistics.delivered)

    # -- records whose place is not known ----------------------------------------------------------

    def unclear(self) -> list[W]:
        """Return the writers of closed segments whose log must be looked at for what is unplaced."""
        return [w for w in self.closing if w.unplaced and w.in_flight == 0 and w.end is not None]

    def looked_up(self, writer: W, found: Mapping[int, int], *, complete: bool) -> list[Final[P]]:
        """Say where unplaced records were found after all (number to offset).

        ``complete``: nothing else of them stands before the segment's end, it is sent again. Otherwise it
        cannot be found out what the log held: the log, or its beginning, is gone. What may have been written
        fails, because sending it again might double it.
        """
        if writer.end is None or not writer.unplaced:
            return []
        lost = self._counted(writer, finality.place(writer, found, writer.end, complete=complete))
        return lost + self._resolve(writer, lease_valid=False)

    # -- inside ------------------------------------------------------------------------------------

    def _adopt(self, state: PartitionState, *, awaited: bool = False) -> None:
        self.backlog.tally.active[self] = None
        layout = Layout.of(state.lineage)
        ends = {segment.id: segment.end for segment in state.lineage}
        for writer in self.all_writers():  # a segment that the log took back holds nothing that is ever read
            writer.end = ends.get(writer.segment.id, writer.segment.start)
        known = {w.segment.id: w for w in self.writers}
        writers = [known.pop(s.id) if s.id in known else self._make_writer(s) for s in layout.segments]
        self.closing += [w for w in known.values() if w.unresolved]
        for gone in known.values():
            gone.open = gone.fenced = False
            self._remember(gone)
        if state.fenced_segments():
            newly = not self.state.fenced_segments() or state.attempt != self.state.attempt
            self.transactions.fence_seen(newly=newly, awaited=awaited)
        else:
            self.transactions.no_fence()
        self.state, self.layout, self.writers = state, layout, writers
        self._fence_writers()
        self.bounds = layout.bounds
        self.backlog.assign({w.segment.id for w in writers}, self._segment_of)
        self._reopen()

    def _fence_writers(self) -> None:
        """Fence the segments that the view says, once a transaction that the fence waits for has ended."""
        # Deferred: the application must be able to commit, or it and the fence wait for each other for ever.
        fenced = () if self.transactions.deferred else self.state.fenced_segments()
        for writer in self.writers:
            writer.fenced = writer.segment.id in fenced

    def _resolve(self, writer: W, *, lease_valid: bool) -> list[Final[P]]:
        """Look at what is pending; what is unplaced when its segment ended is looked at by others.

        For this is called for each report, and there may be very many that are unplaced.
        """
        finals: list[Final[P]] = []
        if writer.end is None:
            finals = finality.while_open(writer, lease_valid=lease_valid)
        elif writer.pending:
            finals, astray = finality.by_end(writer, writer.end, self.transactions.abandoned)
            if astray:
                self.backlog.add_strays(astray, self._segment_of)
                self.statistics.strays += len(astray)
                self._reopen()
        self._counted(writer, finals)
        self._retire_resolved()
        return finals

    def _counted(self, writer: W, finals: list[Final[P]]) -> list[Final[P]]:
        for final in finals:
            if final.failed:
                self.statistics.failed.add((final.record.sequence,))
            else:
                writer.final += 1
        return finals

    def _pend(self, writer: W, items: list[Item], item: Item) -> None:
        self.backlog.tally.active[self] = None
        pend = items.append
        writer.done += 1
        writer.slow += 1
        pend(item)

    def _segment_of(self, record: Outgoing[P]) -> int:
        return self.writer_for(record.key_hash, record.sequence).segment.id

    def _retire_resolved(self) -> None:
        resolved = [w for w in self.closing if not w.unresolved]
        if resolved:
            for writer in resolved:
                self._remember(writer)
            self.closing = [w for w in self.closing if w.unresolved]
            self._reopen()

    def _blocked(self, writer: W) -> bool:
        """Return whether a segment must not be written to, apart from records that wait for it already."""
        if self.suspended or writer.fenced:
            return True
        # A record of the closed segment may turn out to be astray: it goes before anything newer of its keys.
        return any(w.segment.range.overlaps(writer.segment.range) for w in self.closing)

    def _reopen(self) -> None:
        for writer in self.writers:
            was_open = writer.open
            writer.open = not self.backlog.waits_for(writer.segment.id) and not self._blocked(writer)
            if was_open and not writer.open:  # new records went there without being noted one by one
                writer.newest = self.next_sequence - 1

    def _remember(self, writer: W) -> None:
        self.statistics.delivered[writer.segment.id] = writer.delivered
