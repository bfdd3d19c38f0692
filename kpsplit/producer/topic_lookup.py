"""Looks at topics without ever creating one."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, TopicDescription

from kpsplit.errors import UnreachableError
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.splitter.records.keys import CONTROL_TOPIC

TIMEOUT_SECONDS = 5.0


def control_topic_exists(admin: AdminClient) -> bool:
    """Tell whether the cluster has a control topic.

    Raises:
        AuthorizationError: not allowed to see it (it may exist: fail closed). UnreachableError: no answer.
    """
    try:
        describe(admin, CONTROL_TOPIC)
    except KafkaException as exception:
        error = error_of(exception)
        if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        raise translate(error, f"look at {CONTROL_TOPIC}") from exception
    return True


def partition_count(admin: AdminClient, topic: str) -> int:
    """Return how many partitions a topic has.

    Raises:
        KpsplitError: the topic is missing or cannot be seen.
    """
    try:
        return len(describe(admin, topic).partitions)
    except KafkaException as exception:
        raise translate(error_of(exception), f"look at topic {topic}") from exception


def describe(admin: AdminClient, topic: str) -> TopicDescription:
    """Return a topic's description.

    Raises:
        KafkaException: what the broker said. UnreachableError: no answer in time.
    """
    futures = admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_SECONDS)
    try:
        description: TopicDescription = futures[topic].result(TIMEOUT_SECONDS + 1.0)
    except FutureTimeoutError:
        raise UnreachableError(f"no broker answered about topic {topic}") from None
    return description
