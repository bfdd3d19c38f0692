"""All slots of a member: their stages, what is read of them, where their records go, what is processed.

Guarded by the engine's lock. The reader, the sink and the state store each keep a part of what is known of a
slot, so whatever changes a slot passes through here and changes all of them, in the order that is safe.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from kpsplit.clock import monotonic
from kpsplit.consumer.commit.writes import CommitCoverage, Processed, least, logical_position
from kpsplit.consumer.fetch.batch import Batch, LeaderEpochs, RecordReader, RecordSink
from kpsplit.consumer.metadata import Metadata
from kpsplit.consumer.slots.assigned import (
    AssignedSlot,
    PieceProgress,
    RestoreProgress,
    SlotStage,
    SlotStart,
)
from kpsplit.errors import KpsplitError
from kpsplit.splitter.group_slots import Mode, OwnedSlot
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor

if TYPE_CHECKING:
    from kpsplit.consumer.state.slots import StateCommit, StateHooks

log = logging.getLogger(__name__)

Cursors = Mapping[OwnedSlot, tuple[Cursor, ...]]
"""How far slots are processed, by pieces."""


@dataclass(frozen=True, slots=True)
class MemberSlot:
    """A slot as ``Consumer.slots()`` returns it: how things stand at one moment.

    ``index`` of ``count``: which of the partition's equal key ranges it is; 0 of 1 where the topic is not
    enrolled. ``stage``: ``wanted``, ``asked`` and ``found`` while its start is looked up; ``reading``;
    ``held`` (nothing is handed out: its topic is not shared by partition any more, or the view is too old);
    ``leaving``; ``stopped`` (it has no start, or it leaves, or is another member's). ``positions``: the next
    physical offset to be handed out, for every physical partition of which something is left to read, now or
    later; inside ``run()``, the next to be worked on. Empty while its start is not known. ``committed``: the
    same by what is committed; empty while nothing is. ``bookmark``: how far it is handed out, as a text to
    keep, for ``assign_slots``; None while it is not read yet, and no more.
    """

    topic: str
    partition: int
    index: int
    count: int
    range: KeyRange
    stage: str
    positions: Mapping[PhysicalPartition, int]
    committed: Mapping[PhysicalPartition, int]
    bookmark: str | None = None


class AssignedSlots:
    """See the module.

    Args:
        metadata: what the control topic says of partitions.
        reader: reads the slots.
        sink: takes their records: the poll buffer, or the work queue of ``run()``.
        state_binding: their state.
        auto_store: records count as processed by themselves, not by ``store_offsets``.
    """

    def __init__(
        self,
        metadata: Metadata,
        reader: RecordReader,
        sink: RecordSink,
        state_binding: StateBinding,
        *,
        auto_store: bool = True,
    ) -> None:
        self.metadata = metadata
        self.reader = reader
        self.sink = sink
        self.state_binding = state_binding
        self.auto_store = auto_store
        self.epochs = LeaderEpochs()
        self.rebalances = 0
        """How often slots came, or a rebalance gave none."""
        self.assigned = self.handed_over = self.lost = self.withheld = 0
        self._by_slot: dict[OwnedSlot, AssignedSlot] = {}
        self._ordered: tuple[AssignedSlot, ...] = ()
        self._plain: dict[PhysicalPartition, bool] = {}
        self._epochs = count(1)

    # -- which there are ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[AssignedSlot]:
        """Iterate over a snapshot, in the order of the slots."""
        return iter(self._ordered)

    def __len__(self) -> int:
        return len(self._by_slot)

    def __contains__(self, slot: object) -> bool:
        return slot in self._by_slot

    def __getitem__(self, slot: OwnedSlot) -> AssignedSlot:
        return self._by_slot[slot]

    def at(self, places: Iterable[PhysicalPartition]) -> list[AssignedSlot]:
        """Return the slots that stand at partitions of the group's topics."""
        wanted = set(places)
        return [h for h in self if h.place in wanted]

    def of(self, parent: PhysicalPartition) -> list[AssignedSlot]:
        return [h for h in self if h.parent == parent]

    def on(self, stages: Collection[SlotStage]) -> list[AssignedSlot]:
        return [h for h in self._ordered if h.stage in stages]

    def in_sink(self) -> list[AssignedSlot]:
        return [h for h in self._ordered if h.in_sink]

    def any_in_sink(self) -> bool:
        return any(h.in_sink for h in self._ordered)

    def any_on(self, stages: frozenset[SlotStage]) -> bool:
        return any(h.stage in stages for h in self._ordered)

    def still(self, assigned_slots: Iterable[AssignedSlot]) -> list[AssignedSlot]:
        """Return those of some that are held still; a slot that went and came back is another."""
        return [h for h in assigned_slots if self._by_slot.get(h.slot) is h]

    def parents(self) -> tuple[PhysicalPartition, ...]:
        """Return the logical partitions of which a slot is held, in order."""
        return tuple(sorted({h.parent for h in self._by_slot.values()}))

    def add(self, assigned_slots: Sequence[AssignedSlot]) -> None:
        """Hold slots that were assigned; there may be none."""
        self.rebalances += 1
        self.assigned += len(assigned_slots)
        for assigned in assigned_slots:
            # Never one that the slot had before: a commit may be under way since then.
            assigned.epoch = next(self._epochs)
        self._by_slot.update({h.slot: h for h in assigned_slots})
        self.reorder()

    def drop(self, assigned_slots: Sequence[AssignedSlot]) -> None:
        """Hold slots no more: reader, sink and state store forget them."""
        self._take_back(assigned_slots)
        self.remove(assigned_slots)
        self.epochs.forget(self.parents())

    def remove(self, assigned_slots: Iterable[AssignedSlot]) -> None:
        """Hold slots no more, whatever else knows them; nothing here can fail."""
        for assigned in assigned_slots:
            self._by_slot.pop(assigned.slot, None)
        self.reorder()

    def share(self, modes: Mapping[str, Mode]) -> None:
        """Share the group's slots that are not started as its topics are now; MOVING where one is gone."""
        for assigned in self.on((SlotStage.WANTED,)):
            if not assigned.by_hand:
                assigned.mode = modes.get(assigned.place.topic, Mode.MOVING)
        self.reorder()

    def reorder(self) -> None:
        self._plain = {h.parent: h.mode.plain for h in self._by_slot.values()}
        self._ordered = tuple(self._by_slot[slot] for slot in sorted(self._by_slot))

    # -- how far they are --------------------------------------------------------------------------

    def state(self, parent: PhysicalPartition) -> PartitionState:
        """Return a partition's state as what is held of it is read, though its topic was left or enrolled."""
        if self._plain.get(parent):  # its places are ordinary offsets, whatever the lineage is by now
            return PartitionState.unsplit(parent, "")
        return self.metadata.state(parent, left=parent in self._plain)

    def lineage(self, parent: PhysicalPartition) -> Lineage:
        return self.state(parent).lineage

    def processed(self, assigned: AssignedSlot) -> tuple[Cursor, ...]:
        """Return how far a slot is processed, in the form that is committed."""
        if self.auto_store:
            cursors, ahead = self.sink.cursor(assigned.slot), assigned.ahead
            if ahead is not None and ahead.caught_up(cursors, self.lineage(assigned.parent)):
                assigned.ahead = None  # from now on the cursors themselves say it all
            return self.settled(assigned, cursors)
        return assigned.committed if assigned.stored is None else assigned.stored

    def settled(self, assigned: AssignedSlot, cursors: Sequence[Cursor]) -> tuple[Cursor, ...]:
        """Return cursors of a slot in the form that is committed; never before the pieces it began with."""
        ahead, lineage = assigned.ahead, self.lineage(assigned.parent)
        apart = ahead is None and not assigned.final and len(cursors) > 1
        if apart and self.metadata.returning(assigned.parent.topic, assigned.mode):
            return (least(lineage, cursors),)  # one offset must say it all, as plain clients' does
        return tuple(ahead.furthest(cursors, lineage) if ahead else (c.settled(lineage) for c in cursors))

    def unsaved(self, assigned: AssignedSlot, cursors: tuple[Cursor, ...]) -> bool:
        """Return whether there is anything to commit of a slot that is processed up to there."""
        said = cursors == assigned.committed and not assigned.uncertain
        return bool(cursors) and (not said or self.state_binding.waits(assigned))

    def changed(self, assigned_slots: Iterable[AssignedSlot]) -> Cursors:
        """Return how far slots are processed, where that is not committed."""
        now = [(assigned, self.processed(assigned)) for assigned in assigned_slots]
        return {h.slot: cursors for h, cursors in now if self.unsaved(h, cursors)}

    def in_commit(
        self, parent: PhysicalPartition, cursors: Cursors, moved: Collection[OwnedSlot]
    ) -> Processed:
        """Return a logical partition as a commit of cursors takes it; ``moved``: see ``Processed``."""
        mine = self.of(parent)
        ranges = frozenset(c.range for h in mine if h.slot in moved for c in cursors.get(h.slot, ()))
        written = tuple(c for h in mine for c in cursors.get(h.slot, ()))
        unchanged = tuple(c for h in mine if h.slot not in cursors for c in h.committed)
        first, epochs = next(h for h in mine if h.slot in cursors), self.epochs.of(parent, written)
        token = first.token(self.metadata.subscribed(parent.topic))
        return Processed(self.state(parent), first.mode, written, unchanged, token, epochs, ranges)

    def logical(self, cursors: Cursors) -> dict[PhysicalPartition, int]:
        """Return what a commit says in the terms of applications: one logical offset per partition.

        It holds for all slots of the partition that this member has: those that are not in the commit stand
        where they were committed, or where they began.
        """
        offsets: dict[PhysicalPartition, int] = {}
        for parent in sorted({slot.parent for slot in cursors}):
            pieces = [c for slot, found in cursors.items() if slot.parent == parent for c in found]
            for assigned in self.of(parent):
                if assigned.slot not in cursors and assigned.start is not None:
                    pieces += assigned.committed or assigned.begun_at
            offsets[parent] = logical_position(self.lineage(parent), pieces)
        return offsets

    def worked_off(self, assigned: AssignedSlot) -> bool:
        """Return whether everything that was read of a slot is processed."""
        read = self.reader.cursor(assigned.slot).positions
        return all(cursor.positions == read for cursor in self.sink.cursor(assigned.slot))

    # -- their records -----------------------------------------------------------------------------

    def offer(self, batch: Batch) -> None:
        """Give records to the sink, without those that a piece of their slot had processed already."""
        self.epochs.read(batch)
        for assigned in self._ordered:  # hardly any is ahead: cheaper than to look up each slot of a batch
            if assigned.ahead is not None and assigned.slot in batch.slots:
                assigned.ahead.without_processed(batch, self.lineage(batch.parent))
        self.sink.offer(batch)

    def must_be_held(self, assigned: AssignedSlot) -> bool:
        """Return whether nothing more of a slot may be handed out: its topic is shared in another way now.

        Not where the view is only old: nobody begins a range of the partition while this member has it.
        """
        if assigned.mode is Mode.SLOTS or (assigned.by_hand and not assigned.mode.plain):
            return False
        return self.metadata.subscribed(assigned.parent.topic).mode is not assigned.mode

    def may_begin(self, assigned: AssignedSlot) -> bool:
        """Return whether a slot may be handed out that was not until now.

        Only by a fresh view: slots of the topic, or slots by another number, may have owners already.
        """
        now = self.metadata.subscribed(assigned.parent.topic)
        same = now.begins and (now.mode, now.group_topic) == (assigned.mode, assigned.place.topic)
        return (assigned.by_hand and not self.must_be_held(assigned)) or (self.metadata.fresh() and same)

    def begin(self, assigned: AssignedSlot) -> None:
        """Read a slot from its start, if it may be handed out still: restoring its state may take long."""
        if assigned.start is not None:
            self._begin_at(assigned, assigned.start.pieces)

    def _begin_at(self, assigned: AssignedSlot, pieces: tuple[Cursor, ...]) -> None:
        cursor = self._merged(assigned.parent, pieces)
        if len(pieces) > 1:
            assigned.ahead = PieceProgress(pieces)
        self.reader.update(self.state(assigned.parent))
        self.reader.own(assigned.slot, cursor)
        self.sink.taken(assigned.slot, cursor)
        # Last: where an exception came before this, the slot is begun again in the next turn.
        assigned.stage = SlotStage.READING
        if not self.may_begin(assigned):
            self.hold(assigned)

    def hold(self, assigned: AssignedSlot) -> None:
        """Hand out nothing more of a slot for now, or read nothing more where it has to come to one place."""
        self.reader.disown([assigned.slot])
        if not self.metadata.returning(assigned.parent.topic, assigned.mode):
            self.sink.release([assigned.slot])
        self.withheld += 1
        assigned.stage = SlotStage.HELD

    def hand_out_again(self, assigned: AssignedSlot) -> None:
        """Read a held slot from where it is processed; not while the application still works on it."""
        if not self.sink.release([assigned.slot]):
            return  # those records would be handed out again
        self._begin_at(assigned, self.settled(assigned, self.sink.cursor(assigned.slot)))

    def stop(self, leaving: Iterable[AssignedSlot]) -> list[OwnedSlot]:
        """Read nothing more of slots that are taken away; return those of which records may be worked on."""
        working = []
        for assigned in leaving:
            if assigned.in_sink:
                working.append(assigned.slot)
            assigned.gone = True
            assigned.stage = SlotStage.LEAVING if assigned.in_sink else SlotStage.STOPPED
        self.reader.disown(working)
        return working

    def start_anew(self, assigned_slots: Sequence[AssignedSlot]) -> None:
        """Have slots start again from what the log says; of those that leave nothing more is committed."""
        if assigned_slots:
            self._take_back(assigned_slots)
        for assigned in assigned_slots:
            # One that leaves is not looked up again; its next owner does that.
            assigned.stage = SlotStage.STOPPED if assigned.gone else SlotStage.WANTED
            assigned.start, assigned.committed = None, ()

    def withdraw(self, assigned_slots: Sequence[AssignedSlot]) -> None:
        """Read, hand out and commit nothing more of slots that are another member's; they are held still."""
        for assigned in assigned_slots:
            assigned.gone = True
        self.start_anew(assigned_slots)

    def read_again(self, assigned_slots: Sequence[AssignedSlot]) -> None:
        """Have slots that were withdrawn start again: they are this member's after all."""
        for assigned in assigned_slots:
            assigned.gone = False
        self.start_anew(assigned_slots)

    def start_at(self, assigned: AssignedSlot, start: SlotStart) -> None:
        """Move a slot, whatever is done for it: a seek, or offsets that on_assign gave."""
        assigned.start, assigned.reset = start, False
        if assigned.stage in (SlotStage.READING, SlotStage.HELD):
            cursor = self._merged(assigned.parent, start.pieces)
            assigned.ahead = None
            self.sink.taken(assigned.slot, cursor)
            if assigned.stage is SlotStage.READING:
                self.reader.own(assigned.slot, cursor)
            else:
                self.sink.release([assigned.slot])
        elif assigned.stage in (SlotStage.STOPPED, SlotStage.WANTED, SlotStage.ASKED):
            assigned.stage = SlotStage.FOUND

    def restored(self, assigned: AssignedSlot) -> bool:
        return self.state_binding.restored(assigned, self.sink)

    def _take_back(self, assigned_slots: Sequence[AssignedSlot]) -> None:
        """Forget what was read and done of slots since their last commit."""
        slots = [h.slot for h in assigned_slots]
        self.reader.disown(slots)
        self.sink.dropped(slots)
        # After the sink: else a record would count as processed whose state is gone.
        self.state_binding.left(assigned_slots)
        for assigned in assigned_slots:
            assigned.ahead = assigned.stored = None
            assigned.uncertain.clear()
            assigned.epoch = next(self._epochs)

    # -- another sink ------------------------------------------------------------------------------

    def unsure(self) -> list[AssignedSlot]:
        """Return the slots with state of which a record is being worked on: whether it will count is open."""
        in_sink = self.in_sink() if self.state_binding.store is not None else []
        return [h for h in in_sink if not self.sink.release([h.slot])]

    def goes_on_at(self, assigned: AssignedSlot) -> tuple[Cursor, ...]:
        """Return where another sink takes a slot over: a seek counts, though it is not to be committed."""
        return self.processed(assigned) if self.auto_store else assigned.told

    def hand_to(self, sink: RecordSink, processed: Cursors, *, auto_store: bool) -> None:
        """Have records go to another sink from now on, each slot from where it is processed."""
        in_sink = self.in_sink()
        slots = [h.slot for h in in_sink]
        self.reader.disown(slots)
        self.sink.dropped(slots)
        self.sink, self.auto_store = sink, auto_store
        for assigned in self:
            assigned.stored = None  # slots restart there; kept, it would take later commits back
        for assigned in in_sink:
            self._restart(assigned, processed[assigned.slot])

    def _restart(self, assigned: AssignedSlot, pieces: tuple[Cursor, ...]) -> None:
        assigned.start = SlotStart(pieces, begun=assigned.begun_at)
        assigned.ahead = PieceProgress(pieces) if len(pieces) > 1 else None
        if assigned.stage is SlotStage.READING:
            self.begin(assigned)
            return
        self.sink.taken(assigned.slot, self._merged(assigned.parent, pieces))
        self.sink.release([assigned.slot])

    def _merged(self, parent: PhysicalPartition, pieces: tuple[Cursor, ...]) -> Cursor:
        return pieces[0] if len(pieces) == 1 else least(self.lineage(parent), pieces)


RETRY_SECONDS = 5.0
"""When restoring a slot's state is tried again after it failed."""


class StateBinding:
    """The engine's side of a state store: it gives slots to the store, and has their state committed.

    ``store`` is None where the application keeps no state; every method is a no-op then.
    """

    def __init__(self, store: StateHooks | None = None) -> None:
        self.store = store

    def restored(self, assigned: AssignedSlot, sink: RecordSink) -> bool:
        """Return whether the state of a slot is there; begin to restore it where that was not done yet.

        Called when the slot's start is known. That was looked up when every commit of this member was over or
        given up, so no write of an earlier assignment that counts comes after the end that is asked for now.
        And the application has finished what it was handed out before: a write for a record of that
        assignment, which will be handed out again, finds no state to change.

        Raises:
            KpsplitError: it cannot be restored; raised once for each reason, and tried again later.
        """
        store = self.store
        if store is None:
            return True
        try:
            if not assigned.restore.taken and not self._take(store, assigned, sink):
                return False
            ready = store.ready(assigned.slot)
        except KpsplitError as error:
            self._give_up(store, assigned, error)
            return False
        if ready:
            assigned.restore.refusal = ""
        return ready

    def _take(self, store: StateHooks, assigned: AssignedSlot, sink: RecordSink) -> bool:
        restore = assigned.restore
        if restore.mark is None:
            # What was handed out until now may write to the slot's state of before.
            restore.mark = sink.mark()
        if not sink.passed(restore.mark) or monotonic() < restore.retry_at:
            return False
        store.taken([assigned.slot])
        restore.taken = True
        return True

    def _give_up(self, store: StateHooks, assigned: AssignedSlot, error: KpsplitError) -> None:
        known = assigned.restore.refusal
        self._let_go(store, assigned)
        assigned.restore = RestoreProgress(refusal=error.message, retry_at=monotonic() + RETRY_SECONDS)
        if error.message != known:
            raise error

    def left(self, assigned_slots: Iterable[AssignedSlot]) -> None:
        """Slots are owned no more, or their records will be handed out again; the sink knows them no more."""
        if self.store is not None:
            for assigned in assigned_slots:
                self._let_go(self.store, assigned)

    def _let_go(self, store: StateHooks, assigned: AssignedSlot) -> None:
        taken, assigned.restore = assigned.restore.taken, RestoreProgress()
        if taken:
            store.released([assigned.slot])

    def waits(self, assigned: AssignedSlot) -> bool:
        """Return whether something of a slot's state waits for a commit."""
        return self.store is not None and assigned.restore.taken and self.store.waits(assigned.slot)

    def wants_commit(self) -> bool:
        """Return whether a commit should not wait for its time."""
        return self.store is not None and self.store.wants_commit()

    def commit(
        self, processed: Sequence[Processed], assigned_slots: Iterable[AssignedSlot]
    ) -> StateCommit | None:
        """Return what goes with a commit of exactly this; None without a store.

        Raises:
            KpsplitError: the store does not have what these slots had.
        """
        if self.store is None:
            return None
        covers = {p.parent: CommitCoverage(p) for p in processed}
        return self.store.before_commit([h.slot for h in assigned_slots if h.restore.taken], covers)

    def broken(self, assigned_slots: Iterable[AssignedSlot]) -> list[AssignedSlot]:
        """Return the slots whose local state could not follow a commit: what waited of them is gone."""
        return [h for h in assigned_slots if h.restore.taken and not self._is_there(h.slot)]

    def _is_there(self, slot: OwnedSlot) -> bool:
        try:
            return self.store is None or self.store.ready(slot)
        except KpsplitError as error:
            log.warning("kpsplit: the state of %s: %s", slot, error)
            return False
