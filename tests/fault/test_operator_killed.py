"""An operator killed by SIGKILL after any step of a split or a merge, under a live producer.

The cases run side by side, each on a partition of its own: they mostly wait for leases and takeovers.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit.kafka.connection import Connection
from kpsplit.kafka.operations import Operations, ignore_steps
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.states import Phase
from tests.broker.operating import PAUSE_MS, state_of
from tests.fault.live_writer import LiveWriter

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

MAX_PAUSE_MS = 10_000
SIDE_BY_SIDE = 3
CASE_SECONDS = 800.0


class Case(NamedTuple):
    """After which step of which operation the operator is killed."""

    verb: str
    last_step: str

    def __str__(self) -> str:
        return f"{self.verb}-{self.last_step}"


_TO_THE_CUT = ("AwaitReady", "Fence", "AwaitAcknowledged", "AppendMarkers")
SPLITS = [Case("split", step) for step in ("Claim", "Prepare", "CreateSubTopic", *_TO_THE_CUT)]
MERGES = [Case("merge", step) for step in ("Claim", "Prepare", "CoLocateLeaders", *_TO_THE_CUT)]
COMMITTED = [
    Case("split", "Commit"),
    Case("split", "Finish"),
    Case("merge", "Commit"),
    Case("merge", "SealSubTopics"),
    Case("merge", "Finish"),
]
CASES = [*SPLITS, *MERGES, *COMMITTED]


def run_operator(bootstrap: str, parent: PhysicalPartition, verb: str, last_step: str) -> int:
    script = Path(__file__).with_name("dying_operator.py")
    command = [sys.executable, str(script), bootstrap, parent.topic, str(parent.partition), verb]
    max_pause_ms = PAUSE_MS if last_step == "none" else MAX_PAUSE_MS
    return subprocess.run([*command, str(max_pause_ms), last_step], stdout=subprocess.DEVNULL).returncode


class Play:
    """One case on a partition of its own."""

    def __init__(self, bootstrap: str, parent: PhysicalPartition, case: Case) -> None:
        self._bootstrap = bootstrap
        self._parent = parent
        self._case = case
        self._writer = LiveWriter(bootstrap, parent)

    def run(self) -> None:
        """Let the operator die while records are written; what must hold then is asserted."""
        self._writer.start()
        try:
            self._writer.await_delivery(20, 180)
            with Operations(Connection({"bootstrap.servers": self._bootstrap})) as operations:
                self._play(operations)
        finally:
            self._writer.finish()

    def _play(self, operations: Operations) -> None:
        if self._case.verb == "merge":
            assert self._operate("split") == 0
        assert self._operate(self._case.verb, self._case.last_step) == -signal.SIGKILL
        self._assert_writable_again()
        if self._case in MERGES:
            self._abort(operations)
        else:
            self._resume(operations)
        self._assert_nothing_lost(operations)

    def _resume(self, operations: Operations) -> None:
        """Before the commit a takeover has rolled back; resume finishes what was on record, and only that."""
        operations.resume(self._parent, max_pause_ms=PAUSE_MS, observer=ignore_steps)
        operated = self._case.last_step != "Claim"
        self._assert_steady(operations, operated + (self._case.verb == "merge"))

    def _abort(self, operations: Operations) -> None:
        operations.abort(self._parent, "test", ignore_steps)
        self._assert_steady(operations, 1)
        assert self._operate("merge") == 0

    def _operate(self, verb: str, last_step: str = "none") -> int:
        return run_operator(self._bootstrap, self._parent, verb, last_step)

    def _assert_steady(self, operations: Operations, epoch: int) -> None:
        state = state_of(operations, self._parent)
        assert (state.phase, state.epoch) == (Phase.STEADY, epoch)

    def _assert_writable_again(self) -> None:
        """A record that is sent now is delivered, though nobody does anything about the dead operator."""
        self._writer.await_delivery(self._writer.sent, 180)

    def _assert_nothing_lost(self, operations: Operations) -> None:
        self._writer.finish()
        self._writer.assert_read_back(state_of(operations, self._parent))


@pytest.fixture(scope="module")
def topic(admin: AdminClient, bootstrap: str) -> str:
    name = "killed-operators"
    admin.create_topics([NewTopic(name, len(CASES), 3)])[name].result(30)
    with Operations(Connection({"bootstrap.servers": bootstrap})) as operations:
        operations.initialise()
        operations.enrol(name, Partitioner.EXPLICIT, slots=2)
    return name


@pytest.fixture(scope="module")
def plays(bootstrap: str, topic: str, request: pytest.FixtureRequest) -> Iterator[dict[Case, Future[None]]]:
    """All cases that were asked for, a few at a time."""
    asked = [item.callspec.params["case"] for item in request.session.items if _is_case(item)]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {
            case: pool.submit(Play(bootstrap, PhysicalPartition(topic, CASES.index(case)), case).run)
            for case in asked
        }
        pool.shutdown(cancel_futures=True)


def _is_case(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and item.path == Path(__file__)


@pytest.mark.parametrize("case", SPLITS, ids=str)
def test_a_split_whose_operator_is_killed_before_the_commit_is_rolled_back_without_a_human(
    plays: dict[Case, Future[None]], case: Case
) -> None:
    plays[case].result(CASE_SECONDS)


@pytest.mark.parametrize("case", MERGES, ids=str)
def test_a_merge_whose_operator_is_killed_before_the_commit_can_be_aborted(
    plays: dict[Case, Future[None]], case: Case
) -> None:
    plays[case].result(CASE_SECONDS)


@pytest.mark.parametrize("case", COMMITTED, ids=str)
def test_an_operation_whose_operator_is_killed_behind_the_commit_goes_forward(
    plays: dict[Case, Future[None]], case: Case
) -> None:
    plays[case].result(CASE_SECONDS)
