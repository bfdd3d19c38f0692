"""docker-compose.yml: its settings agree with each other, and where Docker is, it runs."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from testcontainers.compose import DockerCompose

from kpsplit.devcluster.jars import KAFKA_VERSION
from kpsplit.devcluster.storage import PortReservation, can_share

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE = yaml.safe_load(TEXT)
DOCKERFILE = (ROOT / "Dockerfile").read_text()
README = (ROOT / "README.md").read_text()
IMAGE = f"apache/kafka:{KAFKA_VERSION}"
NODES: dict[str, dict[str, Any]] = {
    name: service for name, service in COMPOSE["services"].items() if name.startswith("kafka-")
}
OWN = {"KAFKA_NODE_ID", "KAFKA_ADVERTISED_LISTENERS"}
DOWN = "docker compose --profile demo down -v"


def listeners(text: str) -> dict[str, tuple[str, str]]:
    parts = (entry.split("://") for entry in text.split(","))
    return {name: tuple(address.split(":", 1)) for name, address in parts}  # type: ignore[misc]


def test_three_nodes_of_the_pinned_version() -> None:
    assert sorted(NODES) == ["kafka-1", "kafka-2", "kafka-3"]
    assert {node["image"] for node in NODES.values()} == {IMAGE}


def test_a_health_check_opens_the_port_of_the_brokers_and_starts_no_jvm() -> None:
    for node in NODES.values():
        port = listeners(node["environment"]["KAFKA_LISTENERS"])["BROKER"][1]
        assert node["healthcheck"]["test"] == ["CMD", "bash", "-c", f"</dev/tcp/127.0.0.1/{port}"]


def test_each_node_keeps_its_data_in_a_volume_with_a_name_and_has_no_nameless_one() -> None:
    declared_by_the_image = {"/var/lib/kafka/data", "/etc/kafka/secrets", "/mnt/shared/config"}
    for name, node in NODES.items():
        assert node["volumes"] == [f"{name}:{node['environment']['KAFKA_LOG_DIRS']}"]
        assert {*node["tmpfs"], node["environment"]["KAFKA_LOG_DIRS"]} == declared_by_the_image
    assert COMPOSE["volumes"].keys() == NODES.keys()


def test_the_heap_of_a_node_is_bounded() -> None:
    assert all("-Xmx512m" in node["environment"]["KAFKA_HEAP_OPTS"] for node in NODES.values())


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
        host, port = advertised["HOST"]
        assert host == "localhost"
        assert node["ports"] == [f"127.0.0.1:{port}:{bound['HOST'][1]}"]
        published.add(port)
    assert published == {f"${{KAFKA_{n}_PORT:-{n}9092}}" for n in (1, 2, 3)}


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
    assert demo["command"][:3] == ["demo", "--bootstrap-server", brokers]
    assert demo["environment"] == {"KPSPLIT_BOOTSTRAP_SERVER": brokers}


def test_the_demo_s_page_is_written_to_a_folder_of_the_host() -> None:
    demo = COMPOSE["services"]["demo"]
    assert demo["volumes"] == ["./demo-page:/demo-page"]
    assert demo["command"][-2:] == ["--html", "/demo-page/kpsplit-demo.html"]


def test_the_demo_hears_a_stop_and_has_the_time_to_clean_up() -> None:
    demo = COMPOSE["services"]["demo"]
    assert demo["init"] is True
    assert demo["stop_grace_period"] == "60s"
    assert "exec setpriv --reuid=kpsplit" in demo["entrypoint"][2]


def test_the_last_stage_of_the_image_gets_no_build_tools_and_ends_as_a_user() -> None:
    *_, last = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    assert "pip uninstall --yes pip setuptools wheel" in last
    assert not re.search(r"pip install|tools/|requirements", last)
    assert re.findall(r"^USER (.+)$", last, re.MULTILINE) == ["kpsplit"]


def test_the_readme_names_the_commands_and_the_addresses() -> None:
    for words in (
        "docker compose up --wait",
        "localhost:19092,localhost:29092,localhost:39092",
        "docker compose run --rm --build demo",
        DOWN,
    ):
        assert words in README


def why_not(*images: str) -> str | None:
    """The reason why the compose file cannot run here; None if it can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    questions = {
        "no Docker engine answers": ["docker", "info", "--format", "{{.ServerVersion}}"],
        "docker has no compose plugin": ["docker", "compose", "version"],
    }
    for image in images:
        reason = f"the Docker engine does not have the image {image}"
        questions[reason] = ["docker", "image", "inspect", image]
    for reason, command in questions.items():
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except subprocess.TimeoutExpired:
            return f"{reason} (within 30 s)"
        if done.returncode:
            return f"{reason}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else '?'}"
    return None


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@dataclass(frozen=True)
class Project:
    """The compose file as a project of the test's own: its name, ports and page are nobody else's."""

    name: str
    ports: Mapping[str, int]
    pages: Path
    stack: DockerCompose

    @property
    def bootstrap(self) -> str:
        return ",".join(f"localhost:{port}" for port in self.ports.values())

    def run(self, *arguments: str) -> str:
        command = [*self.stack.docker_compose_command(), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def left(self) -> dict[str, list[str]]:
        """What the engine has of this project."""
        lists = {
            "containers": ["docker", "ps", "--all"],
            "volumes": ["docker", "volume", "ls"],
            "networks": ["docker", "network", "ls"],
        }
        label = f"label=com.docker.compose.project={self.name}"
        return {what: output(*command, "-q", "--filter", label).split() for what, command in lists.items()}


NOTHING: dict[str, list[str]] = {"containers": [], "volumes": [], "networks": []}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The running compose file; nothing of it is left afterwards."""
    if reason := why_not(IMAGE):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("compose")
    name, pages = f"kpsplit-test-{uuid.uuid4().hex[:8]}", folder / "demo-page"
    override, settings = folder / "override.yml", folder / "settings.env"
    override.write_text(yaml.safe_dump({"services": {"demo": {"volumes": [f"{pages}:/demo-page"]}}}))
    with PortReservation() as reserved:
        ports = {f"KAFKA_{n}_PORT": reserved.any_free() for n in (1, 2, 3)}
        if not can_share():
            reserved.release()
        named = {"COMPOSE_PROJECT_NAME": name, **ports}
        settings.write_text("".join(f"{key}={value}\n" for key, value in named.items()))
        stack = DockerCompose(
            ROOT, compose_file_name=[str(ROOT / "docker-compose.yml"), str(override)], env_file=str(settings)
        )
        ours = Project(name, ports, pages, stack)
        try:
            with stack:
                yield ours
            assert ours.left() == NOTHING
        finally:
            ours.run("--profile", "demo", "down", "-v", "--rmi", "local")


@pytest.mark.compose
def test_the_brokers_serve_the_host(project: Project) -> None:
    admin = AdminClient({"bootstrap.servers": project.bootstrap})
    assert set(admin.list_topics(timeout=30).brokers) == {1, 2, 3}
    admin.create_topics([NewTopic("composed", 3, 3)], operation_timeout=30)["composed"].result(30)
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": project.bootstrap, "acks": "all"})
    producer.produce("composed", b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None]


@pytest.fixture(scope="module")
def demo(project: Project) -> Project:
    """The same, with the demo's image."""
    if reason := why_not(*re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)):
        pytest.skip(reason)
    project.run("build", "demo")
    return project


