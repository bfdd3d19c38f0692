"""A small world around the project's own fence code, for exhaustive exploration (design, section 6).

The world is one logical partition, one or two producers with one or two records each, and an operator that
splits the partition and merges it back. What decides is the project's code: ``PartitionFence``, the hot
path's rule (``Context.refresh``), the lease rules (``Renewal``, ``owes``), ``to_answer`` and
``to_acknowledge``, ``machine.apply``, ``steps.decide``, ``Registrations``, ``not_ready``,
``not_acknowledged`` and ``classify``. The world only chooses what happens next.

Time is not modelled by clocks. A lease remembers how long the control topic was when its end was asked for;
it may run out at any moment; and an operator's patience, counted from one of its records, ends only when
every lease that was asked for before that record has run out. That is all that monotonic clocks of equal rate
promise. Whoever waits or renews asks only whether a lease was asked for behind the latest record; so all that
were asked for before it are one value (``STALE``), and states that differ in nothing else are one state.

States are tuples of small values. What the real objects do is remembered per (snapshot, input), so that each
distinct step of the real code runs once, however many global states contain it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from kpsplit.producer.backlog import Tally
from kpsplit.producer.context import Context
from kpsplit.producer.fence import PartitionFence
from kpsplit.producer.fence_transactions import FenceTransactions
from kpsplit.producer.lease import Renewal, owes, seen
from kpsplit.producer.routes import RouteWriter
from kpsplit.producer.segment_writer import Acknowledged, Final, Outgoing
from kpsplit.splitter import reading, steps, writers
from kpsplit.splitter.events import Abort, Commit, Cut, Event, Fence, Finish, Prepare
from kpsplit.splitter.fence_answers import to_acknowledge, to_answer
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Attempt, EndedBy, OperationKind, PartitionState, Target
from kpsplit.splitter.records.marker import Marker, MarkerKind
from kpsplit.splitter.records.producers import Expiry, ProducerRecord
from kpsplit.splitter.records.stamp import Stamp
from kpsplit.splitter.states import Phase

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
    """A dead operator wakes up while it waits for readiness, and expires whom it finds silent."""
    counts_early: bool = False
    """A wrong protocol: a report counts its record as done before it takes it in hand."""
    one_id: bool = False
    """Both producers use one transactional id (``TransactionalWorld`` only, as all below).

    The first may crash, but not once it has answered PREPARE: it is then waited for until max-pause.
    """
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
    asking: tuple[int, Any] | None
    registering: Any
    flight: tuple[tuple[Item, ...], ...]
    outcomes: tuple[Any, ...]
    registered: bool
    expired: bool
    ready: str | None
    acknowledged: str | None
    begun: int = -1
    """The first record of the transaction under way; -1: none (``TransactionalWorld`` only, as all below)."""
    committed: tuple[int, ...] = ()
    spoilt: bool = False
    """A record of the transaction went astray: it must be aborted."""
    dead: bool = False
    """Somebody fenced the transactional id."""
    taken: int = 2
    """How far it is with taking its transactional id; 2: it has it, and may register."""
    older: bool = False
    """It has registered before the other producer asked where registrations end."""
    gone: bool = False
    """It has crashed, or was closed behind a fatal error."""


class Operator(NamedTuple):
    """The state of the operator and of those that died."""

    attempts: int = 0
    aborted: int = 0
    running: bool = False
    ready: bool = False
    acknowledged: bool = False
    cuts: tuple[tuple[int, int], ...] = ()
    sealed: bool = False
    expiring: frozenset[int] = NOBODY
    late: tuple[tuple[int, str, bool], ...] = ()
    """Markers that a dead operator may still append."""
    asleep: tuple[str, int] | None = None
    """The attempt whose operator was put to sleep while it waited for readiness, and since which record."""


class Global(NamedTuple):
    """One state of the world."""

    control: tuple[int, ...]
    logs: tuple[tuple[Any, ...], ...]
    sealed: frozenset[int]
    producers: tuple[Held, ...]
    operator: Operator


Move = tuple[str, bool, Global]
"""What happened, whether it is a fault (needs not happen), and the state behind it."""


class World:
    """The moves of a scope. Everything remembered belongs to one instance, so patched code is really run."""

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

    # -- the beginning -----------------------------------------------------------------------------

    def initial(self) -> Global:
        """Return the first state."""
        state = PartitionState.unsplit(PARENT, "id")
        logs: list[tuple[Any, ...]] = [() for _ in self.sources]
        sealed: set[int] = set()
        for number, operation in enumerate(self.scope.begin, 1):
            attempt = self._attempt(state, operation, number)
            state = apply(apply(state, Prepare(attempt)), Fence(attempt.id, attempt.subtopic and "id"))
            cuts = []
            for planned in steps.planned_markers(state, attempt):
                place = self._source_ids[planned.source]
                cuts.append(Cut(planned.segment, len(logs[place]), 0))
                logs[place] += (_marker_entry(planned.marker),)
            state = apply(state, Commit(attempt.id, tuple(cuts)))
            sealed |= {i for i, s in enumerate(self.sources) if s.topic in {t.name for t in state.to_seal()}}
            state = apply(state, Finish(attempt.id))
        first = self._state_id(state)
        joined = not self.scope.joining
        producers = tuple(
            Held(
                fence=self._snapshot(self._new_fence(state)) if joined else -1,
                view=0,
                lease=1,
                asking=None,
                registering=None,
                flight=tuple(() for _ in self.sources),
                outcomes=(None,) * len(keys),
                registered=joined,
                expired=False,
                ready=None,
                acknowledged=None,
            )
            for keys in self.scope.keys
        )
        return Global((first,), tuple(logs), frozenset(sealed), producers, Operator(len(self.scope.begin)))

    # -- all moves ---------------------------------------------------------------------------------

    def moves(self, world: Global) -> Iterator[Move]:
        """Return everything that can happen next."""
        for index, producer in enumerate(world.producers):
            name = f"p{index}"
            if producer.fence >= 0:
                yield from self._application(world, index, name)
                yield from self._brokers(world, index, name)
                yield from self._fence_duties(world, index, name)
            yield from self._library(world, index, name)
        yield from self._operate(world)

    # -- the application and librdkafka ------------------------------------------------------------

    def _application(self, world: Global, index: int, name: str) -> Iterator[Move]:
        producer = world.producers[index]
        keys = self.scope.keys[index]
        number = self._call(producer.fence, "next", ())[1]
        if number < len(keys):
            fence, sent = self._call(producer.fence, "produce", (keys[number],))
            yield f"{name} produce", False, self._sent(world, index, fence, sent)
        if self.scope.gives_up:
            fence, dropped = self._call(producer.fence, "give_up", ())
            if dropped:
                after = self._final(producer._replace(fence=fence), dropped)
                yield f"{name} gives up {[d[0] for d in dropped]}", True, self._with(world, index, after)
        if self.scope.times_out:
            for sequence in self._call(producer.fence, "pending", ())[1]:
                fence, late = self._call(producer.fence, "time_out", (sequence,))
                after = self._final(producer._replace(fence=fence), late)
                yield f"{name} is not told of #{sequence} in time", True, self._with(world, index, after)
        fence, sent = self._call(producer.fence, "release", (keys,))
        if fence != producer.fence:
            yield f"{name} release {[s[1] for s in sent]}", False, self._sent(world, index, fence, sent)

    def _sent(self, world: Global, index: int, fence: int, sent: tuple[Any, ...]) -> Global:
        producer = world.producers[index]
        flight = list(producer.flight)
        for place, sequence, segment, epoch in sent:
            flight[place] += (Item(segment, sequence, epoch, -1),)
        return self._with(world, index, producer._replace(fence=fence, flight=tuple(flight)))

    def _brokers(self, world: Global, index: int, name: str) -> Iterator[Move]:
        producer = world.producers[index]
        for place, items in enumerate(producer.flight):
            if not items:
                continue
            at = f"{name} {self.sources[place]}"
            waiting = next((n for n, item in enumerate(items) if item.offset < 0), None)
            if waiting is not None and place not in world.sealed:
                item = items[waiting]
                log = world.logs[place]
                written = item._replace(offset=len(log))
                after = world._replace(
                    logs=_put(world.logs, place, (*log, ("r", index, item.sequence, item.epoch)))
                )
                queue = (*items[:waiting], written, *items[waiting + 1 :])
                yield (
                    f"{at} writes #{item.sequence} at {len(log)}",
                    False,
                    self._with(after, index, producer._replace(flight=_put(producer.flight, place, queue))),
                )
            yield from self._reports(world, index, place, at)

    def _reports(self, world: Global, index: int, place: int, at: str) -> Iterator[Move]:
        producer = world.producers[index]
        head = producer.flight[place][0]
        sealed = place in world.sealed
        if head.offset >= 0:
            yield f"{at} reports #{head.sequence}", False, self._reported(world, index, place, "acknowledged")
            if self.scope.errors:
                text = f"{at} loses the acknowledgement of #{head.sequence}"
                yield text, True, self._reported(world, index, place, "failed")
            if sealed and self.scope.retries:
                text = f"{at} rejects #{head.sequence} though it is written"
                yield text, True, self._reported(world, index, place, "rejected")
        elif sealed:
            yield f"{at} rejects #{head.sequence}", False, self._reported(world, index, place, "rejected")
        elif self.scope.errors:
            yield f"{at} drops #{head.sequence}", True, self._reported(world, index, place, "failed")

    def _reported(self, world: Global, index: int, place: int, how: str) -> Global:
        producer = world.producers[index]
        head, *rest = producer.flight[place]
        if self.scope.counts_early and not head.counted and producer.lease < 0:
            fence, _ = self._call(producer.fence, "count", (head.segment,))
            flight = _put(producer.flight, place, (head._replace(counted=True), *rest))
            return self._with(world, index, producer._replace(flight=flight, fence=fence))
        key = self.scope.keys[index][head.sequence]
        valid = producer.lease >= 0
        fence, finals = self._call(
            producer.fence,
            "report",
            (how, head.segment, key, head.sequence, head.offset, valid, head.counted),
        )
        flight = _put(producer.flight, place, tuple(rest))
        return self._with(world, index, self._final(producer._replace(flight=flight, fence=fence), finals))

    def _final(self, producer: Held, finals: tuple[Any, ...]) -> Held:
        outcomes = list(producer.outcomes)
        for sequence, segment, offset in finals:
            told = "failed" if offset is None else (segment, offset)
            outcomes[sequence] = told if outcomes[sequence] is None else ("twice", outcomes[sequence], told)
        return producer._replace(outcomes=tuple(outcomes))

    # -- the library's thread ----------------------------------------------------------------------

    def _library(self, world: Global, index: int, name: str) -> Iterator[Move]:
        producer = world.producers[index]
        end = len(world.control)
        for view in {min(producer.view + 1, end - 1), end - 1} - {producer.view}:
            yield f"{name} sees {self._phase(world, view)}", False, self._seen(world, index, view)
        if producer.lease >= 0 and self.scope.lapses:
            yield f"{name}'s lease runs out", True, self._with(world, index, producer._replace(lease=-1))
        if producer.asking is not None and self.scope.lapses:
            gone = producer._replace(asking=None)
            yield f"{name} is too late with what it asked", True, self._with(world, index, gone)
        yield from self._renewal(world, index, name)
        if not producer.registered:
            yield from self._join(world, index, name)

    def _seen(self, world: Global, index: int, view: int) -> Global:
        producer = world.producers[index]
        if producer.fence < 0:
            return self._with(world, index, producer._replace(view=view))
        fence, finals = self._call(producer.fence, "observe", (world.control[view], producer.lease >= 0))
        return self._with(world, index, self._final(producer._replace(fence=fence, view=view), finals))

    def _renewal(self, world: Global, index: int, name: str) -> Iterator[Move]:
        producer = world.producers[index]
        end = len(world.control)
        owing, *_ = self._owed(world, producer)
        valid = producer.lease >= 0
        rules = Renewal()
        if producer.asking is not None:
            for view in {max(producer.view, producer.asking[0] - 1), end - 1}:
                text = f"{name} has read to {self._phase(world, view)}"
                yield text, False, self._renewed(self._seen(world, index, view), index)
        elif producer.registering is not None:
            asked = (end, producer.registering)
            yield self._asking(world, index, name, producer._replace(asking=asked, registering=None))
        elif rules.must_register(lease_valid=valid, owing=owing) and producer.registered:
            now = seen([self.states[world.control[producer.view]]])
            after = self._with(world, index, producer._replace(registering=now, expired=False))
            expiring = after.operator.expiring - {index}
            after = after._replace(operator=after.operator._replace(expiring=expiring))
            yield f"{name} registers again", False, after
        elif (valid or not producer.registered) and (producer.lease < end or self._suspended(producer)):
            yield self._asking(world, index, name, producer._replace(asking=(end, None)))

    def _asking(self, world: Global, index: int, name: str, producer: Held) -> Move:
        after = self._with(world, index, producer)
        if self.scope.slow_reading:
            return f"{name} asks", False, after
        return (
            f"{name} reads to the end",
            False,
            self._renewed(self._seen(after, index, len(after.control) - 1), index),
        )

    def _renewed(self, world: Global, index: int) -> Global:
        producer = world.producers[index]
        assert producer.asking is not None
        asked, registered_in = producer.asking
        valid = producer.lease >= 0 or not producer.registered
        producer = producer._replace(asking=None)
        owing, *_ = self._owed(world, producer)
        rules = Renewal(registered_in)
        view = seen([self.states[world.control[producer.view]]])
        if not rules.renews(view, lease_valid=valid, owing=owing):
            return self._with(world, index, producer)
        producer = producer._replace(lease=self._aged(asked, len(world.control)))
        if producer.fence < 0:
            return self._with(world, index, producer)
        fence, finals = self._call(producer.fence, "renew", ())
        return self._with(world, index, self._final(producer._replace(fence=fence), finals))

    def _join(self, world: Global, index: int, name: str) -> Iterator[Move]:
        producer = world.producers[index]
        state = self.states[world.control[producer.view]]
        fence = self._new_fence(state)
        fence.register()
        unanswered = to_answer([state], self._record(index, producer._replace(registered=True)))
        ready = unanswered[0].attempt.id if unanswered and unanswered[0].attempt else None
        joined = producer._replace(fence=self._snapshot(fence), registered=True, ready=ready, asking=None)
        yield f"{name} registers", False, self._with(world, index, joined)

    def _fence_duties(self, world: Global, index: int, name: str) -> Iterator[Move]:
        producer = world.producers[index]
        if producer.lease < 0 and not self._suspended(producer):
            fence, _ = self._call(producer.fence, "suspend", ())
            yield (
                f"{name} notices that its lease ran out",
                False,
                self._with(world, index, producer._replace(fence=fence)),
            )
        _, answer, acknowledge = self._owed(world, producer)
        if answer is not None:
            done = producer._replace(ready=answer, asking=None)
            yield f"{name} answers {answer}", False, self._with(world, index, done)
        if acknowledge is not None and self._call(producer.fence, "quiescent", ())[1]:
            done = producer._replace(acknowledged=acknowledge, asking=None)
            yield f"{name} acknowledges {acknowledge}", False, self._with(world, index, done)
        for segment, place, numbers in self._call(producer.fence, "unclear", ())[1]:
            found: dict[int, int] = {}
            for offset, entry in enumerate(world.logs[place]):
                if entry[0] == "r" and entry[1] == index and entry[2] in numbers:
                    found.setdefault(entry[2], offset)
            fence, finals = self._call(producer.fence, "looked_up", (segment, tuple(found.items())))
            after = self._final(producer._replace(fence=fence), finals)
            yield f"{name} looks for {numbers}, finds {found}", False, self._with(world, index, after)

    # -- the operator ------------------------------------------------------------------------------

    def _operate(self, world: Global) -> Iterator[Move]:
        operator = world.operator
        state = self.states[world.control[-1]]
        yield from self._late_markers(world)
        if operator.asleep is not None and self._patience_over(world, operator.asleep[1]):
            silent = writers.not_ready(self._live(world.producers), str(PARENT), operator.asleep[0])
            gone = {r.instance for r in silent}
            producers = tuple(
                p._replace(expired=True) if i in gone else p for i, p in enumerate(world.producers)
            )
            yield (
                f"the operator of {operator.asleep[0]} wakes and expires {sorted(gone)}",
                True,
                world._replace(producers=producers, operator=operator._replace(asleep=None)),
            )
        if not operator.running:
            done = state.epoch - len(self.scope.begin)
            if state.phase is Phase.STEADY and done < len(self.scope.operations):
                attempt = self._attempt(state, self.scope.operations[done], operator.attempts + 1)
                after = self._recorded(world, Prepare(attempt))
                running = operator._replace(attempts=operator.attempts + 1, running=True)
                yield f"PREPARE {attempt.id}", False, after._replace(operator=running)
            return
        if operator.aborted < self.scope.aborts and state.phase in (Phase.PREPARING, Phase.FENCED):
            yield self._aborted(world, state)
        yield from self._next_step(world, state)

    def _next_step(self, world: Global, state: PartitionState) -> Iterator[Move]:
        operator = world.operator
        attempt = state.attempt
        assert attempt is not None
        progress = steps.Progress(
            attempt.id,
            subtopic_id=attempt.subtopic and "id",
            colocated=True,
            ready=operator.ready,
            acknowledged=operator.acknowledged,
            cuts=self._complete(state, attempt, operator),
            sealed=operator.sealed,
        )
        match steps.decide(state, progress):
            case steps.Record(event):
                after = self._recorded(world, event)
                over = isinstance(event, Finish)
                fresh = Operator(
                    operator.attempts, operator.aborted, late=operator.late, asleep=operator.asleep
                )
                yield (
                    type(event).__name__.upper(),
                    False,
                    after._replace(operator=fresh if over else operator),
                )
            case steps.AwaitReady(waited):
                yield from self._await(world, waited, writers.not_ready, "ready")
            case steps.AwaitAcknowledged(waited):
                yield from self._await(world, waited, writers.not_acknowledged, "acknowledged")
            case steps.AppendMarkers(markers):
                yield self._cut(world, markers)
            case steps.SealSubTopics(subtopics):
                names = {t.name for t in subtopics}
                places = {i for i, s in enumerate(self.sources) if s.topic in names}
                yield (
                    "SEAL SUB-TOPICS",
                    False,
                    world._replace(sealed=world.sealed | places, operator=operator._replace(sealed=True)),
                )
            case other:
                raise AssertionError(f"a world does not know {other}")

    def _await(
        self, world: Global, attempt: Attempt, who: Callable[..., tuple[ProducerRecord, ...]], what: str
    ) -> Iterator[Move]:
        operator = world.operator
        if operator.expiring:
            producers = tuple(
                p._replace(expired=True) if i in operator.expiring else p
                for i, p in enumerate(world.producers)
            )
            after = operator._replace(expiring=NOBODY, **{what: True})  # type: ignore[arg-type]
            text = f"expire {sorted(operator.expiring)}"
            yield text, False, world._replace(producers=producers, operator=after)
            return
        silent = who(self._live(world.producers), str(PARENT), attempt.id)
        if not silent:
            after = operator._replace(**{what: True})  # type: ignore[arg-type]
            yield f"all {what}", False, world._replace(operator=after)
        elif self._patience_over(world, len(world.control) - 1):
            waiting = frozenset(r.instance for r in silent)
            yield (
                f"patience is over with {sorted(waiting)}",
                False,
                world._replace(operator=operator._replace(expiring=waiting)),
            )

    def _patience_over(self, world: Global, since: int) -> bool:
        asked = [p.lease for p in world.producers if p.lease >= 0]
        asked += [p.asking[0] for p in world.producers if p.asking is not None]
        return all(a > since for a in asked)

    def _cut(self, world: Global, markers: tuple[steps.PlannedMarker, ...]) -> Move:
        operator = world.operator
        done = {c[0] for c in operator.cuts}
        left = [m for m in markers if m.segment not in done]
        cuts, logs = list(operator.cuts), world.logs
        for planned in left[:1] if self.scope.one_by_one else left:
            place = self._source_ids[planned.source]
            cuts.append((planned.segment, len(logs[place])))
            logs = _put(logs, place, (*logs[place], _marker_entry(planned.marker)))
        after = world._replace(logs=logs, operator=operator._replace(cuts=tuple(cuts)))
        return f"CUT {[c for c in cuts if c[0] not in done]}", False, after

    def _complete(
        self, state: PartitionState, attempt: Attempt, operator: Operator
    ) -> tuple[Cut, ...] | None:
        if len(operator.cuts) < len(state.closing_segments()) or not operator.cuts:
            return None
        return tuple(Cut(segment, offset, 0) for segment, offset in operator.cuts)

    def _aborted(self, world: Global, state: PartitionState) -> Move:
        operator = world.operator
        attempt = state.attempt
        assert attempt is not None
        late = operator.late
        if self.scope.one_by_one and state.phase is Phase.FENCED:
            done = {c[0] for c in operator.cuts}
            planned = [m for m in steps.planned_markers(state, attempt) if m.segment not in done]
            late += tuple(
                (self._source_ids[m.source], attempt.id, m.marker.kind is MarkerKind.SEAL)
                for m in planned[:1]
            )
        after = self._recorded(world, Abort(attempt.id, EndedBy.TAKEOVER, "gone"))
        asleep = operator.asleep
        if self.scope.zombie and state.phase is Phase.PREPARING:
            asleep = (attempt.id, len(world.control) - 1)
        dead = Operator(operator.attempts, operator.aborted + 1, late=late, asleep=asleep)
        return f"ABORT {attempt.id}", True, after._replace(operator=dead)

    def _late_markers(self, world: Global) -> Iterator[Move]:
        for place, attempt_id, seal in world.operator.late:
            if place in world.sealed:
                continue
            logs = _put(world.logs, place, (*world.logs[place], ("m", attempt_id, seal)))
            left = tuple(m for m in world.operator.late if m != (place, attempt_id, seal))
            yield (
                f"late marker of {attempt_id}",
                True,
                world._replace(logs=logs, operator=world.operator._replace(late=left)),
            )

    def _attempt(self, state: PartitionState, operation: str, number: int) -> Attempt:
        segments = tuple(s.id for s in state.lineage.open_segments())
        name = f"a{number}"
        if operation == "split":
            ranges = WHOLE.split_evenly(2)
            subtopic = f"t.split-0-{number}"
            return Attempt(
                name, OperationKind.SPLIT, "o", 0, segments, ranges, Target.PHANTOMS, subtopic, 500
            )
        return Attempt(name, OperationKind.MERGE, "o", 0, segments, (WHOLE,), Target.PARENT, None, 500)

    def _recorded(self, world: Global, event: Event) -> Global:
        before = world.control[-1]
        key = (before, event)
        if key not in self._after:
            self._after[key] = self._state_id(apply(self.states[before], event))
        control = (*world.control, self._after[key])
        producers = tuple(p._replace(lease=self._aged(p.lease, len(control))) for p in world.producers)
        return world._replace(control=control, producers=producers)

    def _aged(self, lease: int, length: int) -> int:
        """Return a lease as it is where the control topic is so long; a zombie waits from an older record."""
        return STALE if 0 <= lease < length and not self.scope.zombie else lease

    # -- what the real code says -------------------------------------------------------------------

    def _record(self, index: int, producer: Held) -> ProducerRecord:
        return ProducerRecord(
            instance=index,
            generation=1,
            client_id="p",
            topics=(PARENT.topic,) if producer.registered else (),
            ready={} if producer.ready is None else {str(PARENT): producer.ready},
            acknowledged={} if producer.acknowledged is None else {str(PARENT): producer.acknowledged},
        )

    def _live(self, producers: tuple[Held, ...]) -> tuple[ProducerRecord, ...]:
        registrations = writers.Registrations()
        for index, producer in enumerate(producers):
            if producer.registered:
                registrations.fold(self._record(index, producer), index)
            if producer.expired:
                registrations.fold(Expiry(index, 1), index)
        return registrations.to_ask(PARENT.topic)

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
        """Return the snapshot behind a call of the real fence, and what the call returned."""
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
        return (self._given(fence, writer, sequence),)

    def _do_release(self, fence: Any, keys: tuple[int, ...]) -> tuple[Any, ...]:
        ready = list(fence.sendable())
        given = tuple(self._given(fence, writer, record.sequence) for writer, record in ready)
        if ready:
            fence.sent([record for _, record in ready])
        return given

    def _do_give_up(self, fence: Any) -> tuple[Any, ...]:
        return tuple((r.sequence, -1, None) for r in fence.drop_waiting())

    def _do_pending(self, fence: Any) -> tuple[int, ...]:
        return tuple(a.record.sequence for w in fence.all_writers() for a in w.pending)

    def _do_time_out(self, fence: Any, sequence: int) -> tuple[Any, ...]:
        return self._finals(fence.give_up_pending(lambda record: record.sequence != sequence))

    def _given(self, fence: Any, writer: Any, sequence: int) -> tuple[int, int, int, int]:
        writer.sent += 1
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
        context = SimpleNamespace(lease_until=1.0, instance=0, collecting=False)
        Context.refresh(cast(Context, context), fence)
        if how == "acknowledged" and valid and writer.good_until > 0:
            writer.done += 1
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
            return cast("list[Final[Any]]", fence.rejected(writer, record, lease_valid=valid))
        return cast("list[Final[Any]]", fence.failed(writer, record))

    def _do_observe(self, fence: Any, state: int, valid: bool) -> tuple[Any, ...]:
        return self._finals(fence.observe(self.states[state], lease_valid=valid))

    def _do_suspend(self, fence: Any) -> None:
        fence.suspend(True)

    def _do_renew(self, fence: Any) -> tuple[Any, ...]:
        fence.suspend(False)
        return self._finals(fence.resolve(lease_valid=True))

    def _do_quiescent(self, fence: Any) -> bool:
        return bool(fence.quiescent())

    def _do_unclear(self, fence: Any) -> tuple[Any, ...]:
        return tuple(
            (w.segment.id, self._source_ids[w.segment.source], tuple(sorted(numbers)))
            for w, numbers in fence.unclear()
        )

    def _do_looked_up(self, fence: Any, segment: int, found: tuple[tuple[int, int], ...]) -> tuple[Any, ...]:
        writer = next(w for w in fence.all_writers() if w.segment.id == segment)
        return self._finals(fence.looked_up(writer, dict(found)))

    def _finals(self, finals: list[Final[Any]]) -> tuple[Any, ...]:
        return tuple((f.record.sequence, f.segment.id, f.offset) for f in finals)

    def _new_fence(self, state: PartitionState) -> PartitionFence[Any, RouteWriter]:
        return PartitionFence(state, lambda segment: RouteWriter(segment, PARENT), Tally())

    def _snapshot(self, fence: Any) -> int:
        """Return the number of a fence's state; counters that steer nothing are left out."""
        backlog = fence.backlog
        assert backlog.tally.count == len(backlog), "the running count is wrong"
        taken = (
            self._state_id(fence.state),
            fence.suspended,
            fence.next_sequence,
            tuple((i, tuple((r.key_hash, r.sequence) for r in h)) for i, h in sorted(backlog.held.items())),
            tuple((r.key_hash, r.sequence) for r in backlog.strays),
            tuple(_writer_state(w) for w in fence.writers),
            tuple(_writer_state(w) for w in fence.closing),
            _transactions_state(fence.transactions),
        )
        number = self._snapshot_ids.get(taken)
        if number is None:
            number = self._snapshot_ids[taken] = len(self.snapshots)
            self.snapshots.append(taken)
        return number

    def _restore(self, taken: Any) -> PartitionFence[Any, RouteWriter]:
        state, suspended, next_sequence, held, strays, writers_, closing, transactions = taken
        fence = self._new_fence(self.states[state])
        fence.suspended = suspended
        fence.backlog.held = {i: deque(Outgoing(k, n, None) for k, n in records) for i, records in held}
        fence.backlog.strays = [Outgoing(key, sequence, None) for key, sequence in strays]
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

    def _with(self, world: Global, index: int, producer: Held) -> Global:
        return world._replace(producers=_put(world.producers, index, producer))

    # -- what must hold ----------------------------------------------------------------------------

    def violation(self, world: Global) -> str | None:
        """Return what is wrong in a state, None if nothing is."""
        key = (world.control, world.logs, tuple(p.outcomes for p in world.producers))
        if key not in self._checked:
            self._checked[key] = self._wrong_delivery(world) or self._wrong_reading(world)
        return self._checked[key]

    def unfinished(self, world: Global) -> str | None:
        """Return what is missing in a state in which nothing happens by itself any more."""
        state = self.states[world.control[-1]]
        if state.phase is not Phase.STEADY or world.operator.running:
            return f"the operation stands still, {state.phase}"
        for index, producer in enumerate(world.producers):
            if None in producer.outcomes:
                return f"p{index} has no report for record {producer.outcomes.index(None)}"
        return None

    def _wrong_delivery(self, world: Global) -> str | None:
        state = world.control[-1]
        delivered: list[tuple[int, int, int, int, int]] = []
        for place, log in enumerate(world.logs):
            for offset, entry in enumerate(log):
                if entry[0] != "r":
                    continue
                verdict = self._classify(state, place, offset, entry, True)
                if isinstance(verdict, reading.Foreign):
                    return f"FOREIGN {entry} at {self.sources[place]}:{offset}: {verdict.reason}"
                if isinstance(verdict, reading.Deliver):
                    delivered.append((entry[1], verdict.logical_offset, entry[2], verdict.segment.id, offset))
        for index, producer in enumerate(world.producers):
            mine = sorted(d[1:] for d in delivered if d[0] == index)
            wrong = self._wrong_for(index, producer, mine, state)
            if wrong:
                return f"{wrong} (delivered: {mine}, reported: {producer.outcomes})"
        return None

    def _wrong_for(
        self, index: int, producer: Held, mine: list[tuple[int, int, int, int]], state: int
    ) -> str | None:
        numbers = [number for _, number, _, _ in mine]
        if len(set(numbers)) < len(numbers):
            return f"DUPLICATED p{index}"
        places = {number: (segment, offset) for _, number, segment, offset in mine}
        for number, outcome in enumerate(producer.outcomes):
            if outcome is None or outcome == "failed":
                continue
            if outcome[0] == "twice":
                return f"REPORTED TWICE p{index} #{number}"
            if number not in places:
                return f"LOST p{index} #{number}"
            if places[number] != outcome:
                return f"MISPLACED p{index} #{number}"
        keys = self.scope.keys[index]
        for key in set(keys):
            order = [n for n in numbers if keys[n] == key]
            if order != sorted(order):
                return f"OUT OF ORDER p{index}"
        lineage = self.states[state].lineage
        if any(keys[n] not in lineage.get(s).range for _, n, s, _ in mine):
            return f"WRONG SEGMENT p{index}"
        return None

    def _wrong_reading(self, world: Global) -> str | None:
        for place, log in enumerate(world.logs):
            key = (world.control, place, log)
            if key not in self._read:
                self._read[key] = self._wrong_reading_of(world.control, place, log)
            if self._read[key] is not None:
                return self._read[key]
        return None

    def _wrong_reading_of(self, control: tuple[int, ...], place: int, log: tuple[Any, ...]) -> str | None:
        """Let readers with every older view go through a log; none may decide otherwise than the latest view.

        A reader's view may be as old as it likes; where it is told to wait it reads the control topic to an
        end that it had when the record was there already, and does not go on before it is told what to do.
        """
        views = set(range(len(control)))
        for offset, entry in enumerate(log):
            final = self._classify(control[-1], place, offset, entry, True)
            onward: set[int] = set()
            earliest = self._earliest(control, entry)
            for view in views:
                said = self._classify(control[view], place, offset, entry, False)
                decided = [(view, said)]
                if isinstance(said, reading.Wait):
                    decided = [
                        (later, self._classify(control[later], place, offset, entry, True))
                        for later in range(max(view, earliest), len(control))
                    ]
                for later, verdict in decided:
                    if isinstance(verdict, reading.Wait):
                        continue
                    if not _agree(verdict, final):
                        at = f"{self.sources[place]}:{offset}"
                        return f"READER at view {later} of {at} {entry}: {verdict}, then {final}"
                    onward.update(range(later, len(control)))
            views = onward
            if not views:
                break
        return None

    def _earliest(self, control: tuple[int, ...], entry: Any) -> int:
        """Return a view that was there before the record was."""
        for index, number in enumerate(control):
            state = self.states[number]
            if entry[0] == "r" and state.epoch >= entry[3]:
                return index
            if entry[0] == "m" and state.attempt and state.attempt.id == entry[1] and state.fenced_segments():
                return index
        return len(control) - 1

    def _classify(self, state: int, place: int, offset: int, entry: Any, refreshed: bool) -> reading.Verdict:
        key = (state, place, offset, entry, refreshed)
        known = self._verdicts.get(key)
        if known is None:
            stamp = Stamp(entry[3], entry[1], entry[2]) if entry[0] == "r" else None
            kind = MarkerKind.SEAL if entry[-1] else MarkerKind.UNSEAL
            marker = Marker(kind, PARENT, entry[1]) if entry[0] == "m" else None
            known = self._verdicts[key] = reading.classify(
                self.states[state], self.sources[place], offset, stamp, marker, refreshed=refreshed
            )
        return cast(reading.Verdict, known)


