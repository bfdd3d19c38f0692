"""The admin client that all who have a connection share, and how it is configured."""

from __future__ import annotations

import gc
import os
import pickle
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_tail import LogTail
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.records.keys import CONTROL_TOPIC

CONFIG = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The configurations of the admin clients that are made."""
    made: list[dict[str, Any]] = []
    original = AdminClient.__init__

    def recorded(self: AdminClient, config: dict[str, Any]) -> None:
        made.append(dict(config))
        original(self, config)

    monkeypatch.setattr(AdminClient, "__init__", recorded)
    return made


def test_there_is_one_as_long_as_somebody_has_it(configured: list[dict[str, Any]]) -> None:
    connection = Connection(CONFIG)
    first = connection.shared_admin()
    assert connection.shared_admin() is first
    assert pickle.loads(pickle.dumps(connection)).shared_admin() is not first
    assert Connection(CONFIG).shared_admin() is not first
    assert len(configured) == 3
    del first
    gc.collect()
    connection.shared_admin()
    assert len(configured) == 4


def test_a_child_process_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a fork: whoever forks while clients run may wait for ever for one of their locks."""
    connection = Connection(CONFIG)
    inherited = connection.shared_admin()
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    own = connection.shared_admin()
    assert own is not inherited
    assert connection.shared_admin() is own


def test_it_waits_between_two_tries_to_connect_unless_the_user_says_otherwise(
    configured: list[dict[str, Any]],
) -> None:
    def of(properties: dict[str, Any]) -> tuple[Any, Any]:
        Connection({**CONFIG, **properties}).shared_admin()
        return configured[-1]["enable.sparse.connections"], configured[-1]["reconnect.backoff.max.ms"]

    assert of({}) == (False, 1000)
    assert of({"enable.sparse.connections": True}) == (True, 1000)
    assert of({"reconnect.backoff.max.ms": 5000}) == (False, 5000)
    assert of({"reconnect.backoff.ms": "2000"}) == (False, 2000)  # librdkafka refuses a maximum below it
    application = Connection.of_application({**CONFIG, "enable.sparse.connections": True, "acks": 1})
    assert application.properties["enable.sparse.connections"] is True


def test_it_looks_which_brokers_there_are_soon_and_remembers_topics_for_as_long_as_by_default(
    configured: list[dict[str, Any]],
) -> None:
    """The one that it asks may be gone; by default it looks for another after 5 minutes."""
    connection = Connection(CONFIG)
    made = connection.shared_admin()
    assert made is connection.shared_admin()
    assert configured[-1]["topic.metadata.refresh.interval.ms"] == 1000
    assert configured[-1]["metadata.max.age.ms"] == 900_000


def test_clients_of_kpsplits_own_topics_wait_no_minute_for_a_broker_that_stands_still(
    configured: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loses its partitions after some 9 s; whoever waits on does not ask the new leader."""
    connection, made = Connection(CONFIG), list[dict[str, Any]]()
    monkeypatch.setattr(connection, "open_producer", lambda _role, **settings: made.append(settings))
    AcknowledgedWriter(connection, "registration")
    reader = connection.open_reader
    monkeypatch.setattr(connection, "open_reader", lambda role, **s: made.append(s) or reader(role, **s))
    LogTail(connection, CONTROL_TOPIC, lambda _: None, (0,)).close()
    assert [s["socket_timeout_ms"] for s in made] == [10_000, 10_000]
    assert configured[-1]["socket.timeout.ms"] == 10_000
    assert Connection({**CONFIG, "socket.timeout.ms": 30_000}).answer_ms() == 30_000, "as the user says"
