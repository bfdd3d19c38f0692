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
