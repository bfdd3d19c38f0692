"""The world of ``fence_world``, where every producer has a transactional id (design, section 6).

The application writes inside transactions and flushes before it commits, as ``Consumer.run`` does. Readers
see what was committed. An operator waits for the acknowledgement of a producer that answered its PREPARE,
whatever the producer's lease says. It goes on without one that is silent, and touches no transactional id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kpsplit.splitter.records.producers import ProducerRegistration
from tests.sim.fence_world import Global, Held, Move, World


class TransactionalWorld(World):
    """See the module."""

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
        """Return what is missing at an end."""
        if any(p.begun >= 0 for p in world.producers):
            return "a transaction stays open"
        return super().unfinished(world)
