"""A small world around the project's own fence code, for exhaustive exploration.

The world is one logical partition, one or two producers with one or two records each, and an operator that
splits the partition and merges it back. What decides is the project's code: ``PartitionSendState``, the hot
path's rule (``Context.refresh``), the lease's rule (``owes``), ``to_answer`` and
``to_acknowledge``, ``machine.apply``, ``steps.decide``, ``Registrations``, ``not_ready``,
``not_acknowledged`` and ``classify``. The world only chooses what happens next.

Time is not modelled by clocks. A lease remembers how long the control topic was when its end was asked for;
it may run out at any moment; and an operator's patience, counted from one of its records, ends only when
every lease that was asked for before that record has run out. That is all that monotonic clocks of equal rate
promise. Whoever waits or renews asks only whether a lease was asked for after the latest record; so all that
were asked for before it are one value (``STALE``), and states that differ in nothing else are one state.

States are tuples of small values. What the real objects do is remembered per (snapshot, input), so that each
distinct step of the real code runs once, however many global states contain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kpsplit.splitter import steps
from kpsplit.splitter.control_plane import to_answer
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Commit, Cut, Fence, Finish, PartitionState, Prepare
from kpsplit.splitter.records.producers import ProducerRegistration
from tests.sim.explore import Judged
from tests.sim.fence_operator import OperatorMoves
from tests.sim.fence_real import (
    HIGH,
    LOW,
    PARENT,
    Global,
    Held,
    Item,
    Move,
    Operator,
    Scope,
    marker_entry,
    put,
)

__all__ = ["HIGH", "LOW", "PARENT", "Global", "Held", "Move", "Scope", "World"]


class World(OperatorMoves, Judged):
    """The moves of a scope."""

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
                logs[place] += (marker_entry(planned.marker),)
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
                flight=tuple(() for _ in self.sources),
                outcomes=(None,) * len(keys),
                registered=joined,
                fresh=False,
                removed=False,
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
                yield f"{name} gets no report of #{sequence} in time", True, self._with(world, index, after)
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
                    logs=put(world.logs, place, (*log, ("r", index, item.sequence, item.epoch)))
                )
                queue = (*items[:waiting], written, *items[waiting + 1 :])
                yield (
                    f"{at} writes #{item.sequence} at {len(log)}",
                    False,
                    self._with(after, index, producer._replace(flight=put(producer.flight, place, queue))),
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
            flight = put(producer.flight, place, (head._replace(counted=True), *rest))
            return self._with(world, index, producer._replace(flight=flight, fence=fence))
        key = self.scope.keys[index][head.sequence]
        valid = producer.lease >= 0
        fence, finals = self._call(
            producer.fence,
            "report",
            (how, head.segment, key, head.sequence, head.offset, valid, head.counted),
        )
        flight = put(producer.flight, place, tuple(rest))
        return self._with(world, index, self._final(producer._replace(flight=flight, fence=fence), finals))

    def _final(self, producer: Held, finals: tuple[Any, ...]) -> Held:
        outcomes = list(producer.outcomes)
        for sequence, segment, offset in finals:
            outcome = "failed" if offset is None else (segment, offset)
            outcomes[sequence] = (
                outcome if outcomes[sequence] is None else ("twice", outcomes[sequence], outcome)
            )
        return producer._replace(outcomes=tuple(outcomes))

    # -- the library's thread ----------------------------------------------------------------------

    def _library(self, world: Global, index: int, name: str) -> Iterator[Move]:
        producer = world.producers[index]
        end = len(world.control)
        for view in {min(producer.view + 1, end - 1), end - 1} - {producer.view}:
            yield f"{name} sees {self._phase(world, view)}", False, self._seen(world, index, view)
        if producer.lease >= 0 and self.scope.lapses:
            yield f"{name}'s lease runs out", True, self._with(world, index, producer._replace(lease=-1))
        elif producer.fresh and self.scope.lapses:
            yield (
                f"{name}'s registration ends",
                True,
                self._with(world, index, producer._replace(fresh=False)),
            )
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
        if producer.registered and not _good(producer):
            yield f"{name} registers again", False, self._registered(world, index)
        elif producer.asking is not None:
            for view in {max(producer.view, producer.asking - 1), end - 1}:
                text = f"{name} has read to {self._phase(world, view)}"
                yield text, False, self._renewed(self._seen(world, index, view), index)
        elif producer.lease < end or self._suspended(producer):
            yield self._asking(world, index, name, producer._replace(asking=end))

    def _registered(self, world: Global, index: int) -> Global:
        """Register again, under a key that no operator has seen."""
        anew = world.producers[index]._replace(fresh=True, removed=False, asking=None)
        mine, operator = {index}, world.operator
        first = None if operator.first is None else operator.first - mine
        asleep = operator.asleep and (*operator.asleep[:2], operator.asleep[2] - mine)
        operator = operator._replace(first=first, over=operator.over - mine, asleep=asleep)
        return self._with(world, index, anew)._replace(operator=operator)

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
        asked = producer.asking
        assert asked is not None
        producer = producer._replace(asking=None)
        owing, *_ = self._owed(world, producer)
        if owing or (producer.registered and not _good(producer)):
            return self._with(world, index, producer)
        valid, producer = producer.lease >= 0, producer._replace(fresh=False)
        producer = producer._replace(lease=self._aged(asked, len(world.control)))
        if producer.fence < 0:
            return self._with(world, index, producer)
        fence, finals = self._call(producer.fence, "renew", (valid,))
        return self._with(world, index, self._final(producer._replace(fence=fence), finals))

    def _join(self, world: Global, index: int, name: str) -> Iterator[Move]:
        producer = world.producers[index]
        state = self.states[world.control[producer.view]]
        fence = self._new_fence(state)
        fence.suspend(True)
        unanswered = to_answer([state], self._record(index, producer._replace(registered=True)))
        ready = unanswered[0].attempt.id if unanswered and unanswered[0].attempt else None
        joined = producer._replace(fence=self._snapshot(fence), registered=True, ready=ready, asking=None)
        joined = joined._replace(fresh=True)
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
        if answer is not None and _good(producer):
            done = producer._replace(ready=answer, asking=None)
            yield f"{name} answers {answer}", False, self._with(world, index, done)
        if acknowledge is not None and _good(producer) and self._call(producer.fence, "quiescent", ())[1]:
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

    def _with(self, world: Global, index: int, producer: Held) -> Global:
        return world._replace(producers=put(world.producers, index, producer))


def _good(producer: Held) -> bool:
    """Return whether a registration is good: anything may be written under it."""
    return producer.lease >= 0 or producer.fresh


# -- producers with transactional ids --------------------------------------------------------------


class TransactionalWorld(World):
    """A world where every producer has a transactional id.

    The application writes inside transactions and flushes before it commits, as ``Consumer.run`` does.
    Readers see what was committed. An operator waits for the acknowledgement of a producer that answered its
    PREPARE, whatever the producer's lease says. It goes on without one that is silent, and touches no
    transactional id.
    """

    def _application(self, world: Global, index: int, name: str) -> Iterator[Move]:
        producer = world.producers[index]
        number = self._call(producer.fence, "next", ())[1]
        if producer.begun < 0:
            if number < len(self.scope.keys[index]):
                begun = producer._replace(
                    fence=self._call(producer.fence, "begin", ())[0], begun=number, spoilt=False
                )
                yield f"{name} begins a transaction", False, self._with(world, index, begun)
        else:
            yield from super()._application(world, index, name)
            if number > producer.begun and None not in producer.outcomes[producer.begun : number]:
                yield self._ended(world, index, name, range(producer.begun, number))

    def _ended(self, world: Global, index: int, name: str, records: range) -> Move:
        """Everything is flushed: commit, or abort what may not be committed."""
        producer = world.producers[index]
        aborted = producer.spoilt or any(producer.outcomes[n] == "failed" for n in records)
        fence, _ = self._call(producer.fence, "end", (aborted,))
        committed = producer.committed if aborted else (*producer.committed, *records)
        after = producer._replace(fence=fence, begun=-1, spoilt=False, committed=committed)
        verb = "aborts" if aborted else "commits"
        return f"{name} {verb} {list(records)}", False, self._with(world, index, after)

    def _went_astray(self, fence: Any) -> bool:
        return bool(fence.statistics.strays)

    def _do_begin(self, fence: Any) -> None:
        fence.statistics.strays = 0
        fence.transaction(True)

    def _do_end(self, fence: Any, aborted: bool) -> None:
        fence.transaction(False, aborted=aborted)

    def _with(self, world: Global, index: int, producer: Held) -> Global:
        if producer.begun >= 0 and producer.fence >= 0 and self.snapshots[producer.fence][-1]:
            producer = producer._replace(spoilt=True)
        return super()._with(world, index, producer)

    def _record(self, index: int, producer: Held) -> ProducerRegistration:
        return replace(super()._record(index, producer), transactional_id=f"t{index}")

    # -- what must hold ----------------------------------------------------------------------------

    def violation(self, world: Global) -> str | None:
        """Return what is wrong with what was committed, None if nothing is."""
        logs = tuple(tuple(self._seen_by_readers(world, entry) for entry in log) for log in world.logs)
        committed = tuple(
            p._replace(outcomes=tuple(o if n in p.committed else None for n, o in enumerate(p.outcomes)))
            for p in world.producers
        )
        return super().violation(world._replace(logs=logs, producers=committed))

    def _seen_by_readers(self, world: Global, entry: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden = entry[0] == "r" and entry[2] not in world.producers[entry[1]].committed
        return ("aborted",) if hidden else entry

    def _wrong_reading(self, world: Global) -> str | None:
        return None  # what readers decide by older views does not depend on transactions

    def unfinished(self, world: Global) -> str | None:
        """Return what is missing at an end."""
        if any(p.begun >= 0 for p in world.producers):
            return "a transaction stays open"
        return super().unfinished(world)
