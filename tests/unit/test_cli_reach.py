"""The first contact with a cluster: it is enough that one of the named brokers answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer

from kpsplit.admin_cli.settings import REACH_SECONDS, reach
from kpsplit.errors import UnreachableError
from kpsplit.kafka.connection import Connection

SILENT = 8


@pytest.fixture
def silent() -> Iterator[list[str]]:
    """Addresses where connections are taken and nothing is answered, as by a frozen broker."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(SILENT)]
        yield [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]


def test_brokers_that_do_not_answer_do_not_hide_one_that_does(silent: list[str]) -> None:
    cluster = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(cluster.list_topics(timeout=10).brokers.values()))
    reach(
        Connection({"bootstrap.servers": ",".join([*silent, f"{broker.host}:{broker.port}"])}), REACH_SECONDS
    )


def test_where_no_broker_answers_that_is_the_error(silent: list[str]) -> None:
    with pytest.raises(UnreachableError, match="no broker of 127.0.0.1:.* answered"):
        reach(Connection({"bootstrap.servers": ",".join(silent)}), 1.0)
