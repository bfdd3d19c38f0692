"""docker-compose.yml: its settings agree with each other, and where Docker is, it runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit.devcluster.jars import KAFKA_VERSION

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
IMAGE = f"apache/kafka:{KAFKA_VERSION}"
NODES: dict[str, dict[str, Any]] = {
    name: service for name, service in COMPOSE["services"].items() if name.startswith("kafka-")
}
OWN = {"KAFKA_NODE_ID", "KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS"}


def listeners(text: str) -> dict[str, tuple[str, int]]:
    parts = (entry.split("://") for entry in text.split(","))
    return {name: (address.rpartition(":")[0], int(address.rpartition(":")[2])) for name, address in parts}


def test_three_nodes_of_the_pinned_version_with_health_checks() -> None:
    assert sorted(NODES) == ["kafka-1", "kafka-2", "kafka-3"]
    assert {node["image"] for node in NODES.values()} == {IMAGE}
    assert all(node["healthcheck"]["test"] for node in NODES.values())


def test_the_nodes_differ_only_in_who_they_are() -> None:
    shared = [{k: v for k, v in node["environment"].items() if k not in OWN} for node in NODES.values()]
    assert shared[0] == shared[1] == shared[2]


def test_every_node_votes_under_its_own_id_and_address() -> None:
    voters = NODES["kafka-1"]["environment"]["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")
    expected = []
    for name, node in NODES.items():
        environment = node["environment"]
        port = listeners(environment["KAFKA_LISTENERS"])["CONTROLLER"][1]
        expected.append(f"{environment['KAFKA_NODE_ID']}@{name}:{port}")
    assert voters == expected


def test_what_is_advertised_is_listened_on_and_published() -> None:
    published = set()
    for name, node in NODES.items():
        bound = listeners(node["environment"]["KAFKA_LISTENERS"])
        advertised = listeners(node["environment"]["KAFKA_ADVERTISED_LISTENERS"])
        assert advertised["BROKER"] == (name, bound["BROKER"][1])
        assert advertised["HOST"] == ("localhost", bound["HOST"][1])
        assert node["ports"] == ["127.0.0.1:{0}:{0}".format(bound["HOST"][1])]
        published.add(bound["HOST"][1])
    assert len(published) == len(NODES)


def test_writes_survive_the_loss_of_a_node() -> None:
    environment = NODES["kafka-1"]["environment"]
    for setting in ("DEFAULT", "OFFSETS_TOPIC", "TRANSACTION_STATE_LOG"):
        assert environment[f"KAFKA_{setting}_REPLICATION_FACTOR"] == "3"
    assert environment["KAFKA_MIN_INSYNC_REPLICAS"] == "2"
    assert environment["KAFKA_TRANSACTION_STATE_LOG_MIN_ISR"] == "2"
    assert environment["KAFKA_UNCLEAN_LEADER_ELECTION_ENABLE"] == "false"


def test_the_demo_runs_only_when_asked_for_and_on_healthy_brokers() -> None:
    demo = COMPOSE["services"]["demo"]
    assert demo["profiles"] == ["demo"]
    assert demo["depends_on"] == {name: {"condition": "service_healthy"} for name in NODES}
    brokers = ",".join(f"{name}:9092" for name in NODES)
    assert demo["command"] == ["demo", "--bootstrap-server", brokers]


def why_not() -> str | None:
    """The reason why the compose file cannot run here; None if it can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    questions = {
        "no Docker engine answers": ["docker", "info", "--format", "{{.ServerVersion}}"],
        "docker has no compose plugin": ["docker", "compose", "version"],
        f"the Docker engine does not have the image {IMAGE}": ["docker", "image", "inspect", IMAGE],
    }
    for reason, command in questions.items():
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except subprocess.TimeoutExpired:
            return f"{reason} (within 30 s)"
        if done.returncode:
            return f"{reason}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else '?'}"
    return None


@pytest.fixture(scope="module")
def composed() -> Iterator[str]:
    """The bootstrap servers of the running compose file."""
    if reason := why_not():
        pytest.skip(reason)
    from testcontainers.compose import DockerCompose

    with DockerCompose(ROOT, compose_file_name="docker-compose.yml", pull=False, wait=True):
        yield "localhost:19092,localhost:29092,localhost:39092"


@pytest.mark.compose
def test_the_brokers_serve_the_host(composed: str) -> None:
    admin = AdminClient({"bootstrap.servers": composed})
    assert set(admin.list_topics(timeout=30).brokers) == {1, 2, 3}
    admin.create_topics([NewTopic("composed", 3, 3)], operation_timeout=30)["composed"].result(30)
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": composed, "acks": "all"})
    producer.produce("composed", b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None]
