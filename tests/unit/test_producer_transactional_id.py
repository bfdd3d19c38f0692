"""Producers with a transactional id."""

from __future__ import annotations

import contextlib

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpsplit.producer.client import Producer


def test_a_transactional_producer_registers_for_nothing_outside_a_transaction() -> None:
    with contextlib.closing(Producer({"bootstrap.servers": "127.0.0.1:9", "transactional.id": "t"})) as one:
        with pytest.raises(KafkaException) as refused:
            one.produce("orders", b"v", b"k")
        assert refused.value.args[0].code() == KafkaError._STATE
        assert one._background is None
