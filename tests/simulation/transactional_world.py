"""The world of ``fence_world``, where every producer has a transactional id (design, section 6).

The application writes inside transactions and flushes before it commits, as ``Consumer.run`` does. Readers
see what was committed. An operator waits for the acknowledgement of such a producer whatever its lease says,
and fences the transactional id of one that is silent at PREPARE: its transaction is never committed then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from kpsplit.splitter.partition_state import Attempt
from kpsplit.splitter.records.producers import ProducerRecord
from kpsplit.splitter.states import Phase
from kpsplit.splitter.writers import Registrations
from tests.simulation.fence_world import PARENT, Global, Held, Move, World

ENDED = 1
"""Where registrations ended when a producer asked, if the other one's latest lies below that."""


class TransactionalWorld(World):
    """See the module."""

    end_first = True
    """Producers ask where registrations end before they take their id, not behind it."""

    def initial(self) -> Global:
        """Return the first state."""
        world = super().initial()
        if not self.scope.one_id:
            return world
        if self.scope.joining:
            return world._replace(producers=tuple(p._replace(taken=0) for p in world.producers))
        first, second = world.producers
        gone = first._replace(
            registered=False, fence=-1, dead=True, lease=-1, gone=True, older=self.end_first
        )
        # Had the first asked for the end behind taking the id, that could lie behind the second's record.
        return world._replace(producers=(gone, second._replace(older=not self.end_first)))

    def _application(self, world: Global, index: int, name: str) -> Iterator[Move]:
        producer = world.producers[index]
        if producer.gone:
            return
        if producer.dead:  # the application hears of it by a fatal error
            closed = producer._replace(registered=False, gone=True, lease=-1, asking=None)
            yield f"{name} is closed", False, self._with(world, index, closed)
            return
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

    def _brokers(self, world: Global, index: int, name: str) -> Iterator[Move]:
        if not world.producers[index].dead:
            yield from super()._brokers(world, index, name)

    def _library(self, world: Global, index: int, name: str) -> Iterator[Move]:
        producer = world.producers[index]
        if producer.gone:
            return
        if producer.taken < 2:
            ask = (producer.taken == 0) is self.end_first
            after = self._asked_for_the_end(world, index) if ask else self._took_the_id(world, index)
            taken = after.producers[index]._replace(taken=producer.taken + 1)
            text = "asks where registrations end" if ask else "takes the id"
            yield f"{name} {text}", False, self._with(after, index, taken)
            return
        if self.scope.one_id and index == 0 and producer.registered and producer.ready is None:
            crashed = producer._replace(gone=True, dead=True, begun=-1, fence=-1, lease=-1, asking=None)
            yield f"{name} crashes", True, self._with(world, index, crashed)
        if producer.registered or not producer.dead or self.scope.one_id:
            yield from super()._library(world, index, name)

    def _asked_for_the_end(self, world: Global, index: int) -> Global:
        """Whatever others have registered lies below the end."""
        producers = tuple(
            p._replace(older=p.registered) if i != index else p for i, p in enumerate(world.producers)
        )
        return world._replace(producers=producers)

    def _took_the_id(self, world: Global, index: int) -> Global:
        """Whoever had the id is fenced."""
        had = (i for i, p in enumerate(world.producers) if i != index and self._has_id(p))
        return self._without(world, frozenset(had))

    def _has_id(self, producer: Held) -> bool:
        return producer.taken == 2 or (producer.taken == 1 and not self.end_first)

    def _do_begin(self, fence: Any) -> None:
        fence.transaction(True)

    def _do_end(self, fence: Any, aborted: bool) -> None:
        fence.transaction(False, aborted=aborted)

    def _with(self, world: Global, index: int, producer: Held) -> Global:
        strays = producer.fence >= 0 and self.snapshots[producer.fence][4]
        if strays and producer.begun >= 0 and any(n >= producer.begun for _, n in strays):
            producer = producer._replace(spoilt=True)
        return super()._with(world, index, producer)

    # -- the operator ------------------------------------------------------------------------------

    def _await(
        self, world: Global, attempt: Attempt, who: Callable[..., tuple[ProducerRecord, ...]], what: str
    ) -> Iterator[Move]:
        fencing = world.operator.expiring
        if self.scope.one_id and fencing:  # also those that registered again meanwhile
            silent = {r.instance for r in who(self._live(world.producers), str(PARENT), attempt.id)}
            fencing = frozenset(i for i in fencing | silent if not self._superseded(world.producers, i))
        for label, fault, after in super()._await(world, attempt, who, what):
            yield label, fault, self._without(after, fencing)

    def _without(self, world: Global, fenced: frozenset[int]) -> Global:
        """Fence transactional ids: what is open there is aborted."""
        if self.scope.one_id and fenced:
            fenced = frozenset(i for i, p in enumerate(world.producers) if self._has_id(p))
        producers = tuple(
            p._replace(dead=True, begun=-1) if i in fenced else p for i, p in enumerate(world.producers)
        )
        return world._replace(producers=producers)

    def _patience_over(self, world: Global, since: int) -> bool:
        in_doubt = self.states[world.control[-1]].phase is Phase.FENCED
        return not in_doubt and super()._patience_over(world, since)

    def _record(self, index: int, producer: Held) -> ProducerRecord:
        name = "t" if self.scope.one_id else f"t{index}"
        return replace(super()._record(index, producer), transactional_id=name)

    def _superseded(self, producers: tuple[Held, ...], index: int) -> bool:
        """Tell whether a silent producer's id is another one's; whoever closed meanwhile has none."""
        if not producers[index].registered:
            return True
        registrations = Registrations()
        for i, producer in enumerate(producers):
            if producer.registered or producer.gone:  # the records of those that closed stay
                below = ENDED if producers[1 - i].older else 0
                record = replace(self._record(i, producer), fenced_below=below)
                registrations.fold(record, 0 if producer.older else ENDED)
        return registrations.superseded(self._record(index, producers[index]))

    # -- what must hold ----------------------------------------------------------------------------

    def violation(self, world: Global) -> str | None:
        """Return what is wrong with what was committed, None if nothing is."""
        logs = tuple(tuple(self._seen_by_readers(world, entry) for entry in log) for log in world.logs)
        told = tuple(
            p._replace(outcomes=tuple(o if n in p.committed else None for n, o in enumerate(p.outcomes)))
            for p in world.producers
        )
        return super().violation(world._replace(logs=logs, producers=told))

    def _seen_by_readers(self, world: Global, entry: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden = entry[0] == "r" and entry[2] not in world.producers[entry[1]].committed
        return ("aborted",) if hidden else entry

    def _wrong_reading(self, world: Global) -> str | None:
        return None  # what readers decide by older views does not depend on transactions

    def unfinished(self, world: Global) -> str | None:
        """Return what is missing at an end, apart from what a producer that was fenced cannot finish."""
        living = tuple(p for p in world.producers if not p.dead)
        if any(p.begun >= 0 for p in living):
            return "a transaction stays open"
        return super().unfinished(world._replace(producers=living))
