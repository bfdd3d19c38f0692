"""``kpsplit verify``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kpsplit.admin_cli.call import Call, pass_call
from kpsplit.admin_cli.given import VerbCommand, global_options
from kpsplit.admin_cli.param_types import NAME, SINCE, TOPIC_OR_PARTITION
from kpsplit.admin_cli.spark_size import require_spark, spark_size_options
from kpsplit.errors import (
    CheckFailedError,
    ConfigurationError,
    DeadlineExceededError,
    KpsplitError,
    NotJudgedError,
)
from kpsplit.files import check_writable, write_whole

if TYPE_CHECKING:
    from rich.console import Console

    from kpsplit.spark_jobs import Verdict
    from kpsplit.spark_jobs.verification.state_file import StateFile

TIMES_SECONDS = 20.0
"""Limit for reading the clock times of the report; those that are not read by then are left out."""


@contextmanager
def judging() -> Iterator[None]:
    """Whatever keeps a verification from judging ends with exit code 1, also that the time ran out.

    Raises:
        NotJudgedError: the time ran out.
    """
    try:
        yield
    except DeadlineExceededError as error:
        hint = error.hint or "give a longer --timeout"
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
    help="Write the findings there as Parquet; the folder must not exist.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a report with pictures there.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Go on where the run that wrote this file ended, and write it anew. Without the file: read all.",
)
@click.option(
    "--since",
    type=SINCE,
    metavar="TIME",
    help="Judge only what was written since then: a time with its zone, or how long ago (1h). "
    "Not together with --state.",
)
@global_options
@pass_call
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
    state: Path | None,
    since: int | None,
) -> None:
    """Prove that no record was lost, repeated or put out of order.

    Reads all of the topic, or with --state what has come since, or with --since what was written since a
    time; committed records only, with Spark; changes nothing. Exits with 3 if something is
    found, and with 1 if something could not be judged, and says why.
    """
    if state is not None and since is not None:
        raise click.UsageError("--state says from where on is judged: it does not go with --since")
    require_spark(memory, cores, master)
    if parquet is not None and parquet.exists():
        raise ConfigurationError(f"{parquet} exists", hint="give --parquet a folder that does not exist yet")
    if html is not None:
        check_writable(html, "choose another --html")
    from kpsplit.spark_jobs.report import report_page, times_of
    from kpsplit.spark_jobs.session import running_session
    from kpsplit.spark_jobs.verification.job import (
        judge_snapshot,
        past_of,
        since_of,
        take_snapshot,
        write_findings,
    )
    from kpsplit.spark_jobs.verification.state_file import StateFile

    file = None if state is None else StateFile(state)
    loaded = None if file is None else file.load()
    topic, partition = subject
    connection = call.connection
    wanted = None if partition is None else [partition]
    snapshot = take_snapshot(connection, topic, wanted, groups or None, call.given.timeout)
    past = None if file is None else past_of(loaded, snapshot, connection, groups or None)
    at = None if since is None else since_of(snapshot, connection, since)
    unwritten: list[KpsplitError] = []
    with running_session(cores, memory, master) as spark:
        verdict = judge_snapshot(spark, snapshot, connection, groups or None, past=past, since=at)
        if parquet is not None:
            try:
                write_findings(spark, verdict, parquet)
            except KpsplitError as error:
                unwritten.append(error)
    if html is not None:
        unwritten += write_page(
            html, lambda: report_page(verdict, times_of(connection, snapshot, TIMES_SECONDS))
        )
    call.show(verdict.json(), lambda console: _show(verdict, console))
    conclude(verdict, file, call.say, unwritten)


def write_page(path: Path, page: Callable[[], str]) -> list[KpsplitError]:
    """Make the report's page and write it; return why that failed.

    Whatever goes wrong in it, the verdict is still to be told, and its state to be kept.
    """
    try:
        write_whole(path, page().encode())
    except KpsplitError as error:
        return [KpsplitError(f"cannot write {path}: {error.message}")]
    except Exception as error:  # noqa: BLE001 - a picture is no reason to hide a finding
        why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        return [KpsplitError(f"cannot write {path}: {why}")]
    return []


def conclude(
    verdict: Verdict,
    file: StateFile | None,
    say: Callable[[str], None],
    unwritten: Sequence[KpsplitError] = (),
) -> None:
    """Keep the state for the next run, behind everything that was told, and end with what was found.

    Raises:
        CheckFailedError: there are findings; what could not be written is said beside that.
        KpsplitError: something could not be written, or not be judged.
    """
    unsaved = None if file is None else _save(verdict, file, say)
    failed = [*unwritten, *([unsaved] if unsaved is not None else [])]
    if failed and not verdict.defects:
        raise failed[0]
    for error in unwritten:
        say(f"kpsplit verify: {error}")
    if unsaved is not None:
        say(f"kpsplit verify: the state was not saved: {unsaved}")
    _judge(verdict)


def _save(verdict: Verdict, file: StateFile, say: Callable[[str], None]) -> KpsplitError | None:
    """Save the state; return why that failed."""
    if verdict.successor is None:
        say("kpsplit verify could not judge everything: the state was left as it was")
        return None
    try:
        file.save(verdict.successor)
    except KpsplitError as error:
        return error
    return None


def _show(verdict: Verdict, console: Console) -> None:
    from kpsplit.admin_cli.render.text import safe
    from kpsplit.spark_jobs.verification.summary import summary_lines

    for line in summary_lines(verdict):
        console.print(safe(line), soft_wrap=True)


def _judge(verdict: Verdict) -> None:
    from kpsplit.spark_jobs.verification.summary import result_line

    if verdict.defects:
        raise CheckFailedError(result_line(verdict))
    if verdict.unproven:
        raise KpsplitError(result_line(verdict))
