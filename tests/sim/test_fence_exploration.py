"""Every interleaving of the fence's own code at small scope, and a violation for each guard that is left out.

The default scopes take about a minute; the large ones run at night.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kpsplit.splitter.partition_state import Phase
from tests.nights import others_at_night
from tests.sim import fence_real, fence_world
from tests.sim.explore import check_missed, explore
from tests.sim.fence_world import HIGH, LOW, Global, Scope, World
from tests.sim.guards import (
    acknowledge_with_records_in_flight,
    do_not_look_at_offsets,
    do_not_wait_for_acknowledgements,
    do_not_wait_for_readiness,
    forget_what_is_astray,
    open_new_segments_at_once,
    read_past_an_unknown_marker,
    read_past_the_marker_of_an_attempt_under_way,
    read_strays_of_an_older_epoch,
    remove_registrations_that_are_younger_than_the_wait,
    remove_registrations_whatever_became_of_the_attempt,
    report_under_a_fence,
    send_again_what_was_given_up,
    send_rejected_records_again_blindly,
    send_strays_in_any_order,
    send_what_was_held_before_the_strays,
    send_without_a_lease,
    take_any_attempts_answers,
    take_any_attempts_readiness,
)

pytestmark = pytest.mark.timeout(1800)

ONE, TWO, APART, EACH = ((LOW,),), ((LOW, LOW),), ((LOW, HIGH),), ((LOW,), (HIGH,))
MERGE: dict[str, Any] = {"begin": ("split",), "operations": ("merge",)}
BOTH: dict[str, Any] = {"operations": ("split", "merge")}

SCOPES = {
    "a split, two records of one key": Scope(TWO),
    "a split, two keys in two ranges": Scope(APART),
    "a split, acknowledgements get lost": Scope(TWO, errors=True, lapses=False),
    "a split, the application gives up": Scope(TWO, gives_up=True),
    "a split, reports do not come in time": Scope(TWO, times_out=True),
    "a merge, reports do not come in time": Scope(ONE, **MERGE, times_out=True),
    "a split that is aborted, then another": Scope(ONE, aborts=1),
    "a split, two producers": Scope(((LOW,), (LOW,)), lapses=False),
    "a merge, two records of one key": Scope(TWO, **MERGE),
    "a merge, two keys from two ranges": Scope(APART, **MERGE),
    "a merge, markers one by one, one late": Scope(ONE, **MERGE, aborts=1, one_by_one=True, lapses=False),
    "a split and a merge": Scope(ONE, **BOTH),
    "a split and a merge, two producers, two keys": Scope(EACH, **BOTH, lapses=False),
    "a split and a merge, two producers, two keys, a crash": Scope(EACH, **BOTH, lapses=False, aborts=1),
    "a split and a merge, two producers of one key": Scope(((LOW,), (LOW,)), **BOTH, lapses=False),
    "a split, acknowledgements get lost and leases run out": Scope(TWO, errors=True),
}
LARGE = {
    "reading takes time, producers join": Scope(ONE, aborts=1, joining=True, slow_reading=True),
    "reading takes time": Scope(ONE, aborts=1, slow_reading=True),
    "reading takes time at a merge": Scope(ONE, **MERGE, aborts=1, slow_reading=True),
    "a split, two records, aborted": Scope(TWO, aborts=1),
    "a merge that is aborted, markers one by one": Scope(ONE, **MERGE, aborts=1, one_by_one=True),
    "two producers with leases": Scope(((LOW,), (LOW,))),
    "a split and a merge, two records": Scope(TWO, **BOTH),
}

AT_NIGHT = {*LARGE, "a split, reports do not come in time", "a merge, two keys from two ranges"}
"""Large ones, and two whose parts are in other scopes."""

ORDERED = {
    "a split, two records of one key",
    "a merge, two records of one key",
    "a split that is aborted, then another",
    "a split and a merge, two producers, two keys",
}


@pytest.mark.parametrize("name", others_at_night((*SCOPES, *LARGE), lambda name: name not in AT_NIGHT))
def test_nothing_is_lost_doubled_reordered_or_left_without_a_report(name: str) -> None:
    """And no record with a key is sent to a segment that took a higher number.

    So only one without a key makes the search for a record begin at the start of its segment.
    """
    world = World({**SCOPES, **LARGE}[name])
    world.tells_order = name in ORDERED
    found = explore(world, limit=3_000_000)
    print(f"{name}: {found}")
    assert found.violation is None, str(found)
    assert found.complete or name in LARGE
    assert name not in ORDERED or world.all_in_order()


@pytest.mark.parametrize(
    "scope",
    [Scope(ONE), Scope(((LOW,), (LOW,)), lapses=False), Scope(ONE, **MERGE, slow_reading=True)],
    ids=["a lease runs out", "two producers", "reading takes time"],
)
def test_that_old_leases_are_one_value_leaves_out_no_state(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told apart by their ages they give more states, and the same ones when the ages are forgotten."""
    world = World(scope)
    visited: set[Global] = set()
    check = World.violation

    def visit(self: World, state: Global) -> str | None:
        visited.add(state)
        return check(self, state)

    monkeypatch.setattr(World, "violation", visit)
    assert explore(world).violation is None
    alike = frozenset(visited)
    aged = world._aged
    visited.clear()
    monkeypatch.setattr(World, "_aged", lambda self, lease, length: lease)
    assert explore(world).violation is None
    assert len(visited) > len(alike)

    def forgotten(state: Global) -> Global:
        length = len(state.control)
        young = (p._replace(lease=aged(p.lease, length)) for p in state.producers)
        return state._replace(producers=tuple(young))

    assert {forgotten(state) for state in visited} == alike


