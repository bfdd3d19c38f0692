"""Which record is worked on next: lanes (protocol, section 10). Pure; ``work_queue`` is the shell.

A *lane* is a key range inside one slot. Its records are worked on one at a time, in the order in which they
were read, so each key keeps its order; different lanes are worked on at the same time. There are several for
each worker, so that an idle worker finds one although others are busy, slow or failed. The lane whose next
record was read first is given out first: all advance together, and little is read again after a crash.

The life of a lane::

    IDLE ── a record comes ──▶ READY ── next() ──▶ BUSY ── done() ──▶ READY or IDLE
                                 ▲                   ├── park() ──▶ PARKED ── unpark() ──▶ READY
                                 └──── give_back() ──┘
                                                     └── stop() ──▶ STOPPED, for good

Each lane has a position of its own per segment: the first record of the lane that is not processed, or, where
none waits, the *frontier*, up to which the segment was read. A slow or failing key holds back its lane only.

A slot that leaves while a record of it is being worked on becomes a *revoked queue*. If its keys come back,
nothing of them is given out before that is done.

Outputs of processed records wait in the outbox for the transaction that commits these records. The place of
a record and what a transaction commits decide which go into it, and nothing else: when a commit was put
together, what was processed since, how often it was tried does not matter; no lane waits for another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from kpsplit.consumer.commit.writes import CommitCoverage, Processed, RecordPlace
from kpsplit.consumer.fetch.batch import MESSAGE_BYTES, Batch, header_bytes, message_hash
from kpsplit.errors import InvariantError
from kpsplit.kafka.logical_message import physical_offset
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import WHOLE, KeyRange, key_hash
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import Cursor

if TYPE_CHECKING:
    from kpsplit.consumer.run.handlers import Output


class LaneState(Enum):
    IDLE = "idle"
    READY = "ready"
    BUSY = "busy"
    PARKED = "parked"
    """Its next record failed and will be tried again later."""
    STOPPED = "stopped"
    """Its next record failed for good; nothing after it may be processed."""
    DIVIDED = "divided"
    """Other lanes took its place."""


# Looked at for every record: an enumeration's members are slow to reach.
IDLE, READY, BUSY = LaneState.IDLE, LaneState.READY, LaneState.BUSY

AHEAD_BYTES = 1 << 20
"""At least so much is read ahead: some 2,000 small records."""


class LaneEntry(NamedTuple):
    """A waiting record. ``number`` counts all records as they come; ``size`` is in bytes."""

    number: int
    hash: int
    segment: int
    message: Any
    size: int

    @property
    def place(self) -> RecordPlace:
        return RecordPlace(self.hash, self.segment, physical_offset(self.message))


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
        self.attempt: Any = nullcontext()
        """What is around the call of the handler that works on the record."""

    @property
    def record(self) -> Any:
        return self.queue[0].message

    def append(self, entry: LaneEntry) -> None:
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
        entry = self.queue.popleft()
        self.bytes -= entry.size
        self.pending[entry.segment] -= 1
        if not self.pending[entry.segment]:
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

    __slots__ = ("busy", "frontier", "gone", "lanes", "paused", "released", "slot", "waits_for")

    def __init__(self, slot: OwnedSlot, frontier: Mapping[int, int]) -> None:
        self.slot = slot
        self.frontier = dict(frontier)
        """Per segment, up to where it was read for this slot."""
        self.lanes: list[Lane] = []
        self.busy = 0
        self.released = self.gone = self.paused = False
        self.waits_for: set[SlotQueue] = set()

    @property
    def open(self) -> bool:
        return not (self.released or self.waits_for or self.gone or self.paused)


Table = tuple[list[int], list[int], list[Lane]]
"""The lanes of one logical partition and the bounds of their ranges, in order: to find one by a key hash."""


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
        same = (queue for queue in self._revoked_queues if queue.slot.parent == slot.parent)
        slot_queue.waits_for = {queue for queue in same if queue.slot.range.overlaps(slot.range)}
        self._slot_queues[slot] = slot_queue
        self._tables.pop(slot.parent, None)
        return left

    def release(self, slots: Iterable[OwnedSlot]) -> bool:
        """Give out nothing more of slots; True when nothing of them is being worked on."""
        slot_queues = [self._slot_queues[slot] for slot in slots if slot in self._slot_queues]
        for slot_queue in slot_queues:
            slot_queue.released = True
        return not any(slot_queue.busy or slot_queue.waits_for for slot_queue in slot_queues)

    def pause(self, parents: Collection[PhysicalPartition], *, paused: bool) -> int:
        """Give out nothing of logical partitions, or go on; return how many lanes became ready."""
        chosen = [queue for queue in self._slot_queues.values() if queue.slot.parent in parents]
        for slot_queue in chosen:
            slot_queue.paused = paused
        self._ready = [entry for entry in self._ready if entry[2].slot_queue not in chosen]
        heapify(self._ready)
        return sum(self._ready_again(lane) for q in chosen for lane in q.lanes if lane.state is READY)

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
        staying = [queue for queue in self._slot_queues.values() if not queue.released]
        return {queue.slot: Cursor(queue.slot.range, dict(queue.frontier)) for queue in staying}

    def prepare(self, parent: PhysicalPartition) -> None:
        """Make lanes where there are too few for the number of slots owned now; before ``divide``."""
        each = -(-self._wanted // max(1, len(self._slot_queues)))
        slot_queues = [queue for queue in self._slot_queues.values() if queue.slot.parent == parent]
        for queue in slot_queues:
            if len(queue.lanes) < each:
                self._more_lanes(queue, -(-each // len(queue.lanes)))
        if parent not in self._tables:
            lanes = [lane for queue in slot_queues for lane in queue.lanes]
            lanes.sort(key=lambda lane: lane.range)
            self._tables[parent] = ([x.range.lo for x in lanes], [x.range.hi for x in lanes], lanes)

    def divide(self, batch: Batch) -> dict[Lane, list[LaneEntry]]:
        """Return a batch's records by lane; counts them, and makes their headers readable."""
        lows, highs, lanes = self._tables[batch.parent]
        segment, number = batch.segment, self._numbers
        plain = segment.range == WHOLE
        parts: dict[Lane, list[LaneEntry]] = {}
        for message in batch.messages:
            key = message.key()
            hash_ = key_hash(key) if plain and key is not None else message_hash(message, segment)
            index = bisect_right(lows, hash_) - 1
            if index >= 0 and hash_ < highs[index]:
                size = len(message) + len(key or b"") + header_bytes(message) + MESSAGE_BYTES
                entry = LaneEntry(next(number), hash_, segment.id, message, size)
                parts.setdefault(lanes[index], []).append(entry)
        return parts

    def add(self, batch: Batch, parts: dict[Lane, list[LaneEntry]]) -> int:
        """Take a batch's records; return how many lanes became ready. All of them, or none if it raises."""
        queues = [queue for queue in map(self._slot_queues.get, batch.slots) if queue is not None]
        before = [(queue, dict(queue.frontier)) for queue in queues]
        try:
            return self._add(batch, parts, queues)
        except BaseException:
            for queue, frontier in before:
                queue.frontier = frontier
            for lane, entries in parts.items():
                lane.without(entries)
                if lane.bytes <= self._lane_bytes:  # else an empty lane would keep its range from being read
                    self.backpressured.discard(lane)
            raise

    def _add(self, batch: Batch, parts: dict[Lane, list[LaneEntry]], slot_queues: Iterable[SlotQueue]) -> int:
        became_ready = 0
        for lane, entries in parts.items():
            for entry in entries:
                lane.append(entry)
            self.waiting_bytes += sum(entry.size for entry in entries)
            if lane.bytes > self._lane_bytes:
                self.backpressured.add(lane)
            if lane.state is IDLE:
                became_ready += self._ready_again(lane)
        for slot_queue in slot_queues:
            known = slot_queue.frontier.get(batch.segment.id, batch.end)
            slot_queue.frontier[batch.segment.id] = max(known, batch.end)
        return became_ready

    @property
    def supplied(self) -> bool:
        """Whether half of the lanes wait for workers. To read on would only take processor time from them."""
        return self.waiting_bytes >= AHEAD_BYTES and len(self._ready) * 2 >= self._wanted

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
        """Give out the oldest lane of a logical partition; None if none can be worked on."""
        waiting = [lane for lane in self.lanes() if lane.queue and lane.slot_queue.open]
        waiting.sort(key=lambda lane: lane.queue[0].number, reverse=True)
        oldest = {lane.slot_queue.slot.parent: lane for lane in waiting}
        for lane in oldest.values():
            if lane.state is READY:
                self._ready = [entry for entry in self._ready if entry[2] is not lane]
                heapify(self._ready)
                return _given_out(lane)
        return None

    def done(self, lane: Lane) -> int:
        """The lane's record was processed; return how many lanes became ready."""
        if self._let_go(lane):
            entry = lane.pop()
            self.waiting_bytes -= entry.size
            if lane.bytes <= self._lane_bytes // 2:
                self.backpressured.discard(lane)
            lane.state = IDLE
            return self._ready_again(lane)
        return self._let_go_of_revoked(lane.slot_queue)

    def give_back(self, lane: Lane) -> int:
        """The lane's record was not processed and can be given out again; return how many became ready."""
        return self._ready_again(lane) if self._let_go(lane) else self._let_go_of_revoked(lane.slot_queue)

    def park(self, lane: Lane) -> int:
        """The lane's record failed and is tried again later; return how many other lanes became ready."""
        return self._rests(lane, LaneState.PARKED)

    def unpark(self, lane: Lane) -> int:
        """The time has come to try a parked lane again; return how many lanes became ready."""
        gone = lane.slot_queue.gone or lane.state is not LaneState.PARKED
        return 0 if gone else self._ready_again(lane)

    def stop(self, lane: Lane) -> int:
        """The lane's record failed for good; return how many other lanes became ready."""
        return self._rests(lane, LaneState.STOPPED)

    # -- how far everything is -----------------------------------------------------------------------

    def cursor(self, slot: OwnedSlot) -> list[Cursor]:
        """Return how far a slot is processed: pieces that tile its range, neighbours that agree as one."""
        pieces: list[Cursor] = []
        for lane in self._slot_queues[slot].lanes:
            lo, positions = lane.range.lo, lane.positions()
            if pieces and pieces[-1].positions == positions:
                lo = pieces.pop().range.lo
            pieces.append(Cursor(KeyRange(lo, lane.range.hi), positions))
        return pieces

    def lanes(self) -> Iterator[Lane]:
        return (lane for slot_queue in self._slot_queues.values() for lane in slot_queue.lanes)

    def _rests(self, lane: Lane, state: LaneState) -> int:
        lane.state = state
        return 0 if self._let_go(lane) else self._let_go_of_revoked(lane.slot_queue)

    def _let_go(self, lane: Lane) -> bool:
        """Count that nobody works on a lane any more; return whether its slot is still here."""
        if not lane.slot_queue.busy:
            raise InvariantError("a lane was given back that nobody works on")
        lane.slot_queue.busy -= 1
        return not lane.slot_queue.gone

    def _let_go_of_revoked(self, revoked: SlotQueue) -> int:
        if revoked.busy:
            return 0
        self._revoked_queues.discard(revoked)
        waiting = [queue for queue in self._slot_queues.values() if revoked in queue.waits_for]
        for queue in waiting:
            queue.waits_for.discard(revoked)
        return sum(self._ready_again(lane) for q in waiting for lane in q.lanes if lane.state is READY)

    def _ready_again(self, lane: Lane) -> int:
        """Queue a lane if it has records; 1 if a worker can take it now."""
        if lane.queue:
            lane.state = READY
            if lane.slot_queue.open:
                heappush(self._ready, (lane.queue[0].number, lane.serial, lane))
                return 1
        return 0

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
            slot_queue.lanes = [x for lane in lanes for x in divided.get(lane, (IDLE, [lane]))[1]]
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
        parts = [Lane(next(self._serials), lane.slot_queue, r) for r in lane.range.split_evenly(factor)]
        lows = [part.range.lo for part in parts]
        if lane.queue:  # the attempts of its first record go with that
            parts[bisect_right(lows, lane.queue[0].hash) - 1].memory = lane.memory
        for entry in lane.queue:
            parts[bisect_right(lows, entry.hash) - 1].append(entry)
        return parts


