"""How far what was handed out has been processed, for records that are handed out one after the other.

Records are numbered in the order in which they are handed out, over all partitions. A *mark* is such a
number: all records before it. What is processed is a mark, because an application that polls works on
records in that order; from it follows how far each slot is:

* Every batch before the mark moves its slots to its end; the batch that the mark lies in moves them to the
  first record that is not before the mark; a batch after it moves nothing that an earlier one still holds
  back.
* The reader gives the last batch of a segment before the first batch of what follows it, so a cursor never
  lists a segment beyond its start while records of a predecessor are not processed.

A slot that arrives begins an *assignment epoch*; batches that were read in an earlier one of the same slot do
not move it.

Each change is made in an order that leaves something true behind wherever an exception ends it: a batch may
stand in two places for a moment, never in none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from confluent_kafka import Message

from kpsplit.consumer.fetch.batch import Batch, message_hash, size_of
from kpsplit.kafka.logical_message import physical_offset
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import Cursor


class _AssignmentEpoch:
    """One stay of a slot; ``positions``: what it had processed when it came, and since, by segment."""

    __slots__ = ("positions", "slot")

    def __init__(self, slot: OwnedSlot, cursor: Cursor) -> None:
        self.slot = slot
        self.positions = dict(cursor.positions)


class _Stretch:
    """A batch with the number of its first record and the assignment epochs that it moves."""

    __slots__ = ("assignment_epochs", "batch", "end", "first")

    def __init__(self, batch: Batch, first: int, assignment_epochs: tuple[_AssignmentEpoch, ...]) -> None:
        self.batch = batch
        self.first = first
        self.end = first + len(batch.messages)
        self.assignment_epochs = assignment_epochs

    def end_at(self, mark: int) -> None:
        """Forget the records from a mark on."""
        batch, count = self.batch, mark - self.first
        batch.end = physical_offset(batch.messages[count])
        del batch.messages[count:]
        self.end = mark
        batch.bytes = size_of(batch.messages)

    def position(self, mark: int) -> int | None:
        """Return how far the batch moves its slots if everything before the mark counts, None: not at all."""
        if self.end <= mark:
            return self.batch.end
        messages = self.batch.messages
        return physical_offset(messages[max(0, mark - self.first)]) if messages else None


class HandoutProgress:
    """What was added, handed out and processed. Pure; not thread safe."""

    def __init__(self) -> None:
        self._assignment_epochs: dict[OwnedSlot, _AssignmentEpoch] = {}
        self._moved_by: dict[
            PhysicalPartition, tuple[tuple[OwnedSlot, ...], tuple[_AssignmentEpoch, ...]]
        ] = {}
        self._stretches: deque[_Stretch] = deque()
        """What is not processed yet, in order; the marks say what of it was handed out."""
        self.added = 0
        """The number of the next record to be added."""
        self.processed = 0
        """The mark before which everything is processed."""
        self.handed_out = 0
        """The mark before which everything was handed out, as far as ``advance`` was called."""

    @property
    def waiting_bytes(self) -> int:
        """What the batches take that were not wholly handed out."""
        return sum(stretch.batch.bytes for stretch in self._stretches if stretch.end > self.handed_out)

    @property
    def slots(self) -> tuple[OwnedSlot, ...]:
        return tuple(self._assignment_epochs)

    def taken(self, slot: OwnedSlot, cursor: Cursor) -> None:
        """A slot arrives, or is moved by a seek: ``cursor`` is what counts as processed."""
        self._moved_by.clear()
        self._assignment_epochs[slot] = _AssignmentEpoch(slot, cursor)

    def drop(self, slots: Iterable[OwnedSlot]) -> None:
        """Forget slots; batches that hold records of them go on moving the others."""
        self._moved_by.clear()
        for slot in slots:
            self._assignment_epochs.pop(slot, None)

    def add(self, batch: Batch) -> None:
        """Number the records of a batch, in the order in which they will be handed out."""
        stretch = _Stretch(batch, self.added, self._epochs_of(batch))
        self._stretches.append(stretch)
        self.added = stretch.end

    def cut(self, mark: int) -> None:
        """Forget the records from a mark on, none of which was handed out: an exception came between."""
        stretches = self._stretches
        while stretches and stretches[-1].first >= mark:
            stretches.pop()
        if stretches and stretches[-1].end > mark:
            stretches[-1].end_at(mark)
        self.added = mark

    def number_of(self, message: Message | None) -> int:
        """Return the number of a record that waits; of the next one to be added for None."""
        for stretch in self._stretches:
            for number, waiting in enumerate(stretch.batch.messages, stretch.first):
                if waiting is message:
                    return number
        return self.added

    def advance(self, handed_out: int, processed: int) -> None:
        """Take newer marks; an older one changes nothing."""
        self.handed_out = max(self.handed_out, handed_out)
        self.processed = max(self.processed, processed)
        while self._stretches and self._stretches[0].end <= self.processed:
            stretch = self._stretches[0]
            for assignment_epoch in stretch.assignment_epochs:
                _move(assignment_epoch.positions, stretch.batch.segment.id, stretch.batch.end)
            self._stretches.popleft()

    def cursor(self, slot: OwnedSlot, mark: int | None = None) -> Cursor:
        """Return what a slot has processed; with a mark, what it will have when everything before it is.

        Raises:
            KeyError: the slot is not known.
        """
        assignment_epoch = self._assignment_epochs[slot]
        positions = dict(assignment_epoch.positions)
        until = self.processed if mark is None else max(mark, self.processed)
        for stretch in self._covering(assignment_epoch):
            position = stretch.position(until)
            if position is not None:
                _move(positions, stretch.batch.segment.id, position)
            if stretch.end > until:
                break
        return Cursor(slot.range, positions)

    def in_work(self, slot: OwnedSlot) -> bool:
        """Return whether a record was handed out and is not processed that may be a slot's.

        Whose a record was cannot be told once it was handed out: the application may have given it another
        key (deserialisers do). So every record of a batch counts for all slots that the batch moves.
        """
        stretches = self._covering(self._assignment_epochs[slot])
        return any(max(self.processed, s.first) < min(self.handed_out, s.end) for s in stretches)

    def withdraw(self) -> list[Batch]:
        """Take back everything that was not handed out, to be added again in part or not at all.

        Without records of slots whose stay in which they were read is over.
        """
        taken_back = []
        kept: deque[_Stretch] = deque()
        for stretch in self._stretches:
            if stretch.end <= self.handed_out:
                kept.append(stretch)
                continue
            if stretch.first < self.handed_out:
                before, rest = _divided(stretch.batch, self.handed_out - stretch.first)
                kept.append(_Stretch(before, stretch.first, stretch.assignment_epochs))
            else:
                rest = stretch.batch
            gone = [o for o in rest.slots if self._assignment_epochs.get(o) not in stretch.assignment_epochs]
            taken_back.append(without(rest, frozenset(gone)))
        self.added = self.handed_out  # first: ``cut`` mends what an exception interrupts here
        self._stretches = kept
        return taken_back

    def give_back(self, mark: int) -> list[Batch]:
        """Take back the records, too, that were handed out from a mark on and are not processed."""
        self.handed_out = mark
        return self.withdraw()

    def _epochs_of(self, batch: Batch) -> tuple[_AssignmentEpoch, ...]:
        """Return the assignment epochs that a batch moves; batches of one fetch share a tuple of slots."""
        slots, assignment_epochs = self._moved_by.get(batch.parent, _NOTHING)
        if slots is not batch.slots:
            found = (self._assignment_epochs.get(slot) for slot in batch.slots)
            assignment_epochs = tuple(t for t in found if t is not None)
            self._moved_by[batch.parent] = batch.slots, assignment_epochs
        return assignment_epochs

    def _covering(self, assignment_epoch: _AssignmentEpoch) -> Iterator[_Stretch]:
        return (s for s in self._stretches if assignment_epoch in s.assignment_epochs)


_NOTHING: tuple[tuple[OwnedSlot, ...], tuple[_AssignmentEpoch, ...]] = ((), ())


def without(batch: Batch, slots: frozenset[OwnedSlot]) -> Batch:
    """Return a batch without the records of some slots, moving only the others."""
    if slots.isdisjoint(batch.slots):
        return batch
    ranges = [slot.range for slot in slots.intersection(batch.slots)]
    kept = [
        m for m in batch.messages if not any(message_hash(m, batch.segment) in range_ for range_ in ranges)
    ]
    left = tuple(slot for slot in batch.slots if slot not in slots)
    return _part(batch, batch.start, batch.end, kept, left)


def _divided(batch: Batch, count: int) -> tuple[Batch, Batch]:
    cut = physical_offset(batch.messages[count])
    rest = _part(batch, cut, batch.end, batch.messages[count:], batch.slots)
    before = replace(batch, end=cut, messages=batch.messages[:count], bytes=batch.bytes - rest.bytes)
    return before, rest


def _part(batch: Batch, start: int, end: int, messages: list[Message], slots: tuple[OwnedSlot, ...]) -> Batch:
    """Return a part of which nothing was handed out: the application may give records other values, too."""
    size = size_of(messages)
    return Batch(batch.parent, batch.segment, slots, start, end, messages, size, batch.leader_epoch)


def _move(positions: dict[int, int], segment: int, position: int) -> None:
    if position > positions.get(segment, -1):
        positions[segment] = position
