"""Any error becomes exactly one line on stderr and an exit code. Nothing else here prints errors."""

from __future__ import annotations

import re
import traceback

import click

from kpsplit.admin_cli.render.text import one_line, shorten
from kpsplit.admin_cli.verbs import BY_NAME
from kpsplit.errors import (
    EXIT_FAILED,
    EXIT_USAGE,
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
_CHANGED = {False: UNCHANGED, True: "something was changed", None: "it is not known whether it took effect"}


class Declined(Exception):  # noqa: N818 - an answer, not an error
    """The user answered no."""


class Interrupted(Exception):  # noqa: N818 - the user's wish
    """Ctrl-C or SIGTERM; ``outcome`` says what became of the operation, if there was one."""

    def __init__(self, outcome: str = "") -> None:
        super().__init__(outcome)
        self.outcome = outcome


def line_of(error: BaseException, verb: str | None) -> str:
    """Return the one line for an error, not yet redacted."""
    parts = [shorten(part.strip().rstrip("."), _LONGEST_PART) for part in _parts(error, verb) if part.strip()]
    return one_line(f"kpsplit: error: {'; '.join(parts)}")


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error."""
    match error:
        case KpsplitError():
            return error.exit_code
        case click.UsageError():
            return EXIT_USAGE
        case _:
            return EXIT_FAILED


def traceback_of(error: BaseException) -> str:
    """Return the whole traceback, for -vv."""
    return "".join(traceback.format_exception(error))


def _parts(error: BaseException, verb: str | None) -> list[str]:
    match error:
        case KpsplitError():
            return [error.message, _whether_changed(error, verb), error.hint or _usual_hint(error)]
        case click.UsageError():
            return [_usage_message(error), f"see: {_help_command(error, verb)}"]
        case click.ClickException():
            return [error.format_message()]
        case Declined():  # exit code 1: a script must see that nothing was done
            return ["not confirmed", UNCHANGED]
        case OSError():
            return [f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"]
        case _:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return [f"this is a bug in kpsplit ({what})", "run it again with -vv and report the traceback"]


def _whether_changed(error: KpsplitError, verb: str | None) -> str:
    known = BY_NAME.get(verb or "")
    return _CHANGED[error.changed] if known is not None and known.changes else ""


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


def _help_command(error: click.UsageError, verb: str | None) -> str:
    path = error.ctx.command_path if error.ctx else f"kpsplit {verb or ''}".strip()
    return f"{path} --help"
