"""The embedded cluster: it serves, survives what tests do to it, and never outlives its owner."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.daemon import ProcessIdentity
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import ConflictError, DeadlineExceededError, KpsplitError, UsageError

pytestmark = pytest.mark.broker


def until(condition: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"not within {timeout:.0f} s: {what}"
        time.sleep(0.02)


def create(bootstrap: str, topic: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # it ends with its last user: not before the answer
    admin.create_topics([topic])[topic.topic].result(30)


def write(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 30000})
    errors: list[object] = []
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    producer.flush(40)
    assert errors == [None]


def read(bootstrap: str, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(30)
    consumer.close()
    return message.value() if message else None


def test_a_record_goes_in_and_comes_out(bootstrap, make_topic) -> None:
    topic = make_topic(partitions=2)
    write(bootstrap, topic, b"value")
    assert read(bootstrap, topic) == b"value"


def test_topics_are_not_created_by_accident(bootstrap, admin, topic_name) -> None:
    name = topic_name()
    Consumer({"bootstrap.servers": bootstrap, "group.id": name}).list_topics(name, timeout=10)
    assert name not in admin.list_topics(timeout=10).topics


@pytest.fixture(scope="module")
def private(kafka_runtime: KafkaRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A cluster for tests that harm it; each leaves it whole."""
    folder = tmp_path_factory.mktemp("cluster")
    with DevCluster(3, folder, {"log.retention.ms": "86400000"}) as running:
        create(running.bootstrap, NewTopic("kept", 1, 3))
        yield running


@pytest.mark.nightly
def test_a_killed_broker_is_gone_and_comes_back_where_it_was(private: DevCluster) -> None:
    broker = private.brokers[0]
    pid, port = broker.pid, broker.port
    private.kill(0)
    assert pid is not None and ProcessIdentity.of(pid) is None
    assert (broker.alive, broker.pid) == (False, None)
    write(private.bootstrap, "kept", b"while one broker is down")
    private.restart(0)
    assert broker.alive and broker.pid != pid and broker.port == port
    private.wait_ready(60)


@pytest.mark.nightly
def test_a_paused_broker_answers_nothing_until_it_is_resumed(private: DevCluster) -> None:
    broker = private.brokers[1]
    private.pause(1)
    assert broker.alive and broker.paused
    alone = AdminClient({"bootstrap.servers": broker.address.client_address, "log_level": 0})
    with pytest.raises(Exception, match=r"_TRANSPORT|_TIMED_OUT"):
        alone.list_topics(timeout=1)
    private.resume(1)
    assert not broker.paused
    private.wait_ready(60)


@pytest.mark.nightly
def test_only_a_running_broker_can_be_paused(private: DevCluster) -> None:
    private.kill(2)
    with pytest.raises(KpsplitError, match="broker 2 does not run"):
        private.pause(2)
    private.restart(2)


def test_a_kept_folder_has_one_cluster_at_a_time(private: DevCluster) -> None:
    second = DevCluster(3, private.brokers[0].log.parents[1])
    with pytest.raises(ConflictError, match="is running on"):
        second.start()


@pytest.mark.nightly
def test_a_kept_folder_brings_back_ports_and_data(private: DevCluster) -> None:
    folder, before = private.brokers[0].log.parents[1], private.bootstrap
    write(before, "kept", b"before the stop")
    private.stop()
    with pytest.raises(UsageError, match="holds a cluster of 3 brokers, not 1"):
        DevCluster(1, folder).start()
    private.start()
    assert private.bootstrap == before
    assert read(before, "kept") is not None


@pytest.mark.nightly
def test_a_start_that_fails_shows_the_end_of_the_log(kafka_runtime: KafkaRuntime) -> None:
    with pytest.raises(KpsplitError, match=r"log ends:[\s\S]*no\.such\.Class") as caught:
        DevCluster(1, extra_properties={"authorizer.class.name": "no.such.Class"}).start()
    assert not isinstance(caught.value, DeadlineExceededError)


OWNER = """
import json, os, sys
from kpsplit.devcluster.cluster import DevCluster
with DevCluster(1) as cluster:
    broker = cluster.brokers[0]
    if sys.argv[1] == "paused":
        broker.pause()
    if os.fork() == 0:  # a copy of this process that holds the pipe to the supervisor open
        sys.stdin.read()
        os._exit(0)
    print(json.dumps([cluster.supervisor_pid, broker.pid, str(broker.log.parents[1])]), flush=True)
    sys.stdin.read()
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("victim", "state"),
    [("owner", "running"), ("owner", "paused"), ("supervisor", "running")],
)
def test_no_broker_outlives_a_killed(kafka_runtime: KafkaRuntime, victim: str, state: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, state],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        supervisor, jvm, folder = json.loads(owner.stdout.readline())
        assert ProcessIdentity.of(jvm) is not None
        os.kill(owner.pid if victim == "owner" else supervisor, signal.SIGKILL)
        until(lambda: ProcessIdentity.of(jvm) is None, "the JVM ends")
        until(lambda: ProcessIdentity.of(supervisor) is None, "the supervisor ends")
        os.killpg(owner.pid, signal.SIGKILL)
        if victim == "owner":
            assert not Path(folder).exists()
        else:
            shutil.rmtree(folder)


def test_the_command_line_starts_shows_and_ends_a_cluster(
    kafka_runtime: KafkaRuntime, tmp_path: Path
) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = "from kpsplit.admin_cli.commands.cluster import command; command()"
        command = [sys.executable, "-c", program, *arguments, "--data", str(tmp_path / "cluster")]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    up = run("up", "--brokers", "1")
    assert up.returncode == 0, up.stderr
    bootstrap = up.stdout.strip()
    assert f"export KPSPLIT_BOOTSTRAP_SERVER={bootstrap}" in up.stderr
    again = run("up", "--brokers", "1")
    assert again.returncode != 0 and "already running" in again.stderr
    shown = json.loads(run("status", "-o", "json").stdout)
    assert shown["bootstrap"] == bootstrap
    assert [broker["alive"] for broker in shown["brokers"]] == [True]
    assert run("down").returncode == 0
    assert ProcessIdentity.of(shown["brokers"][0]["pid"]) is None
    nothing = json.loads(run("status", "-o", "json").stdout)
    assert nothing["running"] is False
    up = run("up", "--brokers", "1", "-o", "json")
    started = json.loads(up.stdout)
    assert started["running"] is True and started["data"] == str(tmp_path / "cluster")
    assert started["brokers"][0]["pid"] != shown["brokers"][0]["pid"]
    assert ProcessIdentity.of(started["pid"]) is not None
    assert json.loads(run("status", "-o", "json").stdout) == started
    assert json.loads(run("down", "-o", "json").stdout) == nothing
    assert ProcessIdentity.of(started["pid"]) is None
