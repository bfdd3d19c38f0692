"""``kpsplit verify``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
from rich.console import Console

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.options import NAME, SINCE, TOPIC_OR_PARTITION, require_spark, spark_size_options
from kpsplit.admin_cli.render.console import StepProgress, stderr
from kpsplit.admin_cli.render.text import safe
from kpsplit.errors import (
    CheckFailedError,
    DeadlineExceededError,
    KpsplitError,
    NotJudgedError,
)
from kpsplit.files import check_new_folder, check_writable, write_whole
from kpsplit.spark_jobs.verification.findings import Verdict, result_line, summary_lines


@contextmanager
def judging() -> Iterator[None]:
    """Turn a timeout into an error with exit code 1, as for everything else that keeps a job from judging.

    Raises NotJudgedError: the time ran out.
    """
    try:
        yield
    except DeadlineExceededError as error:
        hint = error.hint or "pass a longer --timeout"
        raise NotJudgedError(f"could not judge: {error.message}", hint=hint) from error


@click.command("verify", cls=VerbCommand)
@click.argument("subject", type=TOPIC_OR_PARTITION, metavar="TOPIC[/P]")
@click.option(
    "--group",
    "groups",
    type=NAME,
    multiple=True,
    metavar="GROUP",
    help="Check the range commits of this group; may be repeated.  [default: of all groups]",
)
@spark_size_options
@click.option(
    "--parquet",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write the findings as Parquet to this folder, which must not exist.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a report with pictures to this file.",
)
@click.option(
    "--since",
    type=SINCE,
    metavar="TIME",
    help="Check only what was written since this time: with a zone, or an age (1h).",
)
@click.option(
    "--require-certificates",
    is_flag=True,
    help="Exit with 1 if a producer has not closed: its last records cannot be checked then.",
)
@judging()
def command(
    call: Call,
    subject: tuple[str, int | None],
    groups: tuple[str, ...],
    master: str | None,
    cores: int | None,
    memory: str,
    parquet: Path | None,
    html: Path | None,
    since: int | None,
    require_certificates: bool,
) -> None:
    """Prove that no record was lost, repeated or put out of order.

    Reads all committed records of the topic with Spark, or with --since those written since a time. Changes
    nothing. Progress is shown on stderr. --timeout limits only the questions to brokers before Spark starts;
    reading the records has no limit. Exits with 3 if something is wrong, with 1 if something could not be
    checked, and says what and why.
    """
    # What can be wrong with the arguments is found here, not after an hour of reading.
    require_spark(memory, cores, master)
    if parquet is not None:
        check_new_folder(parquet, "pass a --parquet folder that does not exist yet, where you may write")
    if html is not None:
        check_writable(html, "choose another --html")
    from pyspark.sql import SparkSession

    from kpsplit.spark_jobs import verify
    from kpsplit.spark_jobs.report import report_page, times_of
    from kpsplit.spark_jobs.session import running_session
    from kpsplit.spark_jobs.verification.job import write_findings

    topic, partition = subject
    connection = call.connection
    unwritten: list[KpsplitError] = []
    with ExitStack() as stack:
        progress = stack.enter_context(StepProgress(stderr(), "reading kpsplit's own topics"))
        verdict = verify(
            # Called after the brokers have answered: Spark takes seconds to start.
            lambda: stack.enter_context(running_session(cores, memory, master)),
            topic,
            connection,
            partitions=None if partition is None else [partition],
            groups=groups or None,
            patience=call.given.timeout,
            since=since,
            require_certificates=require_certificates,
            observer=progress.passed,
        )
        progress.passed("Checks")
        if parquet is not None:
            try:
                write_findings(SparkSession.active(), verdict, parquet)
            except KpsplitError as error:
                unwritten.append(error)
    if html is not None:
        unwritten += write_page(html, lambda: report_page(verdict, times_of(connection, verdict.snapshot)))
    call.show(verdict.json(), lambda console: _show(verdict, console))
    conclude(verdict, call.say, unwritten)


def write_page(path: Path, page: Callable[[], str]) -> list[KpsplitError]:
    """Make the report's page and write it; return why that failed.

    Whatever goes wrong here, the verdict must still be shown.
    """
    try:
        write_whole(path, page().encode())
    except KpsplitError as error:
        return [error]
    except Exception as error:  # noqa: BLE001 - a picture is no reason to hide a finding
        return [KpsplitError(f"cannot write {path}: {type(error).__name__}")]
    return []


def conclude(verdict: Verdict, say: Callable[[str], None], unwritten: Sequence[KpsplitError]) -> None:
    """End with what was found; beside findings, what could not be written is only said.

    Raises CheckFailedError: there are findings; KpsplitError: something could not be written, or judged.
    """
    if unwritten and not verdict.defects:
        raise unwritten[0]
    for error in unwritten:
        say(f"kpsplit verify: {error}")
    if verdict.defects:
        raise CheckFailedError(result_line(verdict))
    if verdict.unproven:
        raise KpsplitError(result_line(verdict))


def _show(verdict: Verdict, console: Console) -> None:
    for line in summary_lines(verdict):
        console.print(safe(line), soft_wrap=True)
