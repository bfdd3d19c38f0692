"""Estimates of how long groups need to drain what a merge closes."""

from __future__ import annotations

from kpsplit.clock import Deadline
from kpsplit.control.planning import drains_of
from kpsplit.control.plans import Drain
from kpsplit.control.status import Remaining, estimated, look_twice


def test_the_pace_between_two_looks_says_how_long_the_rest_takes() -> None:
    assert estimated({"g": 1000}, {"g": 800}, 2.0) == {"g": Remaining(800, 8)}


def test_a_group_that_did_not_move_has_no_estimate_and_comes_first() -> None:
    left = estimated({"fast": 900, "idle": 5, "slow": 100}, {"fast": 0, "idle": 5, "slow": 90}, 1.0)
    assert drains_of(left) == (Drain("idle", 5), Drain("slow", 90, 9), Drain("fast", 0, 0))


def test_a_group_that_was_reset_or_is_new_counts_as_not_moving() -> None:
    assert estimated({"reset": 10}, {"reset": 50, "new": 3}, 1.0) == {
        "reset": Remaining(50),
        "new": Remaining(3),
    }


def test_where_nothing_is_left_there_is_only_one_look() -> None:
    looks = [{"g": 0}]
    assert look_twice(looks.pop, Deadline(0)) == {"g": Remaining(0, 0)}


def test_a_group_that_does_not_move_is_looked_at_longer() -> None:
    looks = [{"g": 5}, {"g": 9}, {"g": 9}]
    assert look_twice(looks.pop, Deadline(0))["g"].offsets == 5
    assert not looks
