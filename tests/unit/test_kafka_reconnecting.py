"""How kpsplit's own clients try to connect to a broker that cannot serve them yet."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from kpsplit.clock import monotonic
from kpsplit.kafka.connection import Connection

TRIES = 12
LEAST_SECONDS = 0.8
"""Twelve tries in a row take more than a second as a rule; without our setting little more than half."""


def test_a_broker_that_closes_every_connection_is_tried_a_few_times_a_second() -> None:
    """As one does that starts, or whose users are not loaded yet."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        connection = Connection(
            {"bootstrap.servers": f"127.0.0.1:{listener.getsockname()[1]}", "log_level": 0}
        )
        tries: list[float] = []

        def serve() -> None:
            while len(tries) < TRIES:
                listener.accept()[0].close()
                tries.append(monotonic())

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        reader = connection.open_reader("test")
        reader.assign([TopicPartition("orders", 0, 0)])
        while serving.is_alive():
            reader.poll(0.05)
        reader.close()
    assert tries[-1] - tries[0] > LEAST_SECONDS


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({}, 200),
        ({"reconnect.backoff.ms": 20}, 20),
        ({"reconnect.backoff.max.ms": "150"}, 150),
        ({"reconnect.backoff.max.ms": 9000}, 200),
        ({"reconnect.backoff.max.ms": "no number"}, 200),
    ],
)
def test_the_pause_between_two_tries_is_the_users_where_there_is_one(
    given: dict[str, Any], first: int
) -> None:
    connection = Connection({"bootstrap.servers": "127.0.0.1:1", **given})
    assert connection.client("test")["reconnect.backoff.ms"] == first
