"""Commits of a state store, and what is left when one does not come about; without brokers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpsplit import SlotId, StateStore
from kpsplit.clock import Deadline
from kpsplit.consumer.state import store as module
from kpsplit.consumer.state.changelog import ChangelogCommit, Part, PlainWriter
from kpsplit.consumer.state.slot_state import OwnedState
from kpsplit.consumer.state.storage import RestoreMarker
from kpsplit.errors import KpsplitError
from tests.unit.state_fakes import Disk

ONE, OTHER = SlotId("orders", 0, 0, 1), SlotId("payments", 0, 0, 1)
CONFIG = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}


class Client:
    """Keeps delivery reports until the test gives them."""

    def __init__(self) -> None:
        self.reports: list[Callable[[KafkaError | None, Any], None]] = []

    def produce(self, topic: str, *, on_delivery: Any, **_: Any) -> None:
        self.reports.append(on_delivery)


def test_a_late_report_of_an_earlier_try_does_not_count_for_this_one() -> None:
    owned = OwnedState(ONE, Disk())  # type: ignore[arg-type]
    owned.marker = RestoreMarker("id", 0, 0)
    owned.add({b"k": b"v"})
    rewound: list[OwnedState] = []
    commit = ChangelogCommit(None, rewound.append)  # type: ignore[arg-type]
    commit.parts.append(Part(owned, "changelog", owned.cut(None)))
    tries = [Client(), Client()]
    for client in tries:
        commit.write(client, Deadline(1.0))  # type: ignore[arg-type]
    for offset, client in enumerate(reversed(tries), 1):
        client.reports[0](None, SimpleNamespace(offset=lambda at=offset: at))
    commit.committed()
    assert rewound == [] and owned.marker.position == 2


def test_writes_that_could_not_be_flushed_for_whatever_reason_wait_for_the_next_commit() -> None:
    owned = OwnedState(ONE, Disk())  # type: ignore[arg-type]
    owned.marker = RestoreMarker("id", 0, 0)
    owned.add({b"k": b"v"})
    commit = ChangelogCommit(mock.Mock(**{"producer.side_effect": MemoryError}), lambda _: None)
    commit.parts.append(Part(owned, "changelog", owned.cut(None)))
    with pytest.raises(MemoryError):
        commit.flush(Deadline(1.0))
    assert owned.cut(None) == {b"k": b"v"}


class Broken:
    """A producer that takes records or refuses them, and reports an error or raises one when it is served."""

    def __init__(self, refused: int | None = None, reported: int | None = None, fatal: bool = False) -> None:
        self._refused, self._reported, self._fatal = refused, reported, fatal
        self._reports: list[Any] = []

    def produce(self, topic: str, *, on_delivery: Any, **_: Any) -> None:
        if self._refused is not None:
            raise KafkaException(KafkaError(self._refused))
        self._reports.append(on_delivery)

    def flush(self, seconds: float) -> None:
        if self._fatal:  # as the client library does where it goes on to a delivery report
            fatal = KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, fatal=True))
            raise SystemError("flush returned a result with an exception set") from fatal
        while self._reports:
            error = None if self._reported is None else KafkaError(self._reported)
            self._reports.pop()(error, SimpleNamespace(offset=lambda: 4))


def committed_by(*producers: Broken) -> tuple[list[bool], int]:
    """Commit a write with these, one after the other if need be; return how each try ended, who was made."""
    left = list(producers)
    connection = SimpleNamespace(open_producer=lambda *_, **__: left.pop(0))
    writer, results = PlainWriter(connection), list[bool]()  # type: ignore[arg-type]
    owned = OwnedState(ONE, Disk())  # type: ignore[arg-type]
    owned.marker = RestoreMarker("id", 0, 0)
    owned.add({b"k": b"v"})
    for _ in range(2):
        commit = ChangelogCommit(writer, lambda _: None)
        commit.parts.append(Part(owned, "changelog", owned.cut(None)))
        try:
            commit.flush(Deadline(0.01))
        except KpsplitError:
            results.append(False)
        else:
            results.append(True)
    return results, len(producers) - len(left)


@pytest.mark.parametrize(
    "broken",
    [
        Broken(refused=KafkaError._FATAL),
        Broken(reported=KafkaError._FATAL),
        Broken(reported=KafkaError._PURGE_QUEUE),
        Broken(fatal=True),
    ],
    ids=["refused", "reported", "purged", "raised"],
)
def test_a_producer_that_failed_for_good_is_replaced_for_the_next_commit(broken: Broken) -> None:
    assert committed_by(broken, Broken()) == ([False, True], 2)


@pytest.mark.parametrize(
    "slow", [Broken(refused=KafkaError._UNKNOWN_PARTITION), Broken(reported=KafkaError._MSG_TIMED_OUT)]
)
def test_a_producer_that_may_still_write_is_kept(slow: Broken) -> None:
    """What it wrote late would come after what another one wrote for the next try."""
    assert committed_by(slow, Broken()) == ([False, False], 1)


def test_a_commit_that_could_not_be_put_together_keeps_no_slot_from_the_next(tmp_path: Path) -> None:
    with StateStore(tmp_path / "state", CONFIG) as store:
        store.taken([ONE, OTHER])
        for owned in store._owned.values():
            owned.marker = RestoreMarker("id", 0, 0)
        store.slot(ONE).put(b"k", b"v")
        everything: Any = SimpleNamespace(holds=lambda place: True)
        with pytest.raises(KeyError):
            store.before_commit([ONE, OTHER], {ONE.parent: everything})
        assert store.before_commit([ONE]).parts[0].writes == {b"k": b"v"}


def test_a_store_that_cannot_be_opened_lets_go_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise KpsplitError("no client")

    with monkeypatch.context() as patch, pytest.raises(KpsplitError, match="no client") as raised:
        patch.setattr(module, "Follower", refuse)
        StateStore(tmp_path / "state", CONFIG)
    StateStore(tmp_path / "state", CONFIG).close()
    assert raised.value.hint is None  # kept until here, and with it all that its frames hold
