"""A cluster's folder: who the cluster is, its ports, and the formatted storage of its nodes.

DIR/cluster.json         id of the cluster, ports of the nodes
DIR/cluster.lock         held while the cluster runs
DIR/node-0/              server.properties, broker.log, data/
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from kpsplit.clock import Deadline
from kpsplit.devcluster.config import NodeAddress, node_properties, to_text
from kpsplit.devcluster.process import KafkaRuntime, ManagedProcess, SupervisorClient
from kpsplit.errors import ConflictError, KpsplitError, UsageError


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """What stays the same when a cluster with a folder of its own is stopped and started again."""

    cluster_id: str
    nodes: tuple[NodeAddress, ...]

    @classmethod
    def load(cls, folder: Path) -> ClusterIdentity | None:
        """The identity saved in `folder`; None if there is none.

        Raises:
            UsageError: the file is not one that `save` wrote.
        """
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
        new = folder / "cluster.json.new"
        new.write_text(json.dumps(asdict(self), indent=2) + "\n")
        new.replace(folder / "cluster.json")


def new_id() -> str:
    """A random id in Kafka's form: 16 bytes in URL-safe base64, 22 characters."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # Kafka's own rule: it would look like an option
            return text


def node_folder(folder: Path, node: int) -> Path:
    """The folder of one node."""
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
    """Format the storage of every node, unless that was done before.

    Raises:
        DeadlineExceededError: not done in time.
        KpsplitError: Kafka's tool failed; the message has what it said.
    """
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
    """The `server.properties` of one node."""
    return node_folder(folder, node) / "server.properties"


def _data(folder: Path, node: int) -> Path:
    return node_folder(folder, node) / "data"


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the folder's lock; yields the file descriptor, which the supervisor inherits.

    The lock is free again when this process has let go *and* the supervisor has ended the brokers.

    Raises:
        ConflictError: a cluster runs on this folder.
    """
    descriptor = os.open(folder / "cluster.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConflictError(
            f"an embedded cluster is running on {folder}",
            hint="stop it (`kpsplit cluster down`) or choose another folder",
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)
