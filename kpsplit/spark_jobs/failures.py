"""What Spark reports with a page of Java, as one clear line."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from kpsplit.errors import ConfigurationError, KpsplitError
from kpsplit.spark_jobs.jars import connector_coordinates
from kpsplit.spark_jobs.session import kept_log

SPARK_ERRORS = (PySparkException, Py4JJavaError)

_LONGEST = 300
_CAUSED = "Caused by: "
_CALLING = "An error occurred while calling "
_TASK = re.compile(r"^org\.apache\.spark\.SparkException: Job aborted .*?, most recent failure: .*?\): ")
_PACKAGE = re.compile(r"^(?:[\w$]+\.)+(?=[\w$]+)")
_QUOTED = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")(?!\w)""")


def explained(error: Exception) -> KpsplitError:
    """Return one clear line for what Spark reports with a page of Java."""
    text = str(error)
    if "Failed to find data source: kafka" in text:
        return ConfigurationError(
            "this Spark has no Kafka connector",
            hint=f"give spark-submit --packages {connector_coordinates()}",
        )
    if "OffsetOutOfRange" in text or "data may have been lost" in text.lower() or "KAFKA_DATA_LOSS" in text:
        return KpsplitError(
            "records went away while they were read (retention, or a deleted topic)", hint="run it again"
        )
    log = kept_log()
    return KpsplitError(
        f"Spark failed: {reason(text) or type(error).__name__}", hint=f"see {log or 'the log of your Spark'}"
    )


def reason(text: str) -> str:
    """Return the innermost cause that Spark or Java names, in one line: class and message.

    What it quotes is left out: that may be of a record, or of a login.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix(_CAUSED) for line in lines if line.startswith(_CAUSED)]
    told = [line.removeprefix(": ") for line in lines if not line.startswith(_CALLING)]
    line = _QUOTED.sub("'…'", _PACKAGE.sub("", _TASK.sub("", (causes[-1:] or told[:1] or [""])[0])))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
