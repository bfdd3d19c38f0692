"""The producer's side of the fence for one logical partition, pure (design, section 6).

Theory of operation. A producer writes each record to the segment that its view of the control topic names. A
record is reported to the application only when it is *final*:

(a) when its acknowledgement was taken in hand the lease was valid and the view showed its segment open and
    not fenced: no operator can have cut before that moment, so the record lies below any cut; or
(b) the view shows where the segment ended, and the record's offset lies before that end.

Anything else waits (``pending``). A record whose offset lies at or behind its segment's end went astray: it
is sent again to the right segment with its old sequence number, before anything newer of those keys. A
segment that opens stays blocked until every record of the closed segments that it overlaps is resolved.

A record that a closed segment's broker rejected (the hard seal) may still be in the log from an earlier try
whose acknowledgement was lost: it waits until the log was looked at (``unclear``), and is never guessed over.

Not thread safe: the Producer's lock guards every call. No I/O, no clock: the caller says whether the lease is
valid. ``Payload`` is whatever the caller wants to get back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from kpsplit.splitter.layout import Layout
from kpsplit.splitter.lineage import Segment
from kpsplit.splitter.partition_state import PartitionState

P = TypeVar("P")
W = TypeVar("W", bound="SegmentWriter[Any]")


@dataclass(slots=True)
class Outgoing(Generic[P]):
    """A record that waits to be sent: its key hash (None: no key), sequence number and content."""

    key_hash: int | None
    sequence: int
    payload: P


@dataclass(slots=True)
class Acknowledged(Generic[P]):
    """A record that the broker acknowledged at an offset, or rejected (offset None)."""

    record: Outgoing[P]
    offset: int | None


@dataclass(slots=True)
class Final(Generic[P]):
    """A record whose fate is certain: at ``offset`` of ``segment``, or (offset None) failed."""

    record: Outgoing[P]
    segment: Segment
    offset: int | None


class SegmentWriter(Generic[P]):
    """One segment as this producer writes to it.

    ``open``: new records may be sent now. ``sent`` counts records given to librdkafka (guarded by the
    Producer's lock), ``done`` those whose fate librdkafka reported (written only by the thread that polls);
    a stale ``done`` only makes the fence wait a little longer. ``slow`` counts those that were not final when
    they were reported, or failed, ``final`` those of them that were delivered after all. ``pending``:
    acknowledged, not final yet.
    """

    __slots__ = ("done", "fenced", "final", "open", "pending", "segment", "sent", "slow")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.open = False
        self.fenced = False
        self.sent = 0
        self.done = 0
        self.slow = 0
        self.final = 0
        self.pending: list[Acknowledged[P]] = []

    @property
    def delivered(self) -> int:
        """How many records were reported to the application as delivered."""
        return self.done - self.slow + self.final

    @property
    def in_flight(self) -> int:
        """How many records are given to librdkafka and not reported back."""
        return self.sent - self.done

    @property
    def unresolved(self) -> bool:
        """Tell whether the fate of any record is open."""
        return self.in_flight > 0 or bool(self.pending)


@dataclass(slots=True)
class FenceStatistics:
    """What fences cost this partition; ``held`` and ``strays`` count records."""

    fences: int = 0
    held: int = 0
    strays: int = 0
    delivered: dict[int, int] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)


class PartitionFence(Generic[P, W]):
    """All segments of one logical partition as this producer writes to them."""

    def __init__(self, state: PartitionState, make_writer: Callable[[Segment], W]) -> None:
        self.state = state
        self.next_sequence = 0
        self.in_transaction = False
        self._deferred = False
        self.suspended = False
        self.statistics = FenceStatistics()
        self._make_writer = make_writer
        self._held: dict[int, deque[Outgoing[P]]] = {}
        self._strays: list[Outgoing[P]] = []
        self._transaction_began = 0
        self._abandoned: list[range] = []
        self.closing: list[W] = []
        self.writers: list[W] = []
        self.layout = Layout.of(state.lineage)
        self._adopt(state)

    # -- routing -----------------------------------------------------------------------------------

    def writer_for(self, key_hash: int | None, sequence: int) -> W:
        """Return the writer that takes a record; one without a key may go anywhere."""
        if key_hash is None:
            return self.writers[sequence % len(self.writers)]
        return self.writers[self.layout.index_for(key_hash)]

    def hold(self, key_hash: int | None, payload: P) -> None:
        """Keep a new record until its segment opens; its sequence number is given now."""
        writer = self.writer_for(key_hash, self.next_sequence)
        self._held.setdefault(writer.segment.id, deque()).append(
            Outgoing(key_hash, self.next_sequence, payload)
        )
        self.next_sequence += 1
        self.statistics.held += 1

    def waiting(self) -> int:
        """Return how many records wait to be sent."""
        return sum(map(len, self._held.values())) + len(self._strays)

    def pending(self) -> int:
        """Return how many acknowledged records are not final yet."""
        return sum(len(w.pending) for w in self.all_writers())

    def sendable(self, limit: int | None = None) -> list[tuple[W, Outgoing[P]]]:
        """Return what may be sent now, at most ``limit`` records; for each segment strays come first.

        The caller sends them in this order and says so with ``sent``; what it cannot send stays here.
        """
        if not self._held and not self._strays:
            return []
        found: list[tuple[W, Outgoing[P]]] = []
        astray = self._strays_by_segment()
        for writer in self.writers:
            if not self._blocked(writer):
                segment = writer.segment.id
                waiting = chain(astray.get(segment, ()), self._held.get(segment, ()))
                left = None if limit is None else limit - len(found)
                found += ((writer, record) for record in islice(waiting, left))
        return found

    def sent(self, records: list[Outgoing[P]]) -> None:
        """Note that waiting records were given to librdkafka (or refused); opens what they kept closed."""
        gone = {r.sequence for r in records}
        self._strays = [r for r in self._strays if r.sequence not in gone]
        for held in self._held.values():
            while held and held[0].sequence in gone:
                held.popleft()
        self._reopen()

    def drop_waiting(self, keep: Callable[[Outgoing[P]], bool] = lambda _: False) -> list[Outgoing[P]]:
        """Give up records that wait (purge, time-out): they fail. Strays as well: nobody was told of them."""
        waiting = (*self._strays, *(r for held in self._held.values() for r in held))
        dropped = [r for r in waiting if not keep(r)]
        if not dropped:
            return []
        self._strays = [r for r in self._strays if keep(r)]
        self._held = {i: deque(r for r in held if keep(r)) for i, held in self._held.items()}
        self.statistics.failed.extend(r.sequence for r in dropped)
        self._reopen()
        return dropped

    def refuse(self, record: Outgoing[P]) -> None:
        """Note that librdkafka refused a waiting record: it fails, and those behind it may go on."""
        self.statistics.failed.append(record.sequence)

    # -- what happens ------------------------------------------------------------------------------

    def acknowledged(
        self, writer: W, record: Outgoing[P], offset: int, *, lease_valid: bool
    ) -> list[Final[P]]:
        """Take an acknowledgement in hand that is not final at once; return what is final.

        The record is counted as done here, in one step with its being pending: a fence that saw it as neither
        in flight nor pending would open the next segment before it is resolved.
        """
        writer.done += 1
        writer.slow += 1
        writer.pending.append(Acknowledged(record, offset))
        return self._resolve(writer, lease_valid=lease_valid)

    def rejected(self, writer: W, record: Outgoing[P], *, lease_valid: bool) -> list[Final[P]]:
        """Take a rejection by the broker in hand that a hard seal or a deleted sub-topic may have caused."""
        writer.done += 1
        writer.slow += 1
        writer.pending.append(Acknowledged(record, None))
        return self._resolve(writer, lease_valid=lease_valid)

    def failed(self, writer: W, record: Outgoing[P]) -> list[Final[P]]:
        """Take a failure in hand: it is final at once (the record may have been written, as ever)."""
        writer.done += 1
        writer.slow += 1
        self.statistics.failed.append(record.sequence)
        self._retire_resolved()
        return [Final(record, writer.segment, None)]

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

    def give_up_pending(self) -> list[Final[P]]:
        """Fail what was acknowledged and is not final: nobody will ever tell where its segment ended."""
        finals = []
        for writer in self.all_writers():
            finals += [self._give_up(writer, a.record) for a in writer.pending]
            writer.pending.clear()
        self._retire_resolved()
        return finals

    def suspend(self, suspended: bool) -> None:
        """Close or reopen everything: without a valid lease nothing new is sent."""
        self.suspended = suspended
        self._reopen()

    def transaction(self, active: bool, *, aborted: bool = False) -> None:
        """Note the begin or end of an application's transaction: inside one, a fence waits for its end.

        Records of an aborted transaction are never sent again: those that go astray fail.
        """
        self.in_transaction = active
        if active:
            self._transaction_began = self.next_sequence
            if not any(w.unresolved for w in self.all_writers()):
                self._abandoned.clear()
        else:
            self._deferred = False
            if aborted:
                self._abandoned.append(range(self._transaction_began, self.next_sequence))
        self._reopen()

    def quiescent(self) -> bool:
        """Tell whether the fence may be acknowledged: nothing of the fenced segments is in flight."""
        fenced = [w for w in self.writers if w.fenced]
        return not self._deferred and all(w.in_flight == 0 for w in (*fenced, *self.closing))

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

    def unclear(self) -> list[tuple[W, list[int]]]:
        """Return closed segments with rejected records, whose log must be looked at for their numbers."""
        found = []
        for writer in self.closing:
            numbers = [a.record.sequence for a in writer.pending if a.offset is None]
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
        lost = [a for a in writer.pending if a.offset is None] if found is None else []
        finals = [self._give_up(writer, a.record) for a in lost]
        if lost:
            writer.pending[:] = [a for a in writer.pending if a.offset is not None]
        for item in writer.pending:
            if item.offset is None and found is not None:
                item.offset = found.get(item.record.sequence, end)
        return finals + self._resolve(writer, lease_valid=False)

    # -- inside ------------------------------------------------------------------------------------

    def _adopt(self, state: PartitionState) -> None:
        layout = Layout.of(state.lineage)
        known = {w.segment.id: w for w in self.writers}
        writers = [known.pop(s.id) if s.id in known else self._make_writer(s) for s in layout.segments]
        self.closing += [w for w in known.values() if w.unresolved]
        for gone in known.values():
            gone.open = gone.fenced = False
            self._remember(gone)
        fenced = state.fenced_segments()
        newly = fenced and not self.state.fenced_segments()
        self._deferred = bool(fenced) and (self._deferred or (bool(newly) and self.in_transaction))
        for writer in writers:
            writer.fenced = writer.segment.id in fenced
        self.state, self.layout, self.writers = state, layout, writers
        self.bounds = layout.bounds
        self._assign_held()
        self._reopen()

    def _resolve(self, writer: W, *, lease_valid: bool) -> list[Final[P]]:
        if not writer.pending:
            self._retire_resolved()
            return []
        end = self._end(writer)
        if end is None:
            finals = self._final_while_open(writer, lease_valid)
        else:
            finals = self._final_by_end(writer, end)
        self._retire_resolved()
        return finals

    def _final_while_open(self, writer: W, lease_valid: bool) -> list[Final[P]]:
        """Rule (a)."""
        if writer.fenced or not lease_valid:
            return []
        finals = [Final(a.record, writer.segment, a.offset) for a in writer.pending]
        writer.pending.clear()
        for final in finals:
            self._count(writer, final)
        return finals

    def _final_by_end(self, writer: W, end: int) -> list[Final[P]]:
        """Rule (b); what lies behind the end went astray."""
        finals, unclear = [], []
        for item in writer.pending:
            if item.offset is None:
                unclear.append(item)
            elif item.offset < end:
                finals.append(Final(item.record, writer.segment, item.offset))
            elif any(item.record.sequence in aborted for aborted in self._abandoned):
                finals.append(Final(item.record, writer.segment, None))
            else:
                self._strays.append(item.record)
                self.statistics.strays += 1
        writer.pending[:] = unclear
        for final in finals:
            self._count(writer, final)
        return finals

    def _strays_by_segment(self) -> dict[int, list[Outgoing[P]]]:
        """Return which strays go to which segment now, in the order in which they were first sent."""
        found: dict[int, list[Outgoing[P]]] = {}
        for record in sorted(self._strays, key=lambda r: r.sequence):
            writer = self.writer_for(record.key_hash, record.sequence)
            found.setdefault(writer.segment.id, []).append(record)
        return found

    def _assign_held(self) -> None:
        """Give what is held to the segments of a new layout."""
        if set(self._held) <= {w.segment.id for w in self.writers}:
            return
        everything = sorted((r for held in self._held.values() for r in held), key=lambda r: r.sequence)
        self._held = {}
        for record in everything:
            writer = self.writer_for(record.key_hash, record.sequence)
            self._held.setdefault(writer.segment.id, deque()).append(record)

    def _give_up(self, writer: W, record: Outgoing[P]) -> Final[P]:
        final = Final(record, writer.segment, None)
        self._count(writer, final)
        return final

    def _count(self, writer: W, final: Final[P]) -> None:
        if final.offset is None:
            self.statistics.failed.append(final.record.sequence)
        else:
            writer.final += 1

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
        if self.suspended or (writer.fenced and not self._deferred):
            return True
        return any(w.segment.range.overlaps(writer.segment.range) for w in self.closing)

    def _reopen(self) -> None:
        self._held = {segment: held for segment, held in self._held.items() if held}
        astray = self._strays_by_segment()
        for writer in self.writers:
            waits = writer.segment.id in self._held or writer.segment.id in astray
            writer.open = not waits and not self._blocked(writer)

    def _remember(self, writer: W) -> None:
        self.statistics.delivered[writer.segment.id] = writer.delivered
