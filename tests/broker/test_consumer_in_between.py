"""Groups that begin at the worst moment: in the middle of an operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from kpsplit import Consumer, Producer, StepDone
from tests.broker.consuming import consumer, drain
from tests.broker.operating import PAUSE_MS, enrolled
from tests.nights import others_at_night

pytestmark = pytest.mark.broker

KEYS = 20


def send(producer: Producer, topic: str, name: str) -> None:
    for n in range(KEYS):
        producer.produce(topic, f"{name}-{n}".encode(), f"key-{n}".encode())


@contextmanager
def beginning(
    bootstrap: str, group: str, topic: str, step: str, then: Callable[[], None]
) -> Iterator[tuple[list[Consumer], Callable[[StepDone], None]]]:
    """A member that begins behind a step, and the observer that has it do so; ``then`` follows."""
    members: list[Consumer] = []

    def begin(done: StepDone) -> None:
        if done.name == step and not members:
            members.append(consumer(bootstrap, group))
            members[0].subscribe([topic])
            then()

    try:
        yield members, begin
    finally:
        for member in members:
            member.close()


def check(found: Sequence[tuple[bytes, bytes]], names: Sequence[str]) -> None:
    """Every key was told in the order of these names."""
    for n in range(KEYS):
        told = [value for key, value in found if key == f"key-{n}".encode()]
        assert told == [f"{name}-{n}".encode() for name in names]


@pytest.mark.parametrize(
    "step", others_at_night(["CreateSubTopic", "Fence", "AppendMarkers"], lambda step: step == "Fence")
)
def test_a_group_that_begins_in_the_middle_of_a_split_reads_all_of_it_in_order(
    bootstrap, operations, make_topic, step
):
    topic = make_topic()
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        parent = enrolled(operations, topic)
        send(producer, topic, "before")
        producer.flush(30)
        plan = operations.plan_split(parent, 2, even=True)
        with beginning(bootstrap, f"g-{topic}", topic, step, lambda: send(producer, topic, "held")) as (
            members,
            begin,
        ):
            operations.run(plan, max_pause_ms=PAUSE_MS, observer=begin, force=True)  # few keys: a hot one
            send(producer, topic, "after")
            producer.flush(30)
            found = [(m.key(), m.value()) for m in drain(members[0], 3 * KEYS)]
    check(found, ["before", "held", "after"])


@pytest.mark.parametrize(
    "step",
    others_at_night(
        ["CoLocateLeaders", "Fence", "AppendMarkers", "Commit"], lambda step: step == "AppendMarkers"
    ),
)
def test_a_group_that_begins_in_the_middle_of_a_merge_reads_all_of_it_in_order(
    bootstrap, operations, make_topic, step
):
    topic = make_topic()
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        parent = enrolled(operations, topic)
        send(producer, topic, "before")
        producer.flush(30)
        operations.run(
            operations.plan_split(parent, 2, even=True), max_pause_ms=PAUSE_MS, force=True
        )  # few keys: a hot one
        send(producer, topic, "between")
        producer.flush(30)
        with beginning(bootstrap, f"g-{topic}", topic, step, lambda: send(producer, topic, "held")) as (
            members,
            begin,
        ):
            operations.run(operations.plan_merge(parent), max_pause_ms=PAUSE_MS, observer=begin)
            send(producer, topic, "after")
            producer.flush(30)
            found = [(m.key(), m.value()) for m in drain(members[0], 4 * KEYS)]
    check(found, ["before", "between", "held", "after"])
