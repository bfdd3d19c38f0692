"""Which record is worked on next: lanes, pure (protocol, section 10).

A *lane* is a key range inside one slot. Its records are worked on one at a time, in the order in which they
were read, so each key keeps its order; different lanes are worked on at the same time. There are several
lanes for each worker, so that an idle worker finds one although others are busy, slow or failed. The lane
whose next record was read first is given out first: all lanes advance together through the log, none is left
behind, and what must be read again after a crash is little.

The life of a lane::

    IDLE ── a record comes ──▶ READY ── next() ──▶ BUSY ── done() ──▶ READY or IDLE
                                 ▲                   ├── park() ──▶ PARKED ── unpark() ──▶ READY
                                 └──── give_back() ──┘
                                                     └── stop() ──▶ STOPPED, for good

Each lane has a position of its own per segment: the first record of the lane that is not processed, or, where
none waits, the *frontier*, up to which the segment was read. A slow or failing key holds back its lane and no
other.

A slot that leaves while a record of it is being worked on becomes a *revoked queue*. If its keys come back (a
seek, or the slot itself), nothing of them is given out before that is done.

No locks, threads, clocks here: ``work_queue`` is the shell.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from kpsplit.consumer.commit.writes import RecordPlace
from kpsplit.consumer.fetch.batch import MESSAGE_BYTES, Batch, header_bytes, message_hash
from kpsplit.errors import InvariantError
from kpsplit.kafka.logical_message import physical_offset
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import WHOLE, KeyRange, key_hash
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import Cursor


class LaneState(Enum):
    """What a lane is doing."""

    IDLE = "idle"
    READY = "ready"
    BUSY = "busy"
    PARKED = "parked"
    """Its next record failed and will be tried again later."""
    STOPPED = "stopped"
    """Its next record failed for good; nothing after it may be processed."""
    DIVIDED = "divided"
    """Other lanes took its place."""


IDLE, READY, BUSY = LaneState.IDLE, LaneState.READY, LaneState.BUSY
"""Looked at for every record: an enumeration's members are slow to reach."""


class LaneEntry(NamedTuple):
    """A waiting record. ``number`` counts all records as they come; ``size`` is in bytes."""

    number: int
    hash: int
    segment: int
    message: Any
    size: int

    @property
    def place(self) -> RecordPlace:
        """Where the record stands in its logical partition."""
        return RecordPlace(self.hash, self.segment, physical_offset(self.message))


NO_ATTEMPT: AbstractContextManager[None] = nullcontext()
"""Around the call of a handler that keeps no state."""


class Lane:
    """One key range of a slot, and the records of it that wait."""

    __slots__ = ("attempt", "bytes", "memory", "pending", "queue", "range", "serial", "slot_queue", "state")

    def __init__(self, serial: int, slot_queue: SlotQueue, range_: KeyRange) -> None:
        self.serial = serial
        self.slot_queue = slot_queue
        self.range = range_
        self.queue: deque[LaneEntry] = deque()
        self.pending: dict[int, int] = {}
        """How many records wait, by segment."""
        self.bytes = 0
        self.state = IDLE
        self.memory: Any = None
        """What the policy remembers of the next record's failures."""
        self.attempt: Any = NO_ATTEMPT
        """What is around the call of the handler that works on the record."""

    @property
    def record(self) -> Any:
        """The record that is next, or being worked on."""
        return self.queue[0].message

    def append(self, entry: LaneEntry) -> None:
        """Take one more record."""
        self.queue.append(entry)
        self.pending[entry.segment] = self.pending.get(entry.segment, 0) + 1
        self.bytes += entry.size

    def without(self, entries: Sequence[LaneEntry]) -> None:
        """Forget the records of a batch that was taken halfway; nobody works on them."""
        while self.queue and self.queue[-1].number >= entries[0].number:
            self.queue.pop()
        self.bytes = sum(entry.size for entry in self.queue)
        self.pending = dict(Counter(entry.segment for entry in self.queue))
        if not self.queue and self.state is READY:
            self.state = IDLE

    def pop(self) -> LaneEntry:
        """Forget the first record: it was processed."""
        entry = self.queue.popleft()
        self.bytes -= entry.size
        if self.pending[entry.segment] > 1:
            self.pending[entry.segment] -= 1
        else:
            del self.pending[entry.segment]
        self.memory = None
        return entry

    def positions(self) -> dict[int, int]:
        """Return, per segment, the offset before which everything of the lane is processed."""
        positions = dict(self.slot_queue.frontier)
        missing = set(self.pending)
        for entry in self.queue:
            if not missing:
                break
            if entry.segment in missing:
                positions[entry.segment] = physical_offset(entry.message)
                missing.discard(entry.segment)
        return positions


