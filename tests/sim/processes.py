"""Simulated time and processes: one timeline, and for each process a monotonic clock of its own rate.

The product reads ``kpsplit.clock.monotonic``, bound by name in its modules. While a simulation runs
(``simulated_seams``) that name shows the clock of whichever process runs now, and the two things that the
producer would start threads for (searching a log, taking over an operation) are done by the simulation.

Code that blocks (the driver) runs by replay, so one thread is enough. It runs from its beginning at every
step, and its calls return again what they returned before. The first new call *parks* it: that call is a
generator, which the scheduler drives, fault by fault. So between any two effects of one process everything
else may happen, a process can wait for any time, and killing it is forgetting it. The code has to be
deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, NamedTuple

from kpsplit import clock as real_clock
from kpsplit import producer
from kpsplit.clock import Deadline
from kpsplit.errors import KpsplitError
from kpsplit.producer import fence_task

_PRODUCER = [import_module(m.name) for m in walk_packages(producer.__path__, "kpsplit.producer.")]
_TIMED = [real_clock, *(m for m in _PRODUCER if vars(m).get("monotonic") is real_clock.monotonic)]
"""Every module that reads the clock."""


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


class SimDeadline(Deadline):
    """A deadline that a process made by its own clock."""


@contextmanager
def simulated_seams(timeline: Timeline, lookup: type, operation_log: type) -> Iterator[None]:
    """Let the product read simulated time, and search logs and take over in the simulation.

    Not reentrant, and nothing else of kpsplit may run in this process meanwhile.
    """
    seams = [(module, "monotonic", timeline.monotonic) for module in _TIMED]
    seams += [(fence_task, "Lookup", lookup), (fence_task, "OperationLog", operation_log)]
    before = [(module, name, getattr(module, name)) for module, name, _ in seams]
    for module, name, value in seams:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


# -- processes whose code blocks, run by replay ----------------------------------------------------


Effect = Generator["str | Blocked", str, Any]
"""One call as it takes effect: yields what comes next, is sent what goes wrong with it."""


class Blocked(NamedTuple):
    """The call waits for something. ``until`` tells whether it has come."""

    what: str
    until: Callable[[], bool]


class ParkedError(BaseException):
    """The process came to a call that is not answered yet. No handler of errors may catch it."""


class _Answer(NamedTuple):
    value: Any
    error: KpsplitError | None


class Process:
    """A process whose calls of ``call`` and ``at_once`` are remembered.

    ``outcome``: what its code returned or raised, once ``over``.
    """

    def __init__(self, name: str, body: Callable[[], Any]) -> None:
        self.name = name
        self.over = False
        self.outcome: Any = None
        self._body = body
        self._answers: list[_Answer] = []
        self._at = 0
        self._new: Effect | None = None
        self._effect: Effect | None = None
        self._next: str | Blocked = "begin"

    # -- for the code that runs in it --------------------------------------------------------------

    def call(self, effect: Callable[[], Effect]) -> Any:
        """Return what a call returned, or park the process until it has."""
        if self._at < len(self._answers):
            answer = self._answers[self._at]
            self._at += 1
            if answer.error is not None:
                raise answer.error.with_traceback(None)
            return answer.value
        self._new = effect()
        raise ParkedError

    def at_once(self, value: Callable[[], Any]) -> Any:
        """Return what a call that nothing can come in between of returned."""
        if self._at == len(self._answers):
            self._answers.append(_Answer(value(), None))
        self._at += 1
        return self._answers[self._at - 1].value

    # -- for the scheduler -------------------------------------------------------------------------

    def ready(self) -> bool:
        """Return whether a step would do anything."""
        return not self.over and (not isinstance(self._next, Blocked) or self._next.until())

    def step(self, fault: str = "") -> str:
        """Do one step, with what goes wrong in it; return what was done."""
        if self._effect is None:
            self._run()
            return "starts" if not self.over else self._told()
        done = self._next if isinstance(self._next, str) else self._next.what
        try:
            self._next = self._effect.send(fault)
        except StopIteration as end:
            self._answer(_Answer(end.value, None))
        except KpsplitError as error:
            self._answer(_Answer(None, error))
            done += f": {type(error).__name__}"
        return f"{done}{f' ({fault})' if fault else ''}{'' if not self.over else '; ' + self._told()}"

    def _answer(self, answer: _Answer) -> None:
        self._answers.append(answer)
        self._effect = None
        self._run()

    def _run(self) -> None:
        """Run the code up to its next call; a call that ends without a pause is answered at once."""
        while self._effect is None and not self.over:
            self._at, self._new = 0, None
            try:
                self.outcome, self.over = self._body(), True
            except ParkedError:
                self._begin()
            except KpsplitError as error:
                self.outcome, self.over = error, True

    def _begin(self) -> None:
        effect = self._new
        assert effect is not None
        try:
            self._next = next(effect)
            self._effect = effect
        except StopIteration as end:
            self._answers.append(_Answer(end.value, None))
        except KpsplitError as error:
            self._answers.append(_Answer(None, error))

    def _told(self) -> str:
        if isinstance(self.outcome, KpsplitError):
            return f"ends with {type(self.outcome).__name__}: {self.outcome.message}"
        return "ends"
