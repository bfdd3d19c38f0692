"""A member whose engine has not turned for long: what it hands out when it goes on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

import pytest
from confluent_kafka import Message

from kpsplit.clock import monotonic
from kpsplit.consumer.group.membership import State
from kpsplit.consumer.group.ownership import AGAIN_SECONDS, LOOKS
from kpsplit.consumer.run.handlers import synchronous
from kpsplit.consumer.run.policies import Judge, Stop
from kpsplit.consumer.run.runner import Attached, attach
from kpsplit.consumer.run.work_queue import WorkQueue
from kpsplit.consumer.run.workers import ThreadWorkers
from kpsplit.consumer.slots.assigned import SlotStage, by_hand
from kpsplit.errors import UnreachableError
from kpsplit.kafka.groups import Members, Owner
from kpsplit.splitter.group_slots import Mode, Subscribed
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import slots_topic
from tests.unit.engine_world import SLOTS, TOPIC, World, record, slot
from tests.unit.lane_samples import PATIENCE, keys_in

OTHER_KEY = keys_in(slot(1).range, 1)[0]
SESSION_SECONDS = 2.0
"""The least time in which the member's session can end."""
STEP_SECONDS = SESSION_SECONDS / 8
"""Time that passes at once: less than a sleep is."""


class SkippingClock:
    """The system's clock for all of kpsplit, and what a test has let pass at once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._skipped = 0.0
        for name, module in list(sys.modules.items()):
            if name.startswith("kpsplit.") and vars(module).get("monotonic") is monotonic:
                patch.setattr(module, "monotonic", self.now)

    def now(self) -> float:
        return monotonic() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += max(0.0, seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SkippingClock:
    return SkippingClock(monkeypatch)


class Sleeper(World):
    """A member whose time a test lets pass."""

    def __init__(self, clock: SkippingClock, **settings: object) -> None:
        self.clock = clock
        super().__init__(**settings)

    def passes(self, seconds: float) -> None:
        """So much time passes in which the engine turns and the application polls."""
        for _ in range(ceil(seconds / STEP_SECONDS)):
            self.clock.skip(STEP_SECONDS)
            for _ in range(2):  # the second request is served in a turn that began after the step
                self.engine.ask(lambda: None).result(PATIENCE)
            self.poll()


@pytest.fixture
def world(clock: SkippingClock) -> Iterator[Sleeper]:
    with Sleeper(clock, session_timeout_ms=6000, heartbeat_interval_ms=4000) as one:
        one.subscribe()
        one.coordinator.give(0, 1)
        one.polls(lambda: one.state is State.STABLE and len(one.reader.owned) == 2, "slots")
        yield one


@contextmanager
def sleeping(world: World) -> Iterator[None]:
    """The engine does not turn."""
    begun, over = threading.Event(), threading.Event()
    world.engine.ask(lambda: [begun.set(), over.wait(PATIENCE)])
    assert begun.wait(PATIENCE)
    try:
        yield
    finally:
        over.set()


@contextmanager
def asleep(world: Sleeper) -> Iterator[None]:
    """The engine does not turn, for longer than a member may sleep."""
    with sleeping(world):
        world.clock.skip(world.engine.ownership_guard.until + 0.01 - world.clock.now())
        yield


def buffered(world: World, *messages: Message) -> None:
    """Records wait in the buffer."""
    world.reader.write(*messages)
    world.until(world.fetch, "records in the buffer")


def told(**names: int) -> Callable[[], Members]:
    """What the coordinator answers: the owners of slots, by their names."""
    owners = {
        PhysicalPartition(slots_topic(TOPIC), index): Owner(name, "", "") for name, index in names.items()
    }
    return lambda: Members(True, True, owners)


def no_answer() -> Members:
    raise UnreachableError("could not describe group g: no answer in time")


def of_other_slot(number: int) -> Message:
    return Message(topic=TOPIC, partition=0, offset=number, key=OTHER_KEY, value=b"%d" % number)


def held(world: World) -> bool:
    return bool(world.stats()["held"])


def test_while_the_engine_sleeps_and_until_the_coordinator_has_answered_nothing_is_handed_out(
    world: Sleeper,
) -> None:
    answered = threading.Event()
    truth = world.coordinator.members

    def members() -> Members:
        answered.wait(PATIENCE)
        return truth()

    world.group_offsets.members = members
    buffered(world, record(0), record(1))
    with asleep(world):
        assert world.poll() is None
        assert world.buffer.consume(10) == []
    assert world.polls(lambda: held(world), "the sleep to be noticed") == []
    assert world.poll() is None
    assert world.count("held_after_sleep")
    answered.set()
    assert [m.value() for m in world.take(2)] == [b"0", b"1"]
    world.until(lambda: not held(world), "everything to be as ever")
    assert [name for name, _ in world.told] == ["assign"]


def test_an_application_that_waits_is_woken_by_the_confirmation(world: Sleeper) -> None:
    buffered(world, record(0))
    woken: list[bool] = []
    with asleep(world):
        waiter = threading.Thread(target=lambda: woken.append(world.buffer.wait(PATIENCE)))
        looks = world.buffer.looks
        waiter.start()
        world.until(lambda: world.buffer.looks > looks, "the application to wait")
        assert not woken
    waiter.join(PATIENCE)
    assert woken == [True]
    assert world.take(1)


def test_woken_without_its_slots_a_member_drops_what_it_had_buffered_and_tells_of_the_loss(
    world: Sleeper,
) -> None:
    buffered(world, record(0), of_other_slot(1))
    world.group_offsets.members = told(other=0, third=1)
    with asleep(world):
        assert world.poll() is None
    assert world.polls(lambda: not world.reader.owned, "the answer") == []
    assert world.poll() is None
    world.coordinator.lose(0, 1)
    assert world.polls(lambda: world.told[-1][0] == "lost", "on_lost") == []
    assert world.group_offsets.commits == []
    assert world.count("slots_lost") == 2
    world.coordinator.give(0)
    world.group_offsets.members = world.coordinator.members
    world.polls(lambda: world.state is State.STABLE and world.reader.owned, "a slot again")
    assert [name for name, _ in world.told] == ["assign", "lost", "assign"]


def test_slots_that_stay_are_handed_out_when_others_were_lost(world: Sleeper) -> None:
    buffered(world, record(0), of_other_slot(1), record(2))
    world.group_offsets.members = told(other=0, me=1)
    with asleep(world):
        assert world.poll() is None
    assert [m.value() for m in world.take(1)] == [b"1"]
    assert world.poll() is None
    assert set(world.reader.owned) == {slot(1)}


def test_slots_that_were_named_for_another_by_a_stale_coordinator_are_read_again_from_the_log(
    world: Sleeper,
) -> None:
    """A broker that coordinated the group, was frozen until it was deposed, and wakes up."""
    buffered(world, record(0), of_other_slot(1))
    world.group_offsets.members = told(other=0, third=1)
    asked = world.group_offsets.asked
    with asleep(world):
        assert world.poll() is None
    world.polls(lambda: not world.reader.owned, "the answer")
    world.group_offsets.members = world.coordinator.members
    world.polls(lambda: set(world.reader.owned) == {slot(0), slot(1)}, "the slots")
    assert world.group_offsets.asked > asked, "it began from what the log says"
    world.reader.write(record(2))
    assert [m.value() for m in world.take(1)] == [b"2"]
    assert [name for name, _ in world.told] == ["assign"]
    assert world.count("slots_lost") == world.count("left_group") == 0


def test_where_neither_the_client_nor_the_coordinator_says_more_of_such_slots_the_group_is_left(
    world: Sleeper,
) -> None:
    world.group_offsets.members = told(other=0, me=1)
    with asleep(world):
        assert world.poll() is None
    world.polls(lambda: set(world.reader.owned) == {slot(1)}, "the answer")
    world.passes(SESSION_SECONDS)
    world.polls(lambda: ("lost", [0]) in world.told, "the session to end")
    assert world.count("left_group") == 1
    assert world.count("slots_lost") == 2


def test_a_slot_that_is_named_for_another_by_the_way_is_asked_about_again_a_while_later(
    world: Sleeper,
) -> None:
    times: list[float] = []

    def members() -> Members:
        times.append(world.clock.now())
        return told(other=0, me=1)()

    world.group_offsets.members = members
    world.passes(SESSION_SECONDS / LOOKS + AGAIN_SECONDS)
    world.polls(lambda: set(world.reader.owned) == {slot(1)}, "the answer")
    assert times[1] - times[0] >= AGAIN_SECONDS


def test_the_coordinator_is_asked_while_commits_and_starts_wait_for_other_brokers(world: Sleeper) -> None:
    """Its silence would put every slot in doubt."""
    asked: list[float] = []

    def members() -> Members:
        asked.append(world.clock.now())
        return world.coordinator.members()

    world.group_offsets.starts_gate.clear()
    looks = world.group_offsets.asked
    world.coordinator.give(2)
    world.polls(lambda: world.group_offsets.asked > looks, "the question for the start of the new slot")
    world.group_offsets.members = members
    for number in range(2 * LOOKS):
        world.passes(SESSION_SECONDS / LOOKS)
        world.polls(lambda so_many=number: len(asked) > so_many, "questions for longer than a session")
    assert not world.group_offsets.starts_gate.is_set()


def test_while_the_group_cannot_be_asked_nothing_is_handed_out_and_the_statistics_say_why(
    world: Sleeper,
) -> None:
    buffered(world, record(0))
    world.group_offsets.members = no_answer
    with asleep(world):
        assert world.poll() is None
    assert world.polls(lambda: "no answer in time" in str(world.stats()["trouble"]), "the trouble") == []
    assert held(world)
    world.group_offsets.members = world.coordinator.members
    assert [m.value() for m in world.take(1)] == [b"0"]
    assert world.stats()["trouble"] is None


def test_a_loss_that_the_group_tells_ends_the_wait_for_a_coordinator_that_cannot_be_asked(
    world: Sleeper,
) -> None:
    buffered(world, record(0))
    world.group_offsets.members = no_answer
    with asleep(world):
        world.coordinator.lose(0, 1)
    assert world.polls(lambda: world.told[-1][0] == "lost" and not held(world), "the loss") == []
    world.coordinator.give(0)
    world.polls(lambda: world.reader.owned, "a slot again")
    buffered(world, record(1))
    assert [m.value() for m in world.take(1)] == [b"1"]


def test_to_leave_the_group_during_the_wait_lets_nothing_through(world: Sleeper) -> None:
    buffered(world, record(0))
    world.group_offsets.members = no_answer
    with asleep(world):
        world.engine.group._topics = frozenset()  # as unsubscribe() does, before slots are handed over
    assert world.polls(lambda: "no answer in time" in str(world.stats()["trouble"]), "the trouble") == []
    assert held(world)


def test_a_revocation_during_the_wait_hands_over_as_ever(world: Sleeper) -> None:
    world.reader.write(record(0), record(1))
    world.take(1)
    world.group_offsets.members = no_answer
    with asleep(world):
        world.coordinator.take(0, 1)
    assert world.polls(lambda: not world.coordinator.held(), "the hand-over") == []
    assert world.group_offsets.commits == [{slot(0).range: 1, slot(1).range: 1}]
    assert world.told[-1][0] == "revoke"


def test_what_was_assigned_by_hand_beside_a_group_is_nothing_that_the_group_can_give_to_others(
    world: Sleeper,
) -> None:
    mine = by_hand(Subscribed(TOPIC, slots_topic(TOPIC), Mode.SLOTS, SLOTS), 0)
    world.engine.ask(lambda: world.engine.membership.hold([mine])).result(PATIENCE)
    world.group_offsets.members = told(other=0, third=1)
    with asleep(world):
        pass
    world.polls(lambda: world.slots.on((SlotStage.STOPPED,)) and not held(world), "the answer")
    world.coordinator.lose(0, 1)
    world.polls(lambda: world.told[-1][0] == "lost", "the loss")
    assert [h.slot for h in world.slots] == [mine.slot]


def test_partitions_assigned_by_hand_are_handed_out_whatever_the_engine_does(clock: SkippingClock) -> None:
    with World(session_timeout_ms=3000, heartbeat_interval_ms=2500) as world:
        known = Subscribed(TOPIC, slots_topic(TOPIC), Mode.SLOTS, SLOTS)
        world.engine.ask(lambda: world.engine.membership.hold([by_hand(known, 0)])).result(PATIENCE)
        world.polls(lambda: world.reader.owned, "the partition")
        buffered(world, record(0))
        with sleeping(world):
            clock.skip(1.0)  # so long it sleeps
            assert world.poll()
        assert not held(world)
        assert world.count("held_after_sleep") == 0


class Lanes:
    """A run with two workers in the place of the poll buffer; ``seen``: what the handler was called with."""

    def __init__(self, world: World) -> None:
        self.seen: list[bytes] = []
        self._world = world
        self.work_queue = WorkQueue(2, 1 << 20, Judge(Stop()))
        handler = synchronous(lambda message: self.seen.append(message.value()), transactional=False)
        self.workers = ThreadWorkers(self.work_queue, [handler] * 2, None)  # type: ignore[arg-type]
        self._attached = Attached(self.work_queue, world.settings, lambda: None)

    def __enter__(self) -> Lanes:
        self._before = self._attach(self._attached)
        return self

    def __exit__(self, *_: object) -> None:
        self.work_queue.end()
        self._attach(self._before)

    def _attach(self, to: Attached) -> Attached:
        return self._world.engine.ask(lambda: attach(self._world.engine, to)).result(PATIENCE)


def test_workers_get_nothing_behind_a_sleep_until_the_slots_are_confirmed(world: Sleeper) -> None:
    with Lanes(world) as lanes:
        buffered(world, record(0), of_other_slot(1))
        world.group_offsets.members = no_answer
        with asleep(world):
            lanes.workers.start()
        world.until(lambda: world.stats()["trouble"], "the coordinator not to answer")
        assert lanes.seen == []
        world.group_offsets.members = world.coordinator.members
        world.until(lambda: sorted(lanes.seen) == [b"0", b"1"], "the workers to go on")


def test_workers_get_nothing_of_slots_that_were_lost_in_a_sleep(world: Sleeper) -> None:
    with Lanes(world) as lanes:
        buffered(world, record(0), of_other_slot(1))
        world.group_offsets.members = told(other=0, me=1)
        with asleep(world):
            lanes.workers.start()
        world.until(lambda: lanes.seen, "the workers to go on")
        world.until(lambda: lanes.work_queue.stats().processed == 1, "the record of the slot that stays")
        assert lanes.seen == [b"1"]
        world.coordinator.lose(0)
        assert world.polls(lambda: world.told[-1][0] == "lost", "on_lost") == []


def test_a_sink_that_takes_over_behind_a_sleep_hands_out_nothing_either(world: Sleeper) -> None:
    world.group_offsets.members = no_answer
    with asleep(world):
        pass
    world.until(lambda: world.stats()["trouble"], "the coordinator not to answer")
    with Lanes(world) as lanes:
        buffered(world, record(0))
        with lanes.work_queue.lock:
            assert lanes.work_queue.take() is None
            assert lanes.work_queue.scheduler.next() is not None
