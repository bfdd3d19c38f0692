"""One deadline, handed down a whole call."""

from __future__ import annotations

import time

from kpsplit.errors import DeadlineExceededError


class Deadline:
    """A moment on the monotonic clock by which a call, with everything that it calls, is over.

    Args:
        seconds: from now.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.remaining <= 0.0

    def check(self, what: str, *, hint: str | None = None) -> None:
        """Raise DeadlineExceededError, naming what was waited for, if no time is left."""
        if self.expired:
            raise DeadlineExceededError(f"{what}: not done within {self.seconds:.0f} s", hint=hint)

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or for what is left if that is less."""
        time.sleep(min(seconds, self.remaining))
