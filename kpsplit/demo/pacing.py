"""A steady rate."""

from __future__ import annotations

LONGEST_DELAY = 0.25
"""Seconds. Whoever was held up longer does not catch up: a burst is another load than the one wanted."""


class Pacer:
    """Tells how many records are due. Times are monotonic seconds, given by the caller."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._paid_until = now

    def due(self, now: float) -> int:
        """Return how many records are to be sent now; they count as sent."""
        self._paid_until = max(self._paid_until, now - LONGEST_DELAY)
        number = int((now - self._paid_until) * self._rate)
        self._paid_until += number / self._rate
        return number
