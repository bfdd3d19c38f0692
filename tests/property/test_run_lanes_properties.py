"""Lanes under random lineages, records, interleavings of workers, failures and departures of slots.

Invariants: the order of each key; one record of a key at a time; a position never passes a record that was
not processed (7); nothing of a segment is worked on before its predecessors are done for that key (6); what
failed for good holds up its own lane only; in the end all else was processed, without departures once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kpsplit.consumer.commit.writes import least
from kpsplit.consumer.fetch.batch import Batch, message_hash
from kpsplit.consumer.run.lanes import Lane, LaneState
from kpsplit.consumer.slots.assigned import PieceProgress
from kpsplit.kafka.logical_message import physical_offset
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import Lineage, Segment
from kpsplit.splitter.reading import Cursor
from tests.property.strategies import histories
from tests.unit.lane_samples import PARENT, Lanes, record

KEYS = [b"key-%d" % i for i in range(24)]
OPEN_LENGTH = 5
LONGEST = 12

Place = tuple[int, int]
"""Segment and physical offset."""


class World:
    """A lineage full of records, a reader of some slots, and workers that the test drives."""

    def __init__(self, lineage: Lineage, slots: int, wanted: int) -> None:
        self.lineage = lineage
        self.lanes = Lanes(wanted, 1 << 30)
        self.owned = [OwnedSlot(PARENT, i, slots) for i in range(slots)]
        self.reading = {slot: Cursor(slot.range, {}) for slot in self.owned}
        self.ahead: dict[OwnedSlot, PieceProgress] = {}
        self.busy: list[Lane] = []
        self.parked: list[Lane] = []
        self.failed: set[Place] = set()
        self.processed: Counter[Place] = Counter()
        self.keys: dict[Place, tuple[bytes | None, int]] = {}
        for segment in lineage:
            for offset in range(segment.start, self.end(segment)):
                self._put(segment, offset)
        for slot in self.owned:
            self.lanes.taken(slot, self.reading[slot])

    def end(self, segment: Segment) -> int:
        """The log's end, for tests: long closed segments have their records at the end."""
        return segment.start + OPEN_LENGTH if segment.end is None else segment.end

    def _put(self, segment: Segment, offset: int) -> None:
        if self.end(segment) - offset > LONGEST:
            return
        fitting = [key for key in KEYS if key_hash(key) in segment.range]
        key = fitting[(offset * 7 + segment.id) % len(fitting)] if fitting and offset % 5 else None
        place = (segment.id, offset)
        self.keys[place] = (key, message_hash(record(segment, offset, key), segment))

    def read(self, slot: OwnedSlot, choice: int, count: int) -> bool:
        """Read for a slot and for all others that stand at the same place; False if there is nothing."""
        readable = [
            (s, n)
            for s, n in self.reading[slot].readable(self.lineage).items()
            if n < self.end(self.lineage.get(s))
        ]
        if not readable:
            return False
        segment_id, begin = readable[choice % len(readable)]
        segment = self.lineage.get(segment_id)
        end = min(self.end(segment), begin + count)
        together = tuple(
            s for s in self.owned if self.reading[s].readable(self.lineage).get(segment_id) == begin
        )
        messages = [
            record(segment, offset, self.keys[segment_id, offset][0])
            for offset in range(begin, end)
            if (segment_id, offset) in self.keys
            and any(self.keys[segment_id, offset][1] in s.range for s in together)
        ]
        batch = Batch(PARENT, segment, together, begin, end, messages, 0)
        for s in together:
            self.reading[s] = self.reading[s].moved(segment_id, end)
            if s in self.ahead:
                self.ahead[s].without_processed(batch, self.lineage)
        self.lanes.offer(batch)
        return True

    def place(self, lane: Lane) -> Place:
        return lane.queue[0].segment, physical_offset(lane.record)

    def begin(self) -> bool:
        """A worker takes a lane, if there is one."""
        lane = self.lanes.next()
        if lane is None:
            return False
        place = self.place(lane)
        hash_ = self.keys[place][1]
        at_work = [self.keys[self.place(other)][1] for other in self.busy]
        assert hash_ not in at_work, "two records of one key at once"
        assert place not in self.failed
        self._check_order(place, hash_)
        self.busy.append(lane)
        return True

    def _check_order(self, place: Place, hash_: int) -> None:
        """Everything of the same hash that comes before is processed."""
        before = _before(self.lineage, place[0])
        for (segment, offset), (_, other) in self.keys.items():
            earlier = segment in before or (segment == place[0] and offset < place[1])
            if other == hash_ and earlier:
                assert self.processed[segment, offset], f"{place} before {segment, offset}"

    def finish(self, index: int) -> None:
        lane = self.busy.pop(index % len(self.busy))
        self.processed[self.place(lane)] += 1
        self.lanes.done(lane)

    def retake(self, slot: OwnedSlot) -> None:
        """A slot leaves and comes back, or is moved to what is processed: it starts from its pieces."""
        pieces = [c.settled(self.lineage) for c in self.lanes.cursor(slot)]
        if slot in self.ahead:
            pieces = self.ahead[slot].furthest(pieces, self.lineage)
        self.reading[slot] = least(self.lineage, pieces) if len(pieces) > 1 else pieces[0]
        self.ahead.pop(slot, None)
        if len(pieces) > 1:
            self.ahead[slot] = PieceProgress(pieces)
        self.lanes.taken(slot, self.reading[slot])

    def check(self) -> None:
        """No position passes a record that was not processed; the pieces of a slot tile its range."""
        for slot in self.owned:
            pieces = self.lanes.cursor(slot)
            assert pieces[0].range.lo == slot.range.lo
            assert pieces[-1].range.hi == slot.range.hi
            assert all(a.range.hi == b.range.lo for a, b in pairwise(pieces))
            for piece in pieces:
                left = piece.settled(self.lineage).pending(self.lineage)
                for (segment, offset), (_, hash_) in self.keys.items():
                    if hash_ in piece.range and (segment not in left or offset < left[segment]):
                        assert self.processed[segment, offset], f"{piece} passes {segment, offset}"


