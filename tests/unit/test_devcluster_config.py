"""The configuration of the embedded nodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata

from kpsplit.admin_cli.main import cli, run
from kpsplit.clock import Deadline
from kpsplit.devcluster import cluster, daemon
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.jars import cache_folder
from kpsplit.devcluster.storage import NodeAddress, bootstrap, node_properties, to_text
from kpsplit.errors import EXIT_OK, ConflictError, KpsplitError

NODES = tuple(NodeAddress(i, 9000 + i, 9100 + i) for i in range(3))


def test_bootstrap_lists_all_nodes_on_loopback() -> None:
    assert bootstrap(NODES) == "127.0.0.1:9000,127.0.0.1:9001,127.0.0.1:9002"


def test_each_node_listens_on_its_own_ports_and_knows_all_voters() -> None:
    for node in NODES:
        properties = node_properties(node, NODES, Path("/data"))
        assert properties["node.id"] == str(node.id)
        assert properties["listeners"] == (
            f"BROKER://127.0.0.1:{node.port},CONTROLLER://127.0.0.1:{node.controller_port}"
        )
        assert properties["controller.quorum.voters"] == "0@127.0.0.1:9100,1@127.0.0.1:9101,2@127.0.0.1:9102"


@pytest.mark.parametrize(("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "2"), (3, "3", "2")])
def test_replication_is_that_of_production_as_far_as_there_are_brokers(
    brokers: int, replicas: str, in_sync: str
) -> None:
    nodes = NODES[:brokers]
    properties = node_properties(nodes[0], nodes, Path("/data"))
    for setting in ("default", "offsets.topic", "transaction.state.log"):
        assert properties[f"{setting}.replication.factor"] == replicas
    assert properties["min.insync.replicas"] == in_sync
    assert properties["transaction.state.log.min.isr"] == in_sync
    assert properties["unclean.leader.election.enable"] == "false"


def test_extra_properties_have_the_last_word() -> None:
    properties = node_properties(NODES[0], NODES, Path("/data"), {"num.io.threads": "9", "own": "x"})
    assert (properties["num.io.threads"], properties["own"]) == ("9", "x")


def test_properties_text_escapes_what_java_would_interpret() -> None:
    assert to_text({"a": "1", "b": "c:\\d"}) == "a=1\nb=c:\\\\d\n"


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"KPSPLIT_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, Path("/own")),
        ({"XDG_CACHE_HOME": "/xdg"}, Path("/xdg/kpsplit")),
        ({}, Path.home() / ".cache" / "kpsplit"),
    ],
)
def test_the_cache_folder_is_the_most_specific_one(environ: dict[str, str], folder: Path) -> None:
    assert cache_folder(environ) == folder


def test_a_data_folder_of_ones_own_making_is_for_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: DevCluster, timeout: float) -> NoReturn:
        with pytest.raises(ConflictError, match="running or starting"):
            daemon.serve(1, tmp_path / "data", timeout, announce=lambda _: None)
        raise KpsplitError("not ready")

    monkeypatch.setattr(DevCluster, "start", start)
    monkeypatch.setattr(daemon.signal, "signal", lambda *_: None)
    with pytest.raises(KpsplitError, match="not ready"):
        daemon.serve(1, tmp_path / "data", 1.0, announce=lambda _: None)
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("verb", ["status", "down"])
def test_looking_for_a_cluster_makes_no_folder(verb: str, tmp_path: Path) -> None:
    assert run(cli, ["cluster", verb, "--data", str(tmp_path / "mistyped")]) == EXIT_OK
    assert not (tmp_path / "mistyped").exists()


def test_a_cluster_in_the_background_has_as_long_to_start_as_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def not_started(command: list[str], **_: object) -> NoReturn:
        commands.append(command)
        raise OSError

    def start(_: DevCluster, timeout: float) -> NoReturn:
        raise KpsplitError(f"not ready after {timeout:.0f} s")

    monkeypatch.setattr(subprocess, "Popen", not_started)
    monkeypatch.setattr(DevCluster, "start", start)
    monkeypatch.setattr(daemon.signal, "signal", lambda *_: None)
    with pytest.raises(OSError):
        daemon.start_detached(3, tmp_path, 300.0)
    (command,) = commands
    monkeypatch.setattr(sys, "argv", command[2:])
    assert daemon.main() == 1
    assert capsys.readouterr().err == "not ready after 300 s\n"


def test_a_broker_is_ready_by_its_own_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is told of one broker may ask another with its first question."""
    mock = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0})
    ports = {b.id: b.port for b in mock.list_topics(timeout=10).brokers.values()}
    node, answered, ask = NodeAddress(2, ports[2], 0), list[int](), AdminClient.list_topics

    def list_topics(admin: AdminClient, **settings: float) -> ClusterMetadata:
        found = ask(admin, **settings)
        answered.append(found.orig_broker_id)
        return found

    monkeypatch.setattr(AdminClient, "list_topics", list_topics)
    for _ in range(20):
        while not cluster._lists(node, ports, {}, Deadline(30)):
            pass
        assert answered[-1] in (2, -1)
