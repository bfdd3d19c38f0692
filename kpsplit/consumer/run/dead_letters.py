"""Writes records that failed for good to the dead-letter topic before they count as processed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException

from kpsplit.consumer.run.output import Output, dead_letter
from kpsplit.consumer.run.producing import POLL_SECONDS, produce_with_room
from kpsplit.kafka.error_map import error_of, translate


class DeadLetters:
    """Thread safe. The producer is made when the first record fails.

    Args:
        make_producer: makes a ``kpsplit.Producer``, so that a dead-letter topic can be split as well.
    """

    def __init__(self, make_producer: Callable[[], Any]) -> None:
        self._make_producer = make_producer
        self._producer: Any = None
        self._lock = threading.Lock()

    def deliver(self, message: Any, error: BaseException, topic: str) -> tuple[Output, ...]:
        """Write the dead letter of a record and wait until it is acknowledged; nothing is left to be written.

        Raises:
            KpsplitError: it was not, or that is not known.
        """
        reports: list[Any] = []
        letter = dead_letter(message, error, topic)
        try:
            producer = self._open()
            produce_with_room(producer, letter, lambda failure, _message: reports.append(failure))
            while not reports:
                producer.poll(POLL_SECONDS)
        except KafkaException as exception:
            raise translate(error_of(exception), _what(topic), writing=True) from exception
        if reports[0] is not None:
            raise translate(reports[0], _what(topic), writing=True)
        return ()

    def close(self, seconds: float) -> None:
        """End the producer."""
        if self._producer is not None:
            self._producer.close(seconds)

    def _open(self) -> Any:
        with self._lock:
            if self._producer is None:
                self._producer = self._make_producer()
            return self._producer


class LettersInTransactions:
    """Dead letters of a transactional run: outputs like any other, written with the commit."""

    def deliver(self, message: Any, error: BaseException, topic: str) -> tuple[Output, ...]:
        """Return the dead letter as what is to be written."""
        return (dead_letter(message, error, topic),)

    def close(self, seconds: float) -> None:
        """Do nothing."""


Letters = DeadLetters | LettersInTransactions
"""Where dead letters go."""


def _what(topic: str) -> str:
    return f"write a dead letter to {topic}"
