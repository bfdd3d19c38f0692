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

from tests.sim import guards
from tests.sim.events import Event
from tests.sim.run import kind_of, run_events, run_seed

# -- runs that somebody wrote down -----------------------------------------------------------------


LOW, HIGH, NONE = 0, 5, 6
"""Keys of the first and of the last slot, and no key."""

SENT: list[Event] = [("flow", 0, 0), ("flow", 1, 0)]
"""The record that each producer has sent at the beginning is in the log."""
SPLIT: Event = ("rush", 9, 0, 1)
MERGE: Event = ("rush", 0, 0, 0)


def reads(member: int, most: int, places: int = 1) -> list[Event]:
    """A member fetches, works, and finishes its work."""
    fetched: list[Event] = [("fetch", member, place, most) for place in range(places)]
    return [*fetched, ("work", member, 9), ("work", member, 9)]


def commits(member: int) -> list[Event]:
    """A member's whole commit."""
    return [("commit", member, 0)] * 3


def takes_over(member: int) -> list[Event]:
    """The other member is expelled; this one hears of it and begins, if it may."""
    return [("expel", 1 - member), ("heartbeat", member), ("start", member), ("start", member)]


WAITING_FOR_COMMITS: list[Event] = [
    *SENT,
    *reads(0, 5),
    ("commit", 0, 0),
    ("commit", 0, 0),
    *takes_over(1),
    ("commit", 0, 0),
    *reads(1, 1),
    *commits(1),
]
"""A commit whose offsets were taken is ended while the next owner looks where to begin."""

RECORDS_FIRST: list[Event] = [
    *SENT,
    *reads(0, 1),
    ("commit", 0, 0),
    *takes_over(1),
    *reads(1, 5),
    *commits(1),
    *commits(0),
]
"""A member is expelled between two steps of its commit, and the next owner commits more."""

OLD_VIEW: list[Event] = [
    *SENT,
    SPLIT,
    ("read", 0, 0),
    *reads(0, 9),
    *reads(0, 9, 3),
    *commits(0),
    *takes_over(1),
    *reads(1, 1),
    *commits(1),
]
"""The next owner of a slot has not heard of the split that the committed cursor is about."""

EMPTY_SEGMENT: list[Event] = [
    *SENT,
    SPLIT,
    ("produce", 1, HIGH),
    ("flow", 1, 0),
    MERGE,
    SPLIT,
    ("produce", 1, HIGH),
    ("turn", 1, 0, 1),
    ("flow", 1, 0),
    ("read", 0, 0),
    *reads(0, 9, 3),
    *commits(0),
    *takes_over(0),
    ("fetch", 0, 2, 9),
    *reads(0, 9, 4),
]
"""The parent was reopened and split again with nothing written to it; ordinary offsets are known of some."""

LEFT_OUT: list[Event] = [
    *SENT,
    SPLIT,
    ("read", 0, 0),
    *reads(0, 9),
    ("foreign", LOW),
    ("turn", 0, 0, 1),
    ("produce", 0, LOW),
    ("flow", 0, 0),
    MERGE,
    *[e for _ in range(4) for e in (("produce", 0, LOW), ("turn", 0, 0, 1), ("write", 0, 0), ("flow", 0, 0))],
    ("read", 0, 0),
    ("fetch", 0, 0, 3, 1),
    *[("work", 0, 9)] * 2,
]
"""One call of the client: records of the reopened parent, the rest of a phantom, more of the parent."""

UNREPORTED_GAP: list[Event] = [
    *SENT,
    ("tick", 5),
    ("tick", 5),
    ("retention", 0),
    ("fetch", 0, 0, 9),
    *commits(0),
    ("die", 0),
]
"""Retention takes records before a member reads them; it commits before it polls, and is killed."""

REJECTED: list[Event] = [
    *SENT,
    SPLIT,
    ("turn", 0, 0, 1),
    ("produce", 0, LOW),
    ("write", 0, 0),
    ("sleep", 0, 1),
    ("plan", 0, 0, 0, 0, 2, 0),
    *[("operate", 0, steps, 0) for _ in range(16) for steps in (5, 3)],
    ("sleep", 0, 0),
    ("fail", 0, 0, 2),
]
"""A record was written, its acknowledgement lost, and the retry meets the seal of a merge."""

