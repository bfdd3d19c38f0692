"""What operators ask about groups while a group's coordinator moves, or is nowhere."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.errors import CheckFailedError, UnreachableError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.kafka_python import reassign
from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.consuming import kept_in, leader_of
from tests.broker.operating import commit, enrolled, merge, split, write

pytestmark = pytest.mark.broker

SECONDS = 120.0
MOVES = 12

# A process of its own: librdkafka ends the one that asks a coordinator that has moved.
ASKS_ON = """
import sys
from kpsplit.errors import UnreachableError
from kpsplit.kafka import groups
from kpsplit.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection

admin = ClusterAdmin(Connection({"bootstrap.servers": sys.argv[1]}))


def ask():
    assert groups.committed_positions(admin, Deadline(30))["g"], "a group without its positions"
    assert groups.positions_of(admin, "g")
    groups.describe_members(admin, "g")


while line := sys.stdin.readline():
    if line == "answer\\n":  # the coordinator has moved
        ask()
        print("answered", flush=True)
        continue
    limit = Deadline(1.0)
    while not limit.expired():
        try:
            ask()
        except UnreachableError as error:
            print(error, file=sys.stderr)
    print("asked", flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    """Groups are kept by one broker each."""
    with DevCluster(3, extra_properties={"offsets.topic.replication.factor": "1"}) as running:
        yield running


@pytest.fixture(scope="module")
def bootstrap(cluster: DevCluster) -> str:
    return cluster.bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


@pytest.fixture(scope="module")
def operations(bootstrap: str) -> Iterator[Admin]:
    with Admin({"bootstrap.servers": bootstrap}) as running:
        running.initialise(lease_ms=500)
        yield running


def await_leader(admin: AdminClient, place: PhysicalPartition, broker: int, limit: Deadline) -> None:
    """Return when a broker coordinates the groups of a partition; -1: when none does."""
    while leader_of(admin, place) != broker:
        limit.check(f"broker {broker} to lead {place}")
        time.sleep(0.02)


@pytest.mark.nightly
def test_retire_changes_nothing_while_a_group_has_no_coordinator(
    cluster: DevCluster, admin: AdminClient, operations: Admin, bootstrap: str, create_topic
) -> None:
    parent = enrolled(operations, create_topic("orders"))
    name = split(operations, parent, 2).subtopics[0].name
    write(bootstrap, name, 3, partition=0)
    merge(operations, parent)
    commit(bootstrap, "lags", {PhysicalPartition(name, 0): 1})
    place = kept_in(admin, "lags")
    broker = leader_of(admin, place)

    cluster.kill(broker)
    await_leader(admin, place, -1, Deadline(SECONDS))
    with pytest.raises(UnreachableError, match=f"partition {place.partition} has no leader"):
        operations.retire(parent)
    cluster.restart(broker)

    with pytest.raises(CheckFailedError, match=f"group lags stands at 1 in {name}/0"):
        operations.retire(parent)


@pytest.mark.nightly
def test_groups_are_asked_for_their_positions_while_their_coordinator_moves(
    cluster: DevCluster, admin: AdminClient, bootstrap: str, create_topic
) -> None:
    commit(bootstrap, "g", {PhysicalPartition(create_topic("moving"), 0): 7})
    place = kept_in(admin, "g")
    targets = itertools.islice(itertools.cycle(b.id for b in cluster.brokers), MOVES)
    asking = subprocess.Popen(
        [sys.executable, "-c", ASKS_ON, bootstrap], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert asking.stdin is not None
    assert asking.stdout is not None
    try:
        limit = Deadline(SECONDS)
        for target in targets:
            asking.stdin.write("ask\n")
            asking.stdin.flush()
            reassign(Connection({"bootstrap.servers": bootstrap}), {place: [target]}, limit)
            await_leader(admin, place, target, limit)
            assert asking.stdout.readline() == "asked\n", asking.poll()
            asking.stdin.write("answer\n")
            asking.stdin.flush()
            assert asking.stdout.readline() == "answered\n", asking.poll()
        asking.communicate("", timeout=60)
    finally:
        asking.kill()
    assert asking.returncode == 0
