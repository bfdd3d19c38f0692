"""A program that keeps its positions itself, gives them in on_assign, and shares a partition."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Message, TopicPartition

from kpsplit import Consumer, Producer
from tests.broker.consuming import consumer, drain, shared, wait_for
from tests.broker.operating import split

pytestmark = pytest.mark.broker

BEFORE, LATER = 100, 40
SLOTS = 4
OWN = {"enable_auto_commit": False, "auto_offset_reset": "latest"}


def send(producer: Producer, topic: str, first: int, count: int) -> set[bytes]:
    values = {b"%d" % n for n in range(first, first + count)}
    for value in values:
        producer.produce(topic, value, b"key-" + value)
    assert producer.flush(30) == 0
    return values


def slots_of(member: Consumer) -> int:
    return list(member.stats()["slots"].values()).count("reading")


def test_the_positions_that_a_program_gave_hold_for_slots_that_come_to_it_later(
    bootstrap, operations, make_topic
):
    topic = make_topic()
    at = 40

    def own_position(who: Any, parts: list[TopicPartition]) -> None:
        for part in parts:
            part.offset = at
        who.assign(parts)

    def at_the_end(who: Any, parts: list[TopicPartition]) -> None:
        for part in parts:
            part.offset = OFFSET_END
        who.assign(parts)

    with (
        Producer({"bootstrap.servers": bootstrap}) as producer,
        consumer(bootstrap, f"g-{topic}", **OWN) as keeps,
    ):
        parent = shared(operations, topic, SLOTS)
        send(producer, topic, 0, BEFORE)
        keeps.subscribe([topic], on_assign=own_position, on_revoke=lambda *_: None)
        assert sorted(m.offset() or 0 for m in drain(keeps, BEFORE - at)) == list(range(at, BEFORE))
        at = BEFORE
        found: list[Message | None] = []
        with consumer(bootstrap, f"g-{topic}", **OWN) as forgets:
            forgets.subscribe([topic], on_assign=at_the_end)

            def half() -> bool:
                found.append(keeps.poll(0.02))
                forgets.poll(0.02)
                return slots_of(keeps) == slots_of(forgets) == SLOTS // 2

            wait_for(half, "the slots to be shared")
            split(operations, parent, 2)
            sent = send(producer, topic, BEFORE, LATER)

        def all_of_it() -> bool:
            found.append(keeps.poll(0.02))
            return {m.value() for m in found if m is not None} >= sent

        wait_for(all_of_it, "what the other one had read and not kept", 60.0)
        assert {m.value() for m in found if m is not None} == sent
