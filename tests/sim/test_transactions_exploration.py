"""Every interleaving of producers with transactions at small scope, and what happens without each guard.

The large scopes run at night.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kpsplit.producer.finality import FenceTransactions
from kpsplit.producer.send_state import PartitionSendState
from kpsplit.producer.state import ProducerState
from kpsplit.splitter import control_plane
from kpsplit.splitter.control_plane import to_acknowledge, to_answer
from tests.nights import others_at_night
from tests.sim import fence_real
from tests.sim.explore import check_missed, explore
from tests.sim.fence_world import LOW, Scope, TransactionalWorld

pytestmark = pytest.mark.timeout(1800)

ONE, TWO = ((LOW,),), ((LOW, LOW),)
JOINING = Scope(ONE, joining=True)
NEIGHBOURS = Scope(ONE, neighbours=True)
SCOPES = {
    "a split": Scope(TWO),
    "a split, acknowledgements get lost": Scope(TWO, errors=True),
    "a split, the producer joins": JOINING,
    "a split, other operators remove registrations": Scope(TWO, neighbours=True),
    "a split, two producers": Scope(((LOW,), (LOW,)), lapses=False),
    "a merge": Scope(TWO, begin=("split",), operations=("merge",)),
    "a split and a merge": Scope(ONE, operations=("split", "merge")),
    "a split that is aborted, then another": Scope(ONE, aborts=1),
}
LARGE = {
    "a split of two records that is aborted, then another": Scope(TWO, aborts=1),
    "the producer joins a split that is aborted": Scope(ONE, aborts=1, joining=True),
    "reading takes time": Scope(ONE, aborts=1, slow_reading=True),
    "reading takes time, other operators remove registrations": Scope(
        ONE, slow_reading=True, neighbours=True
    ),
    "reading takes time, the producer joins": Scope(ONE, joining=True, slow_reading=True),
}


@pytest.mark.parametrize("name", others_at_night((*SCOPES, *LARGE), lambda name: name in SCOPES))
def test_what_is_committed_is_read_once_in_order_and_every_operation_ends(name: str) -> None:
    found = explore(TransactionalWorld({**SCOPES, **LARGE}[name]), limit=3_000_000)
    print(f"{name}: {found}")
    assert found.violation is None and found.complete, str(found)


LeaveOut = Callable[[pytest.MonkeyPatch], None]

# -- what happens without each guard ---------------------------------------------------------------


def defer_a_fence_that_is_seen_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    real: Any = PartitionSendState.observe

    def observe(self: Any, state: Any, *, lease_valid: bool) -> Any:
        return real(self, state, lease_valid=True)

    patch.setattr(PartitionSendState, "observe", observe)


def defer_a_fence_that_was_there_when_we_registered(patch: pytest.MonkeyPatch) -> None:
    real: Any = PartitionSendState._adopt

    def adopt(self: Any, state: Any, *, awaited: bool = False) -> None:
        real(self, state, awaited=awaited or self.suspended)

    patch.setattr(PartitionSendState, "_adopt", adopt)


def defer_the_next_fence_as_the_one_before(patch: pytest.MonkeyPatch) -> None:
    def fence_seen(self: Any, *, newly: bool, awaited: bool) -> None:
        if newly and not self.deferred:
            self.deferred = awaited and self.active

    patch.setattr(FenceTransactions, "fence_seen", fence_seen)


def defer_a_fence_for_longer_than_the_lease(patch: pytest.MonkeyPatch) -> None:
    def suspend(self: Any, suspended: bool) -> None:
        self.suspended = suspended
        self._reopen()

    patch.setattr(PartitionSendState, "suspend", suspend)


def renew_a_lease_that_ran_out_unnoticed(patch: pytest.MonkeyPatch) -> None:
    real: Any = ProducerState.renew

    def renew(self: Any, until: float) -> None:
        self.lapse = lambda: None
        real(self, until)

    patch.setattr(ProducerState, "renew", renew)


def acknowledge_inside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    real: Any = PartitionSendState.quiescent

    def quiescent(self: Any) -> bool:
        deferred, self.transactions.deferred = self.transactions.deferred, False
        self._fence_writers()
        answer = bool(real(self))
        self.transactions.deferred = deferred
        self._fence_writers()
        return answer

    patch.setattr(PartitionSendState, "quiescent", quiescent)


def hold_back_reports_until_the_fence_is_over(patch: pytest.MonkeyPatch) -> None:
    def fence(self: Any) -> None:
        for writer in self.writers:
            writer.fenced = writer.segment.id in self.state.fenced_segments()

    def blocked(self: Any, writer: Any) -> bool:
        if self.suspended or (writer.fenced and not self.transactions.deferred):
            return True
        return any(w.segment.range.overlaps(writer.segment.range) for w in self.closing)

    patch.setattr(PartitionSendState, "_fence_writers", fence)
    patch.setattr(PartitionSendState, "_blocked", blocked)


def let_the_lease_run_out_while_the_fence_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        fence_real,
        "owes",
        lambda states, own: bool(to_answer(states, own) or to_acknowledge(states, own)),
    )


def go_on_without_those_that_have_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(control_plane, "in_doubt", lambda *_: False)


def and_defer_for_longer_than_the_lease(leave_out: LeaveOut) -> LeaveOut:
    def both(patch: pytest.MonkeyPatch) -> None:
        leave_out(patch)
        defer_a_fence_for_longer_than_the_lease(patch)

    both.__name__ = f"{leave_out.__name__}_for_longer_than_the_lease"
    return both


LOST, STUCK = "LOST", "stays open"
ABORTED = Scope(ONE, aborts=1)
TABLE: list[tuple[LeaveOut, Scope, str]] = [
    (defer_a_fence_that_is_seen_without_a_lease, Scope(TWO), LOST),
    (defer_a_fence_that_was_there_when_we_registered, JOINING, LOST),
    (and_defer_for_longer_than_the_lease(defer_the_next_fence_as_the_one_before), ABORTED, LOST),
    (defer_a_fence_for_longer_than_the_lease, NEIGHBOURS, LOST),
    (renew_a_lease_that_ran_out_unnoticed, NEIGHBOURS, LOST),
    (go_on_without_those_that_have_transactions, Scope(ONE), LOST),
    (acknowledge_inside_the_transaction, Scope(TWO, lapses=False), LOST),
    (hold_back_reports_until_the_fence_is_over, Scope(TWO, lapses=False), STUCK),
    (and_defer_for_longer_than_the_lease(let_the_lease_run_out_while_the_fence_waits), Scope(TWO), STUCK),
]


@pytest.mark.parametrize(("leave_out", "scope", "expected"), TABLE, ids=[row[0].__name__ for row in TABLE])
def test_a_guard_that_is_left_out_is_missed(
    leave_out: LeaveOut,
    scope: Scope,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave_out(monkeypatch)
    check_missed(leave_out.__name__, TransactionalWorld(scope), expected)


NOT_NEEDED = [
    # A deferral ends with the lease, whatever the next fence makes of it, and without one nothing is final.
    (defer_the_next_fence_as_the_one_before, ABORTED),
    # Then the fence holds, so it is acknowledged: safe, but the application would wait for its end.
    (let_the_lease_run_out_while_the_fence_waits, Scope(TWO)),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("leave_out", "scope"), NOT_NEEDED, ids=[row[0].__name__ for row in NOT_NEEDED])
def test_a_guard_that_the_end_of_the_lease_stands_in_for_is_not_missed(
    leave_out: LeaveOut, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch)
    found = explore(TransactionalWorld(scope))
    print(f"{leave_out.__name__}: {found}")
    assert found.violation is None and found.complete, str(found)
