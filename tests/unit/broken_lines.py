"""A member that reads a partition through its whole life, and an exception at any line on the way.

Real: the reader, its tracks and sieve, the engine's turns, the buffer or the lanes of ``run()``. Not real:
the client and the brokers' answers, which come from logs in memory, and the application. All in one thread.
"""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from math import inf
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, Message, TopicPartition

import kpsplit.consumer
from kpsplit.consumer.application_requests import ApplicationRequests
from kpsplit.consumer.broker_executor import BrokerExecutor
from kpsplit.consumer.config import split_config
from kpsplit.consumer.engine import Clients, Engine
from kpsplit.consumer.events import Events
from kpsplit.consumer.fetch import physical_reader as probing
from kpsplit.consumer.fetch import reader as readings
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.consumer.fetch.gaps import GapPolicy
from kpsplit.consumer.fetch.reader import SlotReader
from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.consumer.polling import Poller
from kpsplit.consumer.run.policies import Judge, Stop
from kpsplit.consumer.run.work_queue import WorkQueue
from kpsplit.consumer.slots.assigned import AssignedSlot, SlotStage, SlotStart
from kpsplit.consumer.slots.assigned_slots import AssignedSlots, StateBinding
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.group_slots import Mode
from kpsplit.splitter.key_range import WHOLE, key_hash
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from tests.unit import engine_world
from tests.unit.consumer_samples import FIRST, HIGH, LOW, SECOND, message
from tests.unit.samples import PARENT, UNSPLIT, merge_attempt, operated, phantom, split_attempt

PACKAGE = Path(kpsplit.consumer.__file__).parent
BETWEEN = {
    *(
        "reader",
        "fetch_state",
        "record_filter",
        "physical_reader",
        "gaps",
        "session",
        "batch",
    ),
    *(
        "pieces",
        "epochs",
        "buffer",
        "progress",
        "work_queue",
        "lanes",
        "headers",
        "logical_message",
        "engine",
        "reading",
    ),
}
"""Files between the client and the application. Of the engine the turns are left out."""
OUTSIDE = {
    "value",
    "run",
    "_turn",
    "_duty",
    "_chores",
    "_trouble",
    "_rest",
    "_run_requests",
    "statistics",
    "__init__",
}

LOW_PHANTOM, HIGH_PHANTOM = phantom(0), phantom(1)
SPLIT = operated(UNSPLIT, split_attempt(UNSPLIT, 0, WHOLE.split_evenly(2)), {0: 8})
MERGED = operated(SPLIT, merge_attempt(SPLIT, (2, 3), WHOLE), {1: 11, 2: 4, 3: 5})
VIEWS = (UNSPLIT, SPLIT, MERGED)
FOREIGN = b"foreign"


Line = tuple[str, int]
Tracer = Callable[[FrameType, str, Any], Any]


class InjectedError(MemoryError):
    """What no one expected."""


class Interruption(KeyboardInterrupt):
    """Ctrl-C in the application's thread."""


def logs() -> dict[PhysicalPartition, list[Message]]:
    """What the logs hold; a value that is to be handed out names its key and its number there."""
    numbers: Counter[bytes | None] = Counter()

    def sent(source: PhysicalPartition, offset: int, key: bytes | None, epoch: int | None) -> Message:
        numbers[key] += 1
        name = (key or b"-").decode()
        return message(offset, key, source=source, epoch=epoch, value=f"{name}:{numbers[key]}".encode())

    def skipped(source: PhysicalPartition, offset: int, **more: Any) -> Message:
        return message(offset, None if "marker" in more else LOW, source=source, value=b"skipped", **more)

    parent = [sent(PARENT, n, (LOW, HIGH, None)[n % 3], 0 if n % 2 else None) for n in (0, 1, 2, 4, 5, 6, 7)]
    parent += [skipped(PARENT, 8, marker="s"), skipped(PARENT, 9, epoch=0), sent(PARENT, 10, FOREIGN, None)]
    parent.append(skipped(PARENT, 11, marker="m"))
    low = [sent(LOW_PHANTOM, n, LOW, 1) for n in range(4)]
    low += [skipped(LOW_PHANTOM, 4, marker="m"), skipped(LOW_PHANTOM, 5, epoch=1)]
    high = [sent(HIGH_PHANTOM, n, (HIGH, None)[n % 2], 1) for n in (2, 3, 4)]  # retention took two
    high.append(skipped(HIGH_PHANTOM, 5, marker="m"))
    parent += [sent(PARENT, n, (LOW, HIGH, None)[n % 3], 2) for n in range(12, 20)]
    return {PARENT: parent, LOW_PHANTOM: low, HIGH_PHANTOM: high}