def _before(lineage: Lineage, segment_id: int) -> set[int]:
    """All transitive predecessors; those of other keys hold no record of the same hash."""
    found: set[int] = set()
    waiting = [segment_id]
    while waiting:
        new = set(lineage.get(waiting.pop()).predecessors) - found
        found |= new
        waiting += new
    return found


@given(st.data())
def test_lanes_keep_order_and_never_pass_what_was_not_processed(data: st.DataObject) -> None:
    history = data.draw(histories(most=8))
    world = World(
        history.last.lineage, data.draw(st.sampled_from([1, 2, 3, 4])), data.draw(st.integers(1, 12))
    )
    departures = False
    for _ in range(data.draw(st.integers(0, 60))):
        step = data.draw(st.sampled_from("rrrrbbbbffffpugsdt"))
        slot = world.owned[data.draw(st.integers(0, len(world.owned) - 1))]
        if step == "r":
            world.read(slot, data.draw(st.integers(0, 3)), data.draw(st.integers(1, 6)))
        elif step == "b":
            world.begin()
        elif step == "f" and world.busy:
            world.finish(data.draw(st.integers(0, 9)))
        elif step == "p" and world.busy:
            lane = world.busy.pop()
            world.lanes.park(lane)
            world.parked.append(lane)
        elif step == "u" and world.parked:
            world.lanes.unpark(world.parked.pop(0))
        elif step == "g" and world.busy:
            world.lanes.give_back(world.busy.pop())
        elif step == "s" and world.busy and not departures:
            lane = world.busy.pop()
            world.failed.add(world.place(lane))
            world.lanes.stop(lane)
        elif step == "d" and not world.failed:
            departures = True
            world.retake(slot)
        elif step == "t" and not world.failed:
            world.lanes.release([slot])
            departures = True
            if world.lanes.release([slot]):
                world.retake(slot)
        world.check()
    _to_the_end(world)
    world.check()
    blocked = [lane for lane in world.lanes.lanes() if lane.state is LaneState.STOPPED]
    for place, (_, hash_) in world.keys.items():
        if not any(hash_ in lane.range for lane in blocked):
            assert world.processed[place], f"{place} was never processed"
    if not departures:
        assert all(count == 1 for count in world.processed.values())
    assert len(blocked) == len({place for place in world.failed if not world.processed[place]})


def _to_the_end(world: World) -> None:
    """Slots that were released come back; everything is read and worked on."""
    for slot in world.owned:
        if world.lanes._slot_queues[slot].released:
            world.retake(slot)
    moved = True
    while moved:
        while world.parked:
            world.lanes.unpark(world.parked.pop())
        moved = sum(world.read(slot, 0, 100) for slot in world.owned) > 0
        while world.begin():
            moved = True
        while world.busy:
            world.finish(0)
            moved = True


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 64))
def test_workers_find_a_lane_while_records_of_other_lanes_wait(keys: int, workers: int, wanted: int) -> None:
    """As many records are worked on at once as there are workers or lanes with records."""
    world = World(Lineage.unsplit(PARENT), 1, wanted)
    world.keys = {(0, i): (b"%d" % i, key_hash(b"%d" % i)) for i in range(keys)}
    world.end = lambda _segment: keys  # type: ignore[method-assign]
    world.read(world.owned[0], 0, keys)
    filled: defaultdict[Lane, int] = defaultdict(int)
    for lane in world.lanes.lanes():
        filled[lane] += len(lane.queue)
    lanes = sum(1 for waiting in filled.values() if waiting)
    for _ in range(workers):
        world.lanes.next()
    assert sum(1 for lane in world.lanes.lanes() if lane.state is LaneState.BUSY) == min(workers, lanes)