def _put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _marker_entry(marker: Marker) -> tuple[str, str, bool]:
    return ("m", marker.attempt_id, marker.kind is MarkerKind.SEAL)


def _writer_state(writer: RouteWriter) -> tuple[Any, ...]:
    return (
        writer.segment.id,
        writer.open,
        writer.fenced,
        writer.in_flight,
        tuple((a.record.key_hash, a.record.sequence, a.offset) for a in writer.pending),
    )


def _restore_writer(writer: RouteWriter, rest: list[Any]) -> None:
    writer.open, writer.fenced, writer.sent, pending = rest
    nothing: Any = None
    writer.pending = [Acknowledged(Outgoing(key, number, nothing), offset) for key, number, offset in pending]


def _transactions_state(transactions: FenceTransactions) -> tuple[Any, ...]:
    t = transactions
    aborted = tuple((a.start, a.stop) for a in t._aborted)
    return t.active, t.deferred, t.registering, t._began, aborted


def _restore_transactions(transactions: FenceTransactions, taken: tuple[Any, ...]) -> None:
    t = transactions
    t.active, t.deferred, t.registering, t._began, aborted = taken
    t._aborted = [range(*numbers) for numbers in aborted]


def _agree(verdict: reading.Verdict, final: reading.Verdict) -> bool:
    if isinstance(final, reading.Wait):
        return True
    if isinstance(verdict, reading.Deliver) and isinstance(final, reading.Deliver):
        same = verdict.segment.id == final.segment.id
        return same and verdict.logical_offset == final.logical_offset
    return isinstance(verdict, reading.Deliver) == isinstance(final, reading.Deliver)
