"""A group divides key ranges by an assignor of the application's own, which the brokers have as a plug-in."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.splitter.key_range import key_hash, slot_index
from tests.broker.consuming import REMOTE, Log, Member, reading, shared, wait_for
from tests.broker.operating import write

pytestmark = pytest.mark.broker

SOURCE = Path(__file__).parents[2] / "examples" / "own_assignor" / "ByInstance.java"
MEMBERS = ("small-1", "large-1", "large-2")
SLOTS, RECORDS = 6, 200


@pytest.fixture(scope="module")
def bootstrap(kafka_runtime: KafkaRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`bootstrap.servers` of a broker of this file's own that has the example's assignor."""
    compiler = kafka_runtime.java.path.resolve().with_name("javac")
    if not compiler.is_file():
        pytest.skip(f"no {compiler}: the assignor cannot be compiled")
    classes = tmp_path_factory.mktemp("classes")
    command = [compiler, "-cp", kafka_runtime.jars / "*", "-d", classes, SOURCE]
    subprocess.run([str(word) for word in command], check=True)
    assignors = {"group.consumer.assignors": "uniform,range,kpsplit.examples.ByInstance"}
    with DevCluster(1, extra_properties=assignors, plugins=[classes]) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    """An admin client of that broker."""
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.mark.nightly
def test_each_member_reads_the_key_ranges_that_the_assignor_gives_it(
    bootstrap, operations, admin, make_topic
):
    topic, log = make_topic(rf=1), Log()
    shared(operations, topic, SLOTS)
    members = {name: member(bootstrap, topic, log, name) for name in MEMBERS}
    for each in members.values():
        each.start()
    wait_for(lambda: sorted(len(reading(m)) for m in members.values()) == [1, 2, 3], "the assignment")
    write(bootstrap, topic, RECORDS)
    wait_for(lambda: log.count >= RECORDS, "all records")
    for each in members.values():
        each.stop()
    assert {len(values) for values in log.by_key.values()} == {1}  # each record has a key of its own
    owners = {key: name for key, names in log.members.items() for name in names}
    first = {key for key in owners if slot_index(key_hash(key), SLOTS) == 0}
    assert {key for key, name in owners.items() if name == "small-1"} == first != set()


def member(bootstrap: str, topic: str, log: Log, name: str) -> Member:
    """A member that asks for the assignor, by the brokers' protocol."""
    return Member(
        bootstrap,
        f"g-{topic}",
        [topic],
        log,
        name,
        group_instance_id=name,
        group_remote_assignor="by-instance",
        **REMOTE,
    )
