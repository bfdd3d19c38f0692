"""Fixtures that need real brokers. One cluster per test process; each test makes topics of its own.

Hypothesis profiles: ``HYPOTHESIS_PROFILE=thorough`` tries many more examples.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from kpsplit import compiled
from kpsplit.clock import Deadline
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import KpsplitError
from kpsplit.kafka.cluster_admin import ClusterAdmin, await_served
from kpsplit.kafka.connection import Connection
from tests.measured import summary

SERVED_SECONDS = 60.0
SPARK = "tests/spark/"
_numbers = itertools.count(1)

# No deadlines: a slow machine is no wrong behaviour. Building a long history is slow compared to checking it.
settings.register_profile(
    "quick", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure() -> None:
    """Have Ctrl-C heard (whom a shell starts in the background ignores it), and no terminal's width seen."""
    os.environ.pop("COLUMNS", None)  # xdist sets it for its processes: output that is piped would be folded
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Have garbage be looked for among what tests make, not among thousands of tests that stay."""
    gc.collect()
    gc.freeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Where ``--dist loadfile`` is asked for, have one process run all that shares the Spark session."""
    return FilesAndSpark(config, log) if config.getoption("dist") == "loadfile" else None


class FilesAndSpark(LoadFileScheduling):
    """Each file as a whole in one process, and all of Spark in the same."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return SPARK if file.startswith(SPARK) else file


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests measured."""
    lines = summary(report for reports in terminalreporter.stats.values() for report in reports)
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)


class MakeTopic(Protocol):
    """Creates a topic with a name of its own and returns the name once all brokers know its leaders."""

    def __call__(self, partitions: int = 1, rf: int = 3, config: Mapping[str, str] | None = None) -> str: ...


@pytest.fixture(scope="module", autouse=True)
def clients_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the clients that tests of a file left in cycles: an error keeps the frames that it passed.

    They would look for the brokers of a cluster that was stopped, and say so on stderr, until the run ends.
    """
    yield
    if request.node.get_closest_marker("broker"):
        gc.collect()


@pytest.fixture(params=["python", "compiled"])
def both_paths(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with producing and reading in Python, and with the compiled parts if they are built."""
    if request.param == "python":
        monkeypatch.setattr(compiled, "fast", None)
        monkeypatch.setattr(compiled, "messages", None)
    elif compiled.fast is None or compiled.messages is None:
        pytest.skip("the compiled parts are not in use")


@pytest.fixture(scope="session")
def kafka_runtime() -> KafkaRuntime:
    """Java and Kafka's jars. Without them broker tests are skipped, but never in CI."""
    try:
        return KafkaRuntime.find(heap_mb=384, log_level="INFO")
    except KpsplitError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no embedded cluster: {error}")


PATIENT = {
    "broker.session.timeout.ms": "30000",
    "broker.heartbeat.interval.ms": "2000",
    "controller.quorum.fetch.timeout.ms": "20000",
    "metadata.max.idle.interval.ms": "5000",
}
"""No broker is taken for dead because the machine is busy: others may have its processors for seconds."""


@pytest.fixture(scope="session")
def cluster(kafka_runtime: KafkaRuntime) -> Iterator[DevCluster]:
    """Three brokers, for all tests of this process that leave them as they are."""
    with DevCluster(brokers=3, extra_properties=PATIENT) as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap(cluster: DevCluster) -> str:
    """`bootstrap.servers` of the session's cluster."""
    return cluster.bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    """An admin client of the session's cluster.

    The last test's arguments keep it until the cluster is gone: it would say so for each broker and try.
    """
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Names that no other test of the session has: from the test's own, with a number."""
    stem = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60]
    return lambda: f"{stem}-{next(_numbers)}"


class CreateTopic(Protocol):
    """Creates a topic and returns its name once all brokers know its leaders."""

    def __call__(
        self, name: str, partitions: int = 1, rf: int = 3, config: Mapping[str, str] | None = None
    ) -> str: ...


@pytest.fixture(scope="module")
def create_topic(bootstrap: str, admin: AdminClient) -> CreateTopic:
    """See CreateTopic; for what several tests share."""
    cluster = ClusterAdmin(Connection({"bootstrap.servers": bootstrap}))

    def create(name: str, partitions: int = 1, rf: int = 3, config: Mapping[str, str] | None = None) -> str:
        new = NewTopic(name, num_partitions=partitions, replication_factor=rf, config=dict(config or {}))
        admin.create_topics([new], operation_timeout=30)[name].result(timeout=30)
        await_served(cluster, {name: partitions}, Deadline(SERVED_SECONDS))
        return name

    return create


@pytest.fixture
def make_topic(create_topic: CreateTopic, topic_name: Callable[[], str]) -> MakeTopic:
    """See MakeTopic."""

    def make(partitions: int = 1, rf: int = 3, config: Mapping[str, str] | None = None) -> str:
        return create_topic(topic_name(), partitions, rf, config)

    return make
