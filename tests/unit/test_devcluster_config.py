"""The configuration of the embedded nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpsplit.devcluster.config import NodeAddress, bootstrap, node_properties, to_text
from kpsplit.devcluster.daemon import run_folder
from kpsplit.devcluster.jars import cache_folder

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


def test_a_data_folder_of_ones_own_making_is_for_nobody_else(tmp_path: Path) -> None:
    assert run_folder(tmp_path / "data").stat().st_mode & 0o077 == 0
