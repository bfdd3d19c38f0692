"""Monotonic time and deadlines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kpsplit.errors import DeadlineExceededError


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
"""Seconds that also pass while the machine is suspended, where the system can tell: leases depend on it."""


class Deadline:
    """A point in monotonic time, handed down a whole call."""

    def __init__(self, seconds: float) -> None:
        self._at = monotonic() + seconds
        self._seconds = seconds

    def left(self) -> float:
        """Return the seconds left, 0.0 when the deadline has passed."""
        return max(0.0, self._at - monotonic())

    def expired(self) -> bool:
        """Tell whether no time is left."""
        return self.left() <= 0

    def check(self, what: str, *, hint: str | None = None) -> None:
        """Do nothing while there is time left.

        Raises:
            DeadlineExceededError: the deadline has passed.
        """
        if self.expired():
            raise DeadlineExceededError(f"waited {self._seconds:.1f} s for {what}", hint=hint)

    def pause(self, seconds: float) -> None:
        """Sleep for that long, or for what is left if that is less."""
        time.sleep(min(seconds, self.left()))


class SystemClock:
    """The real clock."""

    def now(self) -> float:
        """Return monotonic seconds."""
        return monotonic()

    def deadline(self, seconds: float) -> Deadline:
        """Return the deadline that many seconds from now."""
        return Deadline(seconds)
