"""A state store and its Consumer: who may use which, and which handlers can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kpsplit import Consumer, StateStore
from kpsplit.clock import Deadline
from kpsplit.consumer.state.slot_state import OwnedState
from kpsplit.consumer.state.slots import SlotId
from kpsplit.consumer.state.storage import RestoreMarker
from kpsplit.errors import ConfigurationError, ConflictError, UsageError
from tests.unit.run_handlers import touch
from tests.unit.state_fakes import Store

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


def test_a_store_without_a_configuration_takes_the_consumers(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with StateStore(folder) as opened:
        assert opened.stats()["slots"] == {} and not folder.exists()
        with Consumer(CONFIG, state=opened):
            pass
        with pytest.raises(ConfigurationError, match="'g'.*'other'"):
            Consumer({**CONFIG, "group.id": "other"}, state=opened)
        with Consumer(CONFIG, state=opened), StateStore(folder) as second:
            with pytest.raises(ConflictError, match="another process"):
                Consumer(CONFIG, state=second)
    with pytest.raises(UsageError, match="closed"):
        Consumer(CONFIG, state=opened)


def test_a_store_that_no_consumer_was_given_has_no_connection(tmp_path: Path) -> None:
    with StateStore(tmp_path / "state") as opened, pytest.raises(UsageError, match="no connection"):
        opened.set_sasl_credentials("somebody", "secret")


def test_handlers_in_processes_are_refused_in_one_line(store: StateStore) -> None:
    with Consumer(CONFIG, state=store) as consumer:
        with pytest.raises(UsageError) as raised:
            consumer.run(touch, executor="process")
    assert "\n" not in str(raised.value)
    assert "no access to the state store" in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "waits"),
    [({}, True), ({"enable.auto.commit": False}, False), ({"enable.auto.offset.store": False}, False)],
)
def test_polling_waits_for_room_only_where_what_it_hands_out_is_committed_by_itself(
    settings: dict[str, Any], waits: bool
) -> None:
    """Else the application might need the records that are held back before it has something committed."""
    state, slot = Store(), SlotId("orders", 0, 0, 4)
    owned = state.owned[slot] = OwnedState(slot, state.disk)  # type: ignore[arg-type]
    owned.marker = RestoreMarker("id", 0, 0)
    owned.add({b"key": b"value"})
    state.bound = 1
    consumer = Consumer({**CONFIG, **settings}, state=state)
    try:
        consumer._running()
        assert consumer._buffer.full() is waits
    finally:
        consumer.close()
