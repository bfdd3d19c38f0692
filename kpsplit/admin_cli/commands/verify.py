"""``kpsplit verify``."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kpsplit.admin_cli.call import Call, pass_call
from kpsplit.admin_cli.given import VerbCommand, global_options
from kpsplit.admin_cli.param_types import TOPIC_OR_PARTITION
from kpsplit.errors import CheckFailedError, ConfigurationError, KpsplitError

if TYPE_CHECKING:
    from rich.console import Console

    from kpsplit.spark_jobs import Verdict

_SIZE = re.compile(r"[1-9][0-9]{0,5}[mg]")


@click.command("verify", cls=VerbCommand)
@click.argument("subject", type=TOPIC_OR_PARTITION, metavar="TOPIC[/P]")
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="Check the range commits of this group; may be repeated.  [default: of all groups]",
)
@click.option("--cores", type=click.IntRange(min=1), metavar="N", help="Threads of Spark.  [default: all]")
@click.option("--memory", default="1g", show_default=True, metavar="SIZE", help="Heap of Spark's JVM.")
@click.option(
    "--parquet",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write the findings there as Parquet; the folder must not exist.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a report with pictures there.",
)
@global_options
@pass_call
def command(
    call: Call,
    subject: tuple[str, int | None],
    groups: tuple[str, ...],
    cores: int | None,
    memory: str,
    parquet: Path | None,
    html: Path | None,
) -> None:
    """Prove that no record was lost, repeated or put out of order.

    Reads all of the topic, committed records only, with Spark on this machine; changes nothing. Exits with
    3 if something is found, and with 1 if something could not be judged, and says why.
    """
    if find_spec("pyspark") is None:
        raise ConfigurationError("this needs PySpark", hint="run: pip install 'kpsplit[spark]'")
    if not _SIZE.fullmatch(memory):
        raise ConfigurationError(f"{memory[:20]!r} is no size of memory", hint="write for example 512m or 2g")
    if parquet is not None and parquet.exists():
        raise ConfigurationError(f"{parquet} exists", hint="give --parquet a folder that does not exist yet")
    from kpsplit.spark_jobs.report import report_page
    from kpsplit.spark_jobs.session import running_session
    from kpsplit.spark_jobs.verification.job import findings_frame, judge_snapshot, take_snapshot

    topic, partition = subject
    connection = call.connection
    wanted = None if partition is None else [partition]
    snapshot = take_snapshot(connection, topic, wanted, groups or None, call.given.timeout)
    with running_session(cores, memory) as spark:
        verdict = judge_snapshot(spark, snapshot, connection, groups or None)
        if parquet is not None:
            findings_frame(spark, verdict).coalesce(1).write.parquet(str(parquet))
    if html is not None:
        html.write_text(report_page(verdict), "utf-8")
    call.show(verdict.json(), lambda console: _show(verdict, console))
    _judge(verdict)


def _show(verdict: Verdict, console: Console) -> None:
    from kpsplit.spark_jobs.verification.summary import summary_lines

    for line in summary_lines(verdict):
        console.print(line, soft_wrap=True)


def _judge(verdict: Verdict) -> None:
    from kpsplit.spark_jobs.verification.summary import result_line

    if verdict.defects:
        raise CheckFailedError(result_line(verdict))
    if verdict.unproven:
        raise KpsplitError(result_line(verdict))
