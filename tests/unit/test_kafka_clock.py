"""Deadlines: handed down a whole call, they say what was waited for in vain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kpsplit.clock import Deadline, monotonic_clock
from kpsplit.errors import DeadlineExceededError


def test_a_deadline_with_time_left_lets_everything_pass() -> None:
    deadline = Deadline(60)
    deadline.check("nothing")
    assert 0 < deadline.left() <= 60 and not deadline.expired()


def test_a_deadline_that_has_passed_says_what_was_waited_for_and_what_to_do() -> None:
    deadline = Deadline(0)
    assert deadline.expired() and deadline.left() == 0.0
    with pytest.raises(DeadlineExceededError, match=r"waited 0 ms for the thing") as caught:
        deadline.check("the thing", hint="look there")
    assert caught.value.hint == "look there"


def test_a_pause_is_over_when_the_deadline_is() -> None:
    Deadline(0).pause(3600)


CLOCKS = {"CLOCK_BOOTTIME": 7, "CLOCK_MONOTONIC_RAW": 4, "clock_gettime": float}


@pytest.mark.parametrize(
    ("platform", "clocks", "chosen"),
    [
        ("linux", CLOCKS, 7.0),
        ("darwin", {k: v for k, v in CLOCKS.items() if k != "CLOCK_BOOTTIME"}, 4.0),
        ("freebsd14", {"CLOCK_MONOTONIC_RAW": 4, "monotonic": lambda: 1.0}, 1.0),
        ("win32", {"monotonic": lambda: 1.0}, 1.0),
    ],
)
def test_leases_run_on_the_clock_that_counts_a_suspended_machines_time(
    platform: str, clocks: dict[str, Any], chosen: float
) -> None:
    """On macOS time.monotonic() stands still while the machine sleeps; the raw clock does not."""
    assert monotonic_clock(SimpleNamespace(**{"monotonic": lambda: 0.0, **clocks}), platform)() == chosen
