"""The project's own code in the fence's world, remembered per (snapshot, input).

Before it the values of which a state is made; see ``fence_world``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from kpsplit.producer.finality import Acknowledged, Answer, FenceTransactions, Final, Outgoing, Unplaced
from kpsplit.producer.lease import owes
from kpsplit.producer.send_state import PartitionSendState, Tally
from kpsplit.producer.state import ProducerState, ReportLease, RouteWriter
from kpsplit.splitter import control_plane
from kpsplit.splitter.control_plane import to_acknowledge, to_answer
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.data import Marker, MarkerKind
from kpsplit.splitter.records.producers import ProducerRegistration

# -- the values a state is made of -----------------------------------------------------------------


PARENT = PhysicalPartition("t", 0)
LOW, HIGH = 0x10000000, 0x90000000
"""Hashes of two keys, one in each half of the key space."""

NOBODY: frozenset[int] = frozenset()
STALE = 0
"""A valid lease that was asked for before the latest record."""


@dataclass(frozen=True)
class Scope:
    """What a world contains. ``keys``: per producer, the key hash of each of its records."""

    keys: tuple[tuple[int, ...], ...] = ((LOW, LOW),)
    operations: tuple[str, ...] = ("split",)
    begin: tuple[str, ...] = ()
    """Operations that are over when the exploration begins."""
    aborts: int = 0
    """How many attempts die and are rolled back."""
    lapses: bool = True
    """Leases run out."""
    errors: bool = False
    """Acknowledgements get lost, records are dropped."""
    joining: bool = False
    """The producers are not registered yet."""
    one_by_one: bool = False
    """Markers are appended one by one, and a dead operator's late marker may follow."""
    slow_reading: bool = False
    """Between asking for the control topic's end and having read to it, other things happen."""
    gives_up: bool = False
    """The application purges its queue."""
    times_out: bool = False
    """What was acknowledged and is not final is given up after the message timeout, one record or another."""
    zombie: bool = False
    """A dead operator wakes up while it waits for readiness, and finds everybody silent."""
    counts_early: bool = False
    """A wrong protocol: a report counts its record as done before it takes it in hand."""
    neighbours: bool = False
    """Operators of other partitions remove registrations that were silent for a lease."""
    retries: bool = True
    """A record that is in the log may be rejected by a hard seal: its first acknowledgement was lost."""


class Item(NamedTuple):
    """A record inside librdkafka: written at ``offset``, or (-1) not yet."""

    segment: int
    sequence: int
    epoch: int
    offset: int
    counted: bool = False


class Held(NamedTuple):
    """The state of one producer apart from its fence."""

    fence: int
    view: int
    lease: int
    """How long the control topic was when the lease was asked for, ``STALE``, or -1: no valid lease."""
    asking: int | None
    flight: tuple[tuple[Item, ...], ...]
    outcomes: tuple[Any, ...]
    registered: bool
    fresh: bool
    """The registration is good although no lease was renewed under it."""
    removed: bool
    """Operators do not see the registration any more."""
    ready: str | None
    acknowledged: str | None
    begun: int = -1
    """The first record of the transaction under way; -1: none (``TransactionalWorld`` only, as all below)."""
    committed: tuple[int, ...] = ()
    spoilt: bool = False
    """A record of the transaction went astray: it must be aborted."""


class Operator(NamedTuple):
    """The state of the operator and of those that died."""

    attempts: int = 0
    aborted: int = 0
    running: bool = False
    ready: bool = False
    acknowledged: bool = False
    cuts: tuple[tuple[int, int], ...] = ()
    sealed: bool = False
    first: frozenset[int] | None = None
    """Whose registrations were there when the wait for readiness began; None: it has not begun."""
    over: frozenset[int] = NOBODY
    """Whose registrations are being removed, by this operator or one before it."""
    late: tuple[tuple[int, str, bool], ...] = ()
    """Markers that a dead operator may still append."""
    asleep: tuple[str, int, frozenset[int]] | None = None
    """Who was put to sleep while it waited for readiness: its attempt, since which record, ``first``."""


class Global(NamedTuple):
    """One state of the world."""

    control: tuple[int, ...]
    logs: tuple[tuple[Any, ...], ...]
    sealed: frozenset[int]
    producers: tuple[Held, ...]
    operator: Operator


