"""A client for questions about the cluster and the group's ordinary offsets; it never joins the group.

The group consumer cannot be asked by other threads: while it runs a rebalance callback, every call of another
thread waits for the end of that callback.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition

_NOT_THERE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)


class Asker:
    """See the module. Thread safe; the client is made by the first question."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self._group = group
        self._lock = threading.Lock()
        self._client: Any = None

    @property
    def client(self) -> Any:
        """The client itself."""
        with self._lock:
            if self._client is None:
                self._client = self._connection.open_consumer(
                    "questions", group_id=self._group, enable_auto_commit=False
                )
            return self._client

    def committed(self, places: Sequence[PhysicalPartition], seconds: float) -> dict[PhysicalPartition, int]:
        """Return the group's ordinary committed offsets; partitions without one are left out.

        Raises:
            KafkaException: the coordinator could not be asked, or refused.
        """
        return {place: part.offset for place, part in self.committed_parts(places, seconds).items()}

    def committed_parts(
        self, places: Sequence[PhysicalPartition], seconds: float
    ) -> dict[PhysicalPartition, TopicPartition]:
        """Return what ``committed`` does, with the metadata that were committed along."""
        wanted = [TopicPartition(p.topic, p.partition) for p in places]
        found: dict[PhysicalPartition, TopicPartition] = {}
        for part in self.client.committed(wanted, timeout=seconds):
            if part.error is not None and part.error.code() not in _NOT_THERE:
                raise KafkaException(part.error)
            if part.offset >= 0:
                found[PhysicalPartition(part.topic, part.partition)] = part
        return found

    def close(self) -> None:
        """End the client."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()
