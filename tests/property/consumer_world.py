"""A simulated logical partition with producers, operations, and members of one group that share its slots.

Logs are lists, brokers are functions, every choice is made by one seeded generator. The members are made of
the real reader, progress and buffer. An oracle knows every record and checks each commit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random
from unittest.mock import patch

from confluent_kafka import KafkaError, Message, TopicPartition

from kpsplit.consumer.fetch import reader as readings
from kpsplit.consumer.fetch.batch import placed_hash
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.consumer.fetch.gaps import ReadingEvent
from kpsplit.consumer.fetch.reader import LONGEST_REST_SECONDS, SlotReader
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.logical_message import physical_offset
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import KeyRange, key_hash
from kpsplit.splitter.lineage import Layout, PhysicalPartition, Segment, SegmentKind
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Abort,
    Commit,
    Cut,
    EndedBy,
    Fence,
    Finish,
    OperationKind,
    PartitionState,
    Phase,
    Prepare,
)
from kpsplit.splitter.reading import Cursor, Deliver, classify
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, Marker, MarkerKind, Stamp
from tests.property.strategies import PARENT, attempt_of, merge_of_all

KEYS = [b"key-%d" % i for i in range(12)]
WRITER = 7


@dataclass(slots=True)
class Log:
    """A physical partition: records in order, and where the next one goes."""

    records: list[Message] = field(default_factory=list)
    end: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """What the oracle knows of a record. ``number``: the how-manieth of the writer, None for others."""

    source: PhysicalPartition
    offset: int
    key: bytes | None
    stamp: Stamp | None
    marker: Marker | None
    number: int | None


class World:
    """One logical partition in Kafka."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.states = [PartitionState.unsplit(PARENT, "id")]
        self.logs: dict[PhysicalPartition, Log] = defaultdict(Log)
        self.written: dict[bytes, Written] = {}
        self.delivered: dict[bytes, tuple[int, int, int]] = {}
        self._cuts: dict[int, int] = {}
        self._numbers = 0

    @property
    def state(self) -> PartitionState:
        """The state now."""
        return self.states[-1]

    # producers

    def append(
        self,
        source: PhysicalPartition,
        key: bytes | None,
        *,
        stamp: Stamp | None = None,
        marker: Marker | None = None,
        number: int | None = None,
    ) -> int:
        """Write one record; now and then a transaction's marker leaves a hole behind it."""
        log = self.logs[source]
        offset, value = log.end, b"%d" % len(self.written)
        headers: list[tuple[str, str | bytes | None]] = [("mine", b"1")] if self.random.random() < 0.2 else []
        if stamp is not None:
            headers.append((STAMP_HEADER, stamp.encode()))
        if marker is not None:
            headers.append((MARKER_HEADER, marker.encode()))
        log.records.append(
            Message(
                topic=source.topic,
                partition=source.partition,
                offset=offset,
                key=key,
                value=value,
                headers=headers or None,
            )
        )
        log.end = offset + (2 if self.random.random() < 0.1 else 1)
        self.written[value] = Written(source, offset, key, stamp, marker, number)
        return offset

    def produce(self) -> None:
        """A writer that uses kpsplit writes to the segment that takes the key, unless it is fenced."""
        key = None if self.random.random() < 0.1 else self.random.choice(KEYS)
        segments = self.state.lineage.open_segments()
        segment = (
            self.random.choice(segments)
            if key is None
            else Layout.of(self.state.lineage).segment_for(key_hash(key))
        )
        if segment.id in self.state.fenced_segments():
            return
        self._numbers += 1
        stamp = Stamp(self.state.epoch, WRITER, self._numbers, self.state.home(segment.source))
        self.append(segment.source, key, stamp=stamp, number=self._numbers)

    def foreign(self) -> None:
        """Somebody else writes to the parent's partition, or past the routing into a phantom.

        Some of that are copies of records that stand elsewhere, with all their headers.
        """
        place = PARENT
        if self.random.random() < 0.2:
            place = self.random.choice([s.source for s in self.state.lineage.open_segments()])
        if self.random.random() < 0.5 or place == PARENT or not self._is_cut(place):
            stamps = [w.stamp for w in self.written.values() if w.source != place]
            copied = self.random.choice(stamps) if stamps and self.random.random() < 0.5 else None
            self.append(place, self.random.choice([None, *KEYS]), stamp=copied)

    def stray(self) -> None:
        """A producer that was suspended writes where it should have written long ago."""
        closed = [s for s in self.state.lineage if not s.is_open and s.kind is not SegmentKind.OVERFLOW]
        if closed:
            segment = self.random.choice(closed)
            stamp = Stamp(segment.opened_epoch, WRITER, 0, self.state.home(segment.source))
            self.append(segment.source, self.random.choice(KEYS), stamp=stamp)

    def _is_cut(self, place: PhysicalPartition) -> bool:
        return any(self.state.lineage.get(i).source == place for i in self._cuts)

    # the operator

    def operate(self) -> None:
        """Make the next step of an operation."""
        state = self.state
        if state.phase is Phase.STEADY:
            self._to(self._prepare())
        elif state.attempt is None:
            return
        elif state.phase is Phase.PREPARING:
            self._cuts = {}
            self._to(Fence(state.attempt.id, state.attempt.subtopic and f"id-{state.next_split}"))
        elif state.phase is Phase.COMMITTED:
            self._to(Finish(state.attempt.id))
        elif self.random.random() < 0.15:
            self._cuts = {}
            self._to(Abort(state.attempt.id, EndedBy.OPERATOR, "because"))
        else:
            self._cut_or_commit()

    def _cut_or_commit(self) -> None:
        attempt = self.state.attempt
        assert attempt is not None
        left = [i for i in self.state.closing_segments() if i not in self._cuts]
        if left:
            segment = self.state.lineage.get(left[0])
            marker = Marker(MarkerKind.SEAL, PARENT, attempt.id)
            self._cuts[segment.id] = self.append(segment.source, None, marker=marker)
            return
        cuts = tuple(Cut(i, self._cuts[i], 1) for i in self.state.closing_segments())
        self._cuts = {}
        self._to(Commit(attempt.id, cuts))

    def _prepare(self) -> Prepare:
        layout = self.state.lineage.open_segments()
        if layout[0].kind is not SegmentKind.PARENT and self.random.random() < 0.4:
            return merge_of_all(self.state)
        if len(layout) > 1 and self.random.random() < 0.3:
            first = self.random.randrange(len(layout) - 1)
            chosen = layout[first : self.random.randint(first + 2, len(layout))]
            union = KeyRange(chosen[0].range.lo, chosen[-1].range.hi)
            ids = tuple(s.id for s in chosen)
            return Prepare(attempt_of(self.state, OperationKind.MERGE, ids, (union,)))
        source = self.random.choice(layout)
        lo, hi = source.range.lo, source.range.hi
        cut = self.random.randrange(lo + 1, hi)
        ranges = (KeyRange(lo, cut), KeyRange(cut, hi))
        return Prepare(attempt_of(self.state, OperationKind.SPLIT, (source.id,), ranges))

    def _to(self, event: Prepare | Fence | Commit | Finish | Abort) -> None:
        self.states.append(apply(self.state, event))

    # what is true

    def place(self, written: Written) -> Segment | None:
        """The segment that a record is delivered from, None if it never is; once nothing is under way."""
        verdict = classify(
            self.state, written.source, written.offset, written.stamp, written.marker, refreshed=True
        )
        return verdict.segment if isinstance(verdict, Deliver) else None

    def settle(self) -> None:
        """Find out, once nothing is under way, where each record that is ever delivered belongs."""
        for value, written in self.written.items():
            segment = self.place(written)
            if segment is not None:
                hash_ = placed_hash(written.key, written.offset, segment.range)
                self.delivered[value] = (segment.id, written.offset, hash_)

    def passed(self, slot: OwnedSlot, cursor: Cursor) -> set[bytes]:
        """The records of a slot that a cursor says are processed; the world is settled."""
        left, range_ = cursor.pending(self.state.lineage), slot.range
        return {
            value
            for value, (segment, offset, hash_) in self.delivered.items()
            if hash_ in range_ and (segment not in left or offset < left[segment])
        }


