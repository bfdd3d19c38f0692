"""What happens when a handler fails: try again with back-off, then stop, dead-letter or skip.

A policy never sleeps: it says for how long a lane rests, and the worker goes on with other lanes meanwhile.
Attempts and back-off are tenacity's; its strategies can be given as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import tenacity
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from kpsplit.consumer.run.handlers import place
from kpsplit.errors import ConfigurationError, KpsplitError


class HandlerError(KpsplitError):
    """A handler failed on a record and the policy is to stop. The cause is what the handler raised."""


@dataclass(frozen=True, slots=True)
class Stop:
    """``run()`` raises; nothing after the failing record of its lane is processed or committed."""


@dataclass(frozen=True, slots=True)
class Skip:
    """The record counts as processed and is counted as skipped."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The record goes to ``topic`` and counts as processed once it is acknowledged there.

    It keeps its key, value and headers. Headers of kpsplit's own tell the class of the error and the logical
    place; nothing else of the error, since its text may hold what must not spread.
    """

    topic: str


Final = Stop | Skip | DeadLetter
"""What happens when it is no use to try again."""


def _default_wait() -> wait_base:
    return tenacity.wait_exponential(multiplier=0.1, max=10.0) + tenacity.wait_random(0, 0.1)


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after a rest, for which the lane waits and no worker does; then do what ``then`` says.

    Args:
        attempts: how often the handler is called for a record, the first time included.
        wait: tenacity's strategy for the rests.
        on: the exceptions that are worth another attempt; others go to ``then`` at once.
        then: what happens after the last attempt.
        stop: tenacity's strategy for the end, instead of ``attempts`` (a time limit, for example).

    Raises:
        ConfigurationError: less than one attempt.
    """

    attempts: int = 5
    wait: wait_base = field(default_factory=_default_wait)
    on: type[Exception] | tuple[type[Exception], ...] = Exception
    then: Final = field(default_factory=Stop)
    stop: stop_base | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigurationError(f"Retry(attempts={self.attempts}): at least one attempt is needed")


Policy = Final | Retry
"""What ``run(on_error=...)`` takes."""


class RunOptions(TypedDict, total=False):
    """The keywords of ``Consumer.run``.

    Args:
        workers: how many records are worked on at once, each of another key range; 4.
        executor: ``thread``, or ``process``. An ``async`` handler runs in one event loop.
        on_error: what happens when the handler raises; ``Stop()``.
        transactional: the handler returns outputs, which are committed together with its records; False.
        commit_seconds: between commits; ``auto.commit.interval.ms``.
        drain_seconds: how long records that are being worked on may take when the run ends; 30.
    """

    workers: int
    executor: Literal["thread", "process"]
    on_error: Policy | None
    transactional: bool
    commit_seconds: float | None
    drain_seconds: float


@dataclass(frozen=True, slots=True)
class Rest:
    """The record is to be tried again after so many seconds."""

    seconds: float


class Judge:
    """Decides after each failure of a record. Thread safe: the caller keeps what it remembers."""

    def __init__(self, policy: Policy) -> None:
        self.final: Final = policy.then if isinstance(policy, Retry) else policy
        self._retrying = _retrying(policy) if isinstance(policy, Retry) else None

    def failed(self, error: BaseException, memory: Any) -> tuple[Rest | Final, Any]:
        """Return what to do, and what to remember until the next failure of the same record.

        Args:
            error: what the handler raised. What is no ``Exception`` (an exit) always stops.
            memory: what was returned for the failure before this one, None for the first.
        """
        if not isinstance(error, Exception):
            return Stop(), None
        if self._retrying is None:
            return self.final, None
        state = memory or tenacity.RetryCallState(self._retrying, fn=None, args=(), kwargs={})
        state.set_exception((type(error), error, error.__traceback__))
        self._retrying.begin()  # its statistics are per thread, and each attempt may run in another one
        try:
            step = self._retrying.iter(state)
        except Exception as raised:
            if raised is not error:
                raise  # not "no more attempts": a strategy of the application's failed
            return self.final, None
        if not isinstance(step, tenacity.DoSleep):
            return self.final, None
        state.prepare_for_next_attempt()
        return Rest(float(step)), state


def _retrying(policy: Retry) -> tenacity.Retrying:
    return tenacity.Retrying(
        stop=policy.stop or tenacity.stop_after_attempt(policy.attempts),
        wait=policy.wait,
        retry=tenacity.retry_if_exception_type(policy.on),
        reraise=True,
    )


def stopped(message: Any, error: BaseException) -> HandlerError:
    """Return what ``run()`` raises; the message has the error's class and the logical place, no content."""
    return HandlerError(
        f"the handler failed on {place(message)}: {type(error).__name__}",
        hint="it was not committed; mend the handler, or give run() another on_error policy, and run again",
        changed=True,
    )


def check_policy(policy: Any) -> Policy:
    """Return a policy if it is one.

    Raises:
        ConfigurationError: it is not.
    """
    final = policy.then if isinstance(policy, Retry) else policy
    if not isinstance(final, Stop | Skip | DeadLetter):
        raise ConfigurationError(
            f"on_error={policy!r} is no policy", hint="give Retry(...), Stop(), Skip() or DeadLetter(topic)"
        )
    if isinstance(final, DeadLetter) and not final.topic:
        raise ConfigurationError("a dead-letter topic needs a name")
    return policy  # type: ignore[no-any-return]
