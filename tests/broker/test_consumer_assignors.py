"""Who says which member gets which slot: names that the group or the brokers do not have are refused."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError

from kpsplit import Consumer
from tests.broker.consuming import REMOTE, Log, Member, consumer, shared, wait_for
from tests.broker.operating import write

pytestmark = pytest.mark.broker

SECONDS = 120.0


def first_error(member: Consumer) -> KafkaError:
    """Poll until there is an error event; no record comes before it."""
    end = time.monotonic() + SECONDS
    while True:
        assert time.monotonic() < end, dict(member.stats())
        message = member.poll(0.1)
        if message is not None:
            error = message.error()
            assert error is not None, "a record was handed out"
            return error


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_a_member_with_another_strategy_gets_no_slot_of_an_enrolled_topic(
    bootstrap, operations, make_topic, name
):
    topic, log = make_topic(), Log()
    group = f"g-{topic}"
    shared(operations, topic, 4)
    write(bootstrap, topic, 20)
    first = Member(bootstrap, group, [topic], log, "first")
    first.start()
    wait_for(lambda: log.count == 20, "the first member")
    with consumer(bootstrap, group, partition_assignment_strategy=name) as other:
        other.subscribe([topic])
        error = first_error(other)
        assert error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
        assert f"partition.assignment.strategy={name}" in error.str()
        assert other.stats()["slots"] == {}
    first.stop()


def test_an_assignor_that_the_brokers_do_not_have_is_named(bootstrap, operations, make_topic):
    topic = make_topic()
    shared(operations, topic, 2)
    write(bootstrap, topic, 20)
    with consumer(bootstrap, f"g-{topic}", group_remote_assignor="by-tenant", **REMOTE) as member:
        member.subscribe([topic])
        error = first_error(member)
        assert error.code() == KafkaError.UNSUPPORTED_ASSIGNOR
        assert "group.remote.assignor=by-tenant" in error.str()
        assert member.stats()["slots"] == {}