Move = tuple[str, bool, Global]
"""What happened, whether it is a fault (needs not happen), and the state after it."""


def put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    """Return the values with another one at a place."""
    return (*values[:index], value, *values[index + 1 :])


def marker_entry(marker: Marker) -> tuple[str, str, bool]:
    """Return what stands in a log for a marker."""
    return ("m", marker.attempt_id, marker.kind is MarkerKind.SEAL)


class RealCode:
    """The code of a scope. Everything remembered belongs to one instance, so patched code is really run.

    ``tells_order``: states in which different numbers were sent are different states.
    """

    tells_order = False

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.states: list[PartitionState] = []
        self._state_ids: dict[PartitionState, int] = {}
        self.snapshots: list[Any] = []
        self._snapshot_ids: dict[Any, int] = {}
        self._fence_moves: dict[Any, Any] = {}
        self._after: dict[Any, int] = {}
        self._answers: dict[Any, Any] = {}
        self._verdicts: dict[Any, Any] = {}
        self._checked: dict[Any, str | None] = {}
        self._read: dict[Any, str | None] = {}
        attempts = len(scope.begin) + len(scope.operations) + scope.aborts
        self.sources = [PARENT] + [
            PhysicalPartition(f"t.split-0-{n}", p) for n in range(1, attempts + 1) for p in (0, 1)
        ]
        self._source_ids = {s: i for i, s in enumerate(self.sources)}

    def _record(self, index: int, producer: Held) -> ProducerRegistration:
        return ProducerRegistration(
            instance=index,
            generation=1,
            client_id="p",
            topics=(PARENT.topic,) if producer.registered else (),
            ready={} if producer.ready is None else {str(PARENT): producer.ready},
            acknowledged={} if producer.acknowledged is None else {str(PARENT): producer.acknowledged},
        )

    def _live(self, producers: tuple[Held, ...]) -> tuple[ProducerRegistration, ...]:
        known = control_plane.Registrations()
        for index, producer in enumerate(producers):
            if producer.registered and not producer.removed:
                known.fold(self._record(index, producer))
        return known.to_ask(PARENT.topic)

    def _owed(self, world: Global, producer: Held) -> tuple[bool, str | None, str | None]:
        """Return whether anything is owed, the attempt to be answered, the fence to be acknowledged."""
        key = (world.control[producer.view], producer.registered, producer.ready, producer.acknowledged)
        if key not in self._answers:
            states = [self.states[key[0]]] if producer.registered else []
            own = self._record(0, producer)
            answer = [s.attempt.id for s in to_answer(states, own) if s.attempt]
            acknowledge = [s.attempt.id for s in to_acknowledge(states, own) if s.attempt]
            self._answers[key] = (
                owes(states, own),
                answer[0] if answer else None,
                acknowledge[0] if acknowledge else None,
            )
        return cast("tuple[bool, str | None, str | None]", self._answers[key])

    def _suspended(self, producer: Held) -> bool:
        return producer.fence >= 0 and bool(self.snapshots[producer.fence][1])

    def _phase(self, world: Global, view: int) -> str:
        state = self.states[world.control[view]]
        return f"{state.phase}@{state.epoch}.{view}"

    # -- the fence, by snapshots -------------------------------------------------------------------

    def _call(self, fence: int, what: str, arguments: tuple[Any, ...]) -> tuple[int, Any]:
        """Return the snapshot after a call of the real fence, and what the call returned."""
        key = (fence, what, arguments)
        known = self._fence_moves.get(key)
        if known is None:
            real = self._restore(self.snapshots[fence])
            result = getattr(self, f"_do_{what}")(real, *arguments)
            known = self._fence_moves[key] = (self._snapshot(real), result)
        return cast("tuple[int, Any]", known)

    def _do_next(self, fence: Any) -> int:
        return int(fence.next_sequence)

    def _do_produce(self, fence: Any, key: int) -> tuple[Any, ...]:
        writer = fence.writer_for(key, fence.next_sequence)
        if not writer.open:
            fence.hold(key, None)
            return ()
        sequence = fence.next_sequence
        fence.next_sequence += 1
        writer.sent += 1
        return (self._given(fence, writer, sequence),)

    def _do_release(self, fence: Any, keys: tuple[int, ...]) -> tuple[Any, ...]:
        ready = list(fence.sendable())
        for writer, record in ready:
            writer.note_sent(record.sequence)
        given = tuple(self._given(fence, writer, record.sequence) for writer, record in ready)
        if ready:
            fence.sent([record for _, record in ready])
        return given

    def _do_give_up(self, fence: Any) -> tuple[Any, ...]:
        return tuple((r.sequence, -1, None) for r in fence.drop_waiting())

    def _do_pending(self, fence: Any) -> tuple[int, ...]:
        return tuple(a.record.sequence for w in fence.all_writers() for a in (*w.pending, *w.unplaced))

    def _do_time_out(self, fence: Any, sequence: int) -> tuple[Any, ...]:
        return self._finals(fence.give_up_pending(lambda record: record.sequence != sequence))

    def _given(self, fence: Any, writer: Any, sequence: int) -> tuple[int, int, int, int]:
        return self._source_ids[writer.segment.source], sequence, writer.segment.id, fence.state.epoch

    def _do_report(
        self,
        fence: Any,
        how: str,
        segment: int,
        key: int,
        sequence: int,
        offset: int,
        valid: bool,
        counted: bool,
    ) -> tuple[Any, ...]:
        writer = next((w for w in fence.all_writers() if w.segment.id == segment), None)
        if writer is None:  # the fence has forgotten a record that was still in flight
            writer = RouteWriter(fence.state.lineage.get(segment), PARENT)
        writer.done -= counted
        context = SimpleNamespace(report_lease=ReportLease(), lease_until=1.0, instance=0)
        context.report_lease.until = 1.0
        ProducerState.refresh(cast(ProducerState, context), fence)
        if how == "acknowledged" and valid and writer.lease.until > 0:
            writer.done += 1
            writer.last_number, writer.last_offset = sequence, offset
            return ((sequence, segment, offset),)
        record: Outgoing[Any] = Outgoing(key, sequence, None)
        return self._finals(self._slowly(fence, writer, record, how, offset, valid))

    def _do_count(self, fence: Any, segment: int) -> None:
        next(w for w in fence.all_writers() if w.segment.id == segment).done += 1

    def _slowly(
        self, fence: Any, writer: Any, record: Outgoing[Any], how: str, offset: int, valid: bool
    ) -> list[Final[Any]]:
        if how == "acknowledged":
            return cast("list[Final[Any]]", fence.acknowledged(writer, record, offset, lease_valid=valid))
        if how == "rejected":
            return cast("list[Final[Any]]", fence.unplaced(writer, record, Answer.SEALED, lease_valid=valid))
        return cast("list[Final[Any]]", fence.failed(writer, record))

    def _do_observe(self, fence: Any, state: int, valid: bool) -> tuple[Any, ...]:
        return self._finals(fence.observe(self.states[state], lease_valid=valid))

    def _do_suspend(self, fence: Any) -> None:
        fence.suspend(True)

    def _do_renew(self, fence: Any, valid: bool) -> tuple[Any, ...]:
        """Renew the lease; ``valid``: the one before is still on, or it ran out and nobody noticed."""
        finals: list[Final[Any]] = []
        context: Any = SimpleNamespace(
            ended=False, lease_until=0.0, report_lease=ReportLease(), routes={}, instance=0,
            lease_valid=lambda: valid or context.lease_until > 0, send_states=lambda: [fence],
            active=lambda: [] if fence.at_rest() else [fence],
            report=lambda _, found: finals.extend(found),
            refresh=lambda fence: ProducerState.refresh(context, fence),
            lapse=lambda: ProducerState.lapse(context),
        )  # fmt: skip
        ProducerState.renew(context, inf)
        return self._finals(finals)

    def _do_quiescent(self, fence: Any) -> bool:
        return bool(fence.quiescent())

    def _do_unclear(self, fence: Any) -> tuple[Any, ...]:
        return tuple(
            (
                w.segment.id,
                self._source_ids[w.segment.source],
                tuple(sorted(i.record.sequence for i in w.unplaced)),
            )
            for w in fence.unclear()
        )

    def _do_looked_up(self, fence: Any, segment: int, found: tuple[tuple[int, int], ...]) -> tuple[Any, ...]:
        writer = next(w for w in fence.all_writers() if w.segment.id == segment)
        return self._finals(fence.looked_up(writer, dict(found), complete=True))

    def _finals(self, finals: list[Final[Any]]) -> tuple[Any, ...]:
        return tuple((f.record.sequence, f.segment.id, f.offset) for f in finals)

    def _new_fence(self, state: PartitionState) -> PartitionSendState[Any, RouteWriter]:
        return PartitionSendState(state, lambda segment: RouteWriter(segment, PARENT), Tally())

    def _snapshot(self, fence: Any) -> int:
        """Return the number of a fence's state; counters that steer nothing are left out."""
        backlog = fence.backlog
        assert backlog.tally.count == len(backlog), "the running count is wrong"
        taken = (
            self._state_id(fence.state),
            fence.suspended,
            fence.next_sequence,
            tuple((i, tuple((r.key_hash, r.sequence) for r in q)) for i, q in sorted(backlog.queues.items())),
            frozenset(backlog._unsorted),
            tuple(_writer_state(w, self.tells_order) for w in fence.writers),
            tuple(_writer_state(w, self.tells_order) for w in fence.closing),
            _transactions_state(fence.transactions),
            self._went_astray(fence),
        )
        number = self._snapshot_ids.get(taken)
        if number is None:
            number = self._snapshot_ids[taken] = len(self.snapshots)
            self.snapshots.append(taken)
        return number

    def all_in_order(self) -> bool:
        """Return whether no segment was ever sent a lower number after a higher one."""
        return all(writer[-1][1] for taken in self.snapshots for writer in (*taken[5], *taken[6]))

    def _went_astray(self, fence: Any) -> bool:
        """Return whether that a record went astray matters later."""
        return False

    def _restore(self, taken: Any) -> PartitionSendState[Any, RouteWriter]:
        state, suspended, next_sequence, queues, unsorted, writers_, closing, transactions, astray = taken
        fence = self._new_fence(self.states[state])
        fence.suspended = suspended
        fence.statistics.strays = int(astray)
        fence.backlog.queues = {i: deque(Outgoing(k, n, None) for k, n in records) for i, records in queues}
        fence.backlog._unsorted = set(unsorted)
        fence.backlog.tally.count = len(fence.backlog)
        fence.next_sequence = next_sequence
        _restore_transactions(fence.transactions, transactions)
        lineage = self.states[state].lineage
        for segment, *rest in closing:
            writer = RouteWriter(lineage.get(segment), PARENT)
            _restore_writer(writer, rest)
            fence.closing.append(writer)
        for writer, (_, *rest) in zip(fence.writers, writers_, strict=True):
            _restore_writer(writer, rest)
        return fence

    def _state_id(self, state: PartitionState) -> int:
        number = self._state_ids.get(state)
        if number is None:
            number = self._state_ids[state] = len(self.states)
            self.states.append(state)
        return number