# -- what happens without each guard ---------------------------------------------------------------


def report_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    real: Any = World._do_report

    def report(self: Any, fence: Any, *arguments: Any) -> Any:
        *most, _, counted = arguments
        return real(self, fence, *most, True, counted)

    patch.setattr(World, "_do_report", report)


def do_not_wait_for_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(World, "_patience_over", lambda *_: True)


def renew_while_a_prepare_is_unanswered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fence_real, "owes", lambda *_: False)


def write_under_a_registration_that_is_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fence_world, "_good", lambda producer: True)


LOST, TWICE, DISORDER, READER, STUCK = "LOST", "DUPLICATED", "OUT OF ORDER", "READER", "no report"
LATE = Scope(ONE, aborts=1)
TABLE: list[tuple[Callable[[pytest.MonkeyPatch], None], Scope, str]] = [
    (report_under_a_fence, Scope(ONE), LOST),
    (report_without_a_lease, Scope(ONE), LOST),
    (do_not_look_at_offsets, Scope(ONE), LOST),
    (do_not_wait_for_acknowledgements, Scope(ONE), LOST),
    (do_not_wait_for_readiness, Scope(ONE), LOST),
    (do_not_wait_for_leases, Scope(ONE), LOST),
    (renew_while_a_prepare_is_unanswered, Scope(ONE), LOST),
    (write_under_a_registration_that_is_over, LATE, LOST),
    (remove_registrations_whatever_became_of_the_attempt, Scope(ONE, aborts=1, zombie=True), LOST),
    (remove_registrations_that_are_younger_than_the_wait, Scope(ONE, joining=True), LOST),
    (open_new_segments_at_once, Scope(TWO), DISORDER),
    (send_what_was_held_before_the_strays, Scope(TWO), DISORDER),
    (send_strays_in_any_order, Scope(TWO), DISORDER),
    (send_again_what_was_given_up, Scope(ONE, times_out=True), TWICE),
    (send_rejected_records_again_blindly, Scope(ONE, **MERGE), TWICE),
    (forget_what_is_astray, Scope(ONE, **MERGE), STUCK),
    (take_any_attempts_answers, LATE, LOST),
    (take_any_attempts_readiness, LATE, LOST),
    (read_strays_of_an_older_epoch, Scope(ONE, **BOTH), TWICE),
    (read_past_the_marker_of_an_attempt_under_way, Scope(ONE), READER),
    (read_past_an_unknown_marker, Scope(ONE), READER),
]


@pytest.mark.parametrize(("leave_out", "scope", "expected"), TABLE, ids=[row[0].__name__ for row in TABLE])
def test_a_guard_that_is_left_out_is_missed(
    leave_out: Callable[[pytest.MonkeyPatch], None],
    scope: Scope,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave_out(monkeypatch)
    check_missed(leave_out.__name__, World(scope), expected)


NOT_NEEDED = [
    # What is in flight at the cut goes astray and is sent again: safe, but every fence would make strays, and
    # a transaction with strays must be aborted.
    (acknowledge_with_records_in_flight, Scope(TWO)),
    # What is sent without a lease is not reported until the lease is renewed, and goes astray at worst: safe,
    # but a producer cut off for long would fill the log with strays.
    (send_without_a_lease, Scope(TWO)),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("leave_out", "scope"), NOT_NEEDED, ids=[row[0].__name__ for row in NOT_NEEDED])
def test_a_guard_that_only_saves_work_is_not_missed(
    leave_out: Callable[[pytest.MonkeyPatch], None], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch)
    found = explore(World(scope))
    print(f"{leave_out.__name__}: {found}")
    assert found.violation is None and found.complete, str(found)


def test_an_operator_that_lost_its_claim_removes_no_registration_that_is_in_use() -> None:
    """One that slept through the end of its attempt finds everybody silent, who write with a valid lease."""
    found = explore(World(Scope(ONE, aborts=1, zombie=True)))
    assert found.violation is None and found.complete, str(found)


def test_a_record_counted_before_it_is_in_hand_is_overtaken() -> None:
    """Between the two the fence would see it neither in flight nor pending, and open the next segment."""
    found = explore(World(Scope(TWO, counts_early=True)), limit=300_000)
    assert found.violation is not None and DISORDER in found.violation, str(found)


def test_a_dead_producer_is_not_waited_for_for_ever() -> None:
    """The operation ends although the only registered producer never does anything."""
    world = World(Scope(ONE))
    state = world.initial()
    for _ in range(30):
        moves = {
            label: after
            for label, fault, after in world.moves(state)
            if not label.startswith("p0 ") and (not fault or "lease" in label)
        }
        if not moves:
            break
        state = next(iter(moves.values()))
    last = world.states[state.control[-1]]
    assert (last.phase, last.epoch) == (Phase.STEADY, 1)
