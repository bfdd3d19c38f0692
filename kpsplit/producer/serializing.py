"""The drop-in SerializingProducer: serialises first, then routes on the bytes."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import confluent_kafka

from kpsplit.producer.producer import CLOSE_SECONDS, Producer

K = TypeVar("K")
V = TypeVar("V")


class SerializingProducer(  # type: ignore[misc]
    confluent_kafka.SerializingProducer, Producer, Generic[K, V]
):
    """Drop-in for ``confluent_kafka.SerializingProducer``, with the same ``key.serializer`` and the like."""

    def produce(  # type: ignore[override]
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        partition: int = -1,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Serialise key and value, then send, as ``confluent_kafka.SerializingProducer.produce`` does."""
        super().produce(
            topic,
            key=key,
            value=value,
            partition=partition,
            on_delivery=on_delivery,
            timestamp=timestamp,
            headers=headers,
        )

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Close as ``Producer.close`` does, then the serialisers that were built here."""
        closed = Producer.close(self, timeout)
        super().close()  # finds the Producer closed already
        return closed
