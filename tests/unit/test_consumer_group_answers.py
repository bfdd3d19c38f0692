"""Answers to ordinary commits: each is that of the commit whose offsets it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.splitter.lineage import PhysicalPartition

PLACE = PhysicalPartition("plain", 0)
REFUSED = KafkaError(KafkaError.ILLEGAL_GENERATION)


class Client:
    """A client whose answers the test gives; what is committed with waiting succeeds."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.sent: list[tuple[int, bool]] = []
        self._told = config["on_commit"]

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Sequence[TopicPartition]:
        self.sent.append((offsets[0].offset, asynchronous))
        return offsets

    def answer(self, *offsets: int, error: KafkaError | None = None) -> None:
        self._told(error, [TopicPartition(PLACE.topic, PLACE.partition, offset) for offset in offsets])


@pytest.fixture
def client() -> Client:
    return Client({"on_commit": lambda *_: None})


@pytest.fixture
def group(client: Client) -> GroupConsumer:
    def make(config: dict[str, Any]) -> Client:
        client._told = config["on_commit"]
        return client

    return GroupConsumer({}, incremental=True, make=make)


def test_an_answer_that_comes_before_an_older_one_is_that_of_its_own_commit(
    client: Client, group: GroupConsumer
) -> None:
    """The older one was made again inside a hand-over; its answer comes late, because it was tried again."""
    old = group.commit({PLACE: 5})
    with group.unpolled():
        assert old.result(0) is None
    new = group.commit({PLACE: 9})
    client.answer(9, error=REFUSED)
    with pytest.raises(KafkaException):
        new.result(0)
    client.answer(5)
    latest = group.commit({PLACE: 9})
    client.answer(9)
    assert latest.result(0) is None
    assert client.sent == [(5, True), (5, False), (9, True), (9, True)]


def test_an_answer_that_nobody_waits_for_any_more_is_none_of_a_newer_commit(
    client: Client, group: GroupConsumer
) -> None:
    group.commit({PLACE: 5})
    for _ in range(2):
        with group.unpolled():
            assert client.sent == [(5, True), (5, False)], "made again once"
    new = group.commit({PLACE: 9})
    client.answer(5, error=REFUSED)
    assert not new.done()
    client.answer(9)
    assert new.result(0) is None


def test_an_answer_that_names_no_offset_is_that_of_the_oldest_commit(
    client: Client, group: GroupConsumer
) -> None:
    only = group.commit({PLACE: 5})
    client.answer(error=REFUSED)
    with pytest.raises(KafkaException):
        only.result(0)
