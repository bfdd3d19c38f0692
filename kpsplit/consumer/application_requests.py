"""What the application's calls do in the engine's thread: commits, seeks, pauses, assignment by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit.consumer.commit.committer import Committer, Parts
from kpsplit.consumer.commit.writes import logical_position
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.consumer.group.membership import Membership, by_hand, slot_by_hand
from kpsplit.consumer.group.subscribing import Subscribing
from kpsplit.consumer.slots.assigned import (
    EARLIEST,
    IN_SINK,
    AssignedSlot,
    PieceProgress,
    SlotStage,
    SlotStart,
    StartRequest,
    after_record,
)
from kpsplit.consumer.slots.assigned_slots import AssignedSlots, Cursors
from kpsplit.kafka.logical_message import Place, place_of
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.reading import Cursor

UNKNOWN_PARTITION = KafkaError._UNKNOWN_PARTITION


class ApplicationRequests:
    """See the module. Every method runs in the engine's thread."""

    def __init__(
        self,
        slots: AssignedSlots,
        committer: Committer,
        membership: Membership,
        subscribing: Subscribing,
        buffer: FetchBuffer,
    ) -> None:
        self._slots = slots
        self._committer = committer
        self._membership = membership
        self._subscribing = subscribing
        self._buffer = buffer

    # -- commits -----------------------------------------------------------------------------------

    def commit(self, cursors: Cursors, future: Future[Parts] | None) -> None:
        """Commit slots; the future tells what was committed, or raises _NO_OFFSET if that is nothing."""
        self._committer.ask(cursors, future)

    def keep(self, cursors: Cursors, *, exactly: bool = False) -> Cursors:
        """Have no later commit take these cursors back; return them as they are to be committed.

        ``exactly``: the application has named the place, which may lie before what was kept until now. Else
        they are never before that.
        """
        kept: dict[OwnedSlot, tuple[Cursor, ...]] = {}
        for slot, pieces in cursors.items():
            assigned = self._slots[slot]
            known = None if exactly else assigned.ahead
            kept[slot] = tuple(known.furthest(pieces, self._slots.lineage(slot.parent))) if known else pieces
            if self._slots.auto_store:
                assigned.ahead = PieceProgress(kept[slot])
            else:
                assigned.stored = kept[slot]
        return kept

    def handed_out(self, mark: int) -> Cursors:
        """Return the cursors of everything before a mark, where they are not committed."""
        found: dict[OwnedSlot, tuple[Cursor, ...]] = {}
        for assigned in self._slots.on(IN_SINK):
            cursors = self._at(assigned, mark)
            if self._slots.unsaved(assigned, cursors):
                found[assigned.slot] = cursors
        return found

    def _at(self, assigned: AssignedSlot, mark: int) -> tuple[Cursor, ...]:
        if not self._slots.auto_store:
            return self._slots.processed(assigned)
        return self._slots.settled(assigned, [self._buffer.cursor_at(assigned.slot, mark)])

    def after_message(self, message: Any, mark: int) -> Cursors:
        """Return the cursors that say that a message, and what came before it, is processed."""
        parent = PhysicalPartition(message.topic(), message.partition())
        place = self.place(message)
        if place is None:
            return {}

        def move(lineage: Lineage, before: Cursor, read: Cursor) -> Cursor:
            return after_record(lineage, before, read, place.segment, place.source_offset + 1)

        return self._moved(parent, mark, move)

    def below_offsets(self, parts: Sequence[TopicPartition], mark: int) -> Cursors:
        """Return the cursors that say that everything below logical offsets is processed."""
        found: dict[OwnedSlot, tuple[Cursor, ...]] = {}
        for part in parts:
            if part.offset >= 0:
                found.update(self._below(part, mark))
                parent = PhysicalPartition(part.topic, part.partition)
                self._committer.keep_metadata(parent, part.offset, part.metadata)
        for assigned in self._slots:
            if assigned.slot in found:
                self._note_move(assigned, found[assigned.slot])
        return found

    def _below(self, part: TopicPartition, mark: int) -> Cursors:
        def move(lineage: Lineage, _: Cursor, read: Cursor) -> Cursor:
            limits = {s.id: s.end if s.end is not None else 1 << 62 for s in lineage}
            limits |= read.pending(lineage)
            return Cursor.from_logical(lineage, read.range, part.offset, limits)

        return self._moved(PhysicalPartition(part.topic, part.partition), mark, move)

    def _moved(
        self, parent: PhysicalPartition, mark: int, move: Callable[[Lineage, Cursor, Cursor], Cursor]
    ) -> Cursors:
        lineage = self._slots.lineage(parent)
        found: dict[OwnedSlot, tuple[Cursor, ...]] = {}
        for assigned in self._slots.of(parent):
            if not assigned.in_sink or assigned.start is None:
                continue
            read = self._buffer.cursor_at(assigned.slot, mark)
            found[assigned.slot] = tuple(
                move(lineage, before, read.narrowed(before.range)) for before in assigned.known_processed
            )
        return found

    def store(self, cursors: Cursors) -> None:
        """Keep what ``store_offsets`` said for the next commit."""
        if not cursors:
            raise KafkaException(KafkaError(KafkaError._STATE, "no slot of the partition is assigned"))
        for slot, pieces in cursors.items():
            self._slots[slot].stored = pieces

    def place(self, message: Any) -> Place | None:
        """Return where a message is stored."""
        return place_of(message, self._slots.lineage(PhysicalPartition(message.topic(), message.partition())))

    # -- places ------------------------------------------------------------------------------------

    def assignment(self) -> list[TopicPartition]:
        """Return the logical partitions of which a slot is assigned."""
        return [TopicPartition(p.topic, p.partition) for p in self._slots.parents()]

    def positions(self, parts: Sequence[TopicPartition], mark: int) -> list[int | None]:
        """Return the least logical offset that was not handed out, per partition; None if nothing was."""
        return [self._position(PhysicalPartition(p.topic, p.partition), mark) for p in parts]

    def _position(self, parent: PhysicalPartition, mark: int) -> int | None:
        mine = [h for h in self._slots.of(parent) if h.in_sink and h.start is not None]
        lineage = self._slots.lineage(parent)
        cursors = [c for h in mine for c in self._stands(h.slot, mark)]
        starts = [c for h in mine for c in h.begun_at]
        now, begun = logical_position(lineage, cursors), logical_position(lineage, starts)
        return now if cursors and now != begun else None

    def _stands(self, slot: OwnedSlot, mark: int) -> Sequence[Cursor]:
        """Return what of a slot was handed out; inside ``run()``, what its workers are done with."""
        if self._slots.sink is self._buffer:
            return [self._buffer.cursor_at(slot, mark)]
        return self._slots.sink.cursor(slot)

    def wanted(self, parts: Sequence[TopicPartition]) -> list[StartRequest]:
        """Return whole logical partitions as the group's offsets take them."""
        metadata = self._slots.metadata
        return [
            StartRequest(
                metadata.state(PhysicalPartition(p.topic, p.partition)).lineage,
                metadata.subscribed(p.topic).mode,
                WHOLE,
            )
            for p in parts
        ]

    def known(self) -> bool:
        """Return whether it is known what is enrolled."""
        return self._slots.metadata.ready

    def assigned_lineage(self, parent: PhysicalPartition) -> Lineage:
        """Return the lineage of a logical partition of which a slot is assigned.

        Raises:
            KafkaException: none is.
        """
        self._assigned([parent])
        return self._slots.lineage(parent)

    def seek(self, parent: PhysicalPartition, cursor: Cursor) -> None:
        """Read the slots of a logical partition from another place."""
        assigned_slots = [h for h in self._slots.of(parent) if h.stage is not SlotStage.LEAVING]
        if not assigned_slots:
            raise KafkaException(KafkaError(KafkaError._STATE, f"{parent} is not assigned"))
        lineage = self._slots.lineage(parent)
        for assigned in assigned_slots:
            assigned.stored = None
            own = cursor.narrowed(assigned.slot.range).settled(lineage)
            if self._note_move(assigned, (own,)):
                assigned.sought = assigned.moves
            self._slots.start_at(assigned, SlotStart((own,)))

    def _note_move(self, assigned: AssignedSlot, cursors: tuple[Cursor, ...]) -> bool:
        """The application names a place: note it, and tell, if the group may have been further.

        Then the next commit says so.
        """
        lineage = self._slots.lineage(assigned.parent)
        for known in self._committer.may_be_committed(assigned):
            judged = bool(known) and not any(c.ahead_of(lineage) for c in (*known, *cursors))
            if not judged or tuple(PieceProgress(known).furthest(cursors, lineage)) != cursors:
                assigned.moves += 1
                return True
        return False

    def start(
        self, cursors: Mapping[PhysicalPartition, Cursor | None], at_start: Collection[PhysicalPartition] = ()
    ) -> None:
        """Inside on_assign: begin at other places than the group's, with slots that arrive later too.

        ``at_start``: the partitions whose cursor is where they begin now.
        """
        for parent, cursor in cursors.items():
            if cursor is not None:
                self.seek(parent, cursor)
        self._membership.given.take({**cursors, **dict.fromkeys(at_start, EARLIEST)})

    def pause(self, parents: Iterable[PhysicalPartition]) -> None:
        """Read nothing of logical partitions, and take back what waits of them."""
        chosen = self._assigned(parents)
        for parent in chosen:
            self._slots.reader.update(self._slots.state(parent))
        self._slots.reader.pause(chosen)
        for slot, cursor in self._buffer.take_back(chosen).items():
            self._slots.reader.seek(slot, cursor)

    def resume(self, parents: Iterable[PhysicalPartition]) -> None:
        """Read on."""
        chosen = self._assigned(parents)
        for parent in chosen:
            self._slots.reader.update(self._slots.state(parent))
        self._slots.reader.resume(chosen)

    def _assigned(self, parents: Iterable[PhysicalPartition]) -> list[PhysicalPartition]:
        chosen = list(parents)
        for parent in chosen:
            if not self._slots.of(parent):
                raise KafkaException(KafkaError(UNKNOWN_PARTITION, f"{parent} is not assigned"))
        return chosen

    # -- assignment by hand ------------------------------------------------------------------------

    def assign(self, starts: Mapping[PhysicalPartition, Cursor | None], *, more: bool) -> None:
        """Hold logical partitions without a group; those held before are let go unless ``more`` is wanted."""
        new = []
        for parent, cursor in starts.items():
            assigned = by_hand(self._slots.metadata.subscribed(parent.topic), parent.partition)
            if assigned.slot in self._slots:
                raise KafkaException(KafkaError(KafkaError._CONFLICT, f"{parent} is assigned already"))
            if cursor is not None:
                assigned.start, assigned.stage = SlotStart((cursor,)), SlotStage.FOUND
            new.append(assigned)
        self.assign_holdings(new, more=more)

    def assign_slots(self, slots: Sequence[tuple[str, int, int]]) -> None:
        """Hold single slots without a group: topic, partition and index of each."""
        metadata = self._slots.metadata
        new = [slot_by_hand(metadata.subscribed(topic), number, index) for topic, number, index in slots]
        self.assign_holdings(new, more=False)

    def assign_holdings(self, new: list[AssignedSlot], *, more: bool) -> None:
        """Hold slots without a group."""
        if not more:
            self.let_go(list(self._slots))
        self._subscribing.by_hand = True
        self._membership.hold(new)

    def unassign(self, parents: Iterable[PhysicalPartition]) -> None:
        """Let logical partitions go that were assigned by hand."""
        gone = set(parents)
        self.let_go([h for h in self._slots if h.parent in gone])

    def let_go(self, assigned_slots: list[AssignedSlot]) -> None:
        """Hand slots over without a callback."""
        self._membership.hand_over(assigned_slots, call_back=False)
        if not len(self._slots):
            self._subscribing.by_hand = False
            self._membership.left()
