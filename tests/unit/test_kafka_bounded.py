"""Calls that may never return."""

from __future__ import annotations

import threading

import pytest

from kpsplit.clock import AbandonedError, bounded


def nothing() -> None: ...


def test_a_call_gives_what_it_returns_or_raises() -> None:
    assert bounded(lambda: 7, 60.0, "test", nothing) == 7
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, 60.0, "test", nothing)


def test_a_late_answer_inside_the_call_is_not_a_call_that_hangs() -> None:
    def late() -> None:
        raise TimeoutError("a broker")

    with pytest.raises(TimeoutError, match="a broker"):
        bounded(late, 60.0, "test", nothing)


def test_a_call_that_does_not_return_is_told_that_it_is_given_up() -> None:
    over = threading.Event()
    with pytest.raises(AbandonedError):
        bounded(over.wait, 0.05, "test", over.set)
    assert over.is_set()
