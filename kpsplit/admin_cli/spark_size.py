"""What the verbs that start Spark in this process share: how large it may be, and whether it is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import click

from kpsplit.errors import ConfigurationError

MOST_CORES = 1024
_SIZE = re.compile(r"[1-9][0-9]{0,5}[mg]")

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def spark_size_options(function: Decorated) -> Decorated:
    """Give a command --cores and --memory."""
    memory = click.option(
        "--memory", default="1g", show_default=True, metavar="SIZE", help="Heap of Spark's JVM."
    )
    cores = click.option(
        "--cores", type=click.IntRange(1, MOST_CORES), metavar="N", help="Threads of Spark.  [default: all]"
    )
    return cores(memory(function))


def require_spark(memory: str) -> None:
    """Do nothing if Spark can be started with so much memory.

    Raises:
        ConfigurationError: PySpark is not installed, or that is no size of memory.
    """
    if find_spec("pyspark") is None:
        raise ConfigurationError("this needs PySpark", hint="run: pip install 'kpsplit[spark]'")
    if not _SIZE.fullmatch(memory):
        raise ConfigurationError(f"{memory[:20]!r} is no size of memory", hint="write for example 512m or 2g")
