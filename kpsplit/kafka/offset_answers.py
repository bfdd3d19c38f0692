"""What the brokers answer when they are asked for offsets of logs, or that they did not."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from confluent_kafka import OFFSET_INVALID


class LostAnswerError(TimeoutError):
    """A leader did not answer: it is slow, gone, or its connection broke."""


def offset_answer(future: Future[Any], seconds: float) -> Any:
    """Return the answer for one partition of ``AdminClient.list_offsets``.

    librdkafka (2.16) tells a request that a leader never answered as a success with an invalid offset. Taken
    for an end, it says that a log of which nothing was read has been read to its end.

    Raises:
        KafkaException: the broker refused. TimeoutError: no answer in time, or none at all.
    """
    answer = future.result(seconds)
    if answer.offset == OFFSET_INVALID:
        raise LostAnswerError("the leader did not answer")
    return answer
