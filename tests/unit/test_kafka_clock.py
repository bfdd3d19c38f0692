"""Deadlines: handed down a whole call, they say what was waited for in vain."""

from __future__ import annotations

import pytest

from kpsplit.errors import DeadlineExceededError
from kpsplit.kafka.clock import Deadline


def test_a_deadline_with_time_left_lets_everything_pass() -> None:
    deadline = Deadline(60)
    deadline.check("nothing")
    assert 0 < deadline.left() <= 60 and not deadline.expired()


def test_a_deadline_that_has_passed_says_what_was_waited_for_and_what_to_do() -> None:
    deadline = Deadline(0)
    assert deadline.expired() and deadline.left() == 0.0
    with pytest.raises(DeadlineExceededError, match=r"waited 0\.0 s for the thing") as caught:
        deadline.check("the thing", hint="look there")
    assert caught.value.hint == "look there"


def test_a_pause_is_over_when_the_deadline_is() -> None:
    Deadline(0).pause(3600)