BROKEN = 0.02
"""How often an error stands in the place of some records, which are there when they are read again."""


class Client:
    """Gives what librdkafka may give, at its weakest.

    One call brings runs of several logs, each more than once, with ends and errors between. It reads on after
    each run, whatever becomes of it. The end of a log is reported once, until more was read there.
    """

    def __init__(self, world: World) -> None:
        self.most = 0
        self._world = world
        self._positions: dict[PhysicalPartition, int] = {}
        self._ended: set[PhysicalPartition] = set()

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        """Read logs, each from an offset on."""
        for place in places:
            source = PhysicalPartition(place.topic, place.partition)
            assert source not in self._positions, "assigned already"
            self._positions[source] = place.offset
            self._ended.discard(source)

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        """Read logs no more."""
        for place in places:
            del self._positions[PhysicalPartition(place.topic, place.partition)]

    def list_topics(self, topic: str, timeout: float) -> None:
        """All leaders are known."""

    def consume(self, count: int, _timeout: float) -> list[Message]:
        """Return what was fetched."""
        random, found = self._world.random, list[Message]()
        for _ in range(random.randint(0, 2 * len(self._positions))):
            source = random.choice(sorted(self._positions))
            found += self._run(source, min(random.randint(0, self.most), count - len(found)))
        return found

    def _run(self, source: PhysicalPartition, most: int) -> list[Message]:
        log, start = self._world.logs[source], self._positions[source]
        after = [m for m in log.records if (m.offset() or 0) >= start]
        if not most or (not after and source in self._ended):
            return []
        if not after:
            self._ended.add(source)
            self._positions[source] = max(start, log.end)
            return [_error(source, KafkaError._PARTITION_EOF, self._positions[source])]
        self._ended.discard(source)
        messages = after[:most]
        self._positions[source] = (messages[-1].offset() or 0) + 1
        if self._world.random.random() < BROKEN:
            return [_error(source, KafkaError._BAD_MSG, start)]
        return [_copy(message) for message in messages]


