"""A state store and its Consumer: who may use which, and which handlers can."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpsplit import Consumer
from kpsplit.consumer.state import StateStore
from kpsplit.errors import ConfigurationError, UsageError
from kpsplit.kafka.clock import Deadline
from tests.unit.run_handlers import touch

CONFIG = {"bootstrap.servers": "localhost:1", "group.id": "g", "log_level": 0}


@pytest.fixture
def store(tmp_path: Path):
    with StateStore(tmp_path / "state", CONFIG) as opened:
        yield opened


def test_a_store_of_another_group_is_refused(store: StateStore) -> None:
    with pytest.raises(ConfigurationError, match="'g'.*'other'"):
        Consumer({**CONFIG, "group.id": "other"}, state=store)


def test_a_store_serves_one_consumer_at_a_time(store: StateStore) -> None:
    with Consumer(CONFIG, state=store):
        with pytest.raises(UsageError, match="another Consumer"):
            Consumer(CONFIG, state=store)
        with pytest.raises(UsageError, match="commits of the Consumer"):
            store.flush(Deadline(1.0))
    with Consumer(CONFIG, state=store):
        pass


def test_handlers_in_processes_are_refused_in_one_line(store: StateStore) -> None:
    with Consumer(CONFIG, state=store) as consumer:
        with pytest.raises(UsageError) as raised:
            consumer.run(touch, executor="process")
    assert "\n" not in str(raised.value)
    assert "no access to the state store" in str(raised.value)
