"""Every interleaving of producers with transactions at small scope, and what happens without each guard.

``KPSPLIT_EXPLORE=thorough`` adds the large scopes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kpsplit.producer.fence import PartitionFence
from kpsplit.splitter.fence_answers import may_renew, to_acknowledge
from kpsplit.splitter.writers import Registrations
from tests.simulation import fence_real
from tests.simulation.explore import check_missed, explore
from tests.simulation.fence_world import LOW, Scope, World
from tests.simulation.transactional_world import TransactionalWorld

pytestmark = pytest.mark.timeout(1800)

ONE, TWO = ((LOW,),), ((LOW, LOW),)
JOINING = Scope(ONE, joining=True)
TAKEN = Scope(((), (LOW,)), joining=True, one_id=True, lapses=False)
SILENT = Scope(((), (LOW,)), one_id=True)
SCOPES = {
    "a split": Scope(TWO),
    "a split, acknowledgements get lost": Scope(TWO, errors=True),
    "a split, the producer joins": JOINING,
    "a split, two producers": Scope(((LOW,), (LOW,)), lapses=False),
    "a merge": Scope(TWO, begin=("split",), operations=("merge",)),
    "a split and a merge": Scope(ONE, operations=("split", "merge")),
    "a split, the id is taken by another producer": TAKEN,
    "a split, the id was another producer's, leases run out": SILENT,
}
LARGE = {
    "a split that is aborted, then another": Scope(TWO, aborts=1),
    "the producer joins a split that is aborted": Scope(ONE, aborts=1, joining=True),
    "reading takes time": Scope(ONE, aborts=1, slow_reading=True),
    "reading takes time, the producer joins": Scope(ONE, joining=True, slow_reading=True),
    "the id is taken by another producer, leases run out": replace(TAKEN, lapses=True),
    "the id is taken by another producer, both write": replace(TAKEN, keys=((LOW,), (LOW,))),
}
THOROUGH = os.environ.get("KPSPLIT_EXPLORE") == "thorough"


@pytest.mark.parametrize("name", [*SCOPES, *(LARGE if THOROUGH else ())])
def test_what_is_committed_is_read_once_in_order_and_every_operation_ends(name: str) -> None:
    found = explore(TransactionalWorld({**SCOPES, **LARGE}[name]), limit=3_000_000)
    print(f"{name}: {found}")
    assert found.violation is None and found.complete, str(found)


# -- what happens without each guard ---------------------------------------------------------------


def fence_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionalWorld, "_without", lambda self, world, fenced: world)


def defer_a_fence_that_was_there_before_us(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionFence, "register", lambda self: self.suspend(True))


def acknowledge_inside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    real: Any = PartitionFence.quiescent

    def quiescent(self: Any) -> bool:
        deferred, self.transactions.deferred = self.transactions.deferred, False
        self._fence_writers()
        answer = bool(real(self))
        self.transactions.deferred = deferred
        self._fence_writers()
        return answer

    patch.setattr(PartitionFence, "quiescent", quiescent)


def hold_back_reports_until_the_fence_is_over(patch: pytest.MonkeyPatch) -> None:
    def fence(self: Any) -> None:
        for writer in self.writers:
            writer.fenced = writer.segment.id in self.state.fenced_segments()

    def blocked(self: Any, writer: Any) -> bool:
        if self.suspended or (writer.fenced and not self.transactions.deferred):
            return True
        return any(w.segment.range.overlaps(writer.segment.range) for w in self.closing)

    patch.setattr(PartitionFence, "_fence_writers", fence)
    patch.setattr(PartitionFence, "_blocked", blocked)


def let_the_lease_run_out_while_the_fence_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        fence_real,
        "owes",
        lambda states, own: not may_renew(states, own) or bool(to_acknowledge(states, own)),
    )


def fence_no_id_that_was_ever_taken(patch: pytest.MonkeyPatch) -> None:
    def superseded(self: Any, record: Any) -> bool:
        return self._fenced_below.get(record.transactional_id, 0) > 0

    patch.setattr(Registrations, "superseded", superseded)


def ask_for_the_end_behind_taking_the_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionalWorld, "end_first", False)


LOST, STUCK = "LOST", "stays open"
TABLE: list[tuple[Callable[[pytest.MonkeyPatch], None], Scope, str]] = [
    (fence_nobody, Scope(ONE), LOST),
    (defer_a_fence_that_was_there_before_us, JOINING, LOST),
    (acknowledge_inside_the_transaction, Scope(TWO, lapses=False), LOST),
    (hold_back_reports_until_the_fence_is_over, Scope(TWO, lapses=False), STUCK),
    (let_the_lease_run_out_while_the_fence_waits, Scope(TWO), STUCK),
    (fence_no_id_that_was_ever_taken, SILENT, LOST),
    (ask_for_the_end_behind_taking_the_id, SILENT, LOST),
]


@pytest.mark.parametrize(("leave_out", "scope", "expected"), TABLE, ids=[row[0].__name__ for row in TABLE])
def test_a_guard_that_is_left_out_is_missed(
    leave_out: Callable[[pytest.MonkeyPatch], None],
    scope: Scope,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave_out(monkeypatch)
    check_missed(leave_out.__name__, TransactionalWorld(scope), expected)


def test_to_go_on_when_the_lease_has_run_out_would_only_cost_the_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a lease nothing is final, so nothing is committed before its segment's end is known."""
    monkeypatch.setattr(TransactionalWorld, "_patience_over", World._patience_over)
    found = explore(TransactionalWorld(Scope(ONE)))
    assert found.violation is None and found.complete, str(found)
