"""produce_batch(), and what SerializingProducer makes of the Producer's calls."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.serialization import StringSerializer

from kpsplit import Producer, SerializingProducer
from kpsplit.errors import ConfigurationError
from kpsplit.splitter.records.control import Partitioner

NOWHERE: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "message.timeout.ms": 1000}


def given_to(producer: Producer) -> list[Any]:
    """Take the place of the fast path; return what it is given."""
    given: list[Any] = []

    def produce(topic: str, value: Any, key: Any, partition: int, *rest: Any) -> None:
        given.append((value, key, partition))

    producer._produce = produce  # type: ignore[assignment]
    return given


def test_a_batch_of_a_serializing_producer_is_sent_as_it_is_with_key_and_value_in_their_places() -> None:
    """confluent_kafka's calls no serialiser for a batch either."""
    with SerializingProducer({**NOWHERE, "value.serializer": StringSerializer()}) as producer:
        given = given_to(producer)
        assert producer.produce_batch("t", [{"value": b"v", "key": b"k", "partition": 3}]) == 1
    assert given == [(b"v", b"k", 3)]


def test_a_record_that_kpsplit_refuses_has_an_error_and_the_rest_of_its_batch_goes_on() -> None:
    producer = Producer(NOWHERE)
    refusal = ConfigurationError("another partitioner")
    producer._state.refused["refused"] = (Partitioner.MURMUR2_RANDOM, refusal)
    messages: list[dict[str, Any]] = [{"value": b"a"}, {"value": b"b"}]
    assert producer.produce_batch("refused", messages) == 0
    for message in messages:
        assert message["_error"].code() == KafkaError._INVALID_ARG
        assert "another partitioner" in message["_error"].str()
    producer.close(0)


def test_a_serializing_producer_closes_within_a_time_and_closes_the_serialisers_that_it_built() -> None:
    producer = SerializingProducer(NOWHERE)
    closed: list[str] = []

    class Serialiser:
        def close(self) -> None:
            closed.append("serialiser")

    producer._owned_serdes = [Serialiser()]
    assert producer.close(timeout=0.5)
    assert closed == ["serialiser"] and not producer._state.accepting
    with pytest.raises(RuntimeError):
        producer.produce("t", "k", "v")