@pytest.mark.compose
@pytest.mark.slow
def test_the_demo_verifies_in_spark_and_leaves_its_page_on_the_host(demo: Project) -> None:
    small = ("--duration", "2", "--rate", "200")
    said = demo.run("run", "--rm", "--no-TTY", "demo", *COMPOSE["services"]["demo"]["command"], *small)
    assert "verification in Spark" in said
    assert said.splitlines()[-1].startswith("PASS")
    pages = {page.name: page.stat().st_mode & 0o444 for page in demo.pages.iterdir()}
    assert pages == dict.fromkeys(("kpsplit-demo.html", "kpsplit-demo-verification.html"), 0o444)


@pytest.mark.compose
def test_other_verbs_run_in_the_container_and_find_the_brokers(demo: Project) -> None:
    assert "lease: " in demo.run("run", "--rm", "--no-TTY", "demo", "init")


@pytest.mark.compose
def test_the_demo_has_no_rights_of_root_and_ends_by_itself_when_it_is_stopped(demo: Project) -> None:
    container = demo.run("run", "--detach", "demo").strip()
    try:
        with subprocess.Popen(
            ["docker", "logs", "--follow", container], stderr=subprocess.PIPE, text=True
        ) as log:
            assert log.stderr is not None
            assert any("enrolling" in line for line in log.stderr)
            _, *processes = output("docker", "top", container, "-eo", "pid,uid,args").splitlines()
            assert [line for line in processes if line.split()[1] == "0" and "init" not in line] == []
            output("docker", "stop", container)
            assert log.stderr.read().splitlines()[-1] == "kpsplit: interrupted"
        code = output("docker", "inspect", "-f", "{{.State.ExitCode}}", container)
        assert int(code) == 128 + signal.SIGTERM
    finally:
        output("docker", "rm", "--force", container)


@pytest.mark.compose
def test_what_the_readme_says_about_the_end_leaves_nothing_of_the_demo_either(demo: Project) -> None:
    """The last test: it ends the brokers. Compose knows no service of a profile that is not named."""
    demo.run("--profile", "demo", "create", "demo")
    assert len(demo.left()["containers"]) == len(NODES) + 1
    demo.run(*shlex.split(DOWN)[2:])
    assert demo.left() == NOTHING
