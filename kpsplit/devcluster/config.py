"""The configuration of each node of the embedded cluster, and its ports.

Nobody else can take a reserved port between its choice and its use (``PortReservation``). A port that is
chosen by binding and then released may be gone when the broker binds it, seconds later, or while a killed
broker is down. So the reservation is never released: a socket stays bound to the port, without listening,
for the life of the cluster. Linux lets the broker bind and listen on it all the same, because both sides
set SO_REUSEADDR (Java does for server sockets), and gives the port to nobody who asks for any free one.
Where the system does not share ports like this, the socket is closed just before the broker starts, and the
cluster starts again on other ports if the broker reports that its port was taken.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from kpsplit.errors import ConflictError

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where one node listens, on loopback.

    Attributes:
        id: Kafka's `node.id`; nodes are numbered from 0, so it is also the index in the cluster.
        port: for clients and other brokers.
        controller_port: for the KRaft quorum.
    """

    id: int
    port: int
    controller_port: int

    @property
    def client_address(self) -> str:
        """`host:port` for clients."""
        return f"{HOST}:{self.port}"


def bootstrap(nodes: Sequence[NodeAddress]) -> str:
    """`bootstrap.servers` with all nodes."""
    return ",".join(node.client_address for node in nodes)


def node_properties(
    node: NodeAddress, nodes: Sequence[NodeAddress], data: Path, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The `server.properties` of `node`, one of `nodes`, with its log directory at `data`.

    `extra` overrides anything. The listeners are named BROKER and CONTROLLER, so that a test of TLS or SASL
    changes `listener.security.protocol.map` and leaves the ports alone.
    """
    return _identity(node, nodes, data) | _durability(len(nodes)) | _speed() | _features() | dict(extra or {})


def to_text(properties: Mapping[str, str]) -> str:
    """A Java properties file. Backslashes are doubled; keys here need no escaping."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in properties.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n\\\n")


def _identity(node: NodeAddress, nodes: Sequence[NodeAddress], data: Path) -> dict[str, str]:
    """Who this node is, where it listens, where its data is, who votes."""
    # Static voters rather than a dynamic quorum: nothing about ports is written into the data, so a
    # cluster whose ports turned out to be taken starts on others without being formatted again.
    voters = ",".join(f"{peer.id}@{HOST}:{peer.controller_port}" for peer in nodes)
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "listeners": f"BROKER://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"BROKER://{HOST}:{node.port}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": voters,
        "log.dirs": str(data),
    }


def _durability(brokers: int) -> dict[str, str]:
    """As a production cluster would have it: RF 3, min ISR 2; scaled down for fewer brokers."""
    replicas = min(3, brokers)
    in_sync = min(2, replicas)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "unclean.leader.election.enable": "false",
        "auto.create.topics.enable": "false",
        "num.partitions": "1",
    }


def _speed() -> dict[str, str]:
    """Few threads and partitions, and short waits: several nodes share a small machine."""
    return {
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.num.partitions": "8",
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.min.session.timeout.ms": "6000",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "4",
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "replica.fetch.wait.max.ms": "100",
        # Followers that ask a new leader before it leads pause for so long; the default is a second, in which
        # no write with acks=all to that broker is acknowledged.
        "replica.fetch.backoff.ms": "100",
        # A killed broker is declared dead after this long; the default of 9 s makes tests of it slow.
        "broker.session.timeout.ms": "5000",
        "broker.heartbeat.interval.ms": "500",
        "controlled.shutdown.enable": "true",
    }


def _features() -> dict[str, str]:
    """Classic groups and those of KIP-848."""
    return {"group.coordinator.rebalance.protocols": "classic,consumer"}


class PortReservation:
    """Bound sockets that do not listen, one for each port."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def any_free(self) -> int:
        """Reserve a port of the system's choice."""
        return self._hold(0)

    def exactly(self, port: int) -> int:
        """Reserve `port`.

        Raises:
            ConflictError: another process has it.
        """
        try:
            return self._hold(port)
        except OSError as error:
            raise ConflictError(
                f"port {port}, which this cluster had when it was stopped, is used by another process",
                hint="end that process, or start the cluster with another data folder",
            ) from error

    def before_start(self, node: NodeAddress) -> None:
        """A broker is about to bind its ports: make way where the system demands it."""
        if not can_share():
            self._close((node.port, node.controller_port))

    def release(self) -> None:
        """Give up all ports."""
        self._close(list(self._held))

    def _hold(self, port: int) -> int:
        held = _bound(port)
        chosen: int = held.getsockname()[1]
        self._held[chosen] = held
        return chosen

    def _close(self, ports: Iterable[int]) -> None:
        for port in ports:
            if held := self._held.pop(port, None):
                held.close()


@cache
def can_share() -> bool:
    """Whether a server may listen on a port that a silent socket of another process is bound to."""
    with _bound(0) as held:
        try:
            with _bound(held.getsockname()[1]) as server:
                server.listen()
        except OSError:
            return False
    return True


def _bound(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
    except OSError:
        bound.close()
        raise
    return bound
