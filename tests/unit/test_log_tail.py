"""A tail hands each record over once, in the order of its log."""

from __future__ import annotations

from typing import Any, cast

from confluent_kafka import KafkaError, Message

from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import LEADER_MOVES
from kpsplit.kafka.log_tail import LogTail
from kpsplit.kafka.offset_log import OffsetTail
from kpsplit.splitter.records.keys import OFFSETS_TOPIC


class Read:
    """One record, as a consumer hands it over."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset


class Consumer:
    """A consumer that finds these records; behind the third one it begins anew, as a reset makes it do."""

    def __init__(self) -> None:
        self.found: list[Read | Message] = [Read(offset) for offset in (0, 1, 2, 0, 1, 2, 3)]
        self.asked: list[Any] = []

    def incremental_assign(self, parts: Any) -> None:
        self.asked.append([part.partition for part in parts])

    def list_topics(self, topic: str, timeout: float) -> None:
        self.asked.append(topic)

    def poll(self, _: float) -> Read | Message | None:
        return self.found.pop(0) if self.found else None


class Offline:
    """A connection that makes no clients but the consumer above."""

    def shared_admin(self) -> None: ...

    def answer_ms(self) -> int:
        return 10_000

    def longest_pause(self, milliseconds: int) -> int:
        return milliseconds

    def __init__(self) -> None:
        self.consumer = Consumer()

    def open_reader(self, *_: Any, **__: Any) -> Consumer:
        return self.consumer


def test_a_reader_that_begins_anew_hands_nothing_over_again() -> None:
    handed_over: list[Any] = []
    tail = LogTail(cast(Connection, Offline()), "t", lambda message: handed_over.append(message.offset()))
    tail.poll(0)
    assert handed_over == [0, 1, 2, 3] and tail.progress() == 4


def test_a_tail_of_the_offset_log_looks_for_leaders_at_once() -> None:
    """A client that is asked nothing until a slot waits for it may connect 0.2 s later."""
    offline = Offline()
    OffsetTail(cast(Connection, offline), 16)
    assert offline.consumer.asked == [OFFSETS_TOPIC]


def test_a_tail_reads_on_while_leaders_move() -> None:
    handed_over: list[Any] = []
    offline = Offline()
    moving = [Message("t", 0, 0, error=KafkaError(code, "told by a test")) for code in sorted(LEADER_MOVES)]
    offline.consumer.found[1:1] = moving
    tail = LogTail(cast(Connection, offline), "t", lambda message: handed_over.append(message.offset()))
    tail.poll(0)
    assert handed_over == [0, 1, 2, 3] and offline.consumer.found == []


def test_partitions_that_are_followed_later_have_their_leaders_looked_for_at_once() -> None:
    """The client looks once a second by itself: a slot would start that much later."""
    offline = Offline()
    tail = LogTail(cast(Connection, offline), "t", lambda _: None, ())
    assert offline.consumer.asked == []
    tail.follow({2, 1})
    assert offline.consumer.asked == [[1, 2], "t"], "first what is read, or the client learns nothing"
    tail.follow({1})
    assert len(offline.consumer.asked) == 2


def test_who_makes_a_tail_waits_for_no_broker() -> None:
    offline = Offline()
    LogTail(cast(Connection, offline), "t", lambda _: None, (0, 1))
    assert offline.consumer.asked == [[0, 1]]
