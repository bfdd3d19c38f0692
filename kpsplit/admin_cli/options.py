"""Options of more than one verb.

The global ones are usable before and after the verb, and from the environment (``KPSPLIT_*``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from kpsplit.admin_cli.param_types import DURATION, NAME, PROPERTY
from kpsplit.errors import ConfigurationError
from kpsplit.kafka.connection import LINE_END

TABLE, JSON = "table", "json"
DEFAULT_TIMEOUT = 60.0
PROPERTIES_VARIABLE = "KPSPLIT_PROPERTIES"

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Take = Callable[[click.Context, click.Parameter, Any], None]


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

    def __init__(self, *names: str, callback: Take = _take, **attributes: Any) -> None:
        super().__init__(names, callback=callback, expose_value=False, **attributes)


GLOBAL_OPTIONS = (
    GlobalOption("-b", "--bootstrap-server", metavar="HOST:PORT,…", help="Brokers to connect to first."),
    GlobalOption(
        "--command-config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="File with connection settings, one key=value per line: librdkafka's names, or Java's.",
    ),
    GlobalOption(
        *("-X", "--property", "properties"),
        metavar="KEY=VALUE",
        type=PROPERTY,
        multiple=True,
        help="One librdkafka property. May be repeated; wins over the file.",
        allow_from_autoenv=False,
        callback=_take_properties,
    ),
    GlobalOption(
        *("-o", "--output"),
        type=click.Choice([TABLE, JSON]),
        help="Format of the data on stdout.  [default: table]",
    ),
    GlobalOption(
        "--timeout",
        metavar="DURATION",
        type=DURATION,
        help="Time limit, e.g. 90s. split and merge use it twice: to plan, and to run.  [default: 60s]",
    ),
    GlobalOption(
        *("-v", "--verbose"),
        count=True,
        help="More messages on stderr; -vv adds tracebacks and the client's log.",
    ),
)

max_pause_option = click.option(
    "--max-pause",
    type=DURATION,
    default="10s",
    show_default=True,
    help="Roll back if writers of the partition would pause longer than this.",
)
force_option = click.option("--force", is_flag=True, help="Ignore failed checks that allow it.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask. Required without a terminal.")
group_option = click.option("--group", type=NAME, metavar="NAME", required=True, help="The consumer group.")
plan_option = click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Run this saved plan. Refused if the layout has changed since.",
)

MOST_CORES = 1024
_SIZE = re.compile(r"[1-9][0-9]{0,5}[mg]")


def spark_size_options(function: Decorated) -> Decorated:
    """Give a command --master, --cores and --memory."""
    memory = click.option(
        "--memory", default="1g", show_default=True, metavar="SIZE", help="Heap of Spark's JVM."
    )
    cores = click.option(
        "--cores", type=click.IntRange(1, MOST_CORES), metavar="N", help="Threads for Spark.  [default: all]"
    )
    master = click.option(
        "--master",
        metavar="URL",
        help="Spark master: spark://host:7077, yarn, k8s://…; not with --cores.  [default: local[*]]",
    )
    return master(cores(memory(function)))


def require_spark(memory: str, cores: int | None, master: str | None) -> None:
    """Raise unless Spark can be started with so much memory, so many threads, or on that master.

    Raises:
        UsageError: there is no PySpark, that is no size of memory or no master, or two things contradict.
        UnreachableError: the master does not answer.
    """
    if cores is not None and master is not None:
        raise ConfigurationError("--cores and --master cannot be used together", hint="leave one of them out")
    if find_spec("pyspark") is None:
        raise ConfigurationError("this needs PySpark", hint="run: pip install 'kpsplit[spark]'")
    if not _SIZE.fullmatch(memory):
        raise ConfigurationError(f"{memory[:20]!r} is not a memory size", hint="write for example 512m or 2g")
    if master is not None:
        from kpsplit.spark_jobs.session import check_master

        check_master(master)
