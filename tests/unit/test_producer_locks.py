"""The lock of the fast path excludes, lets the library's thread pass, and is free again after any error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from kpsplit.producer.locks import Busy, QuickLock
from tests.unit.interrupts import Interrupted, interrupted_while_waiting, raising_signals


def run_all(*targets: Callable[[], None]) -> None:
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def is_free(lock: QuickLock) -> bool:
    try:
        with lock.within(0):
            return True
    except Busy:
        return False


def test_one_thread_at_a_time_is_inside_whichever_way_it_came() -> None:
    lock = QuickLock()
    inside, overlaps, rounds = [0], [0], 3000

    def work(way: Callable[[], AbstractContextManager[None]]) -> None:
        for _ in range(rounds):
            with way():
                inside[0] += 1
                overlaps[0] += inside[0] != 1
                for _ in range(20):  # so that threads are switched in here
                    pass
                inside[0] -= 1

    ways: tuple[Callable[[], AbstractContextManager[None]], ...] = (
        lambda: lock,
        lambda: lock.first,
        lambda: lock.within(60),
    )
    run_all(*(lambda way=way: work(way) for way in (*ways, *ways)))  # type: ignore[misc]
    assert (inside, overlaps) == ([0], [0])
    assert lock.wanted == [] and is_free(lock)


def test_who_is_wanted_comes_next() -> None:
    lock = QuickLock()
    over = threading.Event()

    def library() -> None:
        with lock.first:
            over.set()

    waiting = threading.Thread(target=library, daemon=True)
    with lock:
        waiting.start()
        while not lock.wanted:
            waiting.join(0.001)
    lock.let_pass()
    with lock:
        assert over.is_set()
    waiting.join(10)


@pytest.mark.parametrize("way", ["plain", "first", "within"])
def test_an_error_inside_leaves_the_lock_free(way: str) -> None:
    lock = QuickLock()
    context = {"plain": lock, "first": lock.first, "within": lock.within(1)}[way]
    with pytest.raises(ValueError, match="inside"), context:
        raise ValueError("inside")
    assert is_free(lock) and lock.wanted == []


def test_a_lock_that_is_taken_is_busy_when_the_time_is_up() -> None:
    lock = QuickLock()
    with lock, pytest.raises(Busy), lock.within(0.01):
        pytest.fail("two are inside")
    assert is_free(lock)


@pytest.mark.parametrize("way", ["plain", "within"])
def test_a_signal_that_arrives_together_with_the_lock_does_not_take_it_along(way: str) -> None:
    lock = QuickLock()
    with raising_signals() as interrupt, pytest.raises(Interrupted):
        with interrupted_while_waiting(lock, interrupt):
            with lock if way == "plain" else lock.within(60):
                interrupt.__doc__  # noqa: B018 - no call in here: the handler runs when the lock is let go
    assert is_free(lock)


def test_in_a_child_process_the_lock_is_free_for_those_who_know_it() -> None:
    lock = QuickLock()
    lock.__enter__()
    lock.renew_after_fork()
    assert is_free(lock)
    lock.renew_after_fork()
    with lock:
        assert not is_free(lock), "one token only"
