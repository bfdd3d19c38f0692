"""Verifies in Spark what the demo did, in a process of its own: ``python -m kpsplit.demo.verification``.

It runs beside the reading back with a plain client: neither needs the other. The process answers in a line on
stdout, and ends when its stdin does; while Spark works by SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kpsplit.demo.display import Display
from kpsplit.demo.options import JsonLine
from kpsplit.demo.processes import ChildProcess, die_with_parent
from kpsplit.demo.result import DemoVerdict
from kpsplit.errors import KpsplitError
from kpsplit.files import write_whole
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.connection import Connection

# -- the process: a line with a question on stdin, a line with the answer on stdout ----------------


TIMES_SECONDS = 20.0
"""Limit for reading the clock times of the report."""


@dataclass(frozen=True, slots=True)
class VerificationQuestion(JsonLine):
    """What to verify: a topic. ``properties`` may hold secrets; ``report`` is where the report goes."""

    properties: dict[str, Any]
    topic: str
    report: str


@dataclass(frozen=True, slots=True)
class VerificationAnswer(JsonLine):
    """What came out. ``error``: why it could not be judged, None if it could."""

    clean: bool = False
    told: str = ""
    seconds: float = 0.0
    error: str | None = None


def answered(question: VerificationQuestion) -> VerificationAnswer:
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
        return VerificationAnswer(error=str(error))
    told = result_line(found).removeprefix(f"{question.topic}: ")
    return VerificationAnswer(found.clean, told, monotonic() - began)


def main() -> None:
    """Answer the question on stdin."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Spark's temporary files are removed at the exit
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a JVM writes warnings there
        answers.write(answered(VerificationQuestion.decode(sys.stdin.readline())).encode())
        answers.flush()
        sys.stdin.read()


QUESTION = "verification in Spark"
LOOK_SECONDS = 0.05
STOP_SECONDS = 5.0


def report_path(page: Path) -> Path:
    """Return where the report goes, beside the demo's own page."""
    return page.with_name(f"{page.stem}-verification.html")


class Verification:
    """Verifies the topic as ``kpsplit verify`` does, while the block goes on, and writes its report."""

    def __init__(self, connection: Connection, topic: str, report: Path, display: Display) -> None:
        self._question = VerificationQuestion(connection.properties, topic, str(report.resolve()))
        self._display = display
        self._verifier: _Verifier | None = None

    def __enter__(self) -> Self:
        """Begin, where there is PySpark."""
        if find_spec("pyspark") is None:
            self._display.say("not verified in Spark: pip install 'kpsplit[demo]'")
            return self
        topic = self._question.topic
        self._display.say(f"kpsplit verify {topic}: in Spark, from the logs alone, beside what follows")
        self._verifier = _Verifier(self._question)
        return self

    def verdict(self) -> DemoVerdict | None:
        """Wait for the answer; None where there is no PySpark.

        Raises:
            KpsplitError: it could not be judged.
        """
        if self._verifier is None:
            return None
        answer = self._verifier.answer()
        self._display.say(
            f"    in Spark: {answer.told}; {answer.seconds:.1f} s; report: {self._question.report}"
        )
        return DemoVerdict(QUESTION, answer.clean, answer.told)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        if self._verifier is not None:
            self._verifier.end(Deadline(STOP_SECONDS))


class _Verifier(ChildProcess):
    """The process."""

    def __init__(self, question: VerificationQuestion) -> None:
        self._answer: VerificationAnswer | None = None
        super().__init__(
            "the verification of", question.topic, "kpsplit.demo.verification", question.encode()
        )

    @property
    def error(self) -> str | None:
        """Why it could not be judged."""
        return None if self._answer is None else self._answer.error

    @property
    def done(self) -> bool:
        """Return whether there is an answer."""
        return self._answer is not None

    def heard(self, line: str) -> None:
        """Take the answer; other lines are somebody else's."""
        with suppress(ValueError, TypeError):
            self._answer = VerificationAnswer.decode(line)

    def answer(self) -> VerificationAnswer:
        """Wait for it.

        Raises:
            ChildDiedError: there is none.
        """
        while self._answer is None:
            self.check()
            time.sleep(LOOK_SECONDS)
        self.check()
        return self._answer


if __name__ == "__main__":
    main()
