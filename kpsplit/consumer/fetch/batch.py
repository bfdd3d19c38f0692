"""What passes between the reading side and whoever works on records: slots, batches, and the sink.

The sink is the poll buffer, or the work queue of ``Consumer.run``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from confluent_kafka import Message

from kpsplit.kafka.logical_message import content_bytes, headers_of, physical_offset
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import KeyRange, key_hash
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.reading import reader_hash

if TYPE_CHECKING:
    from kpsplit.splitter.partition_state import PartitionState
    from kpsplit.splitter.reading import Cursor

MESSAGE_BYTES = 300
"""What a message takes in memory besides its key, value and headers: measured for short keys."""

HEADER_BYTES = 150
"""What a header takes besides its name and value."""

SAMPLES = 4
"""Of so many records of a batch the headers are looked at: looking at all of them would cost too much."""


@dataclass(slots=True)
class Batch:
    """What was read of physical offsets [start, end) of one segment.

    ``messages`` are all records there that belong to ``slots`` (those that were owned when they were read)
    and that had not been given to them before, in order, in logical terms. It may be empty: the positions
    of the slots move to ``end`` all the same, unless they are beyond it already. ``bytes`` is what the
    messages take in memory, roughly; ``leader_epoch`` that of the last record that was read, None if none
    was.
    """

    parent: PhysicalPartition
    segment: Segment
    slots: tuple[OwnedSlot, ...]
    start: int
    end: int
    messages: list[Message]
    bytes: int
    leader_epoch: int | None = None


STRETCHES = 16
"""How many stretches are remembered of a segment: an application that seeks to and fro forgets the oldest."""


@dataclass(slots=True)
class _Stretch:
    """Physical offsets [start, end) and the leader epoch in which their records were written."""

    start: int
    end: int
    epoch: int


class LeaderEpochs:
    """In which leader epochs records were written, as far as this member has read them. Pure.

    A position together with the leader epoch of the record before it tells whether a log was cut off below it
    and written anew (KIP-320): that epoch ends before the position then. A batch has the epoch of its last
    record only, which counts for all of it. Where an epoch begins inside a batch that is too high, for less
    than a batch, and no log looks cut off that is not; too low an epoch would do that. So nothing is known of
    offsets that were not read.

    Used by whoever holds the engine's lock.
    """

    def __init__(self) -> None:
        self._stretches: dict[tuple[PhysicalPartition, int], list[_Stretch]] = {}

    def read(self, batch: Batch) -> None:
        """Note the epoch of a batch; offsets without records (markers, gaps) may be of any epoch."""
        if batch.leader_epoch is None or batch.leader_epoch < 0:
            return
        known = self._stretches.setdefault((batch.parent, batch.segment.id), [])
        last = known[-1] if known else None
        if last is not None and last.end == batch.start and last.epoch == batch.leader_epoch:
            last.end = batch.end
        else:
            known.append(_Stretch(batch.start, batch.end, batch.leader_epoch))
            del known[:-STRETCHES]

    def of(self, parent: PhysicalPartition, cursors: Iterable[Cursor]) -> dict[tuple[int, int], int]:
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


def placed_hash(key: bytes | None, offset: int, within: KeyRange) -> int:
    """Return the key hash that says which slot, and which lane, takes a record of a segment.

    It always lies in the segment's range (``within``), so that exactly one reader of the segment takes the
    record: that of its key; for a record without key, or one that somebody wrote past kpsplit's routing, a
    number brought into the range.

    Args:
        key: the record's key.
        offset: its physical offset.
        within: the range of its segment.
    """
    if key is None:
        return reader_hash(None, offset, within)
    hash_ = key_hash(key)
    return hash_ if hash_ in within else within.lo + hash_ % within.width


def message_hash(message: Message, segment: Segment) -> int:
    """Return ``placed_hash`` of a message of a batch, wrapped or not."""
    return placed_hash(message.key(), physical_offset(message), segment.range)


def size_of(messages: list[Message]) -> int:
    """Return what messages take in memory, roughly: of headers as much as the greatest of a few have."""
    count = len(messages)
    sampled = messages[:: max(1, -(-count // SAMPLES))]
    headers = count * max(map(header_bytes, sampled), default=0)
    return content_bytes(messages) + headers + MESSAGE_BYTES * count


def header_bytes(message: Message) -> int:
    """Return what the headers of a message take in memory, roughly."""
    taken = 0
    for name, value in headers_of(message) or ():
        taken += len(name) + len(value or b"") + HEADER_BYTES
    return taken


class RecordReader(Protocol):
    """Reads the records of slots, each from a cursor. For the thread that holds the engine's lock."""

    def update(self, state: PartitionState) -> None:
        """Read a logical partition by this state from now on."""

    def own(self, slot: OwnedSlot, cursor: Cursor) -> None:
        """Read a slot, one that is read already from another place."""

    def disown(self, slots: Iterable[OwnedSlot]) -> None:
        """Read slots no more; some may not be read at all."""

    def cursor(self, slot: OwnedSlot) -> Cursor:
        """Return how far a slot was read."""

    def pause(self, parents: Iterable[PhysicalPartition]) -> None:
        """Read nothing of logical partitions until ``resume``."""

    def resume(self, parents: Iterable[PhysicalPartition]) -> None:
        """Read logical partitions again."""


