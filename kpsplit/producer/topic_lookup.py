"""Looks at topics without ever creating one."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import cast

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, TopicDescription

from kpsplit.errors import KpsplitError, UnreachableError
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.splitter.records.keys import CONTROL_TOPIC

TIMEOUT_SECONDS = 5.0
LEARN_SECONDS = 0.5
"""The library's thread waits for it, and a lease may be as short as that."""
GRACE_SECONDS = 1.0
CREATION_SECONDS = 30.0
"""librdkafka fails a topic that does not appear for so long (topic.metadata.propagation.max.ms)."""


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


class PartitionCounts:
    """Asks how many partitions topics have, without waiting: a broker that is silent holds nobody up."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[Future[TopicDescription], float]] = {}

    def ask(self, admin: AdminClient, topics: Iterable[str]) -> None:
        """Ask for topics in one request, apart from those that are asked for already."""
        new = [topic for topic in topics if topic not in self._asked]
        if new:
            futures = admin.describe_topics(TopicCollection(new), request_timeout=TIMEOUT_SECONDS)
            late = monotonic() + TIMEOUT_SECONDS + GRACE_SECONDS
            self._asked.update((topic, (futures[topic], late)) for topic in new)

    def waiting(self) -> list[str]:
        """Return the topics that were asked for and not taken."""
        return list(self._asked)

    def take(self, topic: str) -> int | None:
        """Return how many partitions a topic has, None while there is no answer.

        Raises:
            KpsplitError: the topic is missing or cannot be seen, or no answer came in time.
        """
        future, late = self._asked[topic]
        in_time = monotonic() < late
        if in_time and not future.done():
            return None
        del self._asked[topic]
        if not in_time:
            raise UnreachableError(f"no broker answered about topic {topic}")
        try:
            return len(future.result().partitions)
        except KafkaException as exception:
            raise translate(error_of(exception), f"look at topic {topic}") from exception


class AutoCreation:
    """Has brokers create topics that are missing and not enrolled, where they and the application allow it.

    The original's client does so whenever it looks at a topic. Ours must not: it would make a sub-topic again
    that was retired, and take what the broker acknowledges there for delivered.
    """

    def __init__(self, connection: Connection, allowed: bool) -> None:
        self._connection = connection
        self._allowed = allowed

    def look_at(self, topic: str) -> None:
        """Look at a topic in a thread of its own, until some broker has answered."""
        if self._allowed:
            threading.Thread(target=self._create, args=(topic,), name="kpsplit-create", daemon=True).start()

    def _create(self, topic: str) -> None:
        deadline = Deadline(CREATION_SECONDS)
        while not deadline.expired():
            try:
                if topic_id_of(self._connection.shared_admin(), topic) is None:
                    creator = self._connection.open_admin("create", allow_auto_create_topics=True)
                    creator.list_topics(topic, timeout=TIMEOUT_SECONDS)
            except (KafkaException, KpsplitError):
                deadline.pause(GRACE_SECONDS)
            else:
                return


def partitions_known(producer: Producer, topic: str) -> int:
    """Have a producer look at a topic that exists; return how many partitions it knows then, 0 if none."""
    try:
        found = Producer.list_topics(producer, topic, timeout=LEARN_SECONDS).topics[topic]
    except KafkaException:
        return 0
    return len(found.partitions)


def topic_id_of(admin: AdminClient, topic: str) -> str | None:
    """Return Kafka's id of a topic, None if the broker that was asked does not know the topic.

    Raises:
        KpsplitError: the topic cannot be seen, or no broker answered.
    """
    try:
        return str(describe(admin, topic).topic_id)
    except KafkaException as exception:
        error = error_of(exception)
        if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise translate(error, f"look at topic {topic}") from exception


def describe(admin: AdminClient, topic: str) -> TopicDescription:
    """Return a topic's description.

    Raises:
        KafkaException: what the broker said. UnreachableError: no answer in time.
    """
    asked = TopicCollection([topic])
    try:
        # The future has no name here: its error refers to this frame, which would refer to the future.
        return cast(
            TopicDescription,
            admin.describe_topics(asked, request_timeout=TIMEOUT_SECONDS)[topic].result(
                TIMEOUT_SECONDS + GRACE_SECONDS
            ),
        )
    except FutureTimeoutError:
        raise UnreachableError(f"no broker answered about topic {topic}") from None
