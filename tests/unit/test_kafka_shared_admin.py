"""The admin client that all who have a connection share, and how it is configured."""

from __future__ import annotations

import gc
import os
import pickle
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kpsplit.kafka.connection import Connection

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
