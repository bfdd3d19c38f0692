"""The global options: usable before and after the verb, and from the environment (``KPSPLIT_*``)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from kpsplit.admin_cli.param_types import DURATION, PROPERTY
from kpsplit.kafka.connection import LINE_END

TABLE, JSON = "table", "json"
DEFAULT_TIMEOUT = 60.0
PROPERTIES_VARIABLE = "KPSPLIT_PROPERTIES"

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass
class Given:
    """The values of the global options. After the verb overrides before it; ``-X`` and ``-v`` add up."""

    bootstrap_server: str | None = None
    command_config: Path | None = None
    properties: dict[str, str] = field(default_factory=dict)
    output: str = TABLE
    timeout: float = DEFAULT_TIMEOUT
    verbose: int = 0
    verb: str | None = None

    @property
    def as_json(self) -> bool:
        """Return whether data is printed as JSON."""
        return self.output == JSON


def given_in(ctx: click.Context) -> Given:
    """Return what the global options said, one object for the whole call."""
    root = ctx.find_root()
    if not isinstance(root.obj, Given):
        root.obj = Given()
    return root.obj


def _take(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    source = ctx.get_parameter_source(param.name or "")
    if source not in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT) or param.name is None:
        return
    given = given_in(ctx)
    if param.name == "verbose":
        given.verbose += value
    else:
        setattr(given, param.name, value)


def _take_properties(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Take properties; -X overrides those of the environment, which has one a line."""
    given = given_in(ctx)
    if ctx.parent is None:
        lines = LINE_END.split(os.environ.get(PROPERTIES_VARIABLE, ""))
        given.properties.update(PROPERTY.convert(line, param, ctx) for line in lines if line.strip())
    given.properties.update(value)


class GlobalOption(click.Option):
    """An option of every verb; the help of a verb lists them after its own."""


class VerbCommand(click.Command):
    """A command whose help has a section of its own for the global options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verb's own options, then the global ones."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        shared = [p for p in options if isinstance(p, GlobalOption)]
        own = [p for p in options if not isinstance(p, GlobalOption)]
        for title, params in (("Options", own), ("Global options", shared)):
            rows = [row for p in params if (row := p.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


_OPTIONS = (
    click.option(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT,…",
        help="Brokers to connect to first.",
        callback=_take,
        expose_value=False,
        cls=GlobalOption,
    ),
    click.option(
        "--command-config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="File with connection settings, one key=value per line: librdkafka's names, or Java's.",
        callback=_take,
        expose_value=False,
        cls=GlobalOption,
    ),
    click.option(
        "-X",
        "--property",
        "properties",
        metavar="KEY=VALUE",
        type=PROPERTY,
        multiple=True,
        help="One librdkafka property. May be repeated; wins over the file.",
        allow_from_autoenv=False,
        callback=_take_properties,
        expose_value=False,
        cls=GlobalOption,
    ),
    click.option(
        "-o",
        "--output",
        type=click.Choice([TABLE, JSON]),
        help="Format of the data on stdout.  [default: table]",
        callback=_take,
        expose_value=False,
        cls=GlobalOption,
    ),
    click.option(
        "--timeout",
        metavar="DURATION",
        type=DURATION,
        help="Time limit, e.g. 90s. split and merge use it twice: to plan, and to run.  [default: 60s]",
        callback=_take,
        expose_value=False,
        cls=GlobalOption,
    ),
    click.option(
        "-v",
        "--verbose",
        count=True,
        help="More messages on stderr; -vv adds tracebacks and the client's log.",
        callback=_take,
        expose_value=False,
        cls=GlobalOption,
    ),
)


def global_options(function: Decorated) -> Decorated:
    """Give a command the global options."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
