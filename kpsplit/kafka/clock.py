"""Monotonic time and deadlines."""

from __future__ import annotations

import time
from functools import partial

from kpsplit.errors import DeadlineExceededError

monotonic = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
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
