"""Brokers that break while operations stand at every step, under live producers.

Four splits, each on a partition of its own, wait after their steps until all of them are there. Then the
fault strikes once, and all go on.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import StepDone
from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.devcluster.cluster import DevCluster
from kpsplit.devcluster.process import KafkaRuntime
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Phase
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.records.keys import CONTROL_TOPIC
from tests.broker.operating import state_of
from tests.broker.producing import eventually
from tests.fault.live_writer import LiveWriter
from tests.nights import others_at_night

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = {
    "Prepare": Phase.PREPARING,
    "Fence": Phase.FENCED,
    "AppendMarkers": Phase.FENCED,
    "Commit": Phase.COMMITTED,
}
"""Behind which steps operators stand, and what is on record then."""
MAX_PAUSE_MS = 20_000
HOLD_SECONDS = 5.0
PATIENCE_SECONDS = 240.0


@dataclass
class Operator:
    """Splits a partition; waits after a step until the fault has struck.

    One that is to stand in its fence waits before it until it may fence: its max-pause runs from there.
    """

    bootstrap: str
    parent: PhysicalPartition
    step: str
    may_fence: threading.Event
    struck: threading.Event
    arrived: threading.Event = field(default_factory=threading.Event)

    def run(self) -> KpsplitError | None:
        """Return the error that the operator was told, if any."""
        with Admin(Connection({"bootstrap.servers": self.bootstrap})) as operations:
            plan = operations.plan_split(self.parent, 2, even=True)
            try:
                operations.run(plan, max_pause_ms=MAX_PAUSE_MS, observer=self._observe, force=True)
            except KpsplitError as error:
                return error
            finally:
                self.arrived.set()
        return None

    @property
    def stays_fenced(self) -> bool:
        return STEPS[self.step] is Phase.FENCED

    def _observe(self, done: StepDone) -> None:
        if done.name == "AwaitReady" and self.stays_fenced:
            assert self.may_fence.wait(PATIENCE_SECONDS)
        if done.name == self.step:
            self.arrived.set()
            assert self.struck.wait(PATIENCE_SECONDS)


def leader_of(bootstrap: str, topic: str, partition: int = 0) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return int(admin.list_topics(topic, timeout=60).topics[topic].partitions[partition].leader)


def kill(cluster: DevCluster, struck: threading.Event) -> None:
    """The leader of the control topic is gone, and of much else."""
    broker = leader_of(cluster.bootstrap, CONTROL_TOPIC)
    cluster.kill(broker)
    struck.set()
    time.sleep(HOLD_SECONDS)
    cluster.restart(broker, PATIENCE_SECONDS)


def fill_the_disk(cluster: DevCluster, struck: threading.Event) -> None:
    """No file of the control topic's leader can grow any more: it gives up, as Kafka does."""
    broker = cluster.brokers[leader_of(cluster.bootstrap, CONTROL_TOPIC)]
    assert broker.pid is not None
    _, most = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (1, most))
    struck.set()
    eventually(lambda: not broker.alive, "the broker to give up its disk", PATIENCE_SECONDS)
    cluster.restart(broker.id, PATIENCE_SECONDS)


def freeze_two(cluster: DevCluster, struck: threading.Event) -> None:
    """Two of three brokers stand still for longer than max-pause: nothing can be written anywhere."""
    frozen = [broker.id for broker in cluster.brokers][:2]
    for broker in frozen:
        cluster.pause(broker)
    struck.set()
    time.sleep(MAX_PAUSE_MS / 1000 + HOLD_SECONDS)
    for broker in frozen:
        cluster.resume(broker)


FAULTS: dict[str, Callable[[DevCluster, threading.Event], None]] = {
    "broker-killed": kill,
    "disk-full": fill_the_disk,
    "two-of-three-frozen": freeze_two,
}


@pytest.fixture(scope="module")
def brokers(kafka_runtime: KafkaRuntime) -> Iterator[DevCluster]:
    """Three brokers that may be broken."""
    with DevCluster(brokers=3) as cluster:
        with Admin(Connection({"bootstrap.servers": cluster.bootstrap})) as operations:
            operations.initialise()
        yield cluster


@pytest.mark.parametrize("fault", others_at_night(FAULTS, lambda fault: fault == "broker-killed"))
def test_whatever_the_step_at_which_brokers_break_nothing_is_lost_and_the_operation_ends(
    brokers: DevCluster, fault: str
) -> None:
    bootstrap = brokers.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(fault, len(STEPS), 3)])[fault].result(60)
    with Admin(Connection({"bootstrap.servers": bootstrap})) as operations:
        operations.enrol(fault, Partitioner.EXPLICIT, slots=2)
    parents = [PhysicalPartition(fault, partition) for partition in range(len(STEPS))]
    writers = [LiveWriter(bootstrap, parent) for parent in parents]
    for writer in writers:
        writer.start()
    try:
        for writer in writers:
            writer.await_delivery(20, PATIENCE_SECONDS)
        told = operate_through(FAULTS[fault], brokers, parents)
        brokers.wait_ready(PATIENCE_SECONDS)
        for writer in writers:
            writer.await_delivery(writer.sent, PATIENCE_SECONDS)
    finally:
        for writer in writers:
            writer.finish()
    with Admin(Connection({"bootstrap.servers": bootstrap})) as operations:
        for step, parent, writer in zip(STEPS, parents, writers, strict=True):
            operations.resume(parent, max_pause_ms=MAX_PAUSE_MS)
            state = state_of(operations, parent)
            assert state.phase is Phase.STEADY
            if step == "Commit" or told[parent] is None:
                assert state.epoch == 1, f"{step}: what was committed is gone"
            writer.assert_read_back(state)


def operate_through(
    fault: Callable[[DevCluster, threading.Event], None],
    brokers: DevCluster,
    parents: list[PhysicalPartition],
) -> dict[PhysicalPartition, KpsplitError | None]:
    """Strike when an operator stands after each step; return how each operation ended."""
    may_fence, struck = threading.Event(), threading.Event()
    operators = [
        Operator(brokers.bootstrap, parent, step, may_fence, struck)
        for parent, step in zip(parents, STEPS, strict=True)
    ]
    with ThreadPoolExecutor(len(operators)) as pool:
        runs: list[Future[KpsplitError | None]] = [pool.submit(operator.run) for operator in operators]
        deadline = Deadline(PATIENCE_SECONDS)
        try:
            for operator in sorted(operators, key=lambda one: one.stays_fenced):
                if operator.stays_fenced:
                    may_fence.set()
                assert operator.arrived.wait(deadline.left()), f"no operator came to {operator.step}"
            with Admin(Connection({"bootstrap.servers": brokers.bootstrap})) as operations:
                assert [state_of(operations, parent).phase for parent in parents] == [*STEPS.values()]
            fault(brokers, struck)
        finally:
            may_fence.set()
            struck.set()
        return {parent: run.result(PATIENCE_SECONDS) for parent, run in zip(parents, runs, strict=True)}
