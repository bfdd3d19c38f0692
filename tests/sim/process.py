"""Processes of the simulation whose code blocks: run by replay, so one thread is enough.

The code (the driver, say) runs from its beginning at every step. What its calls returned before is returned
again; at the first call that is new it is *parked*, and that call is a generator which the scheduler drives,
fault by fault. So between any two effects of one process everything else may happen, a process can be left
for as long as one likes, and killing it is forgetting it. The code has to be deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from kpsplit.errors import KpsplitError

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
        """Tell whether a step would do anything."""
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