Backpressured = Mapping[PhysicalPartition, frozenset[KeyRange]]
NOWHERE: Backpressured = {}
SHUT = 0.0
"""A moment that has always passed."""


class RecordSink(Protocol):
    """Takes records and tells how far they were processed. Whoever calls holds the engine's lock.

    Nothing here may wait for the application: the engine serves other slots meanwhile.

    Attributes:
        most: how many records are best read at once, 0 while it has enough.
    """

    @property
    def most(self) -> int: ...

    def taken(self, slot: OwnedSlot, cursor: Cursor) -> None:
        """A slot arrives; ``cursor`` is where it starts, and what ``cursor()`` tells until records come.

        Also called for a slot that is owned already, after a seek: what was handed over of it before counts
        for nothing any more.
        """

    def offer(self, batch: Batch) -> None:
        """Take records of slots that are owned, in order per segment."""

    def waiting_bytes(self) -> int:
        """Return how many bytes of records were offered and are not given out yet (back-pressure)."""

    def backpressured(self) -> Backpressured:
        """Return the key ranges of which nothing more should be read for now, by logical partition."""

    def keep_open(self, until: float) -> None:
        """Hand out nothing once this moment has passed, until a later one is named.

        Named with every turn of the engine, by ``kpsplit.clock.monotonic``: a member that has not
        turned for long may have lost its slots (``group.ownership``). Without one it always hands out.
        """

    def cursor(self, slot: OwnedSlot) -> Sequence[Cursor]:
        """Return how far a slot is *processed*: one or more pieces that tile ``slot.range``."""

    def level(self, slot: OwnedSlot) -> bool:
        """Return whether a slot has one place, and keeps it until more is offered, or comes to none."""

    def release(self, slots: Iterable[OwnedSlot]) -> bool:
        """Stop giving out records of slots; True when nothing of them is being worked on.

        Asked again until it says True or the deadline of the revocation has passed.
        """

    def pause(self, parents: Collection[PhysicalPartition]) -> Mapping[OwnedSlot, Cursor]:
        """Hand out nothing of logical partitions until ``resume``; nothing more is offered of them.

        Returns from where to read on for slots of which what waits was forgotten. A slot that is taken
        meanwhile is not paused here: only nothing is read for it.
        """

    def resume(self, parents: Collection[PhysicalPartition]) -> None:
        """Hand out records of logical partitions again."""

    @property
    def torn(self) -> bool:
        """Whether an exception ended a change of what waits: reading has to begin anew (``start_over``)."""

    def start_over(self) -> Mapping[OwnedSlot, Cursor]:
        """Something between the brokers and here was ended by an exception: reading begins anew.

        Returns from where for each slot that is not released, so that nothing is missing and nothing comes
        twice. What waits may be forgotten.
        """

    def mark(self) -> int:
        """Return a mark after everything that was handed out."""

    def passed(self, mark: int) -> bool:
        """Return whether nothing that was handed out before a mark is being worked on, or can still count."""

    def dropped(self, slots: Iterable[OwnedSlot]) -> None:
        """Slots are owned no more: forget them and what waits of them. Later calls do not name them."""
