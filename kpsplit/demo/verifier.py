"""The process that verifies the demo's topic in Spark: ``python -m kpsplit.demo.verifier``, a line on stdin.

It answers in a line on stdout, and ends when its stdin does; while Spark works by SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from kpsplit.demo.parent import die_with_parent
from kpsplit.errors import KpsplitError
from kpsplit.files import write_whole
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.connection import Connection

TIMES_SECONDS = 20.0
"""Limit for reading the clock times of the report."""


@dataclass(frozen=True)
class Question:
    """What to verify: a topic. ``properties`` may hold secrets; ``report`` is where the report goes."""

    properties: dict[str, Any]
    topic: str
    report: str

    def encode(self) -> str:
        """Return it as a line."""
        return f"{json.dumps(asdict(self))}\n"

    @classmethod
    def decode(cls, line: str) -> Self:
        """Read such a line."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class Answer:
    """What came out. ``error``: why it could not be judged, None if it could."""

    clean: bool = False
    told: str = ""
    seconds: float = 0.0
    error: str | None = None

    def encode(self) -> str:
        """Return it as a line."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, line: str) -> Self:
        """Read such a line."""
        return cls(**json.loads(line))


def answered(question: Question) -> Answer:
    """Verify the topic and write the report."""
    from kpsplit.spark_jobs import verify
    from kpsplit.spark_jobs.report import report_page, times_of
    from kpsplit.spark_jobs.session import running_session
    from kpsplit.spark_jobs.verification.findings import result_line

    began = monotonic()
    try:
        with running_session() as spark:
            connection = Connection(question.properties)
            found = verify(spark, question.topic, connection)
        times = times_of(connection, found.snapshot, TIMES_SECONDS)
        write_whole(Path(question.report), report_page(found, times).encode())
    except (KpsplitError, OSError) as error:
        return Answer(error=str(error))
    told = result_line(found).removeprefix(f"{question.topic}: ")
    return Answer(found.clean, told, monotonic() - began)


def main() -> None:
    """Answer the question on stdin."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what Spark leaves behind is removed at the exit
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a JVM writes warnings there
        answers.write(f"{answered(Question.decode(sys.stdin.readline())).encode()}\n")
        answers.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
