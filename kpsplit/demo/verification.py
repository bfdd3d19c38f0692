"""Verifies in Spark what the demo did, in a process of its own: ``python -m kpsplit.demo.verification``.

It runs while a plain client reads everything back: neither needs the other. The process answers in a line on
stdout, and ends when its stdin ends; while Spark works, by SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kpsplit.clock import Deadline, monotonic
from kpsplit.demo.display import Display
from kpsplit.demo.endpoints import STOP_SECONDS, Endpoint, JsonLine, Orders, first_line
from kpsplit.demo.result import DemoVerdict
from kpsplit.errors import KpsplitError
from kpsplit.files import write_whole
from kpsplit.kafka.connection import Connection

# -- the process: a line with a question on stdin, a line with the answer on stdout ----------------


@dataclass(frozen=True, slots=True)
class VerificationNews(JsonLine):
    """What came out. ``error``: why there is no verdict, None if there is one."""

    done: bool = False
    clean: bool = False
    answer: str = ""
    seconds: float = 0.0
    error: str | None = None


def answered(question: Orders) -> VerificationNews:
    """Verify the topic; the report is written to the question's ``journal``."""
    from kpsplit.spark_jobs import verify
    from kpsplit.spark_jobs.report import report_page, times_of
    from kpsplit.spark_jobs.session import running_session
    from kpsplit.spark_jobs.verification.findings import result_line

    began = monotonic()
    try:
        with running_session() as spark:
            connection = Connection(question.properties)
            found = verify(spark, question.topic, connection)
        page = report_page(found, times_of(connection, found.snapshot))
        write_whole(Path(question.journal), page.encode())
    except KpsplitError as error:
        return VerificationNews(done=True, error=str(error))
    line = result_line(found).removeprefix(f"{question.topic}: ")
    return VerificationNews(True, found.clean, line, monotonic() - began)


def main() -> None:
    question = Orders.decode(first_line())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Spark's temporary files are removed at the exit
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a JVM writes warnings there
        answers.write(answered(question).encode())
        answers.flush()
        sys.stdin.read()


QUESTION = "verification in Spark"
LOOK_SECONDS = 0.05


def report_path(page: Path) -> Path:
    """Return where the report goes, beside the demo's own page."""
    return page.with_name(f"{page.stem}-verification.html")


@contextmanager
def verification(
    connection: Connection, topic: str, report: Path, display: Display
) -> Iterator[Callable[[], DemoVerdict | None]]:
    """Verify a topic beside the block. Yields a call that waits for the verdict; None without PySpark."""
    if find_spec("pyspark") is None:
        display.say("not verified in Spark: pip install 'kpsplit[demo]'")
        yield lambda: None
        return
    display.say(f"kpsplit verify {topic}: in Spark, from the logs alone, beside what follows")
    path = str(report.resolve())
    question = Orders(name=topic, properties=connection.properties, topic=topic, journal=path)
    process = Endpoint("the verification of", "kpsplit.demo.verification", question, VerificationNews())

    def verdict() -> DemoVerdict:
        while not process.news.done:
            process.check()
            time.sleep(LOOK_SECONDS)
        process.check()
        news = process.news
        display.say(f"    in Spark: {news.answer}; {news.seconds:.1f} s; report: {path}")
        return DemoVerdict(QUESTION, news.clean, news.answer)

    try:
        yield verdict
    finally:
        process.end(Deadline(STOP_SECONDS))


if __name__ == "__main__":
    main()
