"""Asks again while leaders move: what a broker answers then says nothing about the log.

Also where a client does not know a partition that there is: librdkafka answers from what it remembers of a
topic, for up to 15 minutes, and partitions that were added meanwhile are unknown to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.error_map import MISSING, error_of
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
_FORGOTTEN = {
    KafkaError._NOENT,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
_PAUSE = 0.03
_LOOK_SECONDS = 1.0

T = TypeVar("T")


def while_leaders_move(admin: AdminClient, topic: str, ask: Callable[[float], T], seconds: float) -> T:
    """Return the answer of ``ask``, which is given the seconds left; ask again where a leader is gone.

    A partition that the client does not know is asked for once more, if the topic exists.

    Raises:
        KafkaException: another error, or the time is over. TimeoutError: no answer in time.
    """
    end = monotonic() + max(seconds, 0.1)
    looked = False
    while True:
        try:
            return ask(max(end - monotonic(), 0.05))
        except (LostAnswerError, KafkaException) as exception:
            if monotonic() >= end:
                raise
            if not _is_gone(exception):
                if looked or not _is_forgotten(exception) or not exists(admin, topic):
                    raise
                looked = True
        time.sleep(_PAUSE)
        learn_leaders(admin, topic, end - monotonic())


def _is_gone(exception: LostAnswerError | KafkaException) -> bool:
    """Tell whether the leader that was asked may be another one by now."""
    if isinstance(exception, LostAnswerError):
        return True
    error = error_of(exception)
    return error is not None and error.code() in _MOVING


def _is_forgotten(exception: LostAnswerError | KafkaException) -> bool:
    """Tell whether the client itself may just not know the partition."""
    error = error_of(exception) if isinstance(exception, KafkaException) else None
    return error is not None and error.code() in _FORGOTTEN


def exists(admin: AdminClient, topic: str) -> bool | None:
    """Look whether there is such a topic, None where nobody says so.

    That question, unlike ``learn_leaders``, never creates it.
    """
    futures = admin.describe_topics(TopicCollection([topic]), request_timeout=_LOOK_SECONDS)
    try:
        futures[topic].result(_LOOK_SECONDS)
    except KafkaException as exception:
        error = error_of(exception)
        return False if error is not None and error.code() in MISSING else None
    except TimeoutError:
        return None
    return True


def learn_leaders(admin: AdminClient, topic: str, seconds: float) -> None:
    """Make the client forget leaders that it remembers."""
    try:
        admin.list_topics(topic, timeout=max(min(seconds, 1.0), 0.05))
    except KafkaException:
        return  # the next answer tells
