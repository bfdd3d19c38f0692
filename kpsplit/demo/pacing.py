"""A steady rate, or one that falls as a stock runs low."""

from __future__ import annotations

LONGEST_DELAY = 0.5
"""Seconds (or two records). Whoever was held up longer does not catch up: that would be another load."""


class Pacer:
    """Tells how many records are due. Times are monotonic seconds, given by the caller.

    ``stock``: how many records there are; None: no end. The rate falls with what is left of them, so some are
    left however long it takes.
    """

    def __init__(self, rate: float, now: float, stock: int | None = None) -> None:
        self._first_rate = rate
        self._stock = stock
        self._left = stock or 0
        self._paid_until = now

    def due(self, now: float) -> int:
        """Return how many records are to be sent now; they count as sent."""
        rate = self._rate()
        self._paid_until = max(self._paid_until, now - max(LONGEST_DELAY, 2 / rate))
        number = int((now - self._paid_until) * rate)
        self._paid_until += number / rate
        self._left -= number
        return number

    def _rate(self) -> float:
        if self._stock is None:
            return self._first_rate
        return self._first_rate * max(self._left, 1) / self._stock
