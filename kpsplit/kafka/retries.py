"""Asks again while leaders move: what a broker answers then says nothing about the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.error_map import error_of
from kpsplit.kafka.offset_answers import LostAnswerError

_MOVING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError._TRANSPORT,
}
_PAUSE = 0.03

T = TypeVar("T")


def while_leaders_move(admin: AdminClient, topic: str, ask: Callable[[float], T], seconds: float) -> T:
    """Return the answer of ``ask``, which is given the seconds left; ask again where a leader is gone.

    Raises:
        KafkaException: another error, or the time is over. TimeoutError: no answer in time.
    """
    end = monotonic() + max(seconds, 0.1)
    while True:
        try:
            return ask(max(end - monotonic(), 0.05))
        except (LostAnswerError, KafkaException) as exception:
            if monotonic() >= end or not _is_gone(exception):
                raise
        time.sleep(_PAUSE)
        learn_leaders(admin, topic, end - monotonic())


def _is_gone(exception: LostAnswerError | KafkaException) -> bool:
    """Tell whether the leader that was asked may be another one by now."""
    if isinstance(exception, LostAnswerError):
        return True
    error = error_of(exception)
    return error is not None and error.code() in _MOVING


def learn_leaders(admin: AdminClient, topic: str, seconds: float) -> None:
    """Make the client forget leaders that it remembers."""
    try:
        admin.list_topics(topic, timeout=max(min(seconds, 1.0), 0.05))
    except KafkaException:
        return  # the next answer tells