def _given_out(lane: Lane) -> Lane:
    lane.state = BUSY
    lane.slot_queue.busy += 1
    return lane


class Kept(NamedTuple):
    """What the record at a place gave."""

    slot_queue: SlotQueue
    place: RecordPlace
    outputs: tuple[Output, ...]
    size: int


Transfer = tuple[Kept, ...]
"""What goes into one transaction, in an order that keeps that of every lane."""


class Outbox:
    """Outputs of processed records until a transaction commits these. ``room``: bytes. Not thread safe."""

    def __init__(self, room: int) -> None:
        self.bytes = 0
        self._room = room
        self._kept: dict[SlotQueue, dict[RecordPlace, Kept]] = {}

    @property
    def full(self) -> bool:
        """Return whether nothing more may be processed before a commit."""
        return self.bytes >= self._room

    @property
    def wants_commit(self) -> bool:
        """Return whether a commit should not wait for its time: half of the room is taken."""
        return self.bytes >= self._room // 2

    def add(self, slot_queue: SlotQueue, entry: LaneEntry, outputs: tuple[Output, ...]) -> None:
        kept = Kept(slot_queue, entry.place, outputs, sum(output.size for output in outputs))
        self._kept.setdefault(slot_queue, {})[kept.place] = kept
        self.bytes += kept.size

    def forget(self, slot_queue: SlotQueue) -> None:
        """A slot has left: its next owner processes its records again, from the committed cursor."""
        self.bytes -= sum(kept.size for kept in self._kept.pop(slot_queue, {}).values())

    def keeps(self, slot: OwnedSlot) -> bool:
        return any(slot_queue.slot == slot for slot_queue in self._kept)

    def covered(self, processed: Sequence[Processed]) -> Transfer:
        """Return the outputs of the records that a commit calls processed."""
        covers = {p.parent: CommitCoverage(p) for p in processed}
        return tuple(
            kept
            for slot_queue, found in self._kept.items()
            if slot_queue.slot.parent in covers
            for kept in found.values()
            if covers[slot_queue.slot.parent].holds(kept.place)
        )

    def committed(self, transfer: Transfer) -> None:
        for kept in transfer:
            found = self._kept.get(kept.slot_queue)
            if found is not None and found.pop(kept.place, None) is not None:
                self.bytes -= kept.size
                if not found:
                    del self._kept[kept.slot_queue]