class Client:
    """The client library over logs in memory: it gives nothing again before it is assigned anew."""

    def __init__(self) -> None:
        self.logs = logs()
        self._next: dict[PhysicalPartition, float] = {}

    def incremental_assign(self, parts: list[TopicPartition]) -> None:
        self._next.update({_place(p): p.offset for p in parts})

    def incremental_unassign(self, parts: list[TopicPartition]) -> None:
        for part in parts:
            del self._next[_place(part)]

    def unassign(self) -> None:
        self._next.clear()

    def list_topics(self, topic: str, timeout: float) -> None:
        pass

    def consume(self, count: int, seconds: float) -> list[Message]:
        """Up to three records of each log, then its end."""
        given: list[Message] = []
        for place, at in list(self._next.items()):
            there = self.logs[place]
            if at < (there[0].offset() or 0):
                self._next[place] = inf
                given.append(_error(place, KafkaError._AUTO_OFFSET_RESET, int(at)))
                continue
            left = [m for m in there if (m.offset() or 0) >= at][: max(0, min(3, count - len(given)))]
            given += map(_copy, left)
            if left:
                self._next[place] = (left[-1].offset() or 0) + 1
            elif at != inf and len(given) < count:
                self._next[place] = inf
                given.append(_error(place, KafkaError._PARTITION_EOF, (there[-1].offset() or 0) + 1))
        return given

    def poll(self, seconds: float) -> Message | None:
        return next(iter(self.consume(1, 0)), None)

    def close(self) -> None:
        pass


def _place(part: TopicPartition) -> PhysicalPartition:
    return PhysicalPartition(part.topic, part.partition)


def _copy(record: Message) -> Message:
    headers = record.headers()
    return Message(
        record.topic(), record.partition(), record.offset(), record.key(), record.value(), headers=headers
    )


def _error(place: PhysicalPartition, code: int, offset: int) -> Message:
    return Message(place.topic, place.partition, offset, error=KafkaError(code, "told by a test"))


class Brokers:
    """What an admin client answers, at once."""

    def __init__(self, client: Client) -> None:
        self._logs = client.logs

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        (name,) = topics.topic_names
        meant = UNSPLIT.topic_id if name == PARENT.topic else MERGED.subtopic(name).topic_id  # type: ignore[union-attr]
        return {name: _done(SimpleNamespace(topic_id=meant))}

    def list_offsets(self, asked: Any, **_: Any) -> dict[TopicPartition, Future[Any]]:
        ((part, spec),) = asked.items()
        there = self._logs[_place(part)]
        earliest = spec is probing._EARLIEST
        offset = (there[0].offset() or 0) if earliest else (there[-1].offset() or 0) + 1
        return {part: _done(SimpleNamespace(offset=offset, leader_epoch=None))}


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Metadata(engine_world.Metadata):
    """The control topic: the next state is there when somebody asks for a fresh view."""

    def __init__(self) -> None:
        super().__init__()
        self._at = 0
        self._wanted = 0

    def state(self, parent: PhysicalPartition, *, left: bool = False) -> PartitionState:
        return VIEWS[self._at]

    def want_refresh(self, request_id: int = 0) -> None:
        if request_id != self._wanted:
            self._wanted = request_id
            self._at = min(self._at + 1, len(VIEWS) - 1)
            self.position += 1

    def refreshed(self, request_id: int = 0) -> bool:
        return request_id == self._wanted


