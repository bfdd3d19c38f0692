"""The demo's last word: the verification in Spark of what it did, with its report."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from kpsplit.demo.narrator import Narrator
from kpsplit.demo.result import Verdict
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.connection import Connection

QUESTION = "verification in Spark"


def report_path(page: Path) -> Path:
    """Return where the report goes, beside the demo's own page."""
    return page.with_name(f"{page.stem}-verification.html")


def verified(connection: Connection, topic: str, report: Path, narrator: Narrator) -> Verdict | None:
    """Verify the topic as ``kpsplit verify`` does and write its report; None where there is no PySpark.

    Raises:
        KpsplitError: it could not be judged.
    """
    if find_spec("pyspark") is None:
        narrator.say("not verified in Spark: pip install 'kpsplit[demo]'")
        return None
    from kpsplit.spark_jobs import verify
    from kpsplit.spark_jobs.report import report_page
    from kpsplit.spark_jobs.session import running_session
    from kpsplit.spark_jobs.verification.summary import result_line

    narrator.say(f"kpsplit verify {topic}: the same again in Spark, from the logs alone")
    began = monotonic()
    with running_session() as spark:
        found = verify(spark, topic, connection)
    report.write_text(report_page(found), encoding="utf-8")
    told = result_line(found).removeprefix(f"{topic}: ")
    narrator.say(f"    {told}; {monotonic() - began:.1f} s; report: {report.resolve()}")
    return Verdict(QUESTION, found.clean, told)
