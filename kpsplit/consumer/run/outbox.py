"""Outputs of processed records until the transaction that commits these records, pure (protocol, section 10).

Every output knows the place of the record that it was made from. Which outputs go into a transaction is
decided by that place and by what the transaction commits, and by nothing else: those, and only those, whose
records the committed cursors call processed. So it does not matter when a commit was put together, what was
processed since, or how often it was tried; lanes need not wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kpsplit.consumer.commit.writes import CommitCoverage, Processed, RecordPlace
from kpsplit.consumer.run.handlers import Output
from kpsplit.consumer.run.lanes import LaneEntry, SlotQueue
from kpsplit.splitter.group_slots import OwnedSlot

WANTED_SHARE = 2
"""A commit is wanted when one part in so many of the room is taken."""


class Kept(NamedTuple):
    """What the record at a place gave."""

    place: RecordPlace
    outputs: tuple[Output, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """Outputs that go into one transaction, in an order that keeps that of every lane."""

    taken: tuple[tuple[SlotQueue, Kept], ...]

    def outputs(self) -> Iterator[Output]:
        """Return the records to be written."""
        return (output for _, kept in self.taken for output in kept.outputs)


class Outbox:
    """Not thread safe.

    Args:
        room: in bytes. When it is used up nothing more may be processed before a commit (``full``).
    """

    def __init__(self, room: int) -> None:
        self.bytes = 0
        self._room = room
        self._kept: dict[SlotQueue, dict[RecordPlace, Kept]] = {}

    @property
    def full(self) -> bool:
        """Return whether there is no room for more."""
        return self.bytes >= self._room

    @property
    def wants_commit(self) -> bool:
        """Return whether a commit should not wait for its time."""
        return self.bytes >= self._room // WANTED_SHARE

    def add(self, slot_queue: SlotQueue, entry: LaneEntry, outputs: tuple[Output, ...]) -> None:
        """Keep what a record gave."""
        kept = Kept(entry.place, outputs, sum(output.size for output in outputs))
        self._kept.setdefault(slot_queue, {})[kept.place] = kept
        self.bytes += kept.size

    def forget(self, slot_queue: SlotQueue) -> None:
        """A slot has left: whoever gets it processes its records again from the committed cursor."""
        self.bytes -= sum(kept.size for kept in self._kept.pop(slot_queue, {}).values())

    def keeps(self, slot: OwnedSlot) -> bool:
        """Return whether anything of a slot waits."""
        return any(slot_queue.slot == slot for slot_queue in self._kept)

    def covered(self, processed: Sequence[Processed]) -> Transfer:
        """Return the outputs of the records that a commit calls processed."""
        covers = {p.parent: CommitCoverage(p) for p in processed}
        return Transfer(
            tuple(
                (slot_queue, kept)
                for slot_queue, found in self._kept.items()
                if slot_queue.slot.parent in covers
                for kept in found.values()
                if covers[slot_queue.slot.parent].holds(kept.place)
            )
        )

    def committed(self, transfer: Transfer) -> None:
        """Forget what was committed."""
        for slot_queue, kept in transfer.taken:
            found = self._kept.get(slot_queue)
            if found is not None and found.pop(kept.place, None) is not None:
                self.bytes -= kept.size
                if not found:
                    del self._kept[slot_queue]
