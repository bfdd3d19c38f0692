"""In which leader epochs records were written, as far as this member has read them. Pure.

A position together with the leader epoch of the record before it tells whether a log was cut off below it
and written anew (KIP-320): that epoch ends before the position then. A batch tells the epoch of its last
record only, which counts for all of it. Where an epoch begins inside a batch that says too much, by less than
a batch, and no log looks cut off that is not; too little would. So nothing is said of offsets that were not
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kpsplit.consumer.fetch.batch import Batch
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.lineage import PhysicalPartition

STRETCHES = 16
"""How many stretches are remembered of a segment: who seeks to and fro forgets the oldest."""

Epochs = Mapping[tuple[int, int], int]
"""Leader epoch of the record before a position, by segment and position; what is not known is not there."""


@dataclass(slots=True)
class _Stretch:
    """Physical offsets [start, end) and the leader epoch in which their records were written."""

    start: int
    end: int
    epoch: int


class LeaderEpochs:
    """See the module. Owned by the engine's thread."""

    def __init__(self) -> None:
        self._stretches: dict[tuple[PhysicalPartition, int], list[_Stretch]] = {}

    def read(self, batch: Batch) -> None:
        """Take what a batch tells; offsets without records (markers, gaps) may be of any epoch."""
        if batch.leader_epoch is None or batch.leader_epoch < 0:
            return
        known = self._stretches.setdefault((batch.parent, batch.segment.id), [])
        last = known[-1] if known else None
        if last is not None and last.end == batch.start and last.epoch == batch.leader_epoch:
            last.end = batch.end
        else:
            known.append(_Stretch(batch.start, batch.end, batch.leader_epoch))
            del known[:-STRETCHES]

    def of(self, parent: PhysicalPartition, cursors: Iterable[Cursor]) -> Epochs:
        """Return the leader epochs that belong to the positions of cursors."""
        found: dict[tuple[int, int], int] = {}
        for segment, next_ in {at for cursor in cursors for at in cursor.positions.items()}:
            for stretch in reversed(self._stretches.get((parent, segment), ())):
                if stretch.start < next_ <= stretch.end:
                    found[segment, next_] = stretch.epoch
                    break
        return found

    def forget(self, staying: Iterable[PhysicalPartition]) -> None:
        """Keep what is known of these logical partitions only."""
        kept = frozenset(staying)
        self._stretches = {key: known for key, known in self._stretches.items() if key[0] in kept}
