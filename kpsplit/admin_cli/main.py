"""Where the command line begins and ends: one root group, one place that turns errors into exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import shell_complete

from kpsplit import __version__
from kpsplit.admin_cli.failures import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    Interrupted,
    exit_code_of,
    line_of,
    traceback_of,
)
from kpsplit.admin_cli.given import Given, given_in, global_options
from kpsplit.admin_cli.interrupts import Interrupts, is_interrupt
from kpsplit.admin_cli.settings import redactor_for
from kpsplit.admin_cli.verbs import LazyGroup
from kpsplit.errors import EXIT_OK, EXIT_USAGE

PROGRAM = "kpsplit"
ENVIRONMENT = "KPSPLIT"
COMPLETE_VARIABLE = "_KPSPLIT_COMPLETE"
_TRACEBACKS = 2

_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Root(LazyGroup):
    """The root group. Its ``main`` always ends with SystemExit, so tests see what users see."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and exit with its code."""
        raise SystemExit(run(self, list(sys.argv[1:] if args is None else args), extra))


@click.group(cls=Root, name=PROGRAM, context_settings=_CONTEXT, no_args_is_help=True)
@global_options
@click.version_option(__version__, "-V", "--version", prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Split and merge live Kafka partitions by key range.

    A hot partition, TOPIC/P, is split by key range while producers and consumers keep running, and merged
    back later. Ranges are written LO:HI in hexadecimal. Options may stand before or after the verb; each one
    can also come from the environment, e.g. KPSPLIT_BOOTSTRAP_SERVER.
    """
    given = given_in(ctx)
    cluster_defaults = {verb: {"output": given.output} for verb in ("up", "status", "down")}
    ctx.default_map = {"cluster": cluster_defaults}


def main() -> int:
    """Run ``kpsplit`` with the process's arguments; return the exit code."""
    return run(cli, sys.argv[1:])


def run(command: click.Command, args: list[str], extra: MutableMapping[str, Any] | None = None) -> int:
    """Run a command line; print at most one line of error; return the exit code."""
    instruction = os.environ.get(COMPLETE_VARIABLE)
    if instruction:
        return shell_complete(command, {}, PROGRAM, COMPLETE_VARIABLE, instruction)
    _open_what_is_closed()
    _never_fail_on_a_character()
    # Ours, not click's context: what the options said is needed after click has torn its context down.
    settings = {"auto_envvar_prefix": ENVIRONMENT, "obj": Given(), **(extra or {})}
    given = settings["obj"]
    with Interrupts() as interrupts:
        try:
            code = _invoke(command, args, settings)
            sys.stdout.flush()  # here, where a reader that is gone becomes an exit code
            return code
        except BrokenPipeError:
            _drop_stdout()
            return EXIT_BROKEN_PIPE
        except (KeyboardInterrupt, click.Abort, EOFError):
            return _interrupted(Interrupted(), interrupts)
        except Interrupted as error:
            return _interrupted(error, interrupts)
        except Exception as error:  # noqa: BLE001 - the last resort: no traceback ever reaches a user
            if is_interrupt(error):
                return _interrupted(Interrupted(), interrupts)
            return _fail(error, given, args)


def _invoke(command: click.Command, args: list[str], settings: dict[str, Any]) -> int:
    try:
        with command.make_context(PROGRAM, list(args), **settings) as ctx:
            command.invoke(ctx)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_USAGE
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return EXIT_OK


def _fail(error: Exception, given: Given, args: Sequence[str]) -> int:
    redact = redactor_for(given, args)
    error = _translated(error)
    if given.verbose >= _TRACEBACKS:
        _say(redact(traceback_of(error)))
    _say(redact(line_of(error, given.verb)))
    return exit_code_of(error)


def _translated(error: Exception) -> Exception:
    """Return kpsplit's error for one of the client library that was not translated before."""
    library = sys.modules.get("confluent_kafka")
    if library is None or not isinstance(error, library.KafkaException):
        return error
    from kpsplit.kafka.error_map import error_of, translate

    translated = translate(error_of(error), "talk to the brokers")
    translated.__cause__ = error
    return translated


def _interrupted(error: Interrupted, interrupts: Interrupts) -> int:
    outcome = f"; {error.outcome}" if error.outcome else ""
    _say(f"kpsplit: interrupted{outcome}")
    return EXIT_TERMINATED if interrupts.terminated else EXIT_INTERRUPTED


def _say(text: str) -> None:
    """Write to stderr, if it is still there."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def _open_what_is_closed() -> None:
    """Replace a stream that was closed before the start (``>&-``) by the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - stays open


def _never_fail_on_a_character() -> None:
    """A terminal that cannot show a character gets its escaped form."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_stdout() -> None:
    """The reader of stdout is gone: let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
