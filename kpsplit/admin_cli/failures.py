"""Any error becomes exactly one line on stderr and an exit code; an interruption rolls an operation back.

Ctrl-C, SIGTERM and a closed terminal: the first rolls the operation back, later ones do not disturb that.
Python raises KeyboardInterrupt wherever the main thread happens to be. Inside a call of the client library's
C code it can become a SystemError, or be lost. ``is_interrupt`` knows the former; code that reports progress
calls ``raise_if_lost`` for the latter.
"""

from __future__ import annotations

import re
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Self

import click

from kpsplit.admin_cli.render.text import one_line, shorten
from kpsplit.errors import (
    EXIT_FAILED,
    DeadlineExceededError,
    FencedError,
    KpsplitError,
    UnknownOutcomeError,
    UnreachableError,
)

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
EXIT_BROKEN_PIPE = 141

_LONGEST_PART = 2000
"""What was typed may be part of a message, and of any length."""

UNCHANGED = "nothing was changed"
PERHAPS = "part of it may have taken effect; see: kpsplit status, kpsplit offsets"
_CHANGED = {False: UNCHANGED, True: "something was changed", None: "it is not known whether it took effect"}


class Declined(Exception):  # noqa: N818 - an answer, not an error
    """The user answered no."""


class Interrupted(Exception):  # noqa: N818 - the user's wish
    """Ctrl-C or SIGTERM; ``outcome`` says what became of the operation, if there was one."""

    def __init__(self, outcome: str = "") -> None:
        super().__init__(outcome)
        self.outcome = outcome


def line_of(error: BaseException, verb: str | None, *, changes: bool = False) -> str:
    """Return the one line for an error, not yet redacted; ``changes``: the verb changes something."""
    parts = [
        shorten(part.strip().rstrip("."), _LONGEST_PART)
        for part in _parts(error, verb, changes)
        if part.strip()
    ]
    return one_line(f"kpsplit: error: {'; '.join(parts)}")


def exit_code_of(error: BaseException) -> int:
    return getattr(error, "exit_code", EXIT_FAILED)  # as kpsplit's own errors, click's have one


def _parts(error: BaseException, verb: str | None, changes: bool) -> list[str]:
    match error:
        case KpsplitError():
            return [
                error.message,
                _CHANGED[error.changed] if changes else "",
                error.hint or _usual_hint(error),
            ]
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else f"kpsplit {verb or ''}".strip()
            return [_usage_message(error), f"see: {path} --help"]
        case click.ClickException():
            return [error.format_message()]
        case Declined():  # exit code 1: a script must see that nothing was done
            return ["not confirmed", UNCHANGED]
        case OSError():
            return [f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"]
        case _:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return [f"this is a bug in kpsplit ({what})", "run it again with -vv and report the traceback"]


def _usual_hint(error: KpsplitError) -> str:
    match error:
        case DeadlineExceededError():
            return "pass a longer --timeout, or for a pause of writers a longer --max-pause"
        case UnknownOutcomeError() | FencedError():
            return "see: kpsplit status"
        case UnreachableError():
            return "check the brokers, then retry"
        case _:
            return ""


def _usage_message(error: click.UsageError) -> str:
    text = error.format_message()
    return re.sub(r"\.(?=\s|$)", "", text) if text.count(". ") == 0 else text


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LET_PASS = frozenset({"Claim", "Abort", "LeftOver", "Commit", "SealSubTopics", "Finish"})
"""The steps of rolling back, which follow an interruption that was not lost, and those from the commit on:
what has taken effect is best finished."""


class Interrupts:
    """For the main thread: the first signal raises KeyboardInterrupt, later ones print why they do not.

    Signals that were ignored when the process started stay ignored.
    """

    def __init__(self) -> None:
        self.terminated = False
        self.count = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        _entered.append(self)
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup, or a job that a script started in the background
            try:
                self._before[number] = signal.signal(number, self._arrived)
            except ValueError:
                break  # not the main thread: tests
        return self

    def __exit__(self, *_: object) -> None:
        _entered.remove(self)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        # Only the first: another exception in the middle of the roll-back would leave the fence up.
        if self.count == 1:
            self.terminated = number != signal.SIGINT
            raise KeyboardInterrupt
        with suppress(OSError, RuntimeError):
            sys.stderr.write(
                "kpsplit: interrupted already, still ending: wait. After SIGKILL a producer rolls back an "
                "operation that is under way\n"
            )


_entered: list[Interrupts] = []


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is an interruption, also where C code has made another error of it."""
    if isinstance(error, KeyboardInterrupt):
        return True
    return isinstance(error, SystemError) and isinstance(error.__cause__, KeyboardInterrupt)


def raise_if_lost(step: str) -> None:
    """Raise KeyboardInterrupt again if an operation that can still be rolled back goes on all the same."""
    if step not in _LET_PASS and any(entered.count for entered in _entered):
        raise KeyboardInterrupt
