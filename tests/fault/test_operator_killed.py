"""An operator killed by SIGKILL after any step of a split or a merge, under a live producer."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Producer
from kpsplit.consumer.lineage_reader import LineageReader
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.operations import Operations, ignore_steps
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.states import Phase

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(240)]

MAX_PAUSE_MS = 1500
TAKEOVER_SECONDS = 5.0
"""What the README promises on top of max-pause."""

SPLIT_STEPS = [
    "Claim",
    "Prepare",
    "CreateSubTopic",
    "AwaitReady",
    "Fence",
    "AwaitAcknowledged",
    "AppendMarkers",
]
MERGE_STEPS = [
    "Claim",
    "Prepare",
    "CoLocateLeaders",
    "AwaitReady",
    "Fence",
    "AwaitAcknowledged",
    "AppendMarkers",
]
COMMITTED = [
    ("split", "Commit"),
    ("split", "Finish"),
    ("merge", "Commit"),
    ("merge", "SealSubTopics"),
    ("merge", "Finish"),
]


class Writer(threading.Thread):
    """Writes numbered records of a few keys to one partition and remembers when each one was delivered."""

    def __init__(self, bootstrap: str, parent: PhysicalPartition) -> None:
        super().__init__(daemon=True)
        self.producer = Producer({"bootstrap.servers": bootstrap, "client.id": "live-writer"})
        self.parent = parent
        self.sent = 0
        self.delivered: dict[int, float] = {}
        self.failed: list[int] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            self._send(self.sent)
            self.sent += 1
            self.producer.poll(0)
            self.stop.wait(0.005)
        self.producer.flush(30)

    def _send(self, number: int) -> None:
        def report(error: object, _message: object) -> None:
            if error is None:
                self.delivered[number] = time.monotonic()
            else:
                self.failed.append(number)

        self.producer.produce(
            self.parent.topic,
            str(number),
            f"key-{number % 16}",
            partition=self.parent.partition,
            on_delivery=report,
        )

    def await_delivery(self, number: int, seconds: float) -> None:
        """Wait until a record is reported as delivered."""
        deadline = Deadline(seconds)
        while number not in self.delivered:
            deadline.check(f"record {number} to be delivered")
            time.sleep(0.01)

    def finish(self) -> None:
        self.stop.set()
        self.join(40)
        self.producer.close()


@pytest.fixture(scope="module")
def operations(bootstrap: str) -> Iterator[Operations]:
    with Operations(Connection({"bootstrap.servers": bootstrap})) as opened:
        opened.initialise()
        yield opened


@pytest.fixture(scope="module")
def topic(admin: AdminClient, operations: Operations) -> str:
    name = "killed-operators"
    new = NewTopic(name, len(SPLIT_STEPS) + len(MERGE_STEPS) + len(COMMITTED), 3)
    admin.create_topics([new])[name].result(30)
    operations.enrol(name, Partitioner.EXPLICIT, slots=2)
    return name


@pytest.fixture(scope="module")
def partitions(topic: str) -> Iterator[PhysicalPartition]:
    return (PhysicalPartition(topic, p) for p in range(1000))


@pytest.fixture
def writer(bootstrap: str, partitions: Iterator[PhysicalPartition]) -> Iterator[Writer]:
    writing = Writer(bootstrap, next(partitions))
    writing.start()
    writing.await_delivery(20, 30)
    yield writing
    writing.finish()


def run_operator(bootstrap: str, parent: PhysicalPartition, verb: str, last_step: str) -> int:
    script = Path(__file__).with_name("dying_operator.py")
    command = [sys.executable, str(script), bootstrap, parent.topic, str(parent.partition), verb]
    max_pause_ms = 20_000 if last_step == "none" else MAX_PAUSE_MS
    done = subprocess.run([*command, str(max_pause_ms), last_step], timeout=90, stdout=subprocess.DEVNULL)
    return done.returncode


def state_of(operations: Operations, parent: PhysicalPartition) -> PartitionState:
    state = operations.view().state(parent)
    assert state is not None
    return state


def assert_writable_again(writer: Writer) -> None:
    """A record that is sent now is delivered within max-pause and what the README promises on top."""
    writer.await_delivery(writer.sent, MAX_PAUSE_MS / 1000 + TAKEOVER_SECONDS)


def assert_nothing_lost(bootstrap: str, operations: Operations, writer: Writer) -> None:
    """What was reported as delivered is read once, in order per key; nothing else was doubled."""
    writer.finish()
    state = state_of(operations, writer.parent)
    numbers: dict[bytes, list[int]] = {}
    for record in LineageReader(Connection({"bootstrap.servers": bootstrap}), state).records():
        assert record.key is not None and record.value is not None
        numbers.setdefault(record.key, []).append(int(record.value))
    read = [n for values in numbers.values() for n in values]
    assert not writer.failed
    assert sorted(read) == sorted(writer.delivered) == list(range(writer.sent))
    assert all(values == sorted(values) for values in numbers.values())


@pytest.mark.parametrize("last_step", SPLIT_STEPS)
def test_a_split_whose_operator_is_killed_before_the_commit_is_rolled_back_without_a_human(
    bootstrap: str, operations: Operations, writer: Writer, last_step: str
) -> None:
    assert run_operator(bootstrap, writer.parent, "split", last_step) == -signal.SIGKILL

    assert_writable_again(writer)
    operations.resume(writer.parent, max_pause_ms=5000, observer=ignore_steps)

    state = state_of(operations, writer.parent)
    assert state.phase is Phase.STEADY
    expected_epoch = 0 if last_step == "Claim" else 1
    assert state.epoch == expected_epoch, "resume finishes what was on record, and only that"
    assert_nothing_lost(bootstrap, operations, writer)


@pytest.mark.parametrize("last_step", MERGE_STEPS)
def test_a_merge_whose_operator_is_killed_before_the_commit_can_be_aborted(
    bootstrap: str, operations: Operations, writer: Writer, last_step: str
) -> None:
    assert run_operator(bootstrap, writer.parent, "split", "none") == 0
    assert run_operator(bootstrap, writer.parent, "merge", last_step) == -signal.SIGKILL

    assert_writable_again(writer)
    operations.abort(writer.parent, "test", ignore_steps)

    state = state_of(operations, writer.parent)
    assert (state.phase, state.epoch) == (Phase.STEADY, 1)
    assert run_operator(bootstrap, writer.parent, "merge", "none") == 0
    assert_nothing_lost(bootstrap, operations, writer)


@pytest.mark.parametrize(("verb", "last_step"), COMMITTED)
def test_an_operation_whose_operator_is_killed_behind_the_commit_goes_forward(
    bootstrap: str, operations: Operations, writer: Writer, verb: str, last_step: str
) -> None:
    if verb == "merge":
        assert run_operator(bootstrap, writer.parent, "split", "none") == 0
    assert run_operator(bootstrap, writer.parent, verb, last_step) == -signal.SIGKILL

    assert_writable_again(writer)
    operations.resume(writer.parent, max_pause_ms=5000, observer=ignore_steps)

    state = state_of(operations, writer.parent)
    assert (state.phase, state.epoch) == (Phase.STEADY, 1 if verb == "split" else 2)
    assert_nothing_lost(bootstrap, operations, writer)