CANNOT_ANSWER: list[Event] = [
    *SENT,
    ("cut_off", 0, 1),
    ("plan", 0, 9, 0, 1, 2, 0),
    *[e for _ in range(15) for e in (("operate", 0, 4, 0), ("turn", 1, 0, 1), ("turn", 0, 0, 1))],
    *[("operate", 0, 1, 0)] * 4,
    ("produce", 0, LOW),
    *[("operate", 0, 1, 0)] * 8,
    ("flow", 0, 0),
    ("poll", 0),
]
"""A producer can read the control topic, but its answers do not arrive."""

ASLEEP: list[Event] = [("operate", 0, steps, 0) for _ in range(17) for steps in (5, 3)]
"""An operation ends although a producer is suspended: its lease runs out, twice."""

STRAY_IN_THE_REOPENED_PARENT: list[Event] = [
    *SENT,
    ("produce", 0, LOW),
    ("sleep", 0, 1),
    ("plan", 0, 9, 0, 1, 2, 0),
    *ASLEEP,
    ("plan", 0, 0, 0, 0, 2, 0),
    *ASLEEP,
    ("write", 0, 0),
]
"""A producer is suspended before a split; what it had queued lands in the parent that a merge reopened."""

OVERTAKEN: list[Event] = [
    *SENT,
    SPLIT,
    ("turn", 0, 0, 1),
    *[("produce", 0, LOW), ("flow", 0, 0)] * 2,
    ("produce", 0, NONE),
    ("produce", 0, LOW),
    ("sleep", 0, 1),
    ("plan", 0, 9, 1, 1, 2, 0),
    *ASLEEP,
    ("sleep", 0, 0),
    ("write", 0, 1),
    ("write", 0, 0),
    *[("turn", 0, 0, 1)] * 2,
    ("acknowledge", 0, 1),
    ("poll", 0),
    ("turn", 0, 0, 1),
    ("write", 0, 0),
    ("acknowledge", 0, 3),
    SPLIT,
]
"""A stray without a key goes to a segment where a higher number is written; that one's place is not told."""

STRAY_AND_ITS_COPY: list[Event] = [
    *STRAY_IN_THE_REOPENED_PARENT,
    ("sleep", 0, 0),
    ("acknowledge", 0, 0),
    *[("turn", 0, 0, 1)] * 4,
    ("produce", 0, LOW),
    ("sleep", 0, 1),
    ("plan", 0, 9, 0, 1, 2, 0),
    *ASLEEP,
    *[("write", 0, 0)] * 2,
    ("acknowledge", 0, 3),
    ("sleep", 0, 0),
]
"""A stray lies in the reopened parent; its copy lands after the next cut, and its place is not told."""

READING_IN_THE_FENCE: list[Event] = [
    *SENT,
    ("plan", 0, 9, 0, 1, 2, 0),
    *[e for _ in range(9) for e in (("operate", 0, 1, 0), ("turn", 1, 0, 1), ("turn", 0, 0, 1))],
    *[e for _ in range(12) for e in (("operate", 0, 1, 0), ("turn", 0, 0, 1))],
    ("foreign", LOW),
    ("read", 0, 0),
    ("fetch", 0, 0, 9),
    ("refresh", 0),
    ("refresh", 0),
    *reads(0, 9),
]
"""A reader meets the marker of an attempt whose end is not decided, and a plain writer's record after it."""

SLOW_READ_BACK: list[Event] = [
    ("plan", 0, 9, 0, 0, 2, 0),
    *[("operate", 0, 1, 0)] * 9,
    ("kill", 0),
    ("plan", 0, 9, 0, 0, 2, 0),
    *[("operate", 0, 1, 0)] * 10,
    ("stranger",),
    *[("operate", 0, 1, 0)] * 3,
    *[("tick", 3)] * 3,
    *[("tick", 1)] * 3,
    ("operate", 0, 1, 0),
]
"""A retirement is recorded, and another partition's transaction hides it for longer than anybody waits."""

