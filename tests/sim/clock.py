"""Simulated time: one timeline, and for each process a monotonic clock of its own rate.

The product reads ``kpsplit.kafka.clock.monotonic``, bound by name in its modules. While a simulation runs
(``simulated_seams``) that name shows the clock of whichever process runs now, and the two things that the
producer would start threads for (searching a log, taking over an operation) are done by the simulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kpsplit.errors import DeadlineExceededError
from kpsplit.kafka import clock as real_clock
from kpsplit.producer import (
    context,
    dispatcher,
    fence_duty,
    general_path,
    lease_duty,
    pauses,
    registration,
    reports,
    routes,
    takeover,
    topic_duty,
)

_TIMED = (
    real_clock,
    context,
    dispatcher,
    general_path,
    lease_duty,
    pauses,
    registration,
    reports,
    routes,
    takeover,
    topic_duty,
)


class Timeline:
    """The time that passes everywhere. ``shown``: the clock of the process that runs now."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.shown = ProcessClock(self, 1.0)

    def monotonic(self) -> float:
        """Return the time as the process that runs now sees it."""
        return self.shown.now()


class ProcessClock:
    """A monotonic clock: it starts anywhere and its rate is nearly right; nothing else can be relied on."""

    __slots__ = ("_born", "_rate", "_start", "_timeline")

    def __init__(self, timeline: Timeline, rate: float, start: float = 0.0) -> None:
        self._timeline = timeline
        self._born = timeline.now
        self._rate = rate
        self._start = start

    def now(self) -> float:
        """Return the seconds that it shows."""
        return self._start + (self._timeline.now - self._born) * self._rate


class SimDeadline:
    """A deadline of a process; ``read`` returns the time as that process reads it."""

    __slots__ = ("_read", "at")

    def __init__(self, read: Any, at: float) -> None:
        self._read = read
        self.at = at

    def left(self) -> float:
        """Return the seconds left."""
        return max(0.0, self.at - float(self._read()))

    def check(self, what: str) -> None:
        """Raise DeadlineExceededError if it has passed."""
        if self.left() <= 0:
            raise DeadlineExceededError(f"waited for {what}")


@contextmanager
def simulated_seams(timeline: Timeline, lookup: type, operation_log: type) -> Iterator[None]:
    """Let the product read simulated time, and search logs and take over in the simulation.

    Not reentrant, and nothing else of kpsplit may run in this process meanwhile.
    """
    seams = [(module, "monotonic", timeline.monotonic) for module in _TIMED]
    seams += [(fence_duty, "Lookup", lookup), (takeover, "OperationLog", operation_log)]
    before = [(module, name, getattr(module, name)) for module, name, _ in seams]
    for module, name, value in seams:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
