"""Monotonic time, deadlines, and a bound for calls of librdkafka that may never return."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from kpsplit.errors import DeadlineExceededError, duration


def monotonic_clock(clocks: Any, platform: str) -> Callable[[], float]:
    """Return the system's clock that also counts the time in which the machine is suspended.

    Linux has one by that name. On macOS it is the raw clock: ``time.monotonic()`` stands still there.
    """
    if hasattr(clocks, "CLOCK_BOOTTIME"):
        return partial(clocks.clock_gettime, clocks.CLOCK_BOOTTIME)
    if platform == "darwin":
        return partial(clocks.clock_gettime, clocks.CLOCK_MONOTONIC_RAW)
    return clocks.monotonic  # type: ignore[no-any-return]


monotonic = monotonic_clock(time, sys.platform)
"""Seconds that also pass while the machine is suspended, if the system counts them: leases depend on it."""


def wall_ms() -> int:
    """Return the wall clock in milliseconds: for people, no decision depends on it."""
    return time.time_ns() // 1_000_000


class Deadline:
    """A point in monotonic time, handed down a whole call. ``clock``: another one than the system's."""

    def __init__(self, seconds: float, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or monotonic
        self._seconds = seconds
        self.at = self._clock() + seconds

    def left(self) -> float:
        return max(0.0, self.at - self._clock())

    def expired(self) -> bool:
        return self.left() <= 0

    def check(self, what: str, *, hint: str | None = None) -> None:
        """Do nothing while there is time left.

        Raises:
            DeadlineExceededError: the deadline has passed.
        """
        if self.expired():
            raise DeadlineExceededError(f"waited {duration(self._seconds)} for {what}", hint=hint)

    def pause(self, seconds: float) -> None:
        time.sleep(min(seconds, self.left()))


class SystemClock:
    """The real clock."""

    def now(self) -> float:
        return monotonic()

    def deadline(self, seconds: float) -> Deadline:
        return Deadline(seconds)


LAST_SECONDS = 5.0
"""How long a call may take to end when its caller was interrupted."""

T = TypeVar("T")


class AbandonedError(Exception):
    """The call has not returned; its thread goes on, and what it was given must not be used any more."""


def in_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Run a call in a daemon thread of its own, called ``name``."""
    future: Future[T] = Future()
    threading.Thread(target=_settle, args=(future, call), name=name, daemon=True).start()
    return future


def bounded(call: Callable[[], T], seconds: float, name: str, give_up: Callable[[], None]) -> T:
    """Run a call in a thread of its own, called ``name``, and wait that long for it.

    ``give_up`` says to the call that nobody waits for it any more. From then on it must change nothing.
    librdkafka (2.16) loses requests of a transaction when it forgets a broker that cannot be reached, and
    ``send_offsets_to_transaction`` waits for their answers for ever.

    Raises:
        AbandonedError: it has not returned.
    """
    try:
        future = in_thread(call, name)
    except RuntimeError:  # the interpreter ends: newer Pythons start no threads then
        return call()
    try:
        wait([future], seconds)
        if not future.done():
            give_up()
            raise AbandonedError
        return future.result()
    except KeyboardInterrupt:
        give_up()
        wait([future], LAST_SECONDS)
        raise
    finally:
        del future  # an exception in it holds this frame, and all that the call used


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - the caller that waits gets it
        future.set_exception(error)
    finally:
        del future, call
