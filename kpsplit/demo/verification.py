"""The demo's last word: the verification in Spark of what it did, in a process of its own.

It runs beside the reading back with a plain client: neither needs the other.
"""

from __future__ import annotations

import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from kpsplit.demo.narrator import Narrator
from kpsplit.demo.process import ChildProcess
from kpsplit.demo.result import Verdict
from kpsplit.demo.verifier import Answer, Question
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.connection import Connection

QUESTION = "verification in Spark"
LOOK_SECONDS = 0.05
STOP_SECONDS = 5.0


def report_path(page: Path) -> Path:
    """Return where the report goes, beside the demo's own page."""
    return page.with_name(f"{page.stem}-verification.html")


class Verification:
    """Verifies the topic as ``kpsplit verify`` does, while the block goes on, and writes its report."""

    def __init__(self, connection: Connection, topic: str, report: Path, narrator: Narrator) -> None:
        self._question = Question(connection.properties, topic, str(report.resolve()))
        self._narrator = narrator
        self._verifier: _Verifier | None = None

    def __enter__(self) -> Self:
        """Begin, where there is PySpark."""
        if find_spec("pyspark") is None:
            self._narrator.say("not verified in Spark: pip install 'kpsplit[demo]'")
            return self
        topic = self._question.topic
        self._narrator.say(f"kpsplit verify {topic}: in Spark, from the logs alone, beside what follows")
        self._verifier = _Verifier(self._question)
        return self

    def verdict(self) -> Verdict | None:
        """Wait for the answer; None where there is no PySpark.

        Raises:
            KpsplitError: it could not be judged.
        """
        if self._verifier is None:
            return None
        answer = self._verifier.answer()
        self._narrator.say(
            f"    in Spark: {answer.told}; {answer.seconds:.1f} s; report: {self._question.report}"
        )
        return Verdict(QUESTION, answer.clean, answer.told)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        if self._verifier is not None:
            self._verifier.end(Deadline(STOP_SECONDS))


class _Verifier(ChildProcess):
    """The process."""

    def __init__(self, question: Question) -> None:
        self._answer: Answer | None = None
        super().__init__("the verification of", question.topic, "kpsplit.demo.verifier", question.encode())

    @property
    def error(self) -> str | None:
        """Why it could not be judged."""
        return None if self._answer is None else self._answer.error

    @property
    def done(self) -> bool:
        """Tell whether there is an answer."""
        return self._answer is not None

    def heard(self, line: str) -> None:
        """Take the answer; other lines are somebody else's."""
        with suppress(ValueError, TypeError):
            self._answer = Answer.decode(line)

    def answer(self) -> Answer:
        """Wait for it.

        Raises:
            ChildDiedError: there is none.
        """
        while self._answer is None:
            self.check()
            time.sleep(LOOK_SECONDS)
        self.check()
        return self._answer
