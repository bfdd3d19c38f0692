"""Credentials that change reach every client of a connection, those that are made later as well."""

from __future__ import annotations

import ast
import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import confluent_kafka
import pytest

import kpsplit
from kpsplit import Consumer, Producer, SerializingProducer
from kpsplit.consumer.state.store import StateStore
from kpsplit.kafka.connection import Connection, Credentials

OLD, NEW = "secret-of-yesterday", "secret-of-today"
CONFIG = {
    "bootstrap.servers": "127.0.0.1:1",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "user",
    "sasl.password": OLD,
    "log_level": 0,
}
CLIENTS = ("AdminClient", "Consumer", "Producer", "SerializingProducer", "DeserializingConsumer")


class Client:
    """Notes what it was told. ``closed``: it refuses, as the client library's do then."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.closed = False

    def set_sasl_credentials(self, username: str, password: str) -> None:
        if self.closed:
            raise RuntimeError("Handle has been closed")
        self.told.append((username, password))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kinds of client that were told, where every client is a real one."""
    kinds: list[str] = []
    real = Credentials._tell

    def tell(self: Credentials, client: Any) -> None:
        real(self, client)
        if self.changed:
            assert self.changed == {"sasl.username": "user", "sasl.password": NEW}
            kinds.append(type(client).__name__)

    monkeypatch.setattr(Credentials, "_tell", tell)
    yield kinds


def test_clients_are_told_of_a_change_and_later_ones_begin_with_it() -> None:
    credentials, early, late = Credentials(), Client(), Client()
    credentials.follow(early)
    assert early.told == []
    credentials.change("user", NEW)
    credentials.follow(late)  # made with the old configuration while the change came
    assert early.told == late.told == [("user", NEW)]


def test_a_client_that_left_or_was_closed_or_collected_is_no_trouble() -> None:
    credentials, left, closed, gone = Credentials(), Client(), Client(), Client()
    for client in (left, closed, gone):
        credentials.follow(client)
    credentials.leave(left)
    closed.closed = True
    collected = ref(gone)
    del gone, client
    gc.collect()
    credentials.change("user", NEW)
    assert collected() is None
    assert left.told == []


@pytest.mark.parametrize(
    ("bad", "error"), [(b"bytes", TypeError), ("a\0b", ValueError), ("\udc80", ValueError)]
)
def test_credentials_that_cannot_be_sent_change_nothing_and_are_not_shown(
    bad: Any, error: type[Exception]
) -> None:
    connection, client = Connection(CONFIG), Client()
    connection.follow(client)
    with pytest.raises(error) as refused:
        connection.set_sasl_credentials("user", bad)
    assert repr(bad) not in str(refused.value) and str(bad) not in str(refused.value)
    assert client.told == []
    assert connection.get("sasl.password") == OLD


def test_a_connection_says_the_credentials_of_now_wherever_it_is_asked() -> None:
    connection = Connection(CONFIG)
    connection.set_sasl_credentials("user", NEW)
    for properties in (connection.properties, connection.client("role"), connection.reader("role")):
        assert properties["sasl.password"] == NEW
    assert connection.get("sasl.password") == NEW
    assert pickle.loads(pickle.dumps(connection)).get("sasl.password") == NEW
    assert NEW not in repr(connection)


def test_all_kinds_of_clients_of_a_connection_are_told(told: list[str]) -> None:
    connection = Connection(CONFIG)
    clients = (
        connection.open_admin("a"),
        connection.open_producer("p"),
        connection.open_consumer("c", group_id="g"),
        connection.open_reader("r"),
    )
    connection.set_sasl_credentials("user", NEW)
    assert sorted(told) == ["AdminClient", "FollowingConsumer", "FollowingConsumer", "FollowingProducer"]
    clients[2].close()
    told.clear()
    connection.set_sasl_credentials("user", NEW)
    assert len(told) == 3  # one that is being closed must not be touched


@pytest.mark.parametrize("kind", [Producer, SerializingProducer])
def test_a_producer_hands_them_on_to_its_connection(kind: type[Producer]) -> None:
    with kind(CONFIG) as producer:
        producer.set_sasl_credentials("user", NEW)
        assert producer._connection.get("sasl.password") == NEW
    with pytest.raises(RuntimeError, match="closed"):
        producer.set_sasl_credentials("user", OLD)


def test_a_consumer_hands_them_on_to_its_session_and_its_store(tmp_path: Path, told: list[str]) -> None:
    config = {**CONFIG, "group.id": "g"}
    with (
        StateStore(tmp_path / "own", config) as own,
        StateStore(tmp_path / "other", {**config, "sasl.username": "somebody else"}) as other,
    ):
        for store, password in ((own, NEW), (other, OLD)):
            with Consumer(config, state=store) as consumer:
                consumer._running()
                told.clear()
                consumer.set_sasl_credentials("user", NEW)
                assert consumer._connection.get("sasl.password") == NEW
                assert {"FollowingConsumer", "AdminClient"} <= set(
                    told
                )  # the slots' reader, the look at topics
            assert store._connection.get("sasl.password") == password
        other.set_sasl_credentials("user", NEW)
        assert other._connection.get("sasl.password") == NEW


def test_no_client_is_made_beside_the_connections() -> None:
    """Else it would go on with the old password. Exempt: what an application makes, or follows by itself."""
    root = Path(kpsplit.__file__).parent
    exempt = {
        root / "kafka/connection.py",
        root / "consumer/run/outputs.py",  # a kpsplit.Producer, which its makers follow
    }
    files = [f for part in ("kafka", "control", "producer", "consumer") for f in (root / part).rglob("*.py")]
    found = [f"{f}:{call.lineno}" for f in set(files) - exempt for call in _calls(f)]
    assert len(files) > 50
    assert found == []


def _calls(file: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in CLIENTS:
                yield node


def test_a_client_of_the_library_can_be_followed() -> None:
    assert issubclass(Producer, confluent_kafka.Producer)
    assert Connection(CONFIG).follow(Producer(CONFIG)).close()
