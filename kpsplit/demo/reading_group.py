"""An ordinary consumer group of the demo's topic: while it has not read them, sub-topics are not retired."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException, TopicPartition

from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.splitter.lineage import PhysicalPartition


def commit(connection: Connection, group: str, positions: Iterable[tuple[PhysicalPartition, int]]) -> None:
    """Commit positions for a group that has no members.

    Raises:
        KpsplitError: the brokers did not take them.
    """
    offsets = [TopicPartition(place.topic, place.partition, position) for place, position in positions]
    consumer = connection.open_consumer("demo-group", group_id=group, enable_auto_commit=False)
    try:
        consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException as exception:
        raise translate(error_of(exception), f"commit positions of group {group}") from exception
    finally:
        consumer.close()
