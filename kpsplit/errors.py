"""Errors of kpsplit: what happened, whether anything changed, and the next step.

Each class carries the exit code of the command line, so that one place (``admin_cli.main``) turns any of
them into one line on stderr. Nothing in a message may be a secret or the content of a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CHECK = 3
EXIT_TIMEOUT = 4
EXIT_CONFLICT = 5


class KpsplitError(Exception):
    """Base of all errors that kpsplit raises.

    Args:
        message: what happened, in one line.
        hint: the next step for the reader, in one line.
        changed: whether anything was changed before the error (None: not known, it must be read back).
        retriable: whether the same call may succeed later without anybody doing anything; None: as is usual
            for the class.
    """

    exit_code = EXIT_FAILED
    retriable: bool = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        changed: bool | None = False,
        retriable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.changed = changed
        if retriable is not None:
            self.retriable = retriable

    def __str__(self) -> str:
        """Return the message with its hint, in one line."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


@contextmanager
def after_a_change(hint: str | None = None, *, done: bool | None = True) -> Iterator[None]:
    """Have the errors of a block say that something was changed before it: that stays.

    Args:
        hint: the next step then; None: the error's own.
        done: whether something was changed; None: not known.
    """
    try:
        yield
    except KpsplitError as error:
        error.changed = done if error.changed is False else error.changed
        if done:
            error.hint = hint or error.hint
        raise


class UsageError(KpsplitError):
    """The input is wrong: a name, a number, a setting. Nothing was changed."""

    exit_code = EXIT_USAGE


class ConfigurationError(UsageError):
    """A setting is missing, malformed, or contradicts what kpsplit needs."""


class CheckFailedError(KpsplitError):
    """A check ran and its answer is no."""

    exit_code = EXIT_CHECK


class NotJudgedError(KpsplitError):
    """What was to be proven could not be judged; the message says why."""


class DeadlineExceededError(KpsplitError):
    """The time given for a call ran out."""

    exit_code = EXIT_TIMEOUT
    retriable = True


class ConflictError(KpsplitError):
    """Somebody else holds the operation, or the state is not the one the call was made for."""

    exit_code = EXIT_CONFLICT


class FencedError(ConflictError):
    """A newer operator claimed the operation, or the group went on without the member: this one must stop."""


class RecordError(KpsplitError):
    """A record of kpsplit's own topics cannot be read: malformed, oversized or garbage."""


class FutureVersionError(RecordError):
    """A record was written by a newer version of kpsplit: reading on would be guessing."""


class InvariantError(KpsplitError):
    """The state contradicts an invariant of the protocol; nothing is done on such a state."""


class UnknownOutcomeError(KpsplitError):
    """A write was sent and its outcome is not known: it must be read back, never repeated blindly."""

    retriable = True

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, changed=None)


class UnreachableError(KpsplitError):
    """The brokers cannot be reached, or a topic has no leader."""

    retriable = True


class AuthorizationError(KpsplitError):
    """A right is missing; the message names it."""


def many(number: int, noun: str) -> str:
    """Return ``1 record``, ``2,000 records``."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_FEW_SECONDS = 10.0


def duration(seconds: float) -> str:
    """Return ``12 ms``, ``3.4 s``, ``2 min 5 s``, ``1 h 4 min`` or ``3 d 2 h``."""
    if seconds < 1.0:
        return f"{seconds * 1000:.0f} ms"
    for (big, name), (small, small_name) in pairwise(_UNITS):
        if seconds >= big:
            whole, rest = divmod(seconds, big)
            less = int(rest // small)
            return f"{whole:.0f} {name} {less} {small_name}" if less else f"{whole:.0f} {name}"
    return f"{seconds:.1f} s" if seconds < _FEW_SECONDS else f"{seconds:.0f} s"
