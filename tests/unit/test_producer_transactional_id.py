"""Taking a transactional id: what a registration may say of others rests on when it was taken."""

from __future__ import annotations

import contextlib

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpsplit.producer import producer as producer_module
from kpsplit.producer.producer import Producer


def test_a_transactional_producer_asks_once_where_registrations_end_however_often_it_tries_to_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(
        producer_module, "end_of_registrations", lambda _, seconds: asked.append(seconds) or 7
    )
    with contextlib.closing(Producer({"bootstrap.servers": "127.0.0.1:9", "transactional.id": "t"})) as one:
        for _ in range(2):
            with pytest.raises(KafkaException):
                one.init_transactions(0.2)
        assert [seconds <= 0.1 for seconds in asked] == [True]
        assert one._dispatcher.fenced_below is None


def test_a_transactional_producer_registers_for_nothing_outside_a_transaction() -> None:
    with contextlib.closing(Producer({"bootstrap.servers": "127.0.0.1:9", "transactional.id": "t"})) as one:
        with pytest.raises(KafkaException) as refused:
            one.produce("orders", b"v", b"k")
        assert refused.value.args[0].code() == KafkaError._STATE
        assert one._coordinator is None
