"""A cluster's folder: who the cluster is, its ports, the configuration and formatted storage of its nodes.

DIR/cluster.json         id of the cluster, ports of the nodes
DIR/cluster.lock         held while the cluster runs
DIR/node-0/              server.properties, broker.log, data/

Nobody else can take a reserved port between its choice and its use (``PortReservation``). A port that is
chosen by binding and then released may be gone when the broker binds it, seconds later, or while a killed
broker is down. So the reservation is never released: a socket stays bound to the port, without listening,
for the life of the cluster. Linux lets the broker bind and listen on it all the same, because both sides
set SO_REUSEADDR (Java does for server sockets), and gives the port to nobody who asks for any free one.
Where the system does not share ports like this, the socket is closed just before the broker starts, and the
cluster starts again on other ports if the broker reports that its port was taken.
"""

from __future__ import annotations

import base64
import fcntl
import json
import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Self

from kpsplit.clock import Deadline
from kpsplit.devcluster.process import KafkaRuntime, ManagedProcess, SupervisorClient
from kpsplit.errors import ConflictError, KpsplitError, UsageError
from kpsplit.files import write_whole

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where one node listens, on loopback: ``controller_port`` is the KRaft quorum's."""

    id: int
    port: int
    controller_port: int

    @property
    def client_address(self) -> str:
        return f"{HOST}:{self.port}"


def bootstrap(nodes: Sequence[NodeAddress]) -> str:
    return ",".join(node.client_address for node in nodes)


