"""A guard that is left out is noticed by the simulation, in a bounded number of seeds or in a written run.

``FOUND``: the seed at which the search begins, recorded where random runs notice; it goes on for ``BUDGET``
seeds, so that small changes of the product or of the schedule do not break a test. ``WRITTEN``: guards that
random runs need seldom, each with a run that needs it. One that goes unnoticed means that the simulation is
too weak.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.sim import guards, scenarios, sim_guards
from tests.sim.event_words import Event
from tests.sim.run import run_events, run_seed
from tests.sim.shrink import kind_of

BUDGET = 300

LeaveOut = Callable[[pytest.MonkeyPatch], None]
FOUND: list[tuple[LeaveOut, int, set[str]]] = [
    (guards.report_under_a_fence, 300, {"LOST"}),
    (guards.do_not_look_at_offsets, 0, {"LOST"}),
    (guards.do_not_wait_for_acknowledgements, 0, {"LOST"}),
    (guards.do_not_wait_for_readiness, 0, {"LOST"}),
    (guards.open_new_segments_at_once, 200, {"OUT"}),
    (guards.send_what_was_held_before_the_strays, 98, {"OUT"}),
    (guards.send_strays_in_any_order, 98, {"OUT"}),
    (guards.send_again_what_was_given_up, 8, {"DUPLICATE", "OUT", "REPORTED"}),
    (guards.take_any_attempts_answers, 28, {"LOST"}),
    (guards.take_any_attempts_readiness, 10, {"LOST"}),
    (guards.read_past_an_unknown_marker, 12, {"READER", "READ", "TOO"}),
    (sim_guards.report_without_a_lease, 56, {"LOST"}),
    (sim_guards.do_not_wait_for_leases, 0, {"LOST"}),
    (sim_guards.take_an_unknown_outcome_for_success, 18, {"TWO"}),
    (sim_guards.work_without_a_claim, 0, {"TWO"}),
    (sim_guards.claim_up_to_the_last_stable_offset, 0, {"TWO"}),
    (sim_guards.take_the_stamp_of_a_copy_at_its_word, 0, {"READER", "HISTORY"}),
    (sim_guards.read_children_before_their_parents_are_drained, 8, {"TOO"}),
    (sim_guards.read_a_merged_child_when_one_parent_is_drained, 8, {"TOO"}),
    (sim_guards.commit_offsets_for_ranges_without_a_commit, 0, {"COMMIT", "TOO", "STUCK"}),
    (sim_guards.commit_in_any_generation, 600, {"BACK", "COMMIT"}),
    (sim_guards.delete_sub_topics_whoever_reads_them, 88, {"DELETED"}),
    (sim_guards.do_not_seal, 700, {"WRITTEN"}),
]
WRITTEN: list[tuple[LeaveOut, list[Event], str]] = [
    (sim_guards.start_without_waiting_for_earlier_commits, scenarios.WAITING_FOR_COMMITS, "BACK"),
    (sim_guards.write_range_commits_behind_the_check_of_the_generation, scenarios.RECORDS_FIRST, "BACK"),
    (sim_guards.read_with_an_older_view_than_the_cursors, scenarios.OLD_VIEW, "BACK"),
    (sim_guards.take_an_empty_segment_for_drained, scenarios.EMPTY_SEGMENT, "TOO"),
    (sim_guards.go_on_behind_a_gap_that_is_not_told_yet, scenarios.UNTOLD_GAP, "UNTOLD"),
    (sim_guards.ask_for_the_end_before_the_claim, scenarios.END_BEFORE_CLAIM, "TWO"),
    (sim_guards.renew_the_lease_while_something_is_owed, scenarios.CANNOT_ANSWER, "LOST"),
    (guards.send_rejected_records_again_blindly, scenarios.REJECTED, "DUPLICATE"),
    (guards.read_strays_of_an_older_epoch, scenarios.STRAY_IN_THE_REOPENED_PARENT, "DUPLICATE"),
    (guards.read_past_the_marker_of_an_attempt_under_way, scenarios.READING_IN_THE_FENCE, "READINGS"),
    (
        sim_guards.go_on_with_an_old_state_when_a_retirement_is_not_read_back,
        scenarios.SLOW_READ_BACK,
        "TWO",
    ),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Say nothing of takeovers."""
    log = logging.getLogger("kpsplit")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


@pytest.mark.parametrize(("leave_out", "first", "expected"), FOUND, ids=[row[0].__name__ for row in FOUND])
def test_a_guard_that_is_left_out_is_noticed_by_random_runs(
    leave_out: LeaveOut, first: int, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch)
    for seed in range(first, first + BUDGET):
        result = run_seed(seed)
        if result.violation is not None:
            print(f"{leave_out.__name__}: seed {seed}: {result.violation}")
            assert kind_of(result.violation) in expected, result.violation
            return
    pytest.fail(f"{leave_out.__name__} goes unnoticed in {BUDGET} seeds: the simulation is too weak")


@pytest.mark.parametrize(("leave_out", "run", "expected"), WRITTEN, ids=[row[0].__name__ for row in WRITTEN])
def test_a_guard_that_is_left_out_is_noticed_by_the_run_that_needs_it(
    leave_out: LeaveOut, run: list[Event], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_events(run).violation is None
    leave_out(monkeypatch)
    result = run_events(run)
    print(f"{leave_out.__name__}: {result.violation}")
    assert result.violation is not None, "goes unnoticed: the simulation is too weak"
    assert kind_of(result.violation) == expected, result.violation
