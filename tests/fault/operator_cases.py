"""Cases in which an operator is struck after a step of a split or merge, and how they run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import ignore_steps
from kpsplit.admin import Admin
from kpsplit.errors import EXIT_OK
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Phase
from kpsplit.splitter.records.control import Partitioner
from tests.broker.operating import PAUSE_MS, operating, state_of
from tests.fault.live_writer import LiveWriter
from tests.measured import measured

MAX_PAUSE_MS = 20_000
"""So long an operator has, from its fence on, to come to the step after which it is struck."""
TAKEOVER_SECONDS = 5
"""How long after max-pause a partition may stay without writers, by what is promised."""
SIDE_BY_SIDE = 3
CASE_SECONDS = 800.0


class Case(NamedTuple):
    """After which step of which operation the operator is struck."""

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
IN_EVERY_RUN = [
    Case("split", "AwaitAcknowledged"),
    Case("split", "Commit"),
    Case("merge", "AppendMarkers"),
    Case("merge", "SealSubTopics"),
]
"""One case on each side of each decision; the others take minutes, and run at night."""


def operator(
    bootstrap: str, parent: PhysicalPartition, verb: str, last_step: str, sent: signal.Signals
) -> subprocess.Popen[str]:
    """Start an operator that sends itself a signal after a step."""
    script = Path(__file__).with_name("dying_operator.py")
    command = [sys.executable, str(script), bootstrap, parent.topic, str(parent.partition), verb]
    max_pause_ms = PAUSE_MS if last_step == "none" else MAX_PAUSE_MS
    return subprocess.Popen(
        [*command, str(max_pause_ms), last_step, sent.name], stdout=subprocess.PIPE, text=True
    )


class CaseRun(ABC):
    """One case on a partition of its own."""

    def __init__(self, bootstrap: str, parent: PhysicalPartition, case: Case) -> None:
        self._bootstrap = bootstrap
        self._parent = parent
        self._case = case
        self._writer = LiveWriter(bootstrap, parent)

    def run(self) -> float:
        """Let it happen while records are written; what must hold then is asserted.

        Returns the seconds until a record of every key, sent since, was delivered.
        """
        self._writer.start()
        try:
            self._writer.await_delivery(20, 180)
            with Admin(Connection({"bootstrap.servers": self._bootstrap})) as operations:
                if self._case.verb == "merge":
                    self._operate("split")
                seconds = self._strike(operations)
                self._assert_nothing_lost(operations)
                return seconds
        finally:
            self._writer.finish()

    @abstractmethod
    def _strike(self, operations: Admin) -> float:
        """Run the operator of the case and its successors; return what ``run`` does."""

    def _operate(self, verb: str) -> None:
        with operator(self._bootstrap, self._parent, verb, "none", signal.SIGKILL) as process:
            said, _ = process.communicate()
        assert process.returncode == EXIT_OK, said

    def _settle(self, operations: Admin) -> None:
        """Have another operator abort a merge that was not committed, and resume any other operation."""
        if self._case in MERGES:
            operations.abort(self._parent, "test", ignore_steps)
            self._assert_steady(operations, 1)
        else:
            self._resume(operations)

    def _resume(self, operations: Admin) -> None:
        """Before the commit a takeover has rolled back; resume finishes what was on record, and only that."""
        operations.resume(self._parent, max_pause_ms=PAUSE_MS, observer=ignore_steps)
        operated = self._case.last_step != "Claim"
        self._assert_steady(operations, operated + (self._case.verb == "merge"))

    def _assert_steady(self, operations: Admin, epoch: int) -> None:
        state = state_of(operations, self._parent)
        assert (state.phase, state.epoch) == (Phase.STEADY, epoch)

    def _writable_again(self) -> float:
        """Return how long it takes until what is sent is delivered; no operator helps."""
        began = time.monotonic()
        return self._writer.await_every_key(180) - began

    def _assert_nothing_lost(self, operations: Admin) -> None:
        self._writer.finish()
        self._writer.assert_read_back(state_of(operations, self._parent))


def writable_again(case: Case, what: str, seconds: float) -> tuple[str, object]:
    """Return what a test records of its case."""
    bound = f"max-pause {MAX_PAUSE_MS // 1000} s + {TAKEOVER_SECONDS} s"
    title = f"writable again after {what} of the operator (bound: {bound})"
    return measured(title, str(case), seconds, MAX_PAUSE_MS / 1000 + TAKEOVER_SECONDS)


def make_topic(admin: AdminClient, bootstrap: str, name: str) -> str:
    """Make an enrolled topic with a partition for each case."""
    admin.create_topics([NewTopic(name, len(CASES), 3)])[name].result(30)
    with operating(bootstrap) as operations:
        operations.enrol(name, Partitioner.EXPLICIT, slots=2)
    return name


@contextmanager
def side_by_side(
    kind: type[CaseRun], admin: AdminClient, bootstrap: str, name: str, request: pytest.FixtureRequest
) -> Iterator[dict[Case, Future[float]]]:
    """Run all cases that were asked for in a file, a few at a time, in a topic of this name."""
    topic, items = make_topic(admin, bootstrap, name), request.session.items
    ours = (item for item in items if isinstance(item, pytest.Function) and item.path == request.path)
    asked = [item.callspec.params["case"] for item in ours]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {
            case: pool.submit(kind(bootstrap, PhysicalPartition(topic, CASES.index(case)), case).run)
            for case in asked
        }
        pool.shutdown(cancel_futures=True)
