"""The logical partition of a record is the one that the application's own partitioner would choose."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import consistent

from kpsplit.errors import ConfigurationError, UsageError
from kpsplit.producer.send_state import PartitionSendState, Tally
from kpsplit.producer.sending import complete_stamp
from kpsplit.producer.state import RouteWriter, TopicRoute
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.data import Stamp, prefix


def route(partitioner: Partitioner, count: int) -> TopicRoute:
    def fence(partition: int) -> Any:
        parent = PhysicalPartition("orders", partition)
        return PartitionSendState(
            PartitionState.unsplit(parent, "id"), lambda s: RouteWriter(s, parent), Tally()
        )

    return TopicRoute(Enrolment("orders", "id", partitioner, True), [fence(p) for p in range(count)])


def chosen(topic: TopicRoute, key: bytes | None, partition: int = -1) -> int:
    return topic.choose(key, partition).state.parent.partition


@pytest.mark.parametrize("count", [1, 3, 6, 7, 100])
def test_keys_go_where_librdkafkas_default_puts_them(count: int) -> None:
    topic = route(Partitioner.CONSISTENT_RANDOM, count)
    for key in (b"a", b"key-17", b"\x00\xff" * 9, "schlüssel".encode()):
        assert chosen(topic, key) == consistent(key, count)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [  # org.apache.kafka.common.utils.UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_go_where_javas_default_puts_them(key: bytes, hashed: int) -> None:
    for count in (1, 6, 11):
        topic = route(Partitioner.MURMUR2_RANDOM, count)
        assert chosen(topic, key) == (hashed & 0x7FFFFFFF) % count


def test_an_empty_key_is_hashed_by_java_and_goes_anywhere_with_librdkafka() -> None:
    count = 11
    assert chosen(route(Partitioner.MURMUR2_RANDOM, count), b"") == (275646681 & 0x7FFFFFFF) % count
    topics = (route(Partitioner.CONSISTENT_RANDOM, count) for _ in range(60))
    assert len({chosen(topic, b"") for topic in topics}) > 1


@pytest.mark.parametrize("partitioner", [Partitioner.CONSISTENT_RANDOM, Partitioner.MURMUR2_RANDOM])
def test_records_without_a_key_go_anywhere_and_share_batches(partitioner: Partitioner) -> None:
    topics = [route(partitioner, 11) for _ in range(60)]
    first = [chosen(topic, None) for topic in topics]
    assert len(set(first)) > 1
    assert chosen(topics[-1], None) == first[-1]


def test_a_partition_that_is_named_is_taken() -> None:
    for partitioner in Partitioner:
        assert chosen(route(partitioner, 4), b"key", 3) == 3
    with pytest.raises(UsageError, match="has 4 partitions, no partition 4"):
        chosen(route(Partitioner.EXPLICIT, 4), b"key", 4)
    with pytest.raises(UsageError, match="name the partition of each record"):
        chosen(route(Partitioner.EXPLICIT, 4), b"key")


def test_added_partitions_are_followed() -> None:
    topic = route(Partitioner.CONSISTENT_RANDOM, 2)
    topic.extend(route(Partitioner.CONSISTENT_RANDOM, 6).send_states[2:])
    for key in (b"a", b"b", b"c"):
        assert chosen(topic, key) == consistent(key, 6)


def test_a_producer_with_another_partitioner_is_refused_by_both_names() -> None:
    enrolment = Enrolment("orders", "id", Partitioner.MURMUR2_RANDOM, True)
    with pytest.raises(
        ConfigurationError, match=r"partitioner=murmur2_random.*partitioner=consistent_random"
    ):
        enrolment.check_partitioner("consistent_random")
    enrolment.check_partitioner("murmur2_random")
    Enrolment("orders", "id", Partitioner.EXPLICIT, True).check_partitioner("random")


def test_the_hot_paths_stamp_is_the_published_one() -> None:
    assert complete_stamp(prefix(3, 0xABCDEF, 5), 77) == Stamp(3, 0xABCDEF, 77, 5).encode()
