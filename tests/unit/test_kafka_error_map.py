"""What errors of the client library become."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from kpsplit.errors import UnreachableError
from kpsplit.kafka.error_map import translate

MOVING = [
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
]


@pytest.mark.parametrize("code", MOVING)
def test_a_coordinator_that_moves_is_unreachable_for_a_while(code: int) -> None:
    error = translate(KafkaError(code), "get ready to commit")
    assert isinstance(error, UnreachableError) and error.retriable
    assert "get ready to commit" in error.message
