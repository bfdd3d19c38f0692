"""What the application's calls do: commits, seeks, pauses, assignment by hand in the engine's thread.

Questions that brokers have to answer are run in the executor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from kpsplit.consumer.broker_executor import QueryClient
from kpsplit.consumer.commit.committer import Committer, Parts
from kpsplit.consumer.commit.group_offsets import GroupOffsets
from kpsplit.consumer.commit.writes import logical_position
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.consumer.group.membership import Membership, Subscribing
from kpsplit.consumer.slots.assigned import (
    EARLIEST,
    AssignedSlot,
    PieceProgress,
    SlotStage,
    SlotStart,
    StartRequest,
    after_record,
    by_hand,
    is_known,
    restated,
    slot_by_hand,
)
from kpsplit.consumer.slots.assigned_slots import AssignedSlots, Cursors, MemberSlot
from kpsplit.errors import KpsplitError, UsageError
from kpsplit.kafka.logical_message import Place, place_of
from kpsplit.splitter.group_slots import Mode, OwnedSlot
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.offsets import Bookmark

_NOT_BOTH = (
    "{} is enrolled: outside on_assign nothing of it can be assigned by hand beside a subscription; "
    "nothing was changed; call {} first"
)

SlotName = tuple[str, int, int]
"""Topic, partition and index of a slot."""


class ApplicationRequests:
    """Every method runs in the engine's thread."""

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

    def chosen(self, message: Any, offsets: Sequence[TopicPartition] | None, mark: int) -> Cursors:
        """Return what ``commit()`` or ``store_offsets()`` means, by what was handed out before a mark."""
        if self._slots.sink is not self._buffer:
            raise KpsplitError("run() is under way and commits by itself", hint="return from the handler")
        if message is not None:
            return self.keep(self.after_message(message, mark))
        if offsets is not None:
            return self.keep(self.below_offsets(offsets, mark), exactly=True)
        return self.handed_out(mark)

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
                assigned.ahead = PieceProgress(kept[slot], untouched=False)
            else:
                assigned.stored = kept[slot]
        return kept

    def handed_out(self, mark: int) -> Cursors:
        """Return the cursors of everything before a mark, where they are not committed."""
        if not self._slots.auto_store:
            return self._slots.changed(self._slots.in_sink())
        now = {
            h.slot: self._slots.settled(h, [self._buffer.cursor_at(h.slot, mark)])
            for h in self._slots.in_sink()
        }
        kept = self.keep(now)
        return {
            slot: cursors for slot, cursors in kept.items() if self._slots.unsaved(self._slots[slot], cursors)
        }

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
                move(lineage, before, read.narrowed(before.range))
                for before in self._committer.known_processed(assigned)
            )
        return found

    def store(self, cursors: Cursors) -> None:
        """Keep what ``store_offsets`` said for the next commit."""
        if not cursors:
            raise KafkaException(KafkaError(KafkaError._STATE, "no slot of the partition is assigned"))
        for slot, pieces in cursors.items():
            self._slots[slot].stored = pieces

    def place(self, message: Any) -> Place | None:
        return place_of(message, self._slots.lineage(PhysicalPartition(message.topic(), message.partition())))

    # -- places ------------------------------------------------------------------------------------

    def assignment(self) -> list[TopicPartition]:
        """Return the logical partitions of which a slot is assigned."""
        return [TopicPartition(p.topic, p.partition) for p in self._slots.parents()]

    def slots(self, mark: int) -> list[MemberSlot]:
        """Return every slot with what was handed out of it up to a mark, and what is committed."""
        return [self._member_slot(assigned, mark) for assigned in self._slots]

    def _member_slot(self, assigned: AssignedSlot, mark: int) -> MemberSlot:
        slot, lineage = assigned.slot, self._slots.lineage(assigned.parent)
        cursors = self._stands(slot, mark) if assigned.in_sink else assigned.begun_at
        bookmark = None
        if assigned.in_sink:
            bookmark = Bookmark(
                slot.parent, assigned.topic_id, self._slots.settled(assigned, cursors)
            ).encode()
        return MemberSlot(
            topic=slot.parent.topic,
            partition=slot.parent.partition,
            index=slot.index,
            count=slot.slots,
            range=slot.range,
            stage=assigned.stage.value,
            positions=left_to_read(lineage, cursors),
            committed=left_to_read(lineage, assigned.committed),
            bookmark=bookmark,
        )

    def positions(self, parts: Sequence[TopicPartition], mark: int) -> list[TopicPartition]:
        """Return the least logical offset that was not handed out, per partition."""
        offsets = [self._position(PhysicalPartition(p.topic, p.partition), mark) for p in parts]
        return with_offsets(parts, [OFFSET_INVALID if at is None else at for at in offsets])

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

    def wanted(self, parts: Sequence[TopicPartition], *, anew: bool = False) -> list[StartRequest]:
        """Return whole logical partitions as the group's offsets take them; ``anew``: to be assigned."""
        return [self._request(PhysicalPartition(p.topic, p.partition), anew=anew) for p in parts]

    def _request(self, parent: PhysicalPartition, *, anew: bool = False) -> StartRequest:
        state = (self._slots.metadata if anew else self._slots).state(parent)
        mode = self._slots.metadata.subscribed(parent.topic).mode
        return StartRequest(state.lineage, mode, WHOLE, retired=state.retired())

    def known(self, bookmarks: Iterable[Bookmark] = (), names: Iterable[SlotName] = ()) -> bool:
        """Return whether it is known what is enrolled, what slots are, and every segment bookmarks name.

        Raises:
            UsageError: bookmarks are of a topic that was deleted and made again since.
        """
        metadata = self._slots.metadata
        if not metadata.ready or any(metadata.subscribed(name[0]).mode is Mode.MOVING for name in names):
            return False
        both = ((b, self._slots.state(b.parent), metadata.state(b.parent, left=True)) for b in bookmarks)
        return all(is_known(b, now, last, fresh=metadata.fresh()) for b, now, last in both)

    def assigned(self, part: TopicPartition) -> StartRequest:
        """Return a logical partition as ``wanted`` does; a slot of it must be assigned.

        Raises:
            KafkaException: none is.
        """
        (parent,) = self._assigned([part])
        return self._request(parent)

    def seek(self, parent: PhysicalPartition, cursor: Cursor) -> None:
        """Read the slots of a logical partition that stay from another place.

        Raises:
            KafkaException: there are none.
        """
        assigned_slots = self._staying(parent)
        if not assigned_slots:
            raise KafkaException(KafkaError(KafkaError._STATE, f"{parent} is not assigned"))
        lineage = self._slots.lineage(parent)
        for assigned in assigned_slots:
            assigned.stored = None
            own = cursor.narrowed(assigned.slot.range).settled(lineage)
            self._note_move(assigned, (own,))
            self._slots.start_at(assigned, SlotStart((own,)))

    def _staying(self, parent: PhysicalPartition) -> list[AssignedSlot]:
        return [h for h in self._slots.of(parent) if not h.gone]

    def _note_move(self, assigned: AssignedSlot, cursors: tuple[Cursor, ...]) -> None:
        """The application names a place: note it, and tell, if the group may have been further.

        Then the next commit says so.
        """
        lineage = self._slots.lineage(assigned.parent)
        for known in self._committer.may_be_committed(assigned):
            judged = bool(known) and not any(c.ahead_of(lineage) for c in (*known, *cursors))
            if not judged or tuple(PieceProgress(known).furthest(cursors, lineage)) != cursors:
                assigned.moves += 1
                return

    def start(
        self, cursors: Mapping[PhysicalPartition, Cursor | None], at_start: Collection[PhysicalPartition] = ()
    ) -> None:
        """Inside on_assign: begin at other places than the group's, with slots that arrive later too.

        ``at_start``: the partitions whose cursor is where they begin now.
        """
        for parent, cursor in cursors.items():
            if cursor is not None and self._staying(parent):  # else they were taken away meanwhile
                self.seek(parent, cursor)
        self._membership.callbacks.give({**cursors, **dict.fromkeys(at_start, EARLIEST)})

    def pause(self, parts: Iterable[TopicPartition]) -> None:
        """Read nothing of logical partitions, and hand out nothing that waits of them."""
        chosen = self._viewed(parts)
        self._slots.reader.pause(chosen)
        for slot, cursor in self._slots.sink.pause(chosen).items():
            self._slots.reader.own(slot, cursor)

    def resume(self, parts: Iterable[TopicPartition]) -> None:
        chosen = self._viewed(parts)
        self._slots.reader.resume(chosen)
        self._slots.sink.resume(chosen)

    def _viewed(self, parts: Iterable[TopicPartition]) -> list[PhysicalPartition]:
        chosen = self._assigned(parts)
        for parent in chosen:
            self._slots.reader.update(self._slots.state(parent))
        return chosen

    def _assigned(self, parts: Iterable[TopicPartition]) -> list[PhysicalPartition]:
        chosen = [PhysicalPartition(p.topic, p.partition) for p in parts]
        for parent in chosen:
            if not self._slots.of(parent):
                raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, f"{parent} is not assigned"))
        return chosen

    # -- assignment by hand ------------------------------------------------------------------------

    def assign(self, starts: Mapping[PhysicalPartition, Cursor | None], *, more: bool) -> None:
        """Hold logical partitions without a group; those held before are let go unless ``more`` is wanted."""
        if self._subscribing.is_wanted():
            self._refuse_both((parent.topic for parent in starts), "unsubscribe()")
        new = []
        for parent, cursor in starts.items():
            assigned = by_hand(self._slots.metadata.subscribed(parent.topic), parent.partition)
            if assigned.slot in self._slots and (more or not self._slots[assigned.slot].by_hand):
                raise KafkaException(KafkaError(KafkaError._CONFLICT, f"{parent} is assigned already"))
            if cursor is not None:
                assigned.start, assigned.stage = SlotStart((cursor,)), SlotStage.FOUND
                assigned.moves += 1  # the group may stand anywhere
            new.append(assigned)
        self.assign_holdings(new, more=more)

    def assign_slots(self, names: Sequence[SlotName], bookmarks: Sequence[Bookmark]) -> None:
        """Hold single slots without a group, each from its bookmarks where there are some."""
        if self._subscribing.is_wanted():
            self._refuse_both((topic for topic, _, _ in names), "unsubscribe()")
        metadata = self._slots.metadata
        new = [slot_by_hand(metadata.subscribed(topic), number, index) for topic, number, index in names]
        self._begin_by(bookmarks, new)
        self.assign_holdings(new, more=False)

    def start_slots(self, names: Sequence[SlotName], bookmarks: Sequence[Bookmark]) -> None:
        """Inside on_assign: begin slots from bookmarks, but for those that are read already.

        A program that does so is asked for each further slot of these partitions.

        Raises:
            UsageError: a slot is not this member's.
        """
        # First: a program that keeps bookmarks is asked again where this call of on_assign raises.
        self._membership.callbacks.by_slot |= {PhysicalPartition(t, number) for t, number, _ in names}
        wanted = set(map(tuple, names))  # a name may come out of JSON, as a list
        for topic, number, index in wanted - {_name_of(h.slot) for h in self._slots}:
            raise UsageError(f"slot {index} of {topic}/{number} is not this member's; nothing was changed")
        found = [h for h in self._slots.on((SlotStage.FOUND,)) if _name_of(h.slot) in wanted]
        self._begin_by(bookmarks, found)

    def _begin_by(self, bookmarks: Sequence[Bookmark], assigned_slots: Iterable[AssignedSlot]) -> None:
        for assigned in assigned_slots:
            state = partial(self._slots.metadata.state, assigned.parent)
            now = state(left=not assigned.mode.plain)
            known = [restated(b, now, state(left=True)) for b in bookmarks if b.parent == assigned.parent]
            saved = (c for bookmark in known for c in bookmark.cursors)
            assigned.saved = tuple(c for c in saved if c.range.overlaps(assigned.slot.range))
            if assigned.saved:
                assigned.begin_by_bookmarks(now.lineage)

    def subscribe(self, names: Sequence[str]) -> None:
        """Take a new subscription; an empty one is none."""
        if names and not self._subscribing.is_wanted():
            self._refuse_both((h.parent.topic for h in self._slots if h.by_hand), "unassign()")
        self._subscribing.subscribe(names)

    def _refuse_both(self, topics: Iterable[str], first: str) -> None:
        """Refuse to read enrolled topics by hand beside a group's slots.

        As a member's, commits would overwrite those of the slots' owners; as nobody's they are refused.

        Raises:
            KafkaException: an enrolled topic is among these.
        """
        for topic in topics:
            if not self._slots.metadata.subscribed(topic).mode.plain:
                raise KafkaException(KafkaError(KafkaError._STATE, _NOT_BOTH.format(topic, first)))

    def assign_holdings(self, new: list[AssignedSlot], *, more: bool) -> None:
        if not more:
            self.let_go(list(self._slots))
        self._membership.hold(new)

    def unassign(self, parts: Iterable[TopicPartition]) -> None:
        """Let logical partitions go that were assigned by hand."""
        gone = {PhysicalPartition(p.topic, p.partition) for p in parts}
        self.let_go([h for h in self._slots if h.parent in gone])

    def let_go(self, assigned_slots: list[AssignedSlot]) -> None:
        """Hand slots over without a callback."""
        self._membership.hand_over(assigned_slots, call_back=False)
        if not len(self._slots):
            self._membership.left()