def _copy(record: Message) -> Message:
    """A client gives a record anew each time that it is read."""
    place = record.topic(), record.partition(), record.offset()
    return Message(*place, record.key(), record.value(), headers=record.headers())


def _error(source: PhysicalPartition, code: int, offset: int) -> Message:
    return Message(source.topic, source.partition, offset, error=KafkaError(code, "in the simulation"))


class Everything(set[str]):
    """Every topic is the one that the lineage means."""

    def __contains__(self, _topic: object) -> bool:
        return True


@dataclass(slots=True)
class Tenure:
    """One slot's stay with a member: where it began, and what the member processed of it."""

    start: Cursor
    processed: list[bytes] = field(default_factory=list)


class Member:
    """One member of the group: the real reading side around simulated fetches."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.events: list[ReadingEvent] = []
        self.view = 0
        self.client = Client(world)
        self.reader = SlotReader(
            Connection({"bootstrap.servers": "localhost:1"}),
            {},
            self.events.append,
            client=self.client,  # type: ignore[arg-type]
        )
        self.reader._identified = Everything()
        self.reader.update(world.states[0])
        self._now = 0.0
        self.buffer = FetchBuffer()
        self.assignment_epochs: dict[OwnedSlot, Tenure] = {}
        self.in_work: list[Message] = []
        self._asked: tuple[int, int] | None = None

    # the control topic

    def see(self, view: int) -> None:
        """Read the control topic up to a state."""
        if view > self.view:
            self.view = view
            self.reader.update(self.world.states[view])

    def see_some(self) -> None:
        """Read a bit of the control topic."""
        self.see(self.world.random.randint(self.view, len(self.world.states) - 1))

    def ask(self) -> None:
        """Ask for the control topic's end, or read up to what was asked for."""
        if self._asked is None:
            request_id = self.reader.wants_refresh
            if request_id:
                self._asked = request_id, len(self.world.states) - 1
            return
        request_id, end = self._asked
        self._asked = None
        self.see(end)
        self.reader.refreshed(request_id)

    # reading

    def fetch(self, most: int) -> int:
        """Take what one call of the client brings; return how many records are handed out."""
        self.client.most = most
        with patch.object(readings, "monotonic", self._later):
            batches = self.reader.step(0, 1 << 20)
        for batch in batches:
            self.buffer.offer(batch)
        return sum(len(batch.messages) for batch in batches)

    def _later(self) -> float:
        """Time passes: a log that rests is tried again soon."""
        self._now += LONGEST_REST_SECONDS
        return self._now

    @property
    def at_end(self) -> bool:
        """Whether it has heard the ends of all logs that it reads."""
        fetch_state = self.reader.fetch_states[PARENT]
        return all(fetch_state.ended(source) for source in fetch_state.wanted())

    def work(self, most: int) -> None:
        """The application finishes what it has and asks for more."""
        for message in self.in_work:
            self._finish(message)
        count = self.world.random.randint(0, most)
        self.in_work = self.buffer.consume(count)
        if not self.in_work:
            self.buffer.wait(0)

    def _finish(self, message: Message) -> None:
        value = message.value() or b""
        written = self.world.written[value]
        assert physical_offset(message) == written.offset
        for slot, assignment_epoch in self.assignment_epochs.items():
            segment = self._segment_of(message)
            if placed_hash(written.key, written.offset, segment.range) in slot.range:
                assignment_epoch.processed.append(value)

    def _segment_of(self, message: Message) -> Segment:
        written = self.world.written[message.value() or b""]
        segment = self.world.states[self.view].lineage.at(written.source, written.offset)
        assert segment is not None
        return segment

    # slots

    def own(self, slot: OwnedSlot, cursor: Cursor) -> None:
        """A slot arrives."""
        self.assignment_epochs[slot] = Tenure(cursor)
        self.buffer.taken(slot, cursor)
        self.reader.own(slot, cursor)

    def processed(self, slot: OwnedSlot) -> Cursor:
        """What of a slot would be committed now."""
        (cursor,) = self.buffer.cursor(slot)
        return cursor.settled(self.world.states[self.view].lineage)

    def give_up(self, slot: OwnedSlot) -> Cursor | None:
        """Let go of a slot, in order; None while something of it is being worked on."""
        if not self.buffer.release([slot]):
            return None
        cursor = self.processed(slot)
        self.lose(slot)
        return cursor

    def lose(self, slot: OwnedSlot) -> None:
        """A slot is gone."""
        self.reader.disown([slot])
        self.buffer.dropped([slot])
        del self.assignment_epochs[slot]

    def pause(self) -> None:
        """The application pauses and resumes: what was not handed out is read again."""
        for slot, cursor in self.buffer.pause([PARENT]).items():
            self.reader.own(slot, cursor)


