"""A steady rate, or one that falls as a stock runs low."""

from __future__ import annotations

PORTION = 100
"""Records sent at once, within the intervals below: brokers are busy with requests, not with records."""
SHORTEST_INTERVAL = 0.25
LONGEST_INTERVAL = 1.0


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
        self.interval = min(max(PORTION / rate, SHORTEST_INTERVAL), LONGEST_INTERVAL)
        """Seconds from one portion to the next."""

    def due(self, now: float) -> int:
        """Return how many records are to be sent now; they count as sent.

        Whoever was held up for two intervals (or records) does not catch up: that would be another load.
        """
        rate = self._rate()
        self._paid_until = max(self._paid_until, now - 2 * max(self.interval, 1 / rate))
        number = int((now - self._paid_until) * rate)
        self._paid_until += number / rate
        self._left -= number
        return number

    def _rate(self) -> float:
        if self._stock is None:
            return self._first_rate
        return self._first_rate * max(self._left, 1) / self._stock