def node_properties(
    node: NodeAddress, nodes: Sequence[NodeAddress], data: Path, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The `server.properties` of `node`, one of `nodes`, with its log directory at `data`.

    `extra` overrides anything. The listeners are named BROKER and CONTROLLER, so that a test of TLS or SASL
    changes `listener.security.protocol.map` and leaves the ports alone.
    """
    replicas = min(3, len(nodes))
    in_sync = str(min(2, replicas))
    # Static voters rather than a dynamic quorum: nothing about ports is written into the data, so a
    # cluster whose ports turned out to be taken starts on others without being formatted again.
    voters = ",".join(f"{peer.id}@{HOST}:{peer.controller_port}" for peer in nodes)
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "listeners": f"BROKER://{node.client_address},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"BROKER://{node.client_address}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": voters,
        "log.dirs": str(data),
        # As a production cluster would have it, scaled down for fewer brokers.
        "default.replication.factor": str(replicas),
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": in_sync,
        "unclean.leader.election.enable": "false",
        "auto.create.topics.enable": "false",
        "num.partitions": "1",
        # Few threads and partitions, and short waits: several nodes share a small machine.
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.num.partitions": "8",
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.min.session.timeout.ms": "6000",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "4",
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        # Followers that ask a new leader before it leads pause for so long; the default is a second, in which
        # no write with acks=all to that broker is acknowledged.
        "replica.fetch.backoff.ms": "100",
        # A killed broker is declared dead after this long; the default of 9 s makes tests of it slow.
        "broker.session.timeout.ms": "5000",
        "broker.heartbeat.interval.ms": "500",
        "controlled.shutdown.enable": "true",
        "group.coordinator.rebalance.protocols": "classic,consumer",
        **(extra or {}),
    }


def to_text(properties: Mapping[str, str]) -> str:
    """A Java properties file. Backslashes are doubled; keys here need no escaping."""
    escaped = (
        (key, value.replace("\\", "\\\\").replace("\n", "\\n\\\n")) for key, value in properties.items()
    )
    return "".join(f"{key}={value}\n" for key, value in escaped)


class PortReservation:
    """Bound sockets that do not listen, one for each port."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def any_free(self) -> int:
        return self._hold(0)

    def exactly(self, port: int) -> int:
        """Reserve `port`. Raises ConflictError: another process has it."""
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


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """What stays the same when a cluster with a folder of its own is stopped and started again."""

    cluster_id: str
    nodes: tuple[NodeAddress, ...]

    @classmethod
    def load(cls, folder: Path) -> ClusterIdentity | None:
        """The identity saved in `folder`, None if there is none. Raises UsageError: it is something else."""
        path = folder / "cluster.json"
        try:
            saved = json.loads(path.read_text())
            return cls(saved["cluster_id"], tuple(NodeAddress(**node) for node in saved["nodes"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path} is not the description of an embedded cluster",
                hint="choose an empty folder, or delete this one",
            ) from error

    def save(self, folder: Path) -> None:
        """Write `cluster.json`, whole or not at all."""
        write_whole(folder / "cluster.json", f"{json.dumps(asdict(self), indent=2)}\n".encode())


def new_id() -> str:
    """A random id in Kafka's form: 16 bytes in URL-safe base64, 22 characters."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # Kafka's own rule: it would look like an option
            return text


def node_folder(folder: Path, node: int) -> Path:
    return folder / f"node-{node}"


def write_configuration(folder: Path, identity: ClusterIdentity, extra: Mapping[str, str]) -> None:
    """Write `server.properties` of every node; `extra` overrides anything."""
    for node in identity.nodes:
        properties = node_properties(node, identity.nodes, _data(folder, node.id), extra)
        node_folder(folder, node.id).mkdir(parents=True, exist_ok=True)
        configuration(folder, node.id).write_text(to_text(properties))


def format_storage(
    folder: Path,
    identity: ClusterIdentity,
    kafka: KafkaRuntime,
    supervisor: SupervisorClient,
    deadline: Deadline,
) -> None:
    """Format the storage of every node, unless that was done before."""
    if all((_data(folder, node.id) / "meta.properties").is_file() for node in identity.nodes):
        return
    first = identity.nodes[0].id
    log = node_folder(folder, first) / "format.log"
    arguments = ("format", "-t", identity.cluster_id, "-c", str(configuration(folder, first)), "-g")
    tool = ManagedProcess(supervisor, "format", kafka.command("kafka.tools.StorageTool", *arguments), log)
    code = tool.wait(deadline)
    deadline.check("the storage of the embedded cluster to be formatted")
    if code != 0:
        raise KpsplitError(f"formatting the storage of the embedded cluster failed:\n{log.read_text()}")
    _copy_format(folder, identity)


def _copy_format(folder: Path, identity: ClusterIdentity) -> None:
    """Format the other nodes' storage like that of the first, which Kafka's own tool has formatted.

    The storage of two nodes differs in nothing but their ids, and each run of the tool costs a JVM.
    """
    first, *others = identity.nodes
    for node in others:
        data = _data(folder, node.id)
        data.mkdir(parents=True, exist_ok=True)
        shutil.copy(_data(folder, first.id) / "bootstrap.checkpoint", data)
        meta = {"version": 1, "cluster.id": identity.cluster_id, "node.id": node.id, "directory.id": new_id()}
        text = "".join(f"{key}={value}\n" for key, value in meta.items())
        (data / "meta.properties").write_text(text)


def formatted_as(folder: Path) -> str | None:
    """The cluster id that storage in `folder` was formatted with; None if there is none."""
    meta = _data(folder, 0) / "meta.properties"
    lines = meta.read_text().splitlines() if meta.is_file() else []
    found = (line.partition("=")[2] for line in lines if line.startswith("cluster.id="))
    return next(found, None)


def configuration(folder: Path, node: int) -> Path:
    return node_folder(folder, node) / "server.properties"


def _data(folder: Path, node: int) -> Path:
    return node_folder(folder, node) / "data"


@contextmanager
def locked(file: Path, taken: ConflictError) -> Iterator[int]:
    """Hold a file's lock; yields its descriptor. Raises ``taken`` where another process holds it.

    What a supervisor inherits is free again when this process has let go *and* the supervisor has ended.
    """
    with file.open("w") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise taken from error
        yield opened.fileno()
