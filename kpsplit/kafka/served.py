"""Waits until a new topic is served by every broker, not only known to the controller."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, TopicMetadata

from kpsplit.errors import DeadlineExceededError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.ports import Deadline

_PAUSE = 0.02
_ASK_SECONDS = 2.0


def await_served(
    connection: Connection,
    brokers: Mapping[int, str],
    topics: Mapping[str, int],
    deadline: Deadline,
) -> None:
    """Return when each broker's own metadata has the topics, with leaders and every replica in sync.

    A producer that asks any broker then finds the new partitions at once. A broker that ends while we wait
    is asked until the deadline: an operation is not begun on a cluster that is losing brokers.

    Args:
        connection: how to reach them.
        brokers: address by id.
        topics: partition count by name.
        deadline: of the whole wait.

    Raises:
        DeadlineExceededError: not in time; the message names the broker that was waited for.
    """
    for broker, address in brokers.items():
        # Limited to one broker: as long as this client has asked nothing else it is connected to no other.
        one = connection.open_admin(
            "served", reconnect_backoff_max_ms=connection.longest_pause(500), **_limited_to(address)
        )
        while not all(_serves(one, topic, count, deadline) for topic, count in topics.items()):
            if deadline.left() <= 0:
                names = ", ".join(topics)
                raise DeadlineExceededError(f"broker {broker} ({address}) does not serve {names} in time")
            time.sleep(_PAUSE)


def _limited_to(address: str) -> dict[str, object]:
    return {"bootstrap_servers": address, "metadata_broker_list": address, "enable_sparse_connections": True}


def _serves(one: AdminClient, topic: str, partitions: int, deadline: Deadline) -> bool:
    try:
        listed = one.list_topics(topic, timeout=max(0.05, min(_ASK_SECONDS, deadline.left())))
    except KafkaException:
        return False
    found = listed.topics.get(topic)
    return found is not None and found.error is None and complete(found, partitions)


def complete(topic: TopicMetadata, partitions: int) -> bool:
    """Tell whether metadata has all partitions of a topic, each with a leader and all replicas in sync."""
    return len(topic.partitions) == partitions and all(
        p.leader >= 0 and set(p.isrs) == set(p.replicas) for p in topic.partitions.values()
    )