END_BEFORE_CLAIM: list[Event] = [
    *SENT,
    ("plan", 0, 9, 0, 1, 2, 0),
    ("operate", 0, 12, 0),
    ("turn", 0, 0, 1),
    ("turn", 1, 0, 1),
    ("operate", 0, 9, 0),
    ("turn", 0, 0, 1),
    ("turn", 1, 0, 1),
    ("operate", 0, 3, 0),
    ("call_on", 1, 1),
    ("operate", 1, 5, 0),
    ("operate", 0, 3, 0),
    *[("operate", 1, 4, 0)] * 3,
]
"""An operator commits while somebody who aborts it is between two steps of the claim."""

TURNS: list[Event] = [("turn", 0, 0, 1), ("turn", 1, 0, 1)]
STEPS: list[Event] = [e for _ in range(30) for e in (("operate", 0, 1, 0), *TURNS)]

IN_FLIGHT_AT_AN_ENROLMENT: list[Event] = [
    *SENT,
    *TURNS,
    ("return", 1, 0),
    ("produce", 0, LOW),
    *TURNS,
    ("return", 1, 0),
    *TURNS,
    ("plan", 0, 9, 0, 1, 2, 0),
    *STEPS,
    ("produce", 0, LOW),
    *TURNS,
    ("flow", 0, 1),
    ("flow", 0, 0),
]
"""A topic returns and is enrolled again; a record that was sent in between is in flight when it is split."""

SPLIT_IN_A_RETURN: list[Event] = [
    *SENT,
    *TURNS,
    ("return", 0, 0),
    *[("operate", 0, 1, 0)] * 12,
    *[("operate", 0, 4, 0)] * 9,
    ("plan", 0, 9, 0, 1, 2, 1),
    *[e for _ in range(30) for e in (("operate", 1, 1, 0), *TURNS)],
    ("produce", 0, LOW),
    ("flow", 0, 1),
    *[("operate", 0, 4, 0)] * 12,
    *TURNS,
    ("produce", 0, LOW),
    ("flow", 0, 0),
]
"""Somebody splits after the operator of a return has looked at the partition for the last time."""

CLAIMED_BEFORE_THE_RETURN: list[Event] = [
    *SENT,
    *TURNS,
    ("plan", 0, 9, 0, 1, 2, 0),
    *[("operate", 0, 1, 0)] * 7,
    ("return", 0, 1),
    *[("operate", 1, 4, 0)] * 12,
    *TURNS,
    *STEPS,
    ("produce", 0, LOW),
    ("flow", 0, 1),
    *[("operate", 0, 4, 0)] * 12,
    *TURNS,
    ("produce", 0, LOW),
    ("flow", 0, 0),
]
"""An operator has claimed the partition, and prepares its split when the return is nearly over."""

PLANNED_BEFORE_THE_RETURN: list[Event] = [
    *SENT,
    *TURNS,
    ("plan", 0, 9, 0, 1, 2, 0),
    ("operate", 0, 1, 0),
    ("return", 1, 1),
    ("produce", 0, LOW),
    *TURNS,
    ("flow", 0, 0),
    ("return", 0, 1),
    *[("operate", 1, 1, 0)] * 3,
    *[("operate", 0, 1, 0)] * 22,
    ("produce", 0, LOW),
    *TURNS,
    *TURNS,
    ("produce", 0, LOW),
    *TURNS,
    ("flow", 0, 1),
    ("flow", 0, 0),
]
"""An operator slept for the whole return, and splits before the producers know of the new enrolment."""

SEEN_AFTER_THE_RETURN: list[Event] = [
    *STRAY_IN_THE_REOPENED_PARENT,
    ("return", 1, 0),
    ("sleep", 0, 0),
    ("acknowledge", 0, 0),
    *TURNS,
    ("poll", 0),
]
"""A stray lies in the reopened parent; its producer sees the split and the merge only after the return."""

BUDGET = 300

