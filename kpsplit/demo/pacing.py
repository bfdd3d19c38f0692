"""A steady rate."""

from __future__ import annotations

LONGEST_DELAY = 0.25
"""Seconds (or two records). Whoever was held up longer does not catch up: that would be another load."""


class Pacer:
    """Tells how many records are due. Times are monotonic seconds, given by the caller."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._longest = max(LONGEST_DELAY, 2 / rate)
        self._paid_until = now

    def due(self, now: float) -> int:
        """Return how many records are to be sent now; they count as sent."""
        self._paid_until = max(self._paid_until, now - self._longest)
        number = int((now - self._paid_until) * self._rate)
        self._paid_until += number / self._rate
        return number
