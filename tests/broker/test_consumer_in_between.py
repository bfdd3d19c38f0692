"""Groups that begin at the worst moment: in the middle of an operation."""

from __future__ import annotations

import pytest

from kpsplit import Consumer, Producer
from kpsplit.kafka.operations import StepDone
from tests.broker.consuming import consumer, drain
from tests.broker.operating import PAUSE_MS, enrolled, operating

pytestmark = pytest.mark.broker

KEYS = 20


def send(producer: Producer, topic: str, name: str) -> None:
    for n in range(KEYS):
        producer.produce(topic, f"{name}-{n}".encode(), f"key-{n}".encode())


@pytest.mark.parametrize("step", ["CreateSubTopic", "Fence", "AppendMarkers"])
def test_a_group_that_begins_in_the_middle_of_a_split_reads_all_of_it_in_order(bootstrap, make_topic, step):
    topic = make_topic()
    members: list[Consumer] = []
    with operating(bootstrap) as operations, Producer({"bootstrap.servers": bootstrap}) as producer:
        parent = enrolled(operations, topic)
        send(producer, topic, "before")
        producer.flush(30)

        def begin(done: StepDone) -> None:
            if done.name == step and not members:
                members.append(consumer(bootstrap, f"g-{topic}"))
                members[0].subscribe([topic])
                send(producer, topic, "held")

        plan = operations.plan_split(parent, 2, even=True)
        operations.run(plan, max_pause_ms=PAUSE_MS, observer=begin, force=True)  # few keys: a hot one
        send(producer, topic, "after")
        producer.flush(30)
        with members[0] as member:
            found = [(m.key(), m.value()) for m in drain(member, 3 * KEYS)]
    for n in range(KEYS):
        key = f"key-{n}".encode()
        told = [value for k, value in found if k == key]
        assert told == [f"{name}-{n}".encode() for name in ("before", "held", "after")]
