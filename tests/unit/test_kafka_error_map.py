"""What errors of the client library become."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ListConsumerGroupsResult

from kpsplit.consumer.events import kafka_error
from kpsplit.errors import AuthorizationError, UnknownOutcomeError, UnreachableError
from kpsplit.kafka.coordinators import _listed
from kpsplit.kafka.error_map import LEADER_MOVES, error_of, translate

MOVING = [
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
]


@pytest.mark.parametrize(
    ("what", "right"),
    [
        ("read orders/3", "the right Read there"),
        ("read the end of orders/3", "the right Describe (Read or Write has it) there"),
        ("read the settings of topic orders", "the right DescribeConfigs there"),
        ("set max.message.bytes of topic orders.split-3-1", "the right AlterConfigs there"),
        ("look at __kpsplit.control", "the right Describe (Read or Write has it) there"),
        ("append a marker to orders/3", "the right Write there"),
        ("delete topic orders.split-3-1", "the right Delete there"),
        ("talk to the brokers", "a right on a topic (Read, Write, Create, Alter or Delete)"),
    ],
)
def test_a_missing_right_on_a_topic_is_named_by_what_was_being_done(what: str, right: str) -> None:
    error = translate(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), what)
    assert isinstance(error, AuthorizationError)
    assert error.message == f"could not {what}: missing {right}"


def test_a_topic_for_whose_replicas_there_are_too_few_brokers_is_refused_with_the_cause() -> None:
    code = KafkaError.INVALID_REPLICATION_FACTOR
    text = "The target replication factor of 3 cannot be reached because only 2 broker(s) are registered."
    for reason in (text, None):
        error = translate(KafkaError(code, reason), "create topic t", writing=True)
        assert error.message == f"could not create topic t: {reason or KafkaError(code).str()}"
        assert error.hint == "there are fewer brokers than replicas: start the others, then retry"


def test_an_error_is_found_inside_an_exception_and_as_it_is() -> None:
    error = KafkaError(KafkaError._TRANSPORT)
    assert error_of(KafkaException(error)) is error
    assert error_of(error) is error
    assert error_of(KafkaException("text")) is None


def test_groups_that_a_broker_does_not_list_because_it_is_away_are_a_clear_error() -> None:
    """With the client's own kind of answer: a KafkaError in a list that is said to hold exceptions."""
    listed: Future[Any] = Future()
    listed.set_result(ListConsumerGroupsResult([], [KafkaError(KafkaError._TRANSPORT)]))  # type: ignore[list-item]
    client = SimpleNamespace(list_consumer_groups=lambda **_: listed)
    with pytest.raises(UnreachableError, match="list the consumer groups of every broker"):
        _listed(SimpleNamespace(client=client))  # type: ignore[arg-type]


@pytest.mark.parametrize("code", MOVING)
def test_a_coordinator_that_moves_is_unreachable_for_a_while(code: int) -> None:
    error = translate(KafkaError(code), "get ready to commit")
    assert isinstance(error, UnreachableError) and error.retriable
    assert "get ready to commit" in error.message


@pytest.mark.parametrize("code", sorted(LEADER_MOVES))
def test_a_leader_that_moves_is_unreachable_for_a_while(code: int) -> None:
    """A member whose slot cannot be started for it goes on: nobody has to do anything."""
    error = translate(KafkaError(code), "read the end of orders.split-3-1/0")
    assert isinstance(error, UnreachableError)
    assert kafka_error(error).code() == KafkaError._TRANSPORT


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError.NETWORK_EXCEPTION, KafkaError._TIMED_OUT])
def test_a_write_whose_broker_went_away_may_have_taken_effect(code: int) -> None:
    """librdkafka fails a request so that it has sent, when the broker dies before it answers."""
    written = translate(KafkaError(code), "create topic orders.split-3-1", writing=True)
    assert isinstance(written, UnknownOutcomeError) and written.changed is None
    asked = translate(KafkaError(code), "describe topic orders")
    assert isinstance(asked, UnreachableError) and asked.changed is False
    assert written.retriable and asked.retriable, "a broker that restarts is back without anybody's help"


@pytest.mark.parametrize(
    "code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION, KafkaError._UNKNOWN_TOPIC]
)
def test_what_somebody_has_to_mend_does_not_pass_by_itself(code: int) -> None:
    assert not translate(KafkaError(code), "describe topic orders").retriable


@pytest.mark.parametrize(
    "code", [KafkaError._RESOLVE, KafkaError._ALL_BROKERS_DOWN, KafkaError.NOT_CONTROLLER]
)
def test_a_write_that_reached_no_broker_has_taken_no_effect(code: int) -> None:
    error = translate(KafkaError(code), "create topic orders.split-3-1", writing=True)
    assert isinstance(error, UnreachableError) and error.changed is False
