"""Lanes as the sink of a real engine: from and back to the poll buffer, and commits that carry outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
from confluent_kafka import KafkaException, Message

from kpsplit.consumer.run.attaching import Attached, attach, commit_now
from kpsplit.consumer.run.desk import Desk
from kpsplit.consumer.run.lanes import Lane
from kpsplit.consumer.run.outbox import Outbox
from kpsplit.consumer.run.output import Output
from kpsplit.consumer.run.policies import Judge, Stop
from kpsplit.consumer.run.transactional import OutputCarrier
from kpsplit.errors import KpsplitError, UnknownOutcomeError
from kpsplit.kafka.clock import Deadline
from tests.unit.engine_world import TOPIC, World, slot
from tests.unit.lane_samples import keys_in

KEYS = [keys_in(slot(index).range, 1)[0] for index in range(2)]
BUFFER = 1 << 20


class Log:
    """What a producer of transactions would have written."""

    def __init__(self, ledger: Any) -> None:
        self.written: list[bytes] = []
        self.unknown = False
        self._ledger = ledger
        ledger.commit_loaded = self.commit_loaded

    def commit_loaded(
        self, processed: Any, member: Any, metadata: Any, seconds: float, carrier: Any, load: Any
    ) -> None:
        sent: list[bytes] = []
        load.write(Producer(sent), Deadline(seconds))
        self._ledger.commit(processed, member, metadata, seconds)
        self.written += sent


class Producer:
    def __init__(self, sent: list[bytes]) -> None:
        self._sent = sent

    def produce(self, topic: str, value: bytes, *_: Any, **__: Any) -> None:
        self._sent.append(value)

    def flush(self, timeout: float) -> int:
        return 0


def message(offset: int, key: bytes) -> Message:
    return Message(topic=TOPIC, partition=0, offset=offset, key=key, value=b"%d" % offset)


class Scene:
    """A world whose records go to lanes, with outputs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.log = Log(world.ledger)
        self.desk = Desk(2, BUFFER, Judge(Stop()), Outbox(BUFFER))
        settings = replace(world.context.settings, auto_commit=True)
        self.attached = Attached(
            self.desk, settings, lambda: asdict(self.desk.stats()), OutputCarrier(self.desk)
        )
        world.subscribe()
        world.coordinator.give(0, 1)
        world.polls(lambda: len(world.reader.owned) == 2, "the slots")

    def attach(self, to: Attached) -> Attached:
        context = self.world.context
        return self.world.engine.ask(lambda: attach(context, to)).result(10)

    def take(self) -> Lane:
        found: list[Lane] = []

        def one() -> bool:
            with self.desk.lock:
                lane = self.desk.take()
            found.extend([lane] if lane else [])
            return bool(found)

        self.world.until(one, "a record")
        return found[0]

    def work(self, count: int) -> None:
        for _ in range(count):
            lane = self.take()
            self.desk.done(lane, (Output("target", value=lane.record.value()),))

    def commit(self) -> Any:
        world = self.world
        return world.engine.ask(lambda: commit_now(world.context, world.engine.committer)).result(10)


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
    scene.work(1)
    scene.attach(before)
    assert {s.index: c.positions[0] for s, c in world.reader.owned.items()} == {0: 2, 1: 4}
    scene.desk.done(slow)
    assert scene.desk.stats().late == 1
    assert world.context.sink is world.buffer


def test_a_refused_commit_is_tried_again_with_the_same_outputs(scene: Scene) -> None:
    scene.attach(scene.attached)
    scene.world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    scene.work(2)
    scene.world.ledger.failures.append(KpsplitError("records went astray", retriable=True))
    with pytest.raises(KafkaException):
        scene.commit().result(10)
    assert scene.log.written == []
    scene.commit().result(10)
    assert sorted(scene.log.written) == [b"0", b"1"]
    assert scene.desk.waiting_bytes() == 0


def test_after_an_unknown_outcome_slots_start_anew_from_what_the_log_says(scene: Scene) -> None:
    scene.attach(scene.attached)
    world = scene.world
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    scene.work(2)
    asked = world.ledger.asked
    world.ledger.failures.append(UnknownOutcomeError("no answer"))
    with pytest.raises(KafkaException):
        scene.commit().result(10)
    world.until(lambda: world.ledger.asked > asked and len(world.reader.owned) == 2, "the slots' starts")
    assert {c.positions[0] for c in world.reader.owned.values()} == {0}
    assert scene.desk.waiting_bytes() == 0
    world.reader.written = 0
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    scene.work(2)
    scene.commit().result(10)
    assert sorted(scene.log.written) == [b"0", b"1"]


def test_a_slot_is_handed_over_when_its_record_is_done_and_committed_with_its_output(scene: Scene) -> None:
    scene.attach(scene.attached)
    world = scene.world
    world.reader.write(message(0, KEYS[0]), message(1, KEYS[1]))
    busy = [scene.take(), scene.take()]
    leaving, staying = sorted(busy, key=lambda lane: lane.home.slot)
    world.coordinator.take(0)
    world.until(lambda: leaving.home.released, "the slot to be withheld")
    assert world.coordinator.held() == {0, 1}
    scene.desk.done(leaving, (Output("target", value=leaving.record.value()),))
    world.polls(lambda: world.coordinator.held() == {1}, "the hand-over")
    assert scene.log.written == [b"0"]
    assert world.ledger.commits[-1][slot(0).range] == 2
    scene.desk.give_back(staying)