class OffsetQueries:
    """Questions about logical partitions that brokers have to answer; run in the executor's thread."""

    def __init__(self, group_offsets: GroupOffsets, query_client: QueryClient) -> None:
        self._group_offsets = group_offsets
        self._query_client = query_client

    def committed(self, wanted: Sequence[StartRequest], seconds: float) -> list[tuple[int, str | None]]:
        """Return the group's committed logical offset per partition: everything below it is processed.

        With it the metadata of the ordinary commit, where that is all there is.
        """
        found: list[tuple[int, str | None]] = []
        for asked, pieces in zip(wanted, self._group_offsets.committed(wanted), strict=True):
            known, metadata = [c for _, c in pieces if c is not None], None
            if len(known) < len(pieces):
                parts = self._query_client.committed_parts(asked.lineage.sources(), seconds)
                if asked.mode.plain and parts:
                    metadata = parts[asked.lineage.parent].metadata
                if ordinary := asked.own({place: part.offset for place, part in parts.items()}):
                    cursor = Cursor.from_positions(asked.lineage, WHOLE, ordinary)
                    known += [cursor.narrowed(r) for r, c in pieces if c is None]
            offset = logical_position(asked.lineage, known) if known else OFFSET_INVALID
            found.append((offset, metadata))
        return found

    def cursor_at(self, wanted: StartRequest, offset: int) -> Cursor | None:
        """Return a whole partition's cursor for an offset that an application gave; None: as committed."""
        if offset == OFFSET_BEGINNING:
            return self._group_offsets.reset(wanted, "earliest")
        if offset == OFFSET_END:
            return self._group_offsets.reset(wanted, "latest")
        if offset < 0:
            return None
        ends = self._group_offsets.ends(wanted.lineage)
        return Cursor.from_logical(wanted.lineage, WHOLE, offset, ends)

    def watermarks(self, lineage: Lineage, seconds: float) -> tuple[int, int]:
        """Return the least logical offset that can be read, and one more than the greatest."""
        lows = self._group_offsets.admin.start_offsets(lineage.sources(), seconds)
        ends = self._group_offsets.ends(lineage)
        high = max([lineage.next_logical(), *(_after(lineage.get(i), end) for i, end in ends.items())])
        left = [
            segment.logical(first)
            for segment in lineage
            if segment.source in lows
            and (first := max(segment.start, lows[segment.source]))
            < ends.get(segment.id, segment.end or first)
        ]
        return min(left, default=high), high

    def at_times(self, lineage: Lineage, milliseconds: int, seconds: float) -> int:
        """Return the least logical offset of records that are not older; OFFSET_END if there is none."""
        offsets = self._query_client.first_at(lineage.sources(), milliseconds, seconds)
        return min(_first_numbers(lineage, offsets), default=OFFSET_END)


def left_to_read(lineage: Lineage, cursors: Iterable[Cursor]) -> dict[PhysicalPartition, int]:
    """Return the least next offset of cursors, for every physical partition that they have not left."""
    found: dict[PhysicalPartition, int] = {}
    for cursor in cursors:
        for id_, next_ in cursor.pending(lineage).items():
            source = lineage.get(id_).source
            found[source] = min(next_, found.get(source, next_))
    return found


def _first_numbers(lineage: Lineage, offsets: Mapping[PhysicalPartition, int]) -> list[int]:
    return [
        segment.logical(max(segment.start, offsets[segment.source]))
        for segment in lineage
        if segment.source in offsets and (segment.end is None or offsets[segment.source] < segment.end)
    ]


def _after(segment: Segment, end: int) -> int:
    return segment.logical(end - 1) + 1 if end > segment.start else 0


def _name_of(slot: OwnedSlot) -> SlotName:
    return slot.parent.topic, slot.parent.partition, slot.index


def with_offsets(parts: Sequence[TopicPartition], offsets: Sequence[int]) -> list[TopicPartition]:
    return [TopicPartition(p.topic, p.partition, offset) for p, offset in zip(parts, offsets, strict=True)]
