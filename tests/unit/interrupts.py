"""Signal handlers that raise, at a moment that a test chooses."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kpsplit.producer.locks import QuickLock


class Interrupted(Exception):  # noqa: N818 - stands for whatever an application's handler raises
    """What the handler raises."""


@contextmanager
def raising_signals(error: type[Exception] = Interrupted) -> Iterator[Callable[[], None]]:
    """Give a function that makes the main thread run a handler that raises an error, as a signal does.

    The handler runs where the interpreter looks for signals next: behind the call, in the main thread.
    """

    def handler(number: int, frame: object) -> None:
        raise error

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield lambda: _thread.interrupt_main(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the main thread if the block takes longer: a deadlock fails the test instead of staying."""

    def handler(number: int, frame: object) -> None:
        raise TimeoutError(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def interrupted_while_waiting(lock: QuickLock, interrupt: Callable[[], None]) -> Iterator[None]:
    """Take the lock away until the main thread waits for it; the signal and the lock reach it together."""
    taken, waits = threading.Event(), threading.Event()

    def other() -> None:
        with lock:
            taken.set()
            waits.wait(10)
            threading.Event().wait(0.05)  # that long it may take to come to the lock; later is as good
            interrupt()

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    taken.wait(10)
    waits.set()
    try:
        yield
    finally:
        thread.join(10)