class World:
    """One member, and an application that takes records one by one, in bunches, or by lanes."""

    def __init__(self, how: str) -> None:
        config = {"bootstrap.servers": "localhost:1", "group.id": "g", "auto.commit.interval.ms": 3_600_000}
        _, settings = split_config(config)
        self.client, self.buffer, self.how = Client(), FetchBuffer(), how
        self.events = Events(self.buffer.ask_attention)
        self.events.error_cb = lambda _: None
        connection = Connection({"bootstrap.servers": "localhost:1"})
        readings._consumer = lambda *_: self.client  # type: ignore[assignment, return-value]
        self.reader = SlotReader(connection, {}, self._report, on_gap=GapPolicy.SKIP_AND_REPORT)
        self.reader._admin._client = Brokers(self.client)  # type: ignore[assignment]
        coordinator = engine_world.Coordinator()
        clients = Clients(
            GroupConsumer({}, incremental=True, make=lambda *_: coordinator),
            self.reader,
            engine_world.QueryClient(),  # type: ignore[arg-type]
            BrokerExecutor("errands", engine_world.GroupOffsets()),  # type: ignore[arg-type]
            BrokerExecutor("members", engine_world.GroupOffsets()),  # type: ignore[arg-type]
        )
        self.slots = AssignedSlots(
            Metadata(),  # type: ignore[arg-type]
            self.reader,
            self.buffer,
            StateBinding(),
        )
        self.poller = Poller(self.buffer, self.events)
        self.engine = Engine(settings, clients, self.slots, self.events, lambda: self.buffer.looks)
        self.buffer.fetch = self.engine.pull
        self.poller.reads_here = self.engine.reads_here
        self.calls = ApplicationRequests(
            self.slots, self.engine.committer, self.engine.membership, self.engine.subscribing, self.buffer
        )
        if how == "lanes":
            self.work_queue = WorkQueue(2, 1 << 20, Judge(Stop()))
            self.slots.sink = self.work_queue
        self.found: list[bytes] = []
        self.turns = 0
        self.tracer: Tracer | None = None
        """Sees the lines while the engine or the application is at work, not the test."""
        self.traced_from = 0
        """The turn from which on it does: each call costs time while there is one."""
        for slot in (FIRST, SECOND):
            assigned = AssignedSlot(slot, slot.parent, Mode.SLOTS, SlotStage.FOUND, by_hand=True)
            assigned.start = SlotStart((Cursor.at_start(slot.range),))
            self.slots.add([assigned])

    def _report(self, event: Any) -> None:
        self.engine.reading.report(event)

    def run(self) -> None:
        """Read to the end; what the application does is done at fixed turns."""
        expected = handed_out()
        idle = 0
        while idle < 12:
            self.turns += 1
            assert self.turns < 400, (len(self.found), self.reader.fetch_states)
            before = len(self.found)
            self._orders()
            traced = self.turns >= self.traced_from
            sys.settrace(self.tracer if traced and self.how != "interrupted" else None)
            with self.engine._lock:
                self.engine._turn()
            self.engine._resting.set()
            sys.settrace(
                self.tracer if traced and self.how != "lanes" else None
            )  # one in a worker ends a run
            self._take()
            sys.settrace(None)
            idle = 0 if len(self.found) != before or len(self.found) < len(expected) else idle + 1
            if self.turns % 2:
                self._check_commits()

    def check(self) -> None:
        """Everything came once, each key in order, and everything counts as processed."""
        self.buffer.wait(0)
        assert Counter(self.found) == Counter(handed_out())
        for key in (LOW, HIGH, FOREIGN):
            mine = [value for value in self.found if value.startswith(key + b":")]
            assert mine == sorted(mine, key=lambda value: int(value.split(b":")[1]))
        for slot in (FIRST, SECOND):
            lineage = MERGED.lineage
            cursors = [c.settled(lineage) for c in self.slots.sink.cursor(slot)]
            assert {at for c in cursors for at in c.pending(lineage).items()} == {(4, 20)}

    def _orders(self) -> None:
        """Attention, a pause and its end; each again until it is done."""
        if self.turns == 4:
            self.engine.ask(lambda: self.events.call(lambda: None))
        if self.how == "lanes":
            return
        for turn, order in ((6, self.calls.pause), (8, self.calls.resume), (9, self.calls.resume)):
            if self.turns == turn:
                self.engine.ask(lambda order=order: order([PARENT]))  # type: ignore[misc]

    def _take(self) -> None:
        for _ in range(2 if self.turns % 3 else 1):
            try:
                {"consume": self._consume, "lanes": self._work}.get(self.how, self._poll)()
            except (InjectedError, Interruption):
                self.buffer.processed()  # the application goes on

    def _poll(self) -> None:
        if self.poller.attend() is not None:
            return
        try:
            self.found.append(self.buffer.take().value() or b"")
        except IndexError:
            self.buffer.wait(0)

    def _consume(self) -> None:
        found = self.poller.consume(3, 0)
        self.found += [m.value() or b"" for m in found if m.error() is None]

    def _work(self) -> None:
        self.poller.attend()
        with self.work_queue.lock:
            lane = self.work_queue.take()
        if lane is not None:
            self.found.append(lane.record.value() or b"")
            self.work_queue.done(lane)

    def _check_commits(self) -> None:
        """No position passes a record that was not handed out."""
        lineage, had = self.slots.lineage(PARENT), set(self.found)
        missing = [
            (place, record)
            for place, records in self.client.logs.items()
            for record in records
            if record.key() is not None and record.value() not in had and record.value() != b"skipped"
        ]
        if not missing or self.slots.of(PARENT)[0].stage is not SlotStage.READING:
            return
        for slot in (FIRST, SECOND):
            try:
                cursors = self.slots.sink.cursor(slot)
            except KeyError:
                continue
            for cursor in cursors:
                if not cursor.ahead_of(lineage):
                    left = cursor.pending(lineage)
                    for place, record in missing:
                        _check_record(lineage, cursor, left, place, record)


