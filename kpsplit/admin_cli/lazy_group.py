"""A click group that imports a verb's module only when the verb is used."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from itertools import groupby

import click

from kpsplit import __version__
from kpsplit.admin_cli.given import given_in
from kpsplit.admin_cli.verbs import BY_NAME, VERBS, Verb


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
        if args[0] == "help":
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
