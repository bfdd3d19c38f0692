"""The disturbed network, over real sockets: held, slow, and with responses that are lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from kpsplit.clock import Deadline
from tests.fault.chaos.proxy import FAIR, HOST, Network, Weather, with_listener

PATIENCE = 60.0


class Upstream(threading.Thread):
    """Answers every chunk with itself, one connection at a time, and remembers what came."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self.got = b""

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with closing(connection):
                while data := connection.recv(4096):
                    self.got += data
                    connection.sendall(data)

    def close(self) -> None:
        self._server.close()

    def await_request(self, wanted: bytes) -> None:
        deadline = Deadline(PATIENCE)
        while wanted not in self.got:
            deadline.check(f"{wanted!r} to arrive")
            deadline.pause(0.01)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with closing(Upstream()) as echo:
        echo.start()
        yield echo


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as network:
        yield network


def connected(network: Network, upstream: Upstream) -> socket.socket:
    return socket.create_connection((HOST, network.add(upstream.port)), timeout=PATIENCE)


def test_a_fair_network_hands_over_both_ways(network: Network, upstream: Upstream) -> None:
    with connected(network, upstream) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"


@pytest.mark.parametrize("weather", [Weather(hold_requests=True), Weather(hold_responses=True)])
def test_what_is_held_arrives_when_the_network_is_back(
    network: Network, upstream: Upstream, weather: Weather
) -> None:
    with connected(network, upstream) as client:
        client.sendall(b"one")
        assert client.recv(100) == b"one"
        network.weather = weather
        client.sendall(b"two")
        if weather.hold_responses:
            upstream.await_request(b"two")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(100)
        assert (b"two" in upstream.got) is weather.hold_responses
        network.weather = FAIR
        client.settimeout(PATIENCE)
        assert client.recv(100) == b"two"


def test_a_response_is_lost_after_the_request_has_arrived(network: Network, upstream: Upstream) -> None:
    with connected(network, upstream) as client:
        network.weather = Weather(lose_responses=True)
        client.sendall(b"write")
        assert client.recv(100) == b""
        assert (upstream.got, network.lost) == (b"write", 1)


def test_a_slow_network_hands_over_the_same(network: Network, upstream: Upstream) -> None:
    network.weather = Weather(delay=0.05)
    with connected(network, upstream) as client:
        client.sendall(b"slow")
        assert client.recv(100) == b"slow"


def test_a_broker_that_is_away_ends_the_clients_connection(network: Network) -> None:
    with socket.create_server((HOST, 0)) as gone:
        port = gone.getsockname()[1]
    with socket.create_connection((HOST, network.add(port)), timeout=PATIENCE) as client:
        assert client.recv(100) == b""


def test_a_broker_gets_one_more_listener_that_advertises_the_proxy() -> None:
    properties = (
        "node.id=0\nlisteners=BROKER://127.0.0.1:1,CONTROLLER://127.0.0.1:2\n"
        "advertised.listeners=BROKER://127.0.0.1:1\nlistener.security.protocol.map=BROKER:PLAINTEXT\n"
    )
    assert with_listener(properties, 3, 4) == (
        "node.id=0\nlisteners=BROKER://127.0.0.1:1,CONTROLLER://127.0.0.1:2,PROXIED://127.0.0.1:3\n"
        "advertised.listeners=BROKER://127.0.0.1:1,PROXIED://127.0.0.1:4\n"
        "listener.security.protocol.map=BROKER:PLAINTEXT,PROXIED:PLAINTEXT\n"
    )
