"""A state store beside a real engine: restored before records come, committed with what is covered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException, Message

from kpsplit.consumer.commit.payload import place_of
from kpsplit.consumer.group.membership import State
from kpsplit.consumer.run.lanes import Lane
from kpsplit.consumer.run.policies import Judge, Retry
from kpsplit.consumer.run.runner import Attached, attach, commit_now
from kpsplit.consumer.run.work_queue import WorkQueue
from kpsplit.consumer.slots import assigned_slots
from kpsplit.consumer.slots.assigned import SlotStage
from kpsplit.consumer.state.slots import SlotId
from kpsplit.errors import FencedError, KpsplitError, UnknownOutcomeError, UsageError
from kpsplit.kafka.groups import Members, Owner
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import slots_topic
from tests.unit.engine_world import TOPIC, World, slot
from tests.unit.lane_samples import keys_in
from tests.unit.state_fakes import Store, count

KEYS = [keys_in(slot(index).range, 1)[0] for index in range(2)]
BUFFER = 1 << 20


def message(offset: int, key: bytes) -> Message:
    return Message(topic=TOPIC, partition=0, offset=offset, key=key, value=b"%d" % offset)


def named(index: int) -> SlotId:
    return SlotId.of(slot(index))


class Scene:
    """A world with a state store, polled or with lanes."""

    def __init__(self, world: World) -> None:
        self.world, self.store = world, Store()
        world.slots.state_binding.store = self.store
        self.work_queue = WorkQueue(2, BUFFER, Judge(Retry()), self.store)
        settings = replace(world.settings, auto_commit=True)
        self.attached = Attached(self.work_queue, settings, lambda: asdict(self.work_queue.stats()))
        world.subscribe()

    def owns(self, *indexes: int) -> None:
        self.world.coordinator.give(*indexes)
        wanted = set(map(slot, indexes))
        self.world.polls(lambda: wanted <= set(self.world.reader.owned), "the slots")

    def attach(self, to: Attached) -> Attached:
        return self.world.engine.ask(lambda: attach(self.world.engine, to)).result(10)

    def write(self, *keys: bytes) -> None:
        first = self.world.reader.written
        self.world.reader.write(*[message(first + n, key) for n, key in enumerate(keys)])

    def take(self) -> Lane:
        found: list[Lane] = []

        def one() -> bool:
            with self.work_queue.lock:
                lane = self.work_queue.take()
            found.extend([lane] if lane else [])
            return bool(found)

        self.world.until(one, "a record")
        return found[0]

    def try_(self, lane: Lane) -> None:
        """Call a handler that counts."""
        with lane.attempt:
            count(self.store.owned[SlotId.of(lane.slot_queue.slot)], lane.record.key())

    def work(self, times: int) -> None:
        for _ in range(times):
            lane = self.take()
            self.try_(lane)
            self.work_queue.done(lane)

    def poll(self) -> Message:
        """Poll a record and count it."""
        [found] = self.world.take(1)
        owned = next(o for o in self.store.owned.values() if found.key() in _keys(o.slot))
        count(owned, found.key() or b"", place_of(found))
        return found

    def commit(self) -> None:
        world = self.world
        committed = world.engine.ask(lambda: commit_now(world.engine)).result(10)
        committed.result(10)


def _keys(one: SlotId) -> list[bytes]:
    return [key for index, key in enumerate(KEYS) if index == one.index]


@pytest.fixture
def scene() -> Iterator[Scene]:
    with World() as world:
        yield Scene(world)


def test_a_slot_is_read_when_its_state_is_there_and_holds_up_no_other(scene: Scene) -> None:
    world, store = scene.world, scene.store
    store.withheld = {named(1)}
    world.coordinator.give(0, 1)
    world.polls(lambda: set(world.reader.owned) == {slot(0)}, "the one that is there")
    world.polls(lambda: ("taken", 1) in store.told, "the other to be restored")
    assert world.state is State.ASSIGNING_PARTITIONS
    store.withheld = set()
    world.polls(lambda: set(world.reader.owned) == {slot(0), slot(1)}, "both")


def test_state_that_cannot_be_restored_is_told_once_and_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assigned_slots, "RETRY_SECONDS", 0.0)
    world, store = scene.world, scene.store
    store.errors[named(1)] = KpsplitError("the changelog is not as it has to be")
    world.coordinator.give(0, 1)
    told = world.polls(lambda: store.told.count(("taken", 1)) > 2, "another try")
    assert len(told) == 1
    assert "the changelog is not as it has to be" in told[0].error().str()
    assert set(world.reader.owned) == {slot(0)}
    store.errors.clear()
    world.polls(lambda: set(world.reader.owned) == {slot(0), slot(1)}, "both")


def test_a_slot_that_begins_anew_while_on_assign_runs_is_read_with_its_state(scene: Scene) -> None:
    """The answer that named another member for it gave up its state; the next one was right."""
    world, store = scene.world, scene.store

    def begins_anew() -> None:
        held = list(world.slots)
        world.engine.call(lambda: world.slots.withdraw(held))
        world.engine.call(lambda: world.slots.read_again(held))
        world.until(lambda: {one.stage for one in world.slots} == {SlotStage.FOUND}, "its start")

    world.inside["assign"] = begins_anew
    scene.owns(0)
    assert named(0) in store.owned
    assert world.told == [("assign", [0])], "the program knows of it"


def test_a_commit_takes_the_state_of_the_records_that_it_covers_and_no_other(scene: Scene) -> None:
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.write(KEYS[0], KEYS[1], KEYS[0])
    busy, other = sorted([scene.take(), scene.take()], key=lambda lane: lane.slot_queue.slot)
    scene.try_(busy)
    scene.try_(other)
    scene.work_queue.done(other)
    scene.commit()
    assert scene.store.saved() == {KEYS[1]: 1}
    scene.work_queue.done(busy)
    scene.work(1)
    scene.commit()
    assert scene.store.saved() == {KEYS[0]: 2, KEYS[1]: 1}


def test_state_of_what_was_processed_after_a_commit_was_put_together_waits_for_the_next(scene: Scene) -> None:
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.write(KEYS[0], KEYS[0], KEYS[0])
    scene.work(1)
    world, gate = scene.world, scene.world.group_offsets.commit_gate
    gate.clear()
    asked = []
    for _ in range(2):
        asked.append(world.engine.ask(lambda: commit_now(world.engine)).result(10))
        scene.work(1)
    gate.set()
    for committed in asked:
        committed.result(10)
    assert scene.store.saved() == {KEYS[0]: 2}


def test_polled_records_have_their_state_committed_when_more_is_asked_for(scene: Scene) -> None:
    scene.owns(0, 1)
    scene.write(KEYS[0], KEYS[1], KEYS[0])
    scene.poll()
    scene.poll()
    scene.commit()
    assert scene.store.saved() == {KEYS[0]: 1}
    scene.poll()
    scene.world.buffer.wait(0)
    scene.commit()
    assert scene.store.saved() == {KEYS[0]: 2, KEYS[1]: 1}


def test_a_try_that_fails_leaves_nothing_and_the_next_counts_once(scene: Scene) -> None:
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.write(KEYS[0])
    lane = scene.take()
    scene.try_(lane)
    scene.work_queue.failed(lane, ValueError())
    with scene.work_queue.lock:
        scene.work_queue.scheduler.unpark(lane)
    scene.work(1)
    scene.commit()
    assert scene.store.saved() == {KEYS[0]: 1}


def test_after_a_refused_commit_state_waits_for_the_next(scene: Scene) -> None:
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.write(KEYS[0])
    scene.work(1)
    scene.world.group_offsets.failures.append(KpsplitError("not now"))
    with pytest.raises(KafkaException):
        scene.commit()
    assert scene.store.saved() == {}
    scene.commit()
    assert scene.store.saved() == {KEYS[0]: 1}
    assert scene.store.told[-4:] == ["write", "aborted", "write", "committed"]


@pytest.mark.parametrize("error", [MemoryError(), KpsplitError("closed")])
@pytest.mark.parametrize("outputs", [True, False])
def test_state_of_a_commit_that_could_not_be_sent_waits_for_the_next(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception, outputs: bool
) -> None:
    """And whoever waits for the commit gets an answer."""
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.write(KEYS[0])
    scene.work(1)
    committer, offsets = scene.world.engine.committer, scene.world.group_offsets

    def fail(*_: object) -> Any:
        raise error

    payload = SimpleNamespace(write=lambda *_: None, committed=lambda: None, aborted=lambda: None)
    participant: Any = SimpleNamespace(payload=fail, keeps=lambda _: False)
    offsets.commit_with_outputs = lambda *given: given[-1].write(None, None)  # type: ignore[attr-defined]
    with monkeypatch.context() as broken:
        if outputs:
            broken.setattr(committer, "participant", participant)
        else:
            broken.setattr(committer.executor, "ask", fail)
        with pytest.raises(KafkaException, match="MemoryError|closed"):
            scene.commit()
    if outputs:
        participant.payload = lambda _: payload
        monkeypatch.setattr(committer, "participant", participant)
    scene.commit()
    assert scene.store.saved() == {KEYS[0]: 1}
    assert scene.store.told[-3:] == ["aborted", "write", "committed"]
    committer.participant = None


def test_a_commit_of_an_older_generation_is_repeated_with_the_same_state(scene: Scene) -> None:
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.write(KEYS[0])
    scene.work(1)
    scene.world.group_offsets.failures.append(FencedError("moved on", retriable=True))
    scene.commit()
    assert scene.store.saved() == {KEYS[0]: 1}


@pytest.mark.parametrize("polled", [True, False])
def test_after_an_unknown_outcome_records_come_again_to_the_state_that_the_log_has(
    scene: Scene, polled: bool
) -> None:
    world = scene.world
    scene.owns(0, 1)
    if not polled:
        scene.attach(scene.attached)
    scene.write(KEYS[0], KEYS[0])
    if polled:
        scene.poll()
        scene.poll()
        world.buffer.wait(0)
    else:
        scene.work(2)
    world.group_offsets.failures.append(UnknownOutcomeError("no answer"))
    with pytest.raises(KafkaException):
        scene.commit()
    world.polls(lambda: set(world.reader.owned) == {slot(0), slot(1)}, "the slots to start anew")
    assert ("released", 0) in scene.store.told
    world.reader.written = 0
    scene.write(KEYS[0], KEYS[0])
    if polled:
        scene.poll()
        scene.poll()
        world.buffer.wait(0)
    else:
        scene.work(2)
    scene.commit()
    assert scene.store.saved() == {KEYS[0]: 2}


def test_a_slot_that_leaves_is_committed_with_its_state_and_then_released(scene: Scene) -> None:
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.write(KEYS[0])
    lane = scene.take()
    scene.try_(lane)
    scene.world.coordinator.take(0)
    scene.world.until(lambda: lane.slot_queue.released, "the slot to be withheld")
    scene.work_queue.done(lane)
    scene.world.polls(lambda: scene.world.coordinator.held() == {1}, "the hand-over")
    assert scene.store.saved() == {KEYS[0]: 1}
    assert scene.store.told[-1] == ("released", 0)


def test_a_handler_that_returns_when_its_slot_is_lost_changes_no_state(scene: Scene) -> None:
    world = scene.world
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.write(KEYS[0])
    lane = scene.take()
    scene.try_(lane)
    world.coordinator.lose(0)
    world.polls(lambda: ("released", 0) in scene.store.told, "the loss")
    scene.owns(0)
    scene.work_queue.done(lane)
    assert scene.work_queue.stats().late == 1
    world.reader.written = 0
    scene.write(KEYS[0])
    scene.work(1)
    scene.commit()
    assert scene.store.saved() == {KEYS[0]: 1}
    assert scene.work_queue.error is None


def test_a_slot_that_was_lost_has_no_state_while_the_application_holds_a_record_of_before(
    scene: Scene,
) -> None:
    world = scene.world
    scene.owns(0, 1)
    scene.write(KEYS[0])
    scene.poll()
    asked = world.group_offsets.asked
    world.coordinator.lose(0)
    world.coordinator.give(0)
    world.until(lambda: ("released", 0) in scene.store.told, "the loss")
    world.until(
        lambda: world.group_offsets.asked > asked or named(0) in scene.store.owned, "the slot to come back"
    )
    world.until(lambda: world.stats()["slots"][str(slot(0))] == "found", "its start")
    assert named(0) not in scene.store.owned
    world.polls(lambda: slot(0) in world.reader.owned, "the slot")
    assert named(0) in scene.store.owned


def test_a_run_that_ends_with_a_record_unfinished_starts_its_slot_anew(scene: Scene) -> None:
    world = scene.world
    scene.owns(0, 1)
    before = scene.attach(scene.attached)
    scene.write(KEYS[0], KEYS[1])
    slow, quick = sorted([scene.take(), scene.take()], key=lambda lane: lane.slot_queue.slot)
    for lane in (slow, quick):
        scene.try_(lane)
    scene.work_queue.done(quick)
    scene.attach(before)
    scene.work_queue.done(slow)
    world.polls(lambda: set(world.reader.owned) == {slot(0), slot(1)}, "the slots")
    assert ("released", 0) in scene.store.told
    assert ("released", 1) not in scene.store.told
    world.reader.written = 0
    scene.write(KEYS[0])
    scene.poll()
    world.buffer.wait(0)
    scene.commit()
    assert scene.store.saved() == {KEYS[0]: 1, KEYS[1]: 1}


def test_a_slot_whose_disk_cannot_follow_a_commit_starts_anew(scene: Scene) -> None:
    world = scene.world
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.write(KEYS[0], KEYS[1])
    scene.work(2)
    scene.store.disk.broken = True
    scene.commit()
    world.until(lambda: ("released", 0) in scene.store.told, "the slots to be given up")
    scene.store.disk.broken, scene.store.withheld = False, set()
    world.polls(lambda: set(world.reader.owned) == {slot(0), slot(1)}, "the slots to start anew")


def test_a_record_does_not_count_whose_state_is_gone(scene: Scene) -> None:
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.write(KEYS[0], KEYS[0])
    lane = scene.take()
    scene.try_(lane)
    scene.store.owned[named(0)].leave()
    scene.work_queue.done(lane)
    assert scene.work_queue.stats().processed == 0
    assert {c.positions[0] for c in scene.work_queue.cursor(slot(0))} != {2}
    with scene.work_queue.lock:
        assert scene.work_queue.take() is None


def test_a_store_that_was_closed_ends_the_run(scene: Scene) -> None:
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.write(KEYS[0])

    def closed(*_: object) -> Any:
        raise UsageError("the state store is closed")

    scene.store.attempt = closed  # type: ignore[method-assign]
    scene.world.until(lambda: scene.work_queue.scheduler.waiting_bytes, "the record")
    with scene.work_queue.lock:
        assert scene.work_queue.take() is None
    assert isinstance(scene.work_queue.error, UsageError)


def test_so_much_that_waits_is_committed_without_delay(scene: Scene) -> None:
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.write(KEYS[0])
    scene.work(1)
    scene.store.full = True
    scene.world.until(lambda: scene.store.saved() == {KEYS[0]: 1}, "a commit")


def turns(world: World) -> None:
    """Wait for whole turns of the engine: it answers one of these in each."""
    for _ in range(3):
        world.stats()


def failing(scene: Scene, times: int) -> None:
    scene.world.group_offsets.failures.extend(KpsplitError("brokers are slow") for _ in range(times))


def test_while_commits_fail_no_more_is_processed_than_one_commit_may_hold(scene: Scene) -> None:
    """Else each commit would hold more than the one before, and none could end in its time."""
    scene.owns(0, 1)
    scene.attach(scene.attached)
    woken: list[int] = []
    scene.work_queue.wake = woken.append
    scene.store.bound = 1
    failing(scene, 1000)
    scene.write(KEYS[0], KEYS[1], KEYS[0])
    scene.work(1)
    failed = scene.world.engine.committer.failed
    scene.world.until(lambda: scene.world.engine.committer.failed >= failed + 2, "commits that fail")
    woken.clear()
    with scene.work_queue.lock:
        assert scene.work_queue.take() is None
    turns(scene.world)
    assert not woken
    scene.world.group_offsets.failures.clear()
    scene.world.until(lambda: woken, "workers to be woken when a commit has made room")
    scene.work(2)
    scene.world.until(lambda: scene.store.saved() == {KEYS[0]: 2, KEYS[1]: 1}, "the rest")


def test_state_ahead_of_what_commits_cover_lets_pass_only_what_they_wait_for(scene: Scene) -> None:
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.store.bound = 1
    scene.store.owned[named(1)].add({b"ahead": b"1"}, place_of(message(50, KEYS[1])))
    scene.write(KEYS[0], KEYS[1], KEYS[1])
    oldest = scene.take()
    assert oldest.record.key() == KEYS[0]
    with scene.work_queue.lock:
        assert scene.work_queue.take() is None, "another record is older"
    scene.try_(oldest)
    scene.work_queue.done(oldest)
    scene.work(2)


@pytest.mark.parametrize("auto_commit", [True, False])
def test_polling_waits_for_automatic_commits_that_fail_and_for_no_others(auto_commit: bool) -> None:
    """An application that commits itself cannot do so without a record in hand."""
    with World(enable_auto_commit=auto_commit, auto_commit_interval_ms=20) as world:
        scene = Scene(world)
        scene.owns(0, 1)
        scene.store.bound = 1
        failing(scene, 1000)
        world.buffer.full = lambda: auto_commit and scene.store.room().holds
        scene.write(KEYS[0], KEYS[1])
        scene.poll()
        world.buffer.processed()
        if auto_commit:
            world.until(lambda: world.engine.committer.failed >= 2, "commits that fail")
        turns(world)
        assert world.buffer.wait(0.1) is not auto_commit
        world.group_offsets.failures.clear()
        scene.poll()


def test_writes_of_no_record_are_committed_although_no_record_came(scene: Scene) -> None:
    scene.owns(0, 1)
    scene.attach(scene.attached)
    scene.store.owned[named(0)].add({b"timer": b"5"})
    scene.commit()
    assert scene.store.saved() == {b"timer": 5}


def test_the_store_is_told_who_owns_what_when_it_keeps_warm_copies(scene: Scene) -> None:
    world, store = scene.world, scene.store
    answer = Members(
        True,
        True,
        {
            PhysicalPartition(slots_topic(TOPIC), 0): Owner("me", "c", "h"),
            PhysicalPartition(slots_topic(TOPIC), 1): Owner("other", "c", "h"),
            PhysicalPartition("not ours", 0): Owner("other", "c", "h"),
        },
    )
    rebalancing = Members(True, False, {})
    answers: list[Any] = [rebalancing, KpsplitError("no answer"), answer]

    def members() -> Members:
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, KpsplitError):
            raise found
        return found  # type: ignore[no-any-return]

    world.group_offsets.members = members  # type: ignore[attr-defined]
    store.standbys = 1
    scene.owns(0)
    world.until(lambda: store.members, "the members")
    assert store.members == {"me": [named(0)], "other": [named(1)]}