def _check_record(
    lineage: Lineage, cursor: Cursor, left: Mapping[int, int], place: PhysicalPartition, record: Message
) -> None:
    offset = record.offset() or 0
    segment = lineage.at(place, offset)
    if segment is not None and key_hash(record.key() or b"") in cursor.range:
        ahead = left.get(segment.id, inf) > offset
        assert not ahead, f"committed, and not handed out: {record.value()!r}"


def handed_out() -> list[bytes]:
    """What is to be handed out."""
    return [m.value() or b"" for there in logs().values() for m in there if m.value() != b"skipped"]


def lines_of(how: str) -> dict[Line, list[int]]:
    """In which turns each line comes when nothing goes wrong."""
    lines: dict[Line, list[int]] = {}
    world = World(how)
    world.tracer = tracer(lambda line: lines.setdefault(line, []).append(world.turns))
    world.run()
    world.check()
    return lines


def broken_at(how: str, line: Line, turns: Sequence[int], hit: int) -> None:
    """Run with an exception before a line, the so many-th time that it comes; ``turns``: when it does."""
    world = World(how)
    world.traced_from = turns[hit - 1]
    left = [hit - sum(turn < world.traced_from for turn in turns)]

    def seen(at: Line) -> None:
        if at == line:
            left[0] -= 1
            if left[0] == 0:
                world.tracer = None
                sys.settrace(None)
                raise Interruption if how == "interrupted" else InjectedError

    world.tracer = tracer(seen, line)
    world.run()
    world.check()
    assert left[0] == 0, "the line did not come"


def _leaves(frame: FrameType) -> bool:
    """Whether a ``with`` block is left: its line comes again then, where nothing can raise but a signal."""
    code, line = frame.f_code, frame.f_lineno
    text = linecache.getline(code.co_filename, line).strip()
    if not text.startswith("with "):
        return text == "try:"  # does nothing, and no handler covers it
    return frame.f_lasti > min(start for start, _, at in code.co_lines() if at == line)


def tracer(seen: Callable[[Line], None], only: Line | None = None) -> Tracer:
    """Return what calls this before each line between client and application, or of one file at least."""

    inside: dict[int, bool] = {}  # by id: a code's hash is made of all that is in it, each time

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and (only is None or frame.f_lineno == only[1]) and not _leaves(frame):
            seen((frame.f_code.co_filename, frame.f_lineno))
        return local

    def calls(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if (known := inside.get(id(code))) is None:
            known = inside[id(code)] = _is_between(code) and (only is None or _has(code, only))
        return local if known else None

    return calls


def _is_between(code: CodeType) -> bool:
    name = Path(code.co_filename).stem
    if name not in BETWEEN or "/kpsplit/" not in code.co_filename:
        return False
    return name not in ("engine", "logical_message") or code.co_name not in OUTSIDE


def _has(code: CodeType, line: Line) -> bool:
    return code.co_filename == line[0] and any(at == line[1] for _, _, at in code.co_lines())
