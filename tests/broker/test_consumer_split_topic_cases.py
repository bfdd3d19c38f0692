"""Groups on a split topic: records of the parent deleted beyond the cut, and a group of plain clients."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from kpsplit import Producer
from kpsplit.admin import Admin
from kpsplit.errors import CheckFailedError
from tests.broker.consuming import FAST, consumer, drain, shared, values, wait_for
from tests.broker.operating import merge, split, state_of

pytestmark = pytest.mark.broker
GROUP_CALL_SECONDS = 60.0


def send(producer: confluent_kafka.Producer, topic: str, name: str, count: int) -> list[bytes]:
    """Write records over many keys, acknowledged; return their values."""
    sent = [f"{name}-{n}".encode() for n in range(count)]
    for n, value in enumerate(sent):
        producer.produce(topic, value, b"k%d" % n)
    assert producer.flush(60) == 0
    return sent


def test_what_is_deleted_of_the_parent_beyond_the_cut_is_a_gap_of_both_segments_and_nothing_else_is_missing(
    bootstrap: str, operations: Admin, make_topic: Callable[..., str], admin: AdminClient
) -> None:
    topic = make_topic(partitions=1)
    group = f"g-{topic}"
    plain = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        parent = shared(operations, topic, 2)
        send(producer, topic, "parent", 40)
        with consumer(bootstrap, group) as member:
            member.subscribe([topic])
            drain(member, 10)
        split(operations, parent, 2)
        cut = state_of(operations, parent).lineage.get(0).end
        assert cut is not None
        overflow = send(plain, topic, "overflow", 20)
        phantoms = send(producer, topic, "phantom", 20)
        deleted = admin.delete_records([TopicPartition(topic, 0, cut + 1 + 8)])
        for answer in deleted.values():
            answer.result(20)
        told: list[str] = []
        settings = {"kpsplit.gap.policy": "skip-and-report", "error_cb": lambda e: told.append(str(e))}
        with consumer(bootstrap, group, **settings) as member:
            member.subscribe([topic])
            found = values(drain(member, 12 + 20))
            assert member.poll(1.0) is None
    assert sorted(found) == sorted(overflow[8:] + phantoms)
    assert any(f"offsets 10 to {cut - 1}" in words for words in told), told
    assert any(f"offsets {cut + 1} to {cut + 8}" in words for words in told), told


def test_a_plain_group_reads_parent_and_overflow_blocks_retire_and_gets_the_phantoms_when_it_uses_kpsplit(
    bootstrap: str, operations: Admin, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=1)
    group = f"g-{topic}"
    plain = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        parent = shared(operations, topic, 2)
        before = send(producer, topic, "before", 12)
        split(operations, parent, 2)
        overflow = send(plain, topic, "overflow", 20)
        phantoms = send(producer, topic, "phantom", 20)
        member = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, **FAST})
        member.subscribe([topic])
        read: list[bytes] = []

        def has_read_all() -> bool:
            message = member.poll(0.2)
            if message is not None and message.error() is None:
                read.append(message.value() or b"")
            return set(read) >= {*before, *overflow}

        wait_for(has_read_all, "the plain group to read the parent")
        member.commit(asynchronous=False)
        member.close()
        assert not set(read) & set(phantoms)
        merge(operations, parent)
        with pytest.raises(CheckFailedError, match=group):
            operations.retire(parent)
        after = send(producer, topic, "after", 20)
        with consumer(bootstrap, group) as ours:
            ours.subscribe([topic])
            found = values(drain(ours, 40))
            assert ours.poll(1.0) is None
    assert sorted(found) == sorted(phantoms + after)
    assert [v for v in found if v in after] == after
