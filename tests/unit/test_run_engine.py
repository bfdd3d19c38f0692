"""Lanes as the sink of a real engine: from and back to the poll buffer, and commits that carry outputs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaException, Message, TopicPartition

from kpsplit.clock import Deadline
from kpsplit.consumer.events import Events
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.consumer.polling import Poller
from kpsplit.consumer.run import lanes, runner
from kpsplit.consumer.run.handlers import Output
from kpsplit.consumer.run.lanes import Lane
from kpsplit.consumer.run.outputs import OutputParticipant
from kpsplit.consumer.run.policies import Judge, Stop
from kpsplit.consumer.run.runner import Attached, attach, commit_now
from kpsplit.consumer.run.work_queue import LANES_PER_WORKER, WorkQueue
from kpsplit.consumer.slots.assigned import SlotStage, SlotStart
from kpsplit.errors import KpsplitError, UnknownOutcomeError
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.reading import Cursor
from tests.unit.engine_world import PARENT, TOPIC, World, slot
from tests.unit.lane_samples import keys_in

KEYS = [keys_in(slot(index).range, 1)[0] for index in range(2)]
BUFFER = 1 << 20


class Log:
    """What a producer of transactions would have written."""

    def __init__(self, group_offsets: Any) -> None:
        self.written: list[bytes] = []
        self.begun = 0
        self._group_offsets = group_offsets
        group_offsets.commit_with_outputs = self.commit_with_outputs

    def commit_with_outputs(
        self, processed: Any, member: Any, metadata: Any, seconds: float, participant: Any, load: Any
    ) -> None:
        self.begun += 1
        sent: list[bytes] = []
        load.write(Producer(sent), Deadline(seconds))
        self._group_offsets.commit(processed, member, metadata, seconds)
        self.written += sent


class Producer:
    def __init__(self, sent: list[bytes]) -> None:
        self._sent = sent

    def produce(self, topic: str, value: bytes, *_: Any, **__: Any) -> None:
        self._sent.append(value)

    def flush(self, timeout: float) -> int:
        return 0

    def list_topics(self, topic: str, **_: Any) -> Any:
        return SimpleNamespace(topics={})


def message(offset: int, key: bytes) -> Message:
    return Message(topic=TOPIC, partition=0, offset=offset, key=key, value=b"%d" % offset)


class Scene:
    """A world whose records go to lanes, with outputs."""

    def __init__(self, world: World, *plain: TopicPartition) -> None:
        self.world = world
        self.log = Log(world.group_offsets)
        self.new_run()
        world.subscribe()
        if plain:
            world.coordinator.give_partitions(*plain)
        else:
            world.coordinator.give(0, 1)
        world.polls(lambda: len(world.reader.owned) == (len(plain) or 2), "the slots")

    def new_run(self) -> None:
        """Make the desk of another run, not attached yet."""
        self.work_queue = work_queue = WorkQueue(2, BUFFER, Judge(Stop()), transactional=True)
        settings = replace(self.world.settings, auto_commit=True, auto_store=True)
        self.attached = Attached(
            work_queue, settings, lambda: asdict(work_queue.stats()), OutputParticipant(work_queue)
        )

    def attach(self, to: Attached) -> Attached:
        return self.world.engine.ask(lambda: attach(self.world.engine, to)).result(10)

    def take(self) -> Lane:
        found: list[Lane] = []

        def one() -> bool:
            with self.work_queue.lock:
                lane = self.work_queue.take()
            found.extend([lane] if lane else [])
            return bool(found)

        self.world.until(one, "a record")
        return found[0]

    def work(self, count: int) -> None:
        for _ in range(count):
            lane = self.take()
            self.work_queue.done(lane, (Output("target", value=lane.record.value()),))

    def commit(self) -> Any:
        world = self.world
        return world.engine.ask(lambda: commit_now(world.engine)).result(10)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with World() as world:
        yield Scene(world)


def test_lanes_go_on_where_the_application_polled_to_and_it_polls_on_where_they_came_to(scene: Scene) -> None:
    world = scene.world
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    world.take(2)
    world.buffer.wait(0)
    before = scene.attach(scene.attached)
    assert {c.positions[0] for c in world.reader.owned.values()} == {2}
    world.reader.write(message(2, KEYS[0]), message(3, KEYS[1]))
    slow = scene.take()
    scene.work_queue.done(scene.take())
    scene.attach(before)
    assert {s.index: c.positions[0] for s, c in world.reader.owned.items()} == {0: 2, 1: 4}
    scene.work_queue.done(slow)
    assert scene.work_queue.stats().late == 1
    assert world.slots.sink is world.buffer


def test_nothing_more_is_read_while_workers_have_enough(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "AHEAD_BYTES", 1)
    world, work_queue = scene.world, scene.work_queue
    before = scene.attach(scene.attached)
    owned = KeyRange(slot(0).range.lo, slot(1).range.hi)
    keys = [keys_in(range_, 1)[0] for range_ in owned.split_evenly(2 * LANES_PER_WORKER)]
    world.reader.write(*(message(offset, key) for offset, key in enumerate(keys)))
    taken = [scene.take()]
    for number in range(1, 4):
        world.reader.write(message(len(keys) - 1 + number, KEYS[0]))
    turns = world.stats()["turns_without_room"]
    world.until(lambda: world.stats()["turns_without_room"] > turns + 5, "rests")
    assert len(world.reader.due) == 3
    while len(taken) <= len(keys) // 2:
        assert len(world.reader.due) == 3
        taken.append(scene.take())
    world.until(lambda: not world.reader.due, "what is left")
    for lane in taken:
        work_queue.done(lane)
    scene.attach(before)


def test_what_was_stored_before_a_run_takes_nothing_back_behind_it() -> None:
    with World(enable_auto_offset_store=False) as world:
        scene = Scene(world)
        calls = world.calls
        world.reader.write(*(message(n, KEYS[0]) for n in range(3)))
        last, mark = world.take(3)[1], world.buffer.mark()
        world.engine.ask(lambda: calls.store(calls.after_message(last, mark))).result(10)
        before = scene.attach(replace(scene.attached, participant=None))
        assert world.reader.owned[slot(0)].positions == {0: 2}, "the run begins behind what was stored"
        world.reader.written = 2
        world.reader.write(message(2, KEYS[0]), message(3, KEYS[0]))
        for _ in range(2):
            scene.work_queue.done(scene.take())
        scene.commit().result(10)
        assert world.group_offsets.commits[-1][slot(0).range] == 4
        scene.attach(before)
    assert [commit[slot(0).range] for commit in world.group_offsets.commits] == [4]


def test_a_run_commits_by_its_own_interval(scene: Scene) -> None:
    """The one of the application is an hour here."""
    world = scene.world
    settings = replace(scene.attached.settings, auto_commit_interval=0.2)
    before = scene.attach(replace(scene.attached, participant=None, settings=settings))
    world.reader.write(message(0, KEYS[0]))
    scene.work_queue.done(scene.take())
    world.until(lambda: world.group_offsets.commits, "an automatic commit")
    scene.attach(before)


def test_after_a_run_the_interval_of_the_application_counts_again() -> None:
    with World(auto_commit_interval_ms=100) as world:
        scene = Scene(world)
        settings = replace(scene.attached.settings, auto_commit_interval=3600.0)
        before = scene.attach(replace(scene.attached, participant=None, settings=settings))
        time.sleep(0.3)  # longer than that: nothing is due by it inside the run
        scene.attach(before)
        world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
        world.take(2)
        world.buffer.wait(0)
        world.until(lambda: world.group_offsets.commits, "an automatic commit")


@pytest.mark.parametrize("stores_by_itself", [True, False])
@pytest.mark.parametrize("place", [2, 9])
def test_a_run_begins_where_the_application_sought_and_not_where_it_committed(
    stores_by_itself: bool, place: int
) -> None:
    """A seek names the place after every commit; where places are stored, it takes back what was stored."""
    with World(enable_auto_offset_store=stores_by_itself) as world:
        world.group_offsets.starts = lambda wanted, me: [  # type: ignore[method-assign]
            SlotStart((Cursor(w.range, {0: 5}),), committed=True) for w in wanted
        ]
        scene = Scene(world)
        world.engine.call(lambda: world.calls.seek(PARENT, Cursor(WHOLE, {0: place})))
        before = scene.attach(scene.attached)
        assert {c.positions[0] for c in world.reader.owned.values()} == {place}
        scene.attach(before)
        assert {c.positions[0] for c in world.reader.owned.values()} == {place}
        scene.new_run()
        scene.attach(scene.attached)
        assert {c.positions[0] for c in world.reader.owned.values()} == {place}


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_begins_with_what_was_handed_out_and_not_stored(stored: bool) -> None:
    """Also where a slot was held meanwhile, and is handed out again from after it."""
    with World(enable_auto_offset_store=False) as world:
        world.group_offsets.starts = lambda wanted, me: [  # type: ignore[method-assign]
            SlotStart((Cursor(w.range, {0: 0}),)) for w in wanted
        ]
        scene = Scene(world)
        world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
        world.take(2)
        world.buffer.wait(0)
        calls = world.calls
        if stored:
            part = [TopicPartition(TOPIC, 0, 1)]
            world.engine.call(lambda: calls.store(calls.below_offsets(part, world.buffer.mark())))

        def held() -> None:
            for one in world.slots:
                world.slots.hold(one)
                world.slots.hand_out_again(one)

        world.engine.call(held)
        assert {c.positions[0] for c in world.reader.owned.values()} == {2}
        scene.attach(scene.attached)
        assert {c.positions[0] for c in world.reader.owned.values()} == {int(stored)}


def test_a_refused_commit_is_tried_again_with_the_same_outputs(scene: Scene) -> None:
    scene.attach(scene.attached)
    scene.world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    scene.work(2)
    scene.world.group_offsets.failures.append(KpsplitError("records went astray", retriable=True))
    with pytest.raises(KafkaException):
        scene.commit().result(10)
    assert scene.log.written == []
    scene.commit().result(10)
    assert sorted(scene.log.written) == [b"0", b"1"]
    assert scene.work_queue.waiting_bytes() == 0


def test_after_an_unknown_outcome_slots_start_anew_from_what_the_log_says(scene: Scene) -> None:
    scene.attach(scene.attached)
    world = scene.world
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    scene.work(2)
    asked = world.group_offsets.asked
    world.group_offsets.failures.append(UnknownOutcomeError("no answer"))
    with pytest.raises(KafkaException):
        scene.commit().result(10)
    world.until(
        lambda: world.group_offsets.asked > asked and len(world.reader.owned) == 2, "the slots' starts"
    )
    assert {c.positions[0] for c in world.reader.owned.values()} == {0}
    assert scene.work_queue.waiting_bytes() == 0
    world.reader.written = 0
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    scene.work(2)
    scene.commit().result(10)
    assert sorted(scene.log.written) == [b"0", b"1"]


def test_outputs_that_a_run_could_not_commit_are_made_again_by_the_next(scene: Scene) -> None:
    world = scene.world
    before = scene.attach(scene.attached)
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    scene.work(2)
    scene.commit().result(10)
    world.reader.write(message(2, KEYS[0]), message(3, KEYS[1]))
    scene.work(2)
    world.group_offsets.failures.append(KpsplitError("brokers are away"))
    with pytest.raises(KafkaException):
        scene.commit().result(10)
    scene.work_queue.end()
    scene.attach(before)
    world.until(lambda: len(world.reader.owned) == 2, "the slots, from what is committed")
    assert {c.positions[0] for c in world.reader.owned.values()} == {0}, "this ledger says that always"
    scene.new_run()
    scene.attach(scene.attached)
    world.reader.written = 2
    world.reader.write(message(2, KEYS[0]), message(3, KEYS[1]))
    scene.work(2)
    scene.commit().result(10)
    assert sorted(scene.log.written) == [b"0", b"1", b"2", b"3"]


def test_positions_of_a_run_that_was_broken_off_are_not_committed_without_their_outputs() -> None:
    with World() as world:
        scene = Scene(world)
        before = scene.attach(scene.attached)
        world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
        scene.work(2)
        scene.work_queue.end()
        scene.attach(before)
    assert (scene.log.written, world.group_offsets.commits) == ([], [])


def test_a_slot_of_which_nothing_was_ever_committed_goes_back_to_where_it_began(scene: Scene) -> None:
    """A look-up would answer with the end of the log where ``auto.offset.reset`` says so."""
    world = scene.world
    world.group_offsets.starts_gate.clear()
    for assigned in world.slots:
        assigned.committed = ()
    before = scene.attach(scene.attached)
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    scene.work(2)
    scene.attach(before)
    world.polls(lambda: len(world.reader.owned) == 2, "the slots, without a look-up")
    assert {c.positions[0] for c in world.reader.owned.values()} == {0}


def test_while_a_commit_is_under_way_it_decides_where_its_slots_begin_anew(scene: Scene) -> None:
    world = scene.world
    for assigned in world.slots:
        assigned.committed = ()
    before = scene.attach(scene.attached)
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    scene.work(2)
    world.group_offsets.commit_gate.clear()
    last, asked = scene.commit(), world.group_offsets.asked
    world.until(lambda: scene.log.begun, "the commit")
    scene.attach(before)
    assert not world.reader.owned
    world.group_offsets.commit_gate.set()
    last.result(10)
    world.polls(lambda: len(world.reader.owned) == 2, "the slots")
    assert world.group_offsets.asked == asked + 1


def test_a_commit_that_was_asked_for_before_its_slots_began_anew_is_void(scene: Scene) -> None:
    """It says that records are processed whose outputs went with the carrier."""
    world = scene.world
    before = scene.attach(scene.attached)
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    scene.work(2)
    world.group_offsets.failures.append(KpsplitError("brokers are away"))
    world.group_offsets.commit_gate.clear()
    under_way = scene.commit()
    world.until(lambda: scene.log.begun, "the commit")
    behind, asked = scene.commit(), world.group_offsets.asked
    over = threading.Event()
    scene.attach(before)
    world.until(lambda: not world.slots.on([SlotStage.WANTED]), "the question for the starts")
    world.engine.ask(lambda: over.wait(10))  # both answers are there when it turns again
    world.group_offsets.commit_gate.set()
    world.until(lambda: world.group_offsets.asked > asked, "the starts")
    world.engine.executor.run(lambda: None).result(10)
    over.set()
    with pytest.raises(KafkaException, match="brokers are away"):
        under_way.result(10)
    with pytest.raises(KafkaException, match="ILLEGAL_GENERATION"):
        behind.result(10)
    assert world.group_offsets.commits == []


def test_outputs_ahead_of_a_lane_that_stopped_are_made_again_where_one_offset_stands_for_all_keys() -> None:
    behind, ahead = (keys_in(range_, 1)[0] for range_ in WHOLE.split_evenly(2))
    with World() as world:
        world.metadata.view.enrolments.clear()
        world.coordinator.members = lambda: None  # type: ignore[assignment, return-value]
        scene = Scene(world, TopicPartition(TOPIC, 0))
        before = scene.attach(scene.attached)
        world.reader.write(message(0, behind), message(1, ahead))
        failing = scene.take()
        scene.work(1)
        scene.work_queue.failed(failing, ValueError())
        scene.commit().result(10)
        assert scene.log.written == []
        scene.attach(before)
        scene.new_run()
        scene.attach(scene.attached)
        world.until(lambda: world.reader.owned, "the partition")
        world.reader.written = 0
        world.reader.write(message(0, behind), message(1, ahead))
        scene.work(2)
        scene.commit().result(10)
        assert sorted(scene.log.written) == [b"0", b"1"]


def test_a_slot_is_handed_over_when_its_record_is_done_and_committed_with_its_output(scene: Scene) -> None:
    scene.attach(scene.attached)
    world = scene.world
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    busy = [scene.take(), scene.take()]
    leaving, staying = sorted(busy, key=lambda lane: lane.slot_queue.slot)
    world.coordinator.take(0)
    world.until(lambda: leaving.slot_queue.released, "the slot to be withheld")
    assert world.coordinator.held() == {0, 1}
    scene.work_queue.done(leaving, (Output("target", value=leaving.record.value()),))
    world.polls(lambda: world.coordinator.held() == {1}, "the hand-over")
    assert scene.log.written == [b"0"]
    assert world.group_offsets.commits[-1][slot(0).range] == 2
    scene.work_queue.give_back(staying)


def test_a_pause_in_a_run_stops_what_waits_in_lanes_and_resume_gives_it_out(scene: Scene) -> None:
    world, calls, work_queue = scene.world, scene.world.calls, scene.work_queue
    parts = [TopicPartition(TOPIC, 0)]

    def taken() -> Lane | None:
        with work_queue.lock:
            return work_queue.take()

    before = scene.attach(replace(scene.attached, participant=None))
    world.reader.write(*(message(n, KEYS[n % 2]) for n in range(6)))
    busy = scene.take()
    world.engine.call(lambda: calls.pause(parts))
    assert taken() is None
    work_queue.done(busy)
    assert taken() is None, "nor does its lane go on when its record is done"
    for _ in range(2):
        world.engine.call(lambda: calls.resume(parts))
    found = []
    while (lane := taken()) is not None:
        found.append(lane.record.offset())
        work_queue.done(lane)
    assert found == [1, 2, 3, 4, 5]
    scene.attach(before)


def test_a_position_is_told_while_a_run_is_under_way(scene: Scene) -> None:
    """Handlers may ask for it: it is what the workers are done with."""
    world = scene.world
    calls = world.calls

    def position() -> list[int | None]:
        parts, mark = [TopicPartition(TOPIC, 0)], world.buffer.mark()
        found = world.engine.ask(lambda: calls.positions(parts, mark)).result(10)
        return [None if p.offset == OFFSET_INVALID else p.offset for p in found]

    assert position() == [None]
    before = scene.attach(scene.attached)
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]), message(2, KEYS[0]))
    scene.work(3)
    assert position() == [3]
    scene.attach(before)


def test_a_run_polls_while_its_last_records_are_worked_on_and_committed() -> None:
    """Else a member whose last record takes ``max.poll.interval.ms`` would leave its group."""
    buffer = FetchBuffer()
    poller = Poller(buffer, Events(buffer.ask_attention))
    pulses: list[int] = []
    last: Future[Any] = Future()

    def join(_: Deadline) -> bool:
        pulses.append(poller.pulse())
        return len(pulses) > 3

    def ended(_: float) -> bool:
        pulses.append(poller.pulse())
        if len(pulses) > 8:
            last.set_result(None)
        return False

    engine: Any = SimpleNamespace(events=poller.events, call=lambda _: last, ended=ended)
    workers: Any = SimpleNamespace(join=join)
    run = runner._Run(
        SimpleNamespace(_buffer=buffer, _poller=poller), WorkQueue(1, BUFFER, Judge(Stop())), workers, 30.0
    )
    run._drain(engine)
    assert len(set(pulses[:4])) == 4, "it polls between any two looks at the workers"
    del pulses[:]
    run._commit(engine)
    assert len(set(pulses)) == len(pulses) > 8
    assert run._work_queue.error is None


@pytest.mark.parametrize("held", [False, True])
def test_a_position_is_told_after_a_run_and_after_a_slot_was_held(scene: Scene, held: bool) -> None:
    """Where reading goes on in the middle of a stay, the stay has begun before that."""
    world = scene.world

    def position() -> int:
        mark, part = world.buffer.mark(), TopicPartition(TOPIC, 0)
        return world.engine.call(lambda: world.calls.positions([part], mark))[0].offset

    def hold() -> None:
        for one in world.slots:
            world.slots.hold(one)
            world.slots.hand_out_again(one)

    before = scene.attach(scene.attached)
    assert position() == OFFSET_INVALID
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]), message(2, KEYS[0]))
    scene.work(3)
    scene.commit().result(10)
    scene.attach(before)
    if held:
        world.engine.call(hold)
    assert position() == 3
    world.engine.call(lambda: world.calls.seek(PARENT, Cursor(WHOLE, {0: 1})))
    assert position() == OFFSET_INVALID, "nothing was handed out since"


def test_an_interrupt_while_the_engine_attaches_a_run_leaves_the_consumer_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at: list[Any] = ["poll buffer"]
    jobs: list[Any] = []

    def attach_there(engine: Any, new: Any) -> Any:
        before, at[0] = at[0], new
        return before

    def call(job: Any) -> Any:
        """Ctrl-C comes before the first answer; the engine does everything in order all the same, later."""
        jobs.append(job)
        if len(jobs) == 1:
            raise KeyboardInterrupt

    buffer = SimpleNamespace(ask_attention=lambda: None, processed=lambda: None, attended=lambda: None)
    engine = SimpleNamespace(slots=SimpleNamespace(sink=buffer), call=call)
    consumer = SimpleNamespace(_buffer=buffer, _running=lambda: SimpleNamespace(engine=engine))
    monkeypatch.setattr(runner, "attach", attach_there)
    workers: Any = SimpleNamespace(start=lambda: None)
    run = runner._Run(consumer, WorkQueue(1, BUFFER, Judge(Stop())), workers, 1.0)
    with pytest.raises(KeyboardInterrupt):
        run.run("the run")  # type: ignore[arg-type]
    for job in jobs:
        job()
    assert at == ["poll buffer"]
