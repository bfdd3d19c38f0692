"""The client library's clients, such that ``Credentials`` can follow them, and one that asks one broker.

A module of its own: ``connection`` must not load the client library before a client is made.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import Deadline

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata


class FollowingConsumer(confluent_kafka.Consumer):
    """A consumer that gets no new credentials once it begins to close: the library does not guard that."""

    def __init__(self, config: dict[str, Any], leave: Callable[[Any], None]) -> None:
        super().__init__(config)
        self._leave = leave

    def close(self) -> None:
        self._leave(self)
        super().close()


class FollowingProducer(confluent_kafka.Producer):
    """A producer that allows weak references."""


_LEAST_SECONDS = 0.05


class OneBroker:
    """Asks one broker for the topics that it knows. Not thread safe.

    librdkafka (2.16) lets go of the broker that a client is told to connect to as soon as that one has named
    all brokers. The next question goes to any of them. Only a question for the settings of a broker goes to
    that one. Whether it answers or refuses, the client is connected to it then, and to no other.

    ``make``: makes a client that is told of this broker alone, and connects where it has to.
    """

    def __init__(self, broker: int, make: Callable[[], AdminClient]) -> None:
        self._broker = broker
        self._make = make
        self._client: AdminClient | None = None

    def list_topics(self, seconds: float, topic: str | None = None) -> ClusterMetadata:
        """Return what the broker knows of a topic (None: of all) and of the cluster.

        Raises:
            KafkaException: it does not answer.
        """
        deadline = Deadline(seconds)
        client, self._client = self._client or self._connected(deadline), None
        found = client.list_topics(topic, timeout=max(_LEAST_SECONDS, deadline.left()))
        if found.orig_broker_id != self._broker:  # it was away for a moment, and the client went to another
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        self._client = client
        return found

    def _connected(self, deadline: Deadline) -> AdminClient:
        from confluent_kafka.admin import ConfigResource, ResourceType

        client, asked = self._make(), ConfigResource(ResourceType.BROKER, str(self._broker))
        with suppress(KafkaException):
            client.list_topics(timeout=0)  # it connects now, not at its next look a second later
        seconds = max(_LEAST_SECONDS, deadline.left())
        with suppress(KafkaException, TimeoutError):
            client.describe_configs([asked], request_timeout=seconds)[asked].result(seconds)
        return client
