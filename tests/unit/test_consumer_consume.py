"""A consume() that has found some records and waits for more."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kpsplit import Consumer
from kpsplit.consumer.broker_executor import answer
from tests.unit.engine_world import World, poller_of, record, slot

PATIENCE = 20.0


class Session:
    """What a Consumer asks its engine."""

    def __init__(self, world: World) -> None:
        self.engine, self.events = world.engine, world.events
        self.calls = world.calls

    def ask(self, job: Any) -> Any:
        return answer(self.engine.ask(job), PATIENCE)

    def until_known(self, _: object) -> None:
        pass


class Application(threading.Thread):
    """Consumes in a thread of its own; ``found`` or ``raised`` is what came of it."""

    def __init__(self, world: World, count: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self.consumer = Consumer({"bootstrap.servers": "localhost:1", "group.id": "g", "log_level": 0})
        inside: Any = self.consumer
        inside._buffer, inside._events, inside._session = world.buffer, world.events, Session(world)
        inside._poller = poller_of(world)
        inside.poll = inside._poller.poll
        self._consume = lambda: self.consumer.consume(count, seconds)
        self.found: list[Any] | None = None
        self.raised: Exception | None = None
        self.start()
        world.until(lambda: world.buffer._unreturned, "records that are found")

    def run(self) -> None:
        try:
            self.found = self._consume()
        except ValueError as error:
            self.raised = error

    def offsets(self) -> list[int]:
        self.join(PATIENCE)
        assert self.found is not None
        return [m.offset() for m in self.found if m.error() is None]


@pytest.fixture
def world():
    with World(enable_auto_commit=False) as one:
        one.subscribe()
        one.coordinator.give(0, 1)
        one.polls(lambda: len(one.reader.owned) == 2, "slots")
        one.reader.write(record(0), record(1), record(2))
        yield one


def test_a_commit_inside_a_callback_leaves_out_what_consume_has_not_returned(world):
    application = Application(world, 4, PATIENCE)
    committed = threading.Event()

    def callback():
        with pytest.raises(Exception, match="_NO_OFFSET|No offset"):
            application.consumer.commit(asynchronous=False)
        committed.set()

    world.events.call(callback)
    assert committed.wait(PATIENCE)
    assert world.group_offsets.commits == []
    world.reader.write(record(3))
    assert application.offsets() == [0, 1, 2, 3]
    application.consumer.commit(asynchronous=False)
    assert world.group_offsets.commits[-1][slot(0).range] == 4


def test_a_commit_of_another_thread_leaves_out_what_consume_has_not_returned(world):
    application = Application(world, 4, PATIENCE)
    with pytest.raises(Exception, match="_NO_OFFSET|No offset"):
        application.consumer.commit(asynchronous=False)
    world.reader.write(record(3))
    assert application.offsets() == [0, 1, 2, 3]


@pytest.mark.parametrize("way", ["poll", "consume"])
def test_what_was_found_when_a_callback_raised_is_returned_by_the_next_call(world, way):
    application = Application(world, 10, PATIENCE)

    def raises():
        raise ValueError("a callback's")

    world.events.call(raises)
    application.join(PATIENCE)
    assert str(application.raised) == "a callback's"
    consumer = application.consumer
    with pytest.raises(Exception, match="_NO_OFFSET|No offset"):
        consumer.commit(asynchronous=False)
    world.reader.write(record(3))
    if way == "poll":
        assert [consumer.poll(PATIENCE).offset() for _ in range(4)] == [0, 1, 2, 3]
    else:
        assert [m.offset() for m in consumer.consume(2, PATIENCE)] == [0, 1]
        assert [m.offset() for m in consumer.consume(2, PATIENCE)] == [2, 3]
    consumer.commit(asynchronous=False)
    assert world.group_offsets.commits[-1][slot(0).range] == 4


def test_an_error_event_that_was_found_when_a_callback_raised_is_returned_by_the_next_call(world):
    application = Application(world, 10, PATIENCE)
    world.events.tell(KafkaError(KafkaError._PARTITION_EOF))
    world.until(lambda: not world.events, "the event")

    def raises():
        raise ValueError("a callback's")

    world.events.call(raises)
    application.join(PATIENCE)
    found = application.consumer.consume(4, PATIENCE)
    assert [m.error() is None for m in found].count(False) == 1
    assert [m.offset() for m in found if m.error() is None] == [0, 1, 2]


def test_what_goes_back_of_a_slot_that_was_lost_meanwhile_is_not_returned(world):
    application = Application(world, 10, PATIENCE)
    world.coordinator.lose(0)
    world.coordinator.give(0)

    def raises():
        world.until(lambda: world.count("slots_lost") and len(world.slots) == 2, "the slot back")
        raise ValueError("a callback's")

    world.events.call(raises)
    application.join(PATIENCE)
    found = world.polls(lambda: slot(0) in world.reader.owned, "the slot again")
    assert found == [], "they are of the stay that is over"
    assert world.buffer.cursor(slot(0))[0].positions == {0: 0}
    assert world.buffer.cursor(slot(1))[0].positions == {0: 3}


def test_consume_returns_what_it_has_when_a_slot_is_taken_away(world):
    application = Application(world, 10, -1)
    world.coordinator.take(0)
    assert application.offsets() == [0, 1, 2]
    assert world.coordinator.held() == {0, 1}, "they are being worked on"
    world.polls(lambda: world.coordinator.held() == {1}, "the hand-over")
    assert world.count("left_group") == 0
