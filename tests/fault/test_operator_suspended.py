"""An operator suspended by SIGSTOP after any step of a split or a merge, woken when others have gone on.

The cases run side by side, each on a partition of its own: they mostly wait for leases and takeovers.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.errors import EXIT_CONFLICT, EXIT_OK
from tests.broker.operating import state_of
from tests.fault.operator_cases import (
    CASE_SECONDS,
    CASES,
    IN_EVERY_RUN,
    Case,
    CaseRun,
    operator,
    side_by_side,
    writable_again,
)
from tests.nights import others_at_night

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

STOP_SECONDS = 180.0
LAST_WORDS_SECONDS = 180.0


class Suspended(CaseRun):
    """The operator sleeps while somebody else ends its operation."""

    def _strike(self, operations: Admin) -> float:
        verb, last_step = self._case
        with operator(self._bootstrap, self._parent, verb, last_step, signal.SIGSTOP) as sleeper:
            try:
                _await_stopped(sleeper)
                seconds = self._writable_again()
                if self._case == Case("merge", "Claim"):  # there is nothing yet that somebody could abort
                    self._operate("merge")
                else:
                    self._settle(operations)
                self._wake(operations, sleeper)
            finally:
                sleeper.kill()
        if self._case.verb == "merge" and state_of(operations, self._parent).epoch == 1:
            self._operate("merge")
        return seconds

    def _wake(self, operations: Admin, sleeper: subprocess.Popen[str]) -> None:
        """It finds that it is fenced, and changes nothing; one that had only to end does."""
        before = state_of(operations, self._parent)
        sleeper.send_signal(signal.SIGCONT)
        said, _ = sleeper.communicate(timeout=LAST_WORDS_SECONDS)
        over = self._case.last_step == "Finish"
        assert sleeper.returncode == (EXIT_OK if over else EXIT_CONFLICT), said
        assert state_of(operations, self._parent) == before
        self._writable_again()


def _await_stopped(process: subprocess.Popen[str]) -> None:
    deadline = Deadline(STOP_SECONDS)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert process.poll() is None, f"the operator ended with {process.returncode}"
        deadline.check("the operator to stop itself")
        deadline.pause(0.02)


@pytest.fixture(scope="module")
def runs(
    admin: AdminClient, bootstrap: str, request: pytest.FixtureRequest
) -> Iterator[dict[Case, Future[float]]]:
    with side_by_side(Suspended, admin, bootstrap, "suspended-operators", request) as futures:
        yield futures


@pytest.mark.parametrize("case", others_at_night(CASES, IN_EVERY_RUN.__contains__), ids=str)
def test_an_operator_that_slept_while_its_operation_was_ended_is_fenced_and_changes_nothing(
    runs: dict[Case, Future[float]], case: Case, record_property: Callable[[str, object], None]
) -> None:
    record_property(*writable_again(case, "SIGSTOP", runs[case].result(CASE_SECONDS)))
