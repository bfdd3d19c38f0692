"""An operator killed by SIGKILL after any step of a split or a merge, under a live producer.

The cases run side by side, each on a partition of its own: they mostly wait for leases and takeovers.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from confluent_kafka.admin import AdminClient

from kpsplit.admin import Admin
from tests.fault.operator_cases import (
    CASE_SECONDS,
    COMMITTED,
    IN_EVERY_RUN,
    MERGES,
    SPLITS,
    Case,
    CaseRun,
    operator,
    side_by_side,
    writable_again,
)
from tests.nights import others_at_night

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]


class Killed(CaseRun):
    """The operator dies."""

    def _strike(self, operations: Admin) -> float:
        verb, last_step = self._case
        with operator(self._bootstrap, self._parent, verb, last_step, signal.SIGKILL) as process:
            process.communicate()
        assert process.returncode == -signal.SIGKILL
        seconds = self._writable_again()
        self._settle(operations)
        if self._case in MERGES:
            self._operate("merge")
        return seconds


@pytest.fixture(scope="module")
def runs(
    admin: AdminClient, bootstrap: str, request: pytest.FixtureRequest
) -> Iterator[dict[Case, Future[float]]]:
    with side_by_side(Killed, admin, bootstrap, "killed-operators", request) as futures:
        yield futures


@pytest.mark.parametrize("case", others_at_night(SPLITS, IN_EVERY_RUN.__contains__), ids=str)
def test_a_split_whose_operator_is_killed_before_the_commit_is_rolled_back_without_a_human(
    runs: dict[Case, Future[float]], case: Case, record_property: Callable[[str, object], None]
) -> None:
    record_property(*writable_again(case, "SIGKILL", runs[case].result(CASE_SECONDS)))


@pytest.mark.parametrize("case", others_at_night(MERGES, IN_EVERY_RUN.__contains__), ids=str)
def test_a_merge_whose_operator_is_killed_before_the_commit_can_be_aborted(
    runs: dict[Case, Future[float]], case: Case, record_property: Callable[[str, object], None]
) -> None:
    record_property(*writable_again(case, "SIGKILL", runs[case].result(CASE_SECONDS)))


@pytest.mark.parametrize("case", others_at_night(COMMITTED, IN_EVERY_RUN.__contains__), ids=str)
def test_an_operation_whose_operator_is_killed_behind_the_commit_goes_forward(
    runs: dict[Case, Future[float]], case: Case, record_property: Callable[[str, object], None]
) -> None:
    record_property(*writable_again(case, "SIGKILL", runs[case].result(CASE_SECONDS)))