def _writer_state(writer: RouteWriter, tells_order: bool) -> tuple[Any, ...]:
    return (
        writer.segment.id,
        writer.open,
        writer.fenced,
        writer.in_flight,
        tuple((a.record.key_hash, a.record.sequence, a.offset) for a in writer.pending),
        tuple((u.record.key_hash, u.record.sequence, u.answer, u.earliest) for u in writer.unplaced),
        writer.last_number,
        writer.last_offset,
        (writer.newest, writer.in_order) if tells_order else (-1, True),
    )


def _restore_writer(writer: RouteWriter, rest: list[Any]) -> None:
    writer.open, writer.fenced, writer.sent, pending, unplaced, *last, order = rest
    writer.last_number, writer.last_offset = last
    writer.newest, writer.in_order = order
    nothing: Any = None
    writer.pending = [Acknowledged(Outgoing(key, number, nothing), offset) for key, number, offset in pending]
    writer.unplaced = [Unplaced(Outgoing(k, n, nothing), answer, first) for k, n, answer, first in unplaced]


def _transactions_state(transactions: FenceTransactions) -> tuple[Any, ...]:
    t = transactions
    aborted = tuple((a.start, a.stop) for a in t._aborted)
    return t.active, t.deferred, t._began, aborted


def _restore_transactions(transactions: FenceTransactions, taken: tuple[Any, ...]) -> None:
    t = transactions
    t.active, t.deferred, t._began, aborted = taken
    t._aborted = [range(*numbers) for numbers in aborted]
