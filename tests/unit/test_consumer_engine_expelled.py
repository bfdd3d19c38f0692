"""A member that is expelled from its group while it hands slots over, and so is not told of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from kpsplit.consumer.group.membership import State
from kpsplit.consumer.run.handlers import synchronous
from kpsplit.consumer.run.policies import Judge, Stop
from kpsplit.consumer.run.runner import Attached, attach
from kpsplit.consumer.run.work_queue import WorkQueue
from kpsplit.consumer.run.workers import ThreadWorkers
from kpsplit.consumer.slots.assigned import SlotStage
from kpsplit.errors import FencedError
from kpsplit.kafka.groups import Members, Owner
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import slots_topic
from tests.unit.engine_world import TOPIC, World, record, slot
from tests.unit.lane_samples import keys_in

PATIENCE = 60.0
OTHER_KEY = keys_in(slot(1).range, 1)[0]
HANGS = b"hangs"


class Scene:
    """A run with two workers; a handler of slot 1 hangs, and the slot is taken away meanwhile.

    ``seen``: what the handler was called with. From ``expel`` on commits are refused as of no member;
    ``refused``: of which ranges.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: list[bytes] = []
        self.over = threading.Event()
        self.refused: list[set[KeyRange]] = []
        self._written = 1
        self._queue = WorkQueue(2, 1 << 20, Judge(Stop()))
        handler = synchronous(self._handle, transactional=False)
        self._workers = ThreadWorkers(self._queue, [handler] * 2, None)  # type: ignore[arg-type]
        self.settings = replace(world.settings, auto_commit=True, auto_commit_interval=0.02)
        self._attached = Attached(self._queue, self.settings, lambda: None)

    def _handle(self, message: Message) -> None:
        self.seen.append(message.value() or b"")
        if message.value() == HANGS:
            self.over.wait(PATIENCE)

    def __enter__(self) -> Scene:
        world = self.world
        world.subscribe()
        world.coordinator.give(0, 1)
        world.polls(lambda: world.state is State.STABLE and len(world.reader.owned) == 2, "slots")
        self._before = self._attach(self._attached)
        self._workers.start()
        world.reader.write(Message(topic=TOPIC, partition=0, offset=0, key=OTHER_KEY, value=HANGS))
        world.until(lambda: self.seen == [HANGS], "the handler to hang")
        world.coordinator.take(1)
        world.polls(lambda: world.state is State.PREPARE_REVOCATION, "the hand-over")
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._queue.end()
        self._attach(self._before)

    def _attach(self, to: Attached) -> Attached:
        return self.world.engine.ask(lambda: attach(self.world.engine, to)).result(PATIENCE)

    def expel(self, members: Callable[[], Members]) -> None:
        """The group goes on without the member; ``members`` is what the coordinator answers from then on."""
        self.world.coordinator.lose(0, 1)
        self.world.group_offsets.members = members

        def commit(processed: list[Any], *_: Any) -> None:
            self.refused.append({c.range for p in processed for c in p.cursors})
            raise FencedError("the group has moved on (UNKNOWN_MEMBER_ID)", retriable=False)

        self.world.group_offsets.commit = commit  # type: ignore[method-assign]

    def write(self) -> None:
        """A record of slot 0, which stays, arrives."""
        self.world.reader.write(record(self._written))
        self._written += 1

    def refuse(self) -> None:
        """A commit of slot 0 is refused."""
        self.write()
        self.world.engine.committer._next = 0.0
        self.world.until(lambda: self.refused, "a commit to be refused")

    def held(self) -> bool:
        return bool(self.world.stats()["held"])

    def await_held(self) -> None:
        self.world.until(self.held, "everything to be held back")
        assert self.world.state is State.PREPARE_REVOCATION


@pytest.fixture
def scene() -> Iterator[Scene]:
    with (
        World(kpsplit_revocation_policy="retry", kpsplit_revocation_timeout_ms=50) as world,
        Scene(world) as one,
    ):
        yield one


def told(*names: str) -> Callable[[], Members]:
    """The coordinator names the owners of the first slots; "" for nobody."""
    place = slots_topic(TOPIC)
    owners = {PhysicalPartition(place, i): Owner(name, "", "") for i, name in enumerate(names) if name}
    return lambda: Members(True, True, owners)


def test_a_commit_that_is_refused_as_of_no_member_puts_all_slots_in_doubt(scene: Scene) -> None:
    scene.expel(told("", ""))
    scene.refuse()
    scene.await_held()
    seen = list(scene.seen)
    scene.write()
    scene.world.until(scene.world.slots.sink.waiting_bytes, "the record to be read")
    asked = len(scene.refused)
    scene.world.engine.committer._next = 0.0
    scene.world.until(lambda: len(scene.refused) > asked, "another commit")
    assert scene.held() and scene.seen == seen
    scene.world.group_offsets.members = told("me", "me")
    scene.world.until(lambda: len(scene.seen) > len(seen), "the record to be handed out")


def test_a_slot_that_is_named_for_another_in_a_hand_over_is_neither_read_nor_committed_and_then_lost(
    scene: Scene,
) -> None:
    world = scene.world
    scene.expel(told("other", ""))
    scene.refuse()
    world.until(lambda: world.slots[slot(0)].stage is SlotStage.STOPPED, "the answer")
    assert world.state is State.PREPARE_REVOCATION
    assert ("lost", [0]) not in world.told, "on_lost comes when the hand-over is over"
    seen, refused = list(scene.seen), len(scene.refused)
    assert slot(0).range in scene.refused[0] and slot(0) not in world.reader.owned
    begun = world.engine.committer.begun
    world.until(lambda: world.engine.committer.begun > begun + 2, "more commits")
    assert scene.seen == seen
    assert not any(slot(0).range in ranges for ranges in scene.refused[refused + 1 :])
    scene.over.set()
    world.polls(lambda: ("lost", [0]) in world.told, "the loss")
    assert world.count("slots_lost") == 1
    assert not world.coordinator.held() - {0}, "what left was handed over"


def test_a_client_that_is_no_member_any_more_is_noticed_without_a_commit(scene: Scene) -> None:
    """It left by itself: nothing was polled for max.poll.interval.ms."""
    scene.expel(told("other", "third"))
    scene.world.coordinator.member = ""
    scene.await_held()
    seen = list(scene.seen)
    scene.write()
    scene.world.until(scene.world.slots.sink.waiting_bytes, "the record to be read")
    assert scene.held() and scene.seen == seen
    scene.over.set()
    scene.world.polls(lambda: not scene.world.coordinator.held() and not scene.held(), "the loss")
    assert scene.refused == [] and scene.seen == seen


def test_without_a_membership_nothing_is_committed(scene: Scene) -> None:
    """Its metadata would be nobody's, and Kafka checks no generation for those."""
    world = scene.world
    world.coordinator.member = ""
    scene.await_held()
    committer, answer = world.engine.committer, Future[Any]()
    cursors = {slot(0): world.slots.processed(world.slots[slot(0)])}
    world.engine.ask(lambda: committer.ask(cursors, answer)).result(PATIENCE)
    with pytest.raises(KafkaException) as caught:
        answer.result(PATIENCE)
    assert caught.value.args[0].code() == KafkaError.ILLEGAL_GENERATION
    assert world.group_offsets.begun == 0
    world.coordinator.member = "me"
