"""Where the command line begins and ends: one root group, one place that turns errors into exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import click
from click.shell_completion import shell_complete

from kpsplit import __version__
from kpsplit.admin_cli.failures import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    PERHAPS,
    UNCHANGED,
    Interrupted,
    Interrupts,
    exit_code_of,
    is_interrupt,
    line_of,
)
from kpsplit.admin_cli.options import GLOBAL_OPTIONS, Given, given_in
from kpsplit.admin_cli.settings import redactor_for
from kpsplit.errors import EXIT_OK, EXIT_USAGE

PROGRAM = "kpsplit"
ENVIRONMENT = "KPSPLIT"
COMPLETE_VARIABLE = "_KPSPLIT_COMPLETE"
_TRACEBACKS = 2

_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb and its line in the help. ``changes``: it changes the cluster, so its errors say what it did."""

    name: str
    help: str
    section: str
    changes: bool = False


SET_UP, OPERATE, LOOK, TRY = "Set up", "Split and merge", "Look", "Try out"

VERBS = (
    Verb("init", "Create kpsplit's own topics.", SET_UP, True),
    Verb("enroll", "Make a topic's partitions splittable.", SET_UP, True),
    Verb("unenroll", "Lead a topic back to plain clients.", SET_UP, True),
    Verb("doctor", "Check the cluster and everything that kpsplit owns.", SET_UP),
    Verb("completion", "Print a completion script for a shell.", SET_UP),
    Verb("plan", "Show what a split or merge would do.", OPERATE),
    Verb("split", "Split a partition, or one of its ranges, by key range.", OPERATE, True),
    Verb("merge", "Merge ranges, or all of them back into the partition.", OPERATE, True),
    Verb("resume", "Finish what a dead operator left.", OPERATE, True),
    Verb("abort", "Roll back the operation under way.", OPERATE, True),
    Verb("retire", "Delete sub-topics that every group has drained.", OPERATE, True),
    Verb("seek", "Move a consumer group, or one of its key ranges.", OPERATE, True),
    Verb("forget", "Remove what a consumer group has committed.", OPERATE, True),
    Verb("status", "Show phases, ranges, log ends and writers.", LOOK),
    Verb("lineage", "Show all segments of a partition.", LOOK),
    Verb("offsets", "Show how far consumer groups have come.", LOOK),
    Verb("route", "Show where a key goes.", LOOK),
    Verb("acls", "Print the least rights that a client of a topic needs.", LOOK),
    Verb("read", "Print a partition's records in lineage order.", LOOK),
    Verb("verify", "Prove that no record was lost, repeated or put out of order.", LOOK),
    Verb("cluster", "Run a Kafka cluster on this machine, without Docker.", TRY),
    Verb("demo", "Split and merge under load and check every record.", TRY),
)
"""In the order of ``kpsplit --help``."""

BY_NAME = {verb.name: verb for verb in VERBS}


def load(verb: Verb) -> click.Command:
    """Import a verb's command. Raises click.UsageError: what it needs is not installed."""
    try:
        command = import_module(f"kpsplit.admin_cli.commands.{verb.name}").command
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("kpsplit."):
            raise  # a bug of ours, and nothing that could be installed
        raise click.UsageError(
            f"{verb.name} needs the module {error.name}; install it with: pip install 'kpsplit[demo]'"
        ) from error
    return cast("click.Command", command)


class Root(click.Group):
    """The group of all verbs. ``kpsplit --help`` imports none of them.

    Its ``main`` always ends with SystemExit, so tests see what users see.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb.name for verb in VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = BY_NAME.get(cmd_name)
        return None if verb is None else load(verb)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument; suggest a verb for a misspelt one.

        ``help VERB`` is taken for the option that it stands for.
        """
        if args == ["help"]:
            click.echo(ctx.get_help())
            ctx.exit()
        if args[0] == "help":  # as options: a verb named help would need every other verb's module
            args = [*args[1:], "--help"]
        name = args[0]
        if name not in BY_NAME and not name.startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(name, BY_NAME, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        given_in(ctx).verb = name
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, verbs in groupby(VERBS, key=lambda verb: verb.section):
            with formatter.section(section):
                formatter.write_dl([(verb.name, verb.help) for verb in verbs])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        raise SystemExit(run(self, list(sys.argv[1:] if args is None else args), extra))


@click.group(PROGRAM, cls=Root, params=list(GLOBAL_OPTIONS), context_settings=_CONTEXT, no_args_is_help=True)
@click.version_option(__version__, "-V", "--version", prog_name=PROGRAM, message="%(prog)s %(version)s")
def cli() -> None:
    """Split and merge live Kafka partitions by key range.

    A hot partition, TOPIC/P, is split by key range while producers and consumers keep running, and merged
    back later. Ranges are written LO:HI in hexadecimal. Options may stand before or after the verb; each one
    can also come from the environment, e.g. KPSPLIT_BOOTSTRAP_SERVER.
    """


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
            return _interrupted(Interrupted(), interrupts, given)
        except Interrupted as error:
            return _interrupted(error, interrupts, given)
        except Exception as error:  # noqa: BLE001 - the last resort: no traceback ever reaches a user
            if is_interrupt(error):
                return _interrupted(Interrupted(), interrupts, given)
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
    error = _translated(error, given)
    if given.verbose >= _TRACEBACKS:
        _say(redact("".join(traceback.format_exception(error))))
    _say(redact(line_of(error, given.verb, changes=_changes(given))))
    return exit_code_of(error)


def _changes(given: Given) -> bool:
    verb = BY_NAME.get(given.verb or "")
    return given.changing or (verb is not None and verb.changes)


def _translated(error: Exception, given: Given) -> Exception:
    """Return kpsplit's error for one of the client library that was not translated before."""
    library = sys.modules.get("confluent_kafka")
    if library is None or not isinstance(error, library.KafkaException):
        return error
    from kpsplit.kafka.error_map import error_of, translate

    translated = translate(error_of(error), "talk to the brokers")
    translated.__cause__ = error
    if given.changing:  # nobody who knows how far the verb was has seen this error
        translated.changed = None
    return translated


def _interrupted(error: Interrupted, interrupts: Interrupts, given: Given) -> int:
    outcome = error.outcome or (PERHAPS if given.changing else UNCHANGED if _changes(given) else "")
    _say(f"kpsplit: interrupted{outcome and f'; {outcome}'}")
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
