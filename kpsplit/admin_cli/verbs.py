"""The verbs in the order of ``kpsplit --help``; a verb's module is imported when the verb is used."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from itertools import groupby

import click

from kpsplit import __version__
from kpsplit.admin_cli.given import given_in


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: where its click command is, and its line in the help (a test compares it with the command's).

    ``changes``: the verb changes something in the cluster, so its errors say whether it did.
    """

    name: str
    module: str
    help: str
    section: str
    changes: bool = False
    attribute: str = "command"


_COMMANDS = "kpsplit.admin_cli.commands"
SET_UP, OPERATE, LOOK, TRY = "Set up", "Split and merge", "Look", "Try out"

VERBS: tuple[Verb, ...] = (
    Verb("init", f"{_COMMANDS}.init", "Create kpsplit's own topics.", SET_UP, True),
    Verb("enroll", f"{_COMMANDS}.enroll", "Make a topic's partitions splittable.", SET_UP, True),
    Verb("doctor", f"{_COMMANDS}.doctor", "Check the cluster and everything that kpsplit owns.", SET_UP),
    Verb("completion", f"{_COMMANDS}.completion", "Print a completion script for a shell.", SET_UP),
    Verb("plan", f"{_COMMANDS}.plan", "Show what a split or merge would do.", OPERATE),
    Verb(
        "split", f"{_COMMANDS}.split", "Split a partition, or one of its ranges, by key range.", OPERATE, True
    ),
    Verb(
        "merge", f"{_COMMANDS}.merge", "Merge ranges, or all of them back into the partition.", OPERATE, True
    ),
    Verb("resume", f"{_COMMANDS}.resume", "Finish what a dead operator left.", OPERATE, True),
    Verb("abort", f"{_COMMANDS}.abort", "Roll back the operation under way.", OPERATE, True),
    Verb("retire", f"{_COMMANDS}.retire", "Delete sub-topics that every group has drained.", OPERATE, True),
    Verb("seek", f"{_COMMANDS}.seek", "Move a consumer group, or one of its key ranges.", OPERATE, True),
    Verb("forget", f"{_COMMANDS}.forget", "Remove what a consumer group has committed.", OPERATE, True),
    Verb("status", f"{_COMMANDS}.status", "Show phases, ranges, log ends and writers.", LOOK),
    Verb("lineage", f"{_COMMANDS}.lineage", "Show all segments of a partition.", LOOK),
    Verb("offsets", f"{_COMMANDS}.offsets", "Show how far a consumer group has come.", LOOK),
    Verb("route", f"{_COMMANDS}.route", "Show where a key goes.", LOOK),
    Verb("acls", f"{_COMMANDS}.acls", "Print the least rights that a client of a topic needs.", LOOK),
    Verb("read", f"{_COMMANDS}.read", "Print a partition's records in lineage order.", LOOK),
    Verb(
        "verify", f"{_COMMANDS}.verify", "Prove that no record was lost, repeated or put out of order.", LOOK
    ),
    Verb(
        "cluster",
        f"{_COMMANDS}.cluster",
        "Run a Kafka cluster on this machine, without Docker.",
        TRY,
        attribute="cluster",
    ),
    Verb(
        "demo",
        "kpsplit.demo.command",
        "Split and merge under load and check every record.",
        TRY,
        attribute="demo",
    ),
)

BY_NAME = {verb.name: verb for verb in VERBS}


class LazyGroup(click.Group):
    """The group of all verbs. ``kpsplit --help`` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the help."""
        return [verb.name for verb in VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a verb's command."""
        verb = BY_NAME.get(cmd_name)
        return None if verb is None else load(verb)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first argument; suggest a verb for a misspelt one.

        ``help VERB`` and ``version`` are taken for the options that they stand for.
        """
        if args[0] == "version":
            if args[1:]:
                raise click.UsageError("version takes no argument", ctx)
            click.echo(f"{ctx.info_name} {__version__}")
            ctx.exit()
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
        """Write the verbs in their sections."""
        for section, verbs in groupby(VERBS, key=lambda verb: verb.section):
            with formatter.section(section):
                formatter.write_dl([(verb.name, verb.help) for verb in verbs])


def load(verb: Verb) -> click.Command:
    """Import a verb's command.

    Raises:
        click.UsageError: what it needs is not installed.
    """
    try:
        module = import_module(verb.module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("kpsplit."):
            raise  # a bug of ours, and nothing that could be installed
        raise click.UsageError(
            f"{verb.name} needs the module {error.name}; install it with: pip install 'kpsplit[demo]'"
        ) from error
    command = getattr(module, verb.attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"{verb.module}.{verb.attribute} is no click command")
    return command