class SlotQueue:
    """One slot and its lanes, from its arrival until it leaves."""

    __slots__ = ("busy", "frontier", "gone", "lanes", "released", "slot", "waits_for")

    def __init__(self, slot: OwnedSlot, frontier: Mapping[int, int]) -> None:
        self.slot = slot
        self.frontier = dict(frontier)
        """Per segment, up to where it was read for this slot."""
        self.lanes: list[Lane] = []
        self.busy = 0
        self.released = False
        self.gone = False
        self.waits_for: set[SlotQueue] = set()

    @property
    def open(self) -> bool:
        """Return whether records may be given out."""
        return not (self.released or self.waits_for or self.gone)


class Table(NamedTuple):
    """The lanes of one logical partition in the order of their ranges, for finding one by a key hash."""

    lows: list[int]
    highs: list[int]
    lanes: list[Lane]


Parts = dict[Lane, list[LaneEntry]]
"""The records of a batch by lane."""


class LaneScheduler:
    """Divides records among lanes and gives lanes to workers. Not thread safe.

    Args:
        wanted: how many lanes there should be at least, over all slots.
        lane_bytes: a lane with more bytes waiting is ``backpressured``, until half of them are worked off;
            nothing more should be read for it meanwhile.
    """

    def __init__(self, wanted: int, lane_bytes: int) -> None:
        self.waiting_bytes = 0
        self.backpressured: set[Lane] = set()
        self._wanted = wanted
        self._lane_bytes = lane_bytes
        self._slot_queues: dict[OwnedSlot, SlotQueue] = {}
        self._revoked_queues: set[SlotQueue] = set()
        self._tables: dict[PhysicalPartition, Table] = {}
        self._ready: list[tuple[int, int, Lane]] = []
        self._numbers = count()
        self._serials = count()

    # -- slots come and go ---------------------------------------------------------------------------

    def taken(self, slot: OwnedSlot, cursor: Cursor) -> list[SlotQueue]:
        """A slot arrives, or starts anew, at a cursor; return what it was before, as ``dropped`` does."""
        left = self.dropped([slot])
        slot_queue = SlotQueue(slot, cursor.positions)
        slot_queue.lanes = [Lane(next(self._serials), slot_queue, slot.range)]
        slot_queue.waits_for = {o for o in self._revoked_queues if _share_keys(o.slot, slot)}
        self._slot_queues[slot] = slot_queue
        self._tables.pop(slot.parent, None)
        return left

    def release(self, slots: Iterable[OwnedSlot]) -> bool:
        """Give out nothing more of slots; True when nothing of them is being worked on."""
        slot_queues = [self._slot_queues[slot] for slot in slots if slot in self._slot_queues]
        for slot_queue in slot_queues:
            slot_queue.released = True
        return not any(slot_queue.busy or slot_queue.waits_for for slot_queue in slot_queues)

    def dropped(self, slots: Iterable[OwnedSlot]) -> list[SlotQueue]:
        """Forget slots and their records; what is worked on becomes a revoked queue. Return what has gone."""
        left = [self._slot_queues[slot] for slot in slots if slot in self._slot_queues]
        for slot_queue in left:
            slot_queue.gone = True
            if slot_queue.busy:
                self._revoked_queues.add(slot_queue)
            self._tables.pop(slot_queue.slot.parent, None)
            self._slot_queues.pop(slot_queue.slot, None)
            for lane in slot_queue.lanes:
                self.waiting_bytes -= lane.bytes
                self.backpressured.discard(lane)
        return left

    def places(self) -> dict[OwnedSlot, Cursor]:
        """Return from where each slot that is not released has to be read on; counts the bytes anew."""
        self.waiting_bytes = sum(lane.bytes for lane in self.lanes())
        slot_queues = [slot_queue for slot_queue in self._slot_queues.values() if not slot_queue.released]
        return {
            slot_queue.slot: Cursor(slot_queue.slot.range, dict(slot_queue.frontier))
            for slot_queue in slot_queues
        }

    def slots(self) -> tuple[OwnedSlot, ...]:
        """Return the slots that are owned."""
        return tuple(self._slot_queues)

    # -- records come --------------------------------------------------------------------------------

    def prepare(self, parent: PhysicalPartition) -> None:
        """Make lanes where there are too few for the number of slots owned now; before ``divide``."""
        each = -(-self._wanted // max(1, len(self._slot_queues)))
        slot_queues = [
            slot_queue for slot_queue in self._slot_queues.values() if slot_queue.slot.parent == parent
        ]
        for slot_queue in slot_queues:
            if len(slot_queue.lanes) < each:
                self._more_lanes(slot_queue, -(-each // len(slot_queue.lanes)))
        if parent not in self._tables:
            lanes = sorted(
                (lane for slot_queue in slot_queues for lane in slot_queue.lanes), key=lambda lane: lane.range
            )
            self._tables[parent] = Table([x.range.lo for x in lanes], [x.range.hi for x in lanes], lanes)

    def divide(self, batch: Batch) -> Parts:
        """Return a batch's records by lane; changes nothing but the count of records."""
        lows, highs, lanes = self._tables[batch.parent]
        segment, number = batch.segment, self._numbers
        plain = segment.range == WHOLE
        parts: Parts = {}
        for message in batch.messages:
            key = message.key()
            hash_ = key_hash(key) if plain and key is not None else message_hash(message, segment)
            index = bisect_right(lows, hash_) - 1
            if index >= 0 and hash_ < highs[index]:
                size = len(message) + len(key or b"") + header_bytes(message) + MESSAGE_BYTES
                entry = LaneEntry(next(number), hash_, segment.id, message, size)
                parts.setdefault(lanes[index], []).append(entry)
        return parts

    def add(self, batch: Batch, parts: Parts) -> int:
        """Take a batch's records; return how many lanes became ready. All of them, or none if it raises."""
        slot_queues = [
            slot_queue for slot_queue in map(self._slot_queues.get, batch.slots) if slot_queue is not None
        ]
        before = [(slot_queue, slot_queue.frontier.get(batch.segment.id)) for slot_queue in slot_queues]
        try:
            return self._add(batch, parts)
        except BaseException:
            for slot_queue, frontier in before:
                slot_queue.frontier.pop(batch.segment.id, None)
                if frontier is not None:
                    slot_queue.frontier[batch.segment.id] = frontier
            for lane, entries in parts.items():
                lane.without(entries)
            raise

    def _add(self, batch: Batch, parts: Parts) -> int:
        became_ready = 0
        for lane, entries in parts.items():
            for entry in entries:
                lane.append(entry)
            size = sum(entry.size for entry in entries)
            self.waiting_bytes += size
            if lane.bytes > self._lane_bytes:
                self.backpressured.add(lane)
            if lane.state is IDLE:
                became_ready += self._ready_again(lane)
        self._advance(batch)
        return became_ready

    def offer(self, batch: Batch) -> int:
        """Do ``prepare``, ``divide`` and ``add`` at once."""
        self.prepare(batch.parent)
        return self.add(batch, self.divide(batch))

    def backpressured_ranges(self) -> dict[PhysicalPartition, frozenset[KeyRange]]:
        """Return the key ranges of the backpressured lanes of slots that stay, by logical partition."""
        staying = [lane for lane in self.backpressured if not lane.slot_queue.released]
        return {
            parent: frozenset(lane.range for lane in staying if lane.slot_queue.slot.parent == parent)
            for parent in {lane.slot_queue.slot.parent for lane in staying}
        }

    # -- workers -------------------------------------------------------------------------------------

    def next(self) -> Lane | None:
        """Give out the lane whose next record was read first; None if nothing can be worked on now."""
        while self._ready:
            lane = heappop(self._ready)[2]
            if lane.state is READY and lane.slot_queue.open:
                return _given_out(lane)
        return None

    def next_oldest(self) -> Lane | None:
        """Give out a lane that no other of its logical partition is behind; None if none can be worked on."""
        oldest: dict[PhysicalPartition, Lane] = {}
        for lane in self.lanes():
            if lane.queue and lane.slot_queue.open:
                known = oldest.setdefault(lane.slot_queue.slot.parent, lane)
                if lane.queue[0].number < known.queue[0].number:
                    oldest[lane.slot_queue.slot.parent] = lane
        for lane in oldest.values():
            if lane.state is READY:
                self._ready = [entry for entry in self._ready if entry[2] is not lane]
                heapify(self._ready)
                return _given_out(lane)
        return None

    def done(self, lane: Lane) -> int:
        """The lane's record was processed; return how many lanes became ready."""
        if self._let_go(lane):
            return self._let_go_of_revoked(lane.slot_queue)
        entry = lane.pop()
        self.waiting_bytes -= entry.size
        if lane.bytes <= self._lane_bytes // 2:
            self.backpressured.discard(lane)
        lane.state = IDLE
        return self._ready_again(lane)

    def give_back(self, lane: Lane) -> int:
        """The lane's record was not processed and can be given out again; return how many became ready."""
        if self._let_go(lane):
            return self._let_go_of_revoked(lane.slot_queue)
        return self._ready_again(lane)

    def park(self, lane: Lane) -> int:
        """The lane's record failed and is tried again later; return how many other lanes became ready."""
        lane.state = LaneState.PARKED
        return self._let_go_of_revoked(lane.slot_queue) if self._let_go(lane) else 0

    def unpark(self, lane: Lane) -> int:
        """The time has come to try a parked lane again; return how many lanes became ready."""
        gone = lane.slot_queue.gone or lane.state is not LaneState.PARKED
        return 0 if gone else self._ready_again(lane)

    def stop(self, lane: Lane) -> int:
        """The lane's record failed for good; return how many other lanes became ready."""
        lane.state = LaneState.STOPPED
        return self._let_go_of_revoked(lane.slot_queue) if self._let_go(lane) else 0

    # -- how far everything is -----------------------------------------------------------------------

    def cursor(self, slot: OwnedSlot) -> list[Cursor]:
        """Return how far a slot is processed: pieces that tile its range, neighbours that agree as one."""
        pieces: list[Cursor] = []
        for lane in self._slot_queues[slot].lanes:
            positions = lane.positions()
            if pieces and pieces[-1].positions == positions:
                pieces[-1] = Cursor(KeyRange(pieces[-1].range.lo, lane.range.hi), positions)
            else:
                pieces.append(Cursor(lane.range, positions))
        return pieces

    def lanes(self) -> Iterator[Lane]:
        """Return the lanes of all slots."""
        return (lane for slot_queue in self._slot_queues.values() for lane in slot_queue.lanes)

    # -- inside --------------------------------------------------------------------------------------

    def _let_go(self, lane: Lane) -> bool:
        """Count that nobody works on a lane any more; tell whether its slot has left meanwhile."""
        if not lane.slot_queue.busy:
            raise InvariantError("a lane was given back that nobody works on")
        lane.slot_queue.busy -= 1
        return lane.slot_queue.gone

    def _let_go_of_revoked(self, revoked_queue: SlotQueue) -> int:
        if revoked_queue.busy:
            return 0
        self._revoked_queues.discard(revoked_queue)
        became_ready = 0
        for slot_queue in self._slot_queues.values():
            if revoked_queue in slot_queue.waits_for:
                slot_queue.waits_for.discard(revoked_queue)
                if not slot_queue.waits_for:
                    ready = (lane for lane in slot_queue.lanes if lane.state is READY)
                    became_ready += sum(map(self._ready_again, ready))
        return became_ready

    def _ready_again(self, lane: Lane) -> int:
        """Queue a lane if it has records; 1 if a worker can take it now."""
        if not lane.queue:
            return 0
        lane.state = READY
        if not lane.slot_queue.open:
            return 0
        heappush(self._ready, (lane.queue[0].number, lane.serial, lane))
        return 1

    def _advance(self, batch: Batch) -> None:
        for slot in batch.slots:
            slot_queue = self._slot_queues.get(slot)
            if slot_queue is not None:
                known = slot_queue.frontier.get(batch.segment.id, batch.end)
                slot_queue.frontier[batch.segment.id] = max(known, batch.end)

    def _more_lanes(self, slot_queue: SlotQueue, factor: int) -> None:
        """Divide each lane of a slot that nobody works on and that has not failed; none if it raises."""
        divided = {
            lane: (lane.state, self._divided(lane, factor))
            for lane in slot_queue.lanes
            if lane.state in (IDLE, READY) and lane.range.width >= factor
        }
        lanes = slot_queue.lanes
        self._tables.pop(slot_queue.slot.parent, None)
        try:
            slot_queue.lanes = [
                p for lane in lanes for p in (divided[lane][1] if lane in divided else [lane])
            ]
            for lane, (_, parts) in divided.items():
                self.backpressured.discard(lane)
                lane.state = LaneState.DIVIDED
                for part in parts:
                    self._ready_again(part)
        except BaseException:
            slot_queue.lanes = lanes
            for lane, (state, parts) in divided.items():
                lane.state = state
                for part in parts:
                    part.state = LaneState.DIVIDED
            raise

    def _divided(self, lane: Lane, factor: int) -> list[Lane]:
        ranges = lane.range.split_evenly(factor)
        parts = [Lane(next(self._serials), lane.slot_queue, range_) for range_ in ranges]
        lows = [range_.lo for range_ in ranges]
        for entry in lane.queue:
            parts[bisect_right(lows, entry.hash) - 1].append(entry)
        return parts


def _given_out(lane: Lane) -> Lane:
    lane.state = BUSY
    lane.slot_queue.busy += 1
    return lane


def _share_keys(one: OwnedSlot, other: OwnedSlot) -> bool:
    return one.parent == other.parent and one.range.overlaps(other.range)