class Group:
    """Members, committed positions, and the checks."""

    def __init__(self, world: World, members: int, slots: int) -> None:
        self.world = world
        self.members = [Member(world, f"m{i}") for i in range(members)]
        self.slots = [OwnedSlot(PARENT, i, slots) for i in range(slots)]
        self.committed = {slot: Cursor.at_start(slot.range) for slot in self.slots}
        self.owner: dict[OwnedSlot, Member] = {}
        self.moving: OwnedSlot | None = None
        self.commits: list[tuple[OwnedSlot, Cursor, Tenure]] = []
        self.history: dict[OwnedSlot, list[Tenure]] = {slot: [] for slot in self.slots}
        self.crashes = 0
        self.skipped = False
        for slot in self.slots:
            self.assign(slot)

    def assign(self, slot: OwnedSlot) -> None:
        """Give a slot to somebody, from its committed cursor."""
        member = self.world.random.choice(self.members)
        member.own(slot, self.committed[slot])
        self.owner[slot] = member
        self.history[slot].append(member.assignment_epochs[slot])

    def commit(self, slot: OwnedSlot, cursor: Cursor, assignment_epoch: Tenure) -> None:
        """Commit, and note what was processed then; it is checked when nothing is under way."""
        noted = Tenure(assignment_epoch.start, list(assignment_epoch.processed))
        self.commits.append((slot, cursor, noted))
        self.committed[slot] = cursor

    def commit_some(self) -> None:
        """One member commits all its slots."""
        member = self.world.random.choice(self.members)
        for slot, assignment_epoch in member.assignment_epochs.items():
            if slot != self.moving:
                self.commit(slot, member.processed(slot), assignment_epoch)

    def hand_over(self) -> None:
        """Move a slot: it is asked for again until the member lets go."""
        self.moving = self.moving or self.world.random.choice(self.slots)
        slot, member = self.moving, self.owner[self.moving]
        assignment_epoch = member.assignment_epochs[slot]
        cursor = member.give_up(slot)
        if cursor is not None:
            self.commit(slot, cursor, assignment_epoch)
            self.moving = None
            self.assign(slot)

    def crash(self) -> None:
        """A member dies; a new one takes its place. Its slots go on from what was committed."""
        index = self.world.random.randrange(len(self.members))
        gone = self.members[index]
        self.members[index] = Member(self.world, gone.name + "'")
        self.crashes += 1
        for slot in list(gone.assignment_epochs):
            if slot == self.moving:
                self.moving = None
            self.assign(slot)

    def seek_back(self) -> None:
        """The application goes back to what it had committed."""
        slot = self.world.random.choice(self.slots)
        if slot == self.moving:
            return
        member = self.owner[slot]
        if any(placed_hash_of(self.world, m) in slot.range for m in member.in_work):
            return
        self.crashes += 1
        member.own(slot, self.committed[slot])
        self.history[slot].append(member.assignment_epochs[slot])

    def seek_to_end(self) -> None:
        """A slot is moved to the logs' ends, as far as its member's view, which may be old, knows them."""
        slot = self.world.random.choice(self.slots)
        member = self.owner[slot]
        if slot == self.moving or any(placed_hash_of(self.world, m) in slot.range for m in member.in_work):
            return
        self.skipped = True
        ends = {source: log.end for source, log in self.world.logs.items()}
        cursor = Cursor.from_positions(self.world.states[member.view].lineage, slot.range, ends)
        member.own(slot, cursor)
        self.history[slot].append(member.assignment_epochs[slot])

    # the end, and the checks

    def drain(self) -> None:
        """Let everything come to rest: nothing is written, everybody reads and works to the end."""
        while self.world.state.phase is not Phase.STEADY:
            self.world.operate()
        for _ in range(2000):
            if self.moving:
                self.hand_over()
            for member in self.members:
                member.see(len(self.world.states) - 1)
                member.ask()
                member.ask()
                member.fetch(50)
                member.work(50)
            if not self.moving and self.at_rest():
                break
        else:
            raise AssertionError("it does not come to rest")
        for member in self.members:
            member.work(1)
        for slot, member in self.owner.items():
            self.commit(slot, member.processed(slot), member.assignment_epochs[slot])

    def at_rest(self) -> bool:
        """Whether everything was read and handed out."""
        lineage = self.world.state.lineage
        read = all(
            not member.buffer.waiting_bytes()
            and not member.in_work
            and not member.reader.wants_refresh
            and member.at_end
            for member in self.members
        )
        return read and all(
            self.world.logs[lineage.get(segment).source].end <= position
            for slot, member in self.owner.items()
            for segment, position in member.reader.cursor(slot).pending(lineage).items()
        )

    def check(self) -> None:
        """Every commit says exactly what was processed; everything was processed, in order, once."""
        self.world.settle()
        for slot, cursor, assignment_epoch in self.commits:
            before = self.world.passed(slot, assignment_epoch.start)
            assert len(set(assignment_epoch.processed)) == len(assignment_epoch.processed), (
                "given twice in one tenure"
            )
            assert not before & set(assignment_epoch.processed), "given although it was processed before"
            assert self.world.passed(slot, cursor) == before | set(assignment_epoch.processed)
        deliverable = set(self.world.delivered)
        given = Counter(
            v for assignment_epochs in self.history.values() for t in assignment_epochs for v in t.processed
        )
        assert set(given) == deliverable or (self.skipped and set(given) < deliverable)
        if not self.crashes and not self.skipped:
            assert set(given.values()) <= {1}
        for assignment_epochs in self.history.values():
            for assignment_epoch in assignment_epochs:
                self._check_order(assignment_epoch)

    def _check_order(self, assignment_epoch: Tenure) -> None:
        latest: dict[bytes, int] = {}
        for value in assignment_epoch.processed:
            written = self.world.written[value]
            if written.key is not None and written.number is not None:
                assert written.number > latest.get(written.key, 0), "out of order"
                latest[written.key] = written.number


def placed_hash_of(world: World, message: Message) -> int:
    """The number by which a record that was handed out is placed."""
    written = world.written[message.value() or b""]
    segment = world.state.lineage.at(written.source, written.offset)
    assert segment is not None
    return placed_hash(written.key, written.offset, segment.range)