LeaveOut = Callable[[pytest.MonkeyPatch], None]
# The second: the first seed that notices it today, and where the search begins once other seeds do.
FOUND: list[tuple[LeaveOut, int, set[str]]] = [
    (guards.report_under_a_fence, 164, {"LOST"}),
    (guards.do_not_look_at_offsets, 21, {"LOST"}),
    (guards.do_not_wait_for_acknowledgements, 3, {"LOST"}),
    (guards.do_not_wait_for_readiness, 25, {"LOST"}),
    (guards.open_new_segments_at_once, 164, {"OUT"}),
    (guards.send_what_was_held_before_the_strays, 164, {"OUT"}),
    (guards.send_strays_in_any_order, 748, {"OUT"}),
    (guards.send_again_what_was_given_up, 60, {"DUPLICATE", "OUT", "REPORTED"}),
    (guards.take_any_attempts_answers, 179, {"LOST"}),
    (guards.take_any_attempts_readiness, 25, {"LOST"}),
    (guards.read_past_an_unknown_marker, 66, {"READER", "READ", "TOO"}),
    (guards.report_without_a_lease, 281, {"LOST"}),
    (guards.do_not_wait_for_leases, 4, {"LOST"}),
    (guards.take_an_unknown_outcome_for_success, 164, {"TWO"}),
    (guards.work_without_a_claim, 0, {"TWO"}),
    (guards.claim_up_to_the_last_stable_offset, 31, {"TWO"}),
    (guards.take_the_stamp_of_a_copy_at_its_word, 2, {"READER", "HISTORY"}),
    (guards.read_children_before_their_parents_are_drained, 29, {"TOO"}),
    (guards.read_a_merged_child_when_one_parent_is_drained, 29, {"TOO"}),
    (guards.commit_offsets_for_ranges_without_a_commit, 1, {"COMMIT", "TOO", "STUCK"}),
    (guards.commit_in_any_generation, 612, {"BACK", "COMMIT"}),
    (guards.delete_sub_topics_whoever_reads_them, 277, {"DELETED"}),
    (guards.do_not_seal, 781, {"WRITTEN"}),
    (guards.pass_through_while_stamped_records_are_not_resolved, 59, {"OUT", "STUCK", "HISTORY"}),
]
WRITTEN: list[tuple[LeaveOut, list[Event], str]] = [
    (guards.start_without_waiting_for_earlier_commits, WAITING_FOR_COMMITS, "BACK"),
    (guards.write_range_commits_after_the_check_of_the_generation, RECORDS_FIRST, "BACK"),
    (guards.read_with_an_older_view_than_the_cursors, OLD_VIEW, "BACK"),
    (guards.take_an_empty_segment_for_drained, EMPTY_SEGMENT, "TOO"),
    (guards.read_on_after_what_was_left_out, LEFT_OUT, "TOO"),
    (guards.go_on_after_a_gap_that_is_not_reported_yet, UNREPORTED_GAP, "UNREPORTED"),
    (guards.ask_for_the_end_before_the_claim, END_BEFORE_CLAIM, "TWO"),
    (guards.renew_the_lease_while_something_is_owed, CANNOT_ANSWER, "LOST"),
    (guards.send_rejected_records_again_blindly, REJECTED, "DUPLICATE"),
    (guards.take_numbers_for_the_order_of_sending, OVERTAKEN, "DUPLICATE"),
    (guards.read_strays_of_an_older_epoch, STRAY_IN_THE_REOPENED_PARENT, "DUPLICATE"),
    (guards.take_a_stray_for_its_copy, STRAY_AND_ITS_COPY, "LOST"),
    (guards.read_past_the_marker_of_an_attempt_under_way, READING_IN_THE_FENCE, "READINGS"),
    (
        guards.go_on_with_an_old_state_when_a_retirement_is_not_read_back,
        SLOW_READ_BACK,
        "TWO",
    ),
    (guards.answer_prepare_with_unstamped_records_in_flight, IN_FLIGHT_AT_AN_ENROLMENT, "OUT"),
    (guards.apply_nothing_that_was_done_before_a_return, SEEN_AFTER_THE_RETURN, "LOST"),
    (guards.split_a_topic_that_returns, SPLIT_IN_A_RETURN, "HISTORY"),
    (guards.return_a_topic_without_a_claim_of_its_partitions, CLAIMED_BEFORE_THE_RETURN, "HISTORY"),
    (guards.split_as_soon_as_a_topic_is_enrolled_again, PLANNED_BEFORE_THE_RETURN, "OUT"),
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
