"""What an application's commits say of slots, with an engine in its own thread."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaException, Message, TopicPartition

from kpsplit import Consumer
from kpsplit.consumer.fetch.batch import Batch
from kpsplit.errors import KpsplitError
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import Cursor
from tests.unit.engine_world import PARENT, TOPIC, World, slot
from tests.unit.lane_samples import keys_in
from tests.unit.samples import UNSPLIT

KEY = [keys_in(slot(index).range, 1)[0] for index in range(2)]


@pytest.fixture
def world():
    with World(enable_auto_commit=False) as one:
        one.subscribe()
        yield one


def gets(world, index):
    """A slot arrives."""
    world.coordinator.give(index)
    world.polls(lambda: slot(index) in world.reader.owned, "the slot")


def reads(world, end, offsets, start=0):
    """The reader reads on; ``offsets``: the slot of each record that is given, by its offset."""
    messages = [
        Message(topic=TOPIC, partition=0, offset=at, key=KEY[index], value=b"v")
        for at, index in offsets.items()
    ]
    world.reader.due.append(Batch(PARENT, UNSPLIT.lineage.get(0), (), start, end, messages, 10))


def commits(world, message):
    """Have everything up to a message committed; return what is written."""
    calls, mark, future = world.calls, world.buffer.mark(), Future()
    world.engine.ask(lambda: calls.commit(calls.keep(calls.after_message(message, mark)), future)).result(10)
    future.result(10)
    return world.group_offsets.commits[-1]


def test_a_message_says_nothing_of_a_slot_that_arrived_behind_it(world):
    gets(world, 0)
    reads(world, 10, {0: 0, 8: 0})
    last = world.take(2)[-1]
    gets(world, 1)
    assert commits(world, last) == {slot(0).range: 9, slot(1).range: 0}
    reads(world, 10, {1: 1})
    assert world.take(1)[0].offset() == 1, "the new slot's records are handed out"


def test_a_message_says_nothing_of_records_of_another_slot_that_wait(world):
    gets(world, 0)
    reads(world, 10, {0: 0, 8: 0})
    last = world.take(2)[-1]
    gets(world, 1)
    reads(world, 10, {1: 1, 3: 1})
    world.until(world.fetch, "what was read")
    assert commits(world, last)[slot(1).range] == 1
    assert [m.offset() for m in world.take(2)] == [1, 3]


def test_a_message_says_that_what_came_before_it_of_every_slot_is_processed(world):
    gets(world, 0)
    gets(world, 1)
    reads(world, 10, {0: 0, 1: 1, 2: 0, 9: 1})
    assert commits(world, world.take(3)[-1]) == {slot(0).range: 3, slot(1).range: 3}


def test_a_subscription_that_is_refused_leaves_the_callbacks_of_the_one_that_stays(world):
    class Program:
        def _running(self):
            return SimpleNamespace(engine=world.engine, calls=world.calls, ask=world.engine.call)

    program, told = Program(), []
    Consumer.subscribe(program, [TOPIC], on_revoke=lambda _, parts: told.extend(parts))
    gets(world, 0)
    with pytest.raises(KpsplitError):
        Consumer.subscribe(program, ["^orders("])
    world.coordinator.take(0)
    world.polls(lambda: not world.coordinator.held(), "the hand-over")
    assert [part.partition for part in told] == [0]


def test_what_is_assigned_by_hand_may_be_assigned_again():
    beside = PhysicalPartition(TOPIC, 1)
    with World() as world:

        def assign(starts, *, more):
            world.engine.call(lambda: world.calls.assign(starts, more=more))

        assign({PARENT: None}, more=False)
        world.polls(lambda: world.reader.owned, "the partition")
        assign({PARENT: Cursor(WHOLE, {0: 3}), beside: None}, more=False)
        world.polls(lambda: len(world.reader.owned) == 2, "both partitions")
        assert {s.parent: c.positions for s, c in world.reader.owned.items()} == {
            PARENT: {0: 3},
            beside: {0: 0},
        }
        with pytest.raises(KafkaException, match="assigned already"):
            assign({PARENT: None}, more=True)


def test_what_the_group_has_assigned_is_not_assigned_by_hand_besides():
    with World() as world:
        world.metadata.view.enrolments.clear()
        world.coordinator.members = lambda: None
        world.subscribe()
        world.coordinator.give_partitions(TopicPartition(TOPIC, 0))
        world.polls(lambda: world.reader.owned, "the partition")
        with pytest.raises(KafkaException, match="assigned already"):
            world.engine.call(lambda: world.calls.assign({PARENT: None}, more=False))
