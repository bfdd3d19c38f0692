"""Gives outputs and dead letters to a producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpsplit.consumer.run.output import Output

POLL_SECONDS = 0.01


def produce_with_room(producer: Any, output: Output, report: Callable[[Any, Any], None]) -> None:
    """Give one record to a producer, waiting while its queue is full.

    Raises:
        KafkaException: the producer refused it.
    """
    while True:
        try:
            producer.produce(
                output.topic,
                output.value,
                output.key,
                output.partition,
                on_delivery=report,
                timestamp=output.timestamp,
                headers=output.headers,
            )
            return
        except BufferError:
            producer.poll(POLL_SECONDS)
