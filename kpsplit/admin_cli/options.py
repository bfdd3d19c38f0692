"""Types of arguments and options, and the options of more than one verb.

What a type refuses becomes a usage error. The global options are usable before and after the verb, and from
the environment (``KPSPLIT_*``).
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from kpsplit.clock import wall_ms
from kpsplit.errors import ConfigurationError, UsageError
from kpsplit.kafka.connection import LINE_END
from kpsplit.splitter.key_range import MAX_RANGES, MIN_RANGES, KeyRange
from kpsplit.splitter.lineage import MAX_OFFSET
from kpsplit.splitter.records.keys import MAX_PARTITION, is_topic_name, parse_partition
from kpsplit.splitter.records.strict_json import is_unicode

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 24 * 3600.0


if TYPE_CHECKING:
    _Base = click.ParamType[Any, Any]
else:
    _Base = click.ParamType  # not generic in older versions of click


def is_sendable(text: str) -> bool:
    """Return whether the client library takes a text unchanged: valid characters, and no NUL."""
    return "\0" not in text and is_unicode(text)


class Reads(_Base):
    """A type of text that ``read`` turns into a value; what it refuses by a UsageError, click reports."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self.read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the text that was given, or pass a value on that was read before."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


def _topic(text: str) -> str:
    if not is_topic_name(text):
        raise UsageError(f"{text[:300]!r} is not the name of a topic", hint="write TOPIC, e.g. orders")
    return text


def _topic_or_partition(text: str) -> tuple[str, int | None]:
    if "/" in text:
        parent = parse_partition(text)
        return parent.topic, parent.partition
    return _topic(text), None


def _ranges(text: str) -> tuple[KeyRange, ...]:
    return tuple(KeyRange.parse(part) for part in text.split(","))


def _seconds(text: str) -> float | None:
    """Read a duration above zero, in seconds, as plain numbers are; None: it is none."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    return seconds if seconds > 0 else None


def _duration(text: str, longest: str = "write at most 24h") -> float:
    """Read a duration of at most a day; ``longest``: what to do about a longer one."""
    seconds = _seconds(text)
    if seconds is None:
        raise UsageError(f"{text[:40]!r} is not a duration", hint="write for example 250ms, 10s or 2m")
    if seconds > _LONGEST:
        raise UsageError(f"{text[:40]!r} is longer than a day", hint=longest)
    return seconds


def _pause(text: str) -> float:
    """Read a duration for which writers may pause."""
    from kpsplit.control.operations import LONGEST_PAUSE_MS

    seconds = _seconds(text)
    if seconds is not None and not 1 <= seconds * 1000 <= LONGEST_PAUSE_MS:
        bounds = f"write 1ms to {LONGEST_PAUSE_MS // 60_000}m"
        raise UsageError(f"a pause of {text[:40]!r} is out of bounds", hint=bounds)
    return _duration(text)


def moment(text: str) -> int | None:
    """Return a time in ms since 1970, None if the text is no time. Raises UsageError: it has no time zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        raise UsageError(f"{text[:60]!r} has no time zone", hint=f"write for example {at.isoformat()}Z")
    return round(at.timestamp() * 1000)


def _since(text: str) -> int:
    """Read a time with its zone, or a duration before now."""
    at = moment(text)
    if at is not None:
        return max(0, at)
    if _seconds(text) is None:
        raise UsageError(f"{text[:60]!r} is not a time", hint="write 2026-03-01T12:00:00Z, or 6h")
    age = _duration(text, "write the time instead, for example 2026-03-01T12:00:00Z")
    return wall_ms() - round(age * 1000)


def _name(text: str) -> str:
    if not is_sendable(text):
        raise UsageError(f"{text[:60]!r} is not UTF-8 text", hint="check the terminal's encoding")
    return text


def _printable(text: str) -> str:
    if not text:
        raise UsageError("the name is empty")
    if not text.isprintable():
        raise UsageError(f"{text[:60]!r} has characters that cannot be printed")
    return text


def _property(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():  # the text is not shown: it may be a secret
        raise UsageError("not a key=value pair", hint="write for example -X security.protocol=SSL")
    return key.strip(), value


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise UsageError("this is not base64") from None


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise UsageError("this is not hexadecimal") from None


PARTITION = Reads("topic/p", parse_partition)
TOPIC = Reads("topic", _topic)
TOPIC_OR_PARTITION = Reads("topic[/p]", _topic_or_partition)
KEY_RANGE = Reads("lo:hi", KeyRange.parse)
KEY_RANGES = Reads("lo:hi[,lo:hi…]", _ranges)
BASE64 = Reads("base64", _base64)
HEX = Reads("hex", _hex)
DURATION = Reads("duration", _duration)
PAUSE = Reads("duration", _pause)
SINCE = Reads("time", _since)
"""Ms since 1970."""
NAME = Reads("name", _name)
"""A name that Kafka may hold."""
PRINTABLE = Reads("name", _printable)
"""A name that is printed as a part of a command, exactly as it is."""
PROPERTY = Reads("key=value", _property)
RANGES = click.IntRange(MIN_RANGES, MAX_RANGES)
OFFSET = click.IntRange(0, MAX_OFFSET)
COUNT = click.IntRange(1, MAX_OFFSET)
PARTITION_NUMBER = click.IntRange(0, MAX_PARTITION)


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
    others: list[Mapping[str, str]] = field(default_factory=list)
    """Settings that the verb has read itself: what is secret in them must not be shown either."""
    changing: bool = False
    """Whether the verb has begun what changes something: what ends it from now on may come after a change."""
    typed: dict[str, Any] = field(default_factory=dict)
    """What of all this stands on the command line, not in the environment."""


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
        return
    setattr(given, param.name, value)
    if source is ParameterSource.COMMANDLINE:
        given.typed[param.name] = value


def _take_properties(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Take properties; -X overrides those of the environment, which has one a line."""
    given = given_in(ctx)
    if ctx.parent is None:
        lines = LINE_END.split(os.environ.get(PROPERTIES_VARIABLE, ""))
        given.properties.update(PROPERTY.convert(line, param, ctx) for line in lines if line.strip())
    given.properties.update(value)
    given.typed.setdefault("properties", {}).update(value)


class GlobalOption(click.Option):
    """An option of every verb; the help of a verb lists them after its own."""

    def __init__(self, *names: str, callback: Take = _take, **attributes: Any) -> None:
        super().__init__(names, callback=callback, expose_value=False, **attributes)


CONNECTION_OPTIONS = (
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
)
OUTPUT_OPTION = GlobalOption(
    *("-o", "--output"),
    type=click.Choice([TABLE, JSON]),
    help="Format of the data on stdout.  [default: table]",
)
GLOBAL_OPTIONS = (
    *CONNECTION_OPTIONS,
    OUTPUT_OPTION,
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
    type=PAUSE,
    default="10s",
    show_default=True,
    help="Roll back if writers of the partition would pause longer than this (at most 10m).",
)
force_option = click.option("--force", is_flag=True, help="Ignore failed checks that allow it.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask. Required without a terminal.")
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

    Raises UsageError: there is no PySpark, that is no size of memory or no master, or two things contradict;
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
