"""The producer's side of the fence for one logical partition, pure (design, section 6).

Theory of operation. A producer writes each record to the segment that its view of the control topic names,
and reports it when it is final (``finality``: the rules). Until then it is pending in its segment's writer.
A record that went astray waits in the backlog: it is sent again to the right segment with its old sequence
number, before anything newer of those keys. A segment that opens stays blocked until every record of the
closed segments (``closing``) that it overlaps is resolved.

Not thread safe: the Producer's lock guards every call. No I/O, no clock: the caller says whether the lease is
valid. ``Payload`` is whatever the caller wants to get back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

from kpsplit.producer import finality
from kpsplit.producer.backlog import Backlog, Tally
from kpsplit.producer.fence_transactions import FenceTransactions
from kpsplit.producer.segment_writer import Acknowledged, Final, Outgoing, SegmentWriter
from kpsplit.producer.statistics import FenceStatistics
from kpsplit.splitter.layout import Layout
from kpsplit.splitter.lineage import Segment
from kpsplit.splitter.partition_state import PartitionState

P = TypeVar("P")
W = TypeVar("W", bound="SegmentWriter[Any]")


class PartitionFence(Generic[P, W]):
    """All segments of one logical partition as this producer writes to them.

    ``writers``: of the open segments, in the order of their ranges; ``closing``: of closed segments that have
    unresolved records. ``suspended``: the lease is not valid, nothing new is sent. ``tally`` counts what
    waits in several fences together.
    """

    def __init__(self, state: PartitionState, make_writer: Callable[[Segment], W], tally: Tally) -> None:
        self.state = state
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
            return self.writers[sequence % len(self.writers)]
        return self.writers[self.layout.index_for(key_hash)]

    def hold(self, key_hash: int | None, payload: P) -> None:
        """Keep a new record until its segment opens; its sequence number is given now."""
        record = Outgoing(key_hash, self.next_sequence, payload)
        keep = self.backlog.queue_of(self._segment_of(record)).append
        self.next_sequence += 1  # a signal handler may raise behind any call: all of this or nothing
        self.statistics.held += 1
        self.backlog.tally.count += 1
        keep(record)

    def waiting(self) -> int:
        """Return how many records wait to be sent."""
        return len(self.backlog)

    def sendable(self, limit: int | None = None) -> list[tuple[W, Outgoing[P]]]:
        """Return what may be sent now, at most ``limit`` records; for each segment strays come first.

        The caller sends them in this order and says so with ``sent``; what it cannot send stays here.
        """
        found: list[tuple[W, Outgoing[P]]] = []
        if not self.backlog:
            return found
        astray = self.backlog.strays_by_segment(self._segment_of)
        for writer in self.writers:
            if not self._blocked(writer):
                left = None if limit is None else limit - len(found)
                waiting = self.backlog.waiting_for(writer.segment.id, astray)
                found += ((writer, record) for record in islice(waiting, left))
        return found

    def sent(self, records: list[Outgoing[P]]) -> None:
        """Note that waiting records were given to librdkafka (or refused); opens what they kept closed."""
        self.backlog.remove_sent(records)
        self._reopen()

    def drop_waiting(self, keep: Callable[[Outgoing[P]], bool] = lambda _: False) -> list[Outgoing[P]]:
        """Give up records that wait (purge, time-out): they fail. Strays as well: nobody was told of them."""
        dropped = self.backlog.drop(keep)
        if dropped:
            self.statistics.failed.extend(r.sequence for r in dropped)
            self._reopen()
        return dropped

    def refuse(self, record: Outgoing[P]) -> None:
        """Note that librdkafka refused a waiting record: it fails, and those behind it may go on."""
        self.statistics.failed.append(record.sequence)

    # -- reports -----------------------------------------------------------------------------------

    def acknowledged(
        self, writer: W, record: Outgoing[P], offset: int, *, lease_valid: bool
    ) -> list[Final[P]]:
        """Take an acknowledgement in hand that is not final at once; return what is final.

        The record is counted as done here, in one step with its being pending: a fence that saw it as neither
        in flight nor pending would open the next segment before it is resolved.
        """
        self._pend(writer, Acknowledged(record, offset))
        return self._resolve(writer, lease_valid=lease_valid)

    def rejected(self, writer: W, record: Outgoing[P], *, lease_valid: bool) -> list[Final[P]]:
        """Take a rejection by the broker in hand that a hard seal or a deleted sub-topic may have caused."""
        self._pend(writer, Acknowledged(record, None))
        return self._resolve(writer, lease_valid=lease_valid)

    def failed(self, writer: W, record: Outgoing[P]) -> list[Final[P]]:
        """Take a failure in hand: it is final at once (the record may have been written, as ever)."""
        writer.done += 1
        writer.slow += 1
        self.statistics.failed.append(record.sequence)
        self._retire_resolved()
        return [Final(record, writer.segment, None)]

    def pending(self) -> int:
        """Return how many acknowledged records are not final yet."""
        return sum(len(w.pending) for w in self.all_writers())

    def give_up_pending(self, keep: Callable[[Outgoing[P]], bool] = lambda _: False) -> list[Final[P]]:
        """Fail what was acknowledged and is not final: nobody tells in time where its segment ended.

        It may have been written, so it is never sent again.
        """
        finals: list[Final[P]] = []
        for writer in self.all_writers():
            finals += self._counted(writer, finality.give_up(writer, lambda item: not keep(item.record)))
        self._retire_resolved()
        return finals

    def give_up(self) -> list[Final[P]]:
        """Fail everything that is not final or waits: nothing will ever be sent again."""
        finals = self.give_up_pending()
        for record in self.drop_waiting():
            finals.append(Final(record, self.writer_for(record.key_hash, record.sequence).segment, None))
        return finals

    def unreported(self) -> int:
        """Note that librdkafka has nothing any more; return how many reports got lost on their way.

        An exception of a signal handler may end a report before it began. The fate of such a record stays
        unknown, but it must not keep the fence from being acknowledged for ever.
        """
        lost = 0
        for writer in self.all_writers():
            lost += writer.in_flight
            writer.slow += writer.in_flight
            writer.done = writer.sent
        if lost:
            self._retire_resolved()
        return lost

    # -- the view and the lease --------------------------------------------------------------------

    def observe(self, state: PartitionState, *, lease_valid: bool) -> list[Final[P]]:
        """Take a newer state of the control topic; return what became final by it."""
        if state.revision <= self.state.revision and state.epoch <= self.state.epoch:
            return []
        was_fenced = bool(self.state.fenced_segments())
        self._adopt(state)
        if state.fenced_segments() and not was_fenced:
            self.statistics.fences += 1
        return self.resolve(lease_valid=lease_valid)

    def resolve(self, *, lease_valid: bool) -> list[Final[P]]:
        """Look at everything pending again (the view or the lease is newer); return what became final."""
        finals: list[Final[P]] = []
        for writer in self.all_writers():
            finals += self._resolve(writer, lease_valid=lease_valid)
        return finals

    def register(self) -> None:
        """Stay closed until the control topic was read to an end asked for behind our registration."""
        self.transactions.registering = True
        self.suspend(True)

    def suspend(self, suspended: bool) -> None:
        """Close or reopen everything: without a valid lease nothing new is sent."""
        self.suspended = suspended
        self.transactions.registering &= suspended
        self._reopen()

    def transaction(self, active: bool, *, aborted: bool = False) -> None:
        """Note the begin or end of an application's transaction: inside one, a fence waits for its end."""
        if active:
            unresolved = any(w.unresolved for w in self.all_writers())
            self.transactions.begin(self.next_sequence, unresolved=unresolved)
        else:
            self.transactions.end(self.next_sequence, aborted=aborted)
            self._fence_writers()
        self._reopen()

    def quiescent(self) -> bool:
        """Tell whether the fence may be acknowledged: nothing of the fenced segments is in flight."""
        fenced = [w for w in self.writers if w.fenced]
        return not self.transactions.deferred and all(w.in_flight == 0 for w in (*fenced, *self.closing))

    def busy(self) -> bool:
        """Tell whether acknowledgements must be taken in hand now, whether the application polls or not."""
        fenced = any(w.fenced and w.unresolved for w in self.writers)
        return fenced or bool(self.closing) or self.pending() > 0 or self.waiting() > 0

    def all_writers(self) -> list[W]:
        """Return the writers of open segments and of closed ones that have unresolved records."""
        return [*self.writers, *self.closing]

    def delivered(self) -> dict[int, int]:
        """Return how many records per segment id were reported to the application as delivered."""
        for writer in self.all_writers():
            self._remember(writer)
        return dict(self.statistics.delivered)

    # -- rejected records --------------------------------------------------------------------------

    def unclear(self) -> list[tuple[W, list[int]]]:
        """Return closed segments with rejected records, whose log must be looked at for their numbers."""
        found = []
        for writer in self.closing:
            numbers = [item.record.sequence for item in writer.pending if finality.rejected(item)]
            if numbers and writer.in_flight == 0 and self._end(writer) is not None:
                found.append((writer, numbers))
        return found

    def looked_up(self, writer: W, found: Mapping[int, int] | None) -> list[Final[P]]:
        """Say where rejected records were found after all (number to offset); the others are not written.

        None: the log is gone, nobody can tell any more; they fail, for sending them again might double them.
        """
        end = self._end(writer)
        if end is None:
            return []
        lost: list[Final[P]] = []
        if found is None:
            lost = self._counted(writer, finality.give_up(writer, finality.rejected))
        else:
            finality.place(writer, found, end)
        return lost + self._resolve(writer, lease_valid=False)

    # -- inside ------------------------------------------------------------------------------------

    def _adopt(self, state: PartitionState) -> None:
        layout = Layout.of(state.lineage)
        known = {w.segment.id: w for w in self.writers}
        writers = [known.pop(s.id) if s.id in known else self._make_writer(s) for s in layout.segments]
        self.closing += [w for w in known.values() if w.unresolved]
        for gone in known.values():
            gone.open = gone.fenced = False
            self._remember(gone)
        newly = not self.state.fenced_segments()
        self.transactions.fence_seen(fenced=bool(state.fenced_segments()), newly=newly)
        self.state, self.layout, self.writers = state, layout, writers
        self._fence_writers()
        self.bounds = layout.bounds
        self.backlog.assign({w.segment.id for w in writers}, self._segment_of)
        self._reopen()

    def _fence_writers(self) -> None:
        """Fence the segments that the view says, once a transaction that the fence waits for has ended."""
        fenced = () if self.transactions.deferred else self.state.fenced_segments()
        for writer in self.writers:
            writer.fenced = writer.segment.id in fenced

    def _resolve(self, writer: W, *, lease_valid: bool) -> list[Final[P]]:
        finals: list[Final[P]] = []
        end = self._end(writer) if writer.pending else None
        if end is not None:
            finals, astray = finality.by_end(writer, end, self.transactions.abandoned)
            self.backlog.add_strays(astray)
            self.statistics.strays += len(astray)
        elif writer.pending:
            finals = finality.while_open(writer, lease_valid=lease_valid)
        self._counted(writer, finals)
        self._retire_resolved()
        return finals

    def _counted(self, writer: W, finals: list[Final[P]]) -> list[Final[P]]:
        """Count records that were pending, and return them."""
        for final in finals:
            if final.offset is None:
                self.statistics.failed.append(final.record.sequence)
            else:
                writer.final += 1
        return finals

    def _pend(self, writer: W, item: Acknowledged[P]) -> None:
        pend = writer.pending.append
        writer.done += 1
        writer.slow += 1
        pend(item)

    def _segment_of(self, record: Outgoing[P]) -> int:
        return self.writer_for(record.key_hash, record.sequence).segment.id

    def _end(self, writer: W) -> int | None:
        return self.state.lineage.get(writer.segment.id).end

    def _retire_resolved(self) -> None:
        resolved = [w for w in self.closing if not w.unresolved]
        if resolved:
            for writer in resolved:
                self._remember(writer)
            self.closing = [w for w in self.closing if w.unresolved]
            self._reopen()

    def _blocked(self, writer: W) -> bool:
        """Tell whether a segment must not be written to, apart from records that wait for it already."""
        if self.suspended or writer.fenced:
            return True
        return any(w.segment.range.overlaps(writer.segment.range) for w in self.closing)

    def _reopen(self) -> None:
        astray = self.backlog.strays_by_segment(self._segment_of)
        for writer in self.writers:
            waits = writer.segment.id in self.backlog.held or writer.segment.id in astray
            writer.open = not waits and not self._blocked(writer)

    def _remember(self, writer: W) -> None:
        self.statistics.delivered[writer.segment.id] = writer.delivered
