"""produce_batch(): a list of records, each as produce() would take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from kpsplit.errors import KpsplitError
from kpsplit.producer.held import kafka_error
from kpsplit.producer.messages import Callback


def send_batch(
    produce: Callable[..., None],
    topic: str,
    messages: list[dict[str, Any]],
    partition: int,
    callback: Callback | None,
) -> int:
    """Give each record to ``produce``; return how many were accepted, the others get an ``_error``.

    Raises:
        TypeError: no list of dictionaries.
    """
    if not isinstance(messages, list):
        raise TypeError("messages must be a list")
    accepted = 0
    for message in messages:
        if not isinstance(message, dict):
            raise TypeError("each message must be a dict")
        try:
            produce(
                topic,
                message.get("value"),
                message.get("key"),
                message.get("partition", partition),
                message.get("callback", message.get("on_delivery", callback)),
                None,
                message.get("timestamp", 0),
                message.get("headers"),
            )
            accepted += 1
        except BufferError:
            message["_error"] = KafkaError(KafkaError._QUEUE_FULL)
        except KafkaException as exception:
            message["_error"] = exception.args[0]
        except KpsplitError as error:
            message["_error"] = kafka_error(error)
    return accepted
