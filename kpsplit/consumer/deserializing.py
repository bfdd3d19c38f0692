"""The drop-in DeserializingConsumer: reads bytes along the lineage, then deserialises them."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import confluent_kafka

from kpsplit.consumer.consumer import Consumer


class DeserializingConsumer(confluent_kafka.DeserializingConsumer, Consumer):  # type: ignore[misc]
    """Drop-in for ``confluent_kafka.DeserializingConsumer``, with the same deserialiser settings."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        """Close."""
        self.close()
