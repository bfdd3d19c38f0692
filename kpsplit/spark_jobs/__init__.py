"""The data pipeline on Spark: logical view, verification, small tables. Needs ``kpsplit[spark]``.

The names are resolved on first use: ``python -m kpsplit.spark_jobs.jars`` works without a PySpark from pip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpsplit.lazy import lazy_names

if TYPE_CHECKING:
    from kpsplit.spark_jobs.plan import size_split
    from kpsplit.spark_jobs.session import REDACTED, local_session
    from kpsplit.spark_jobs.streaming.source import read_logical_stream
    from kpsplit.spark_jobs.verification.findings import Verdict
    from kpsplit.spark_jobs.verification.job import findings_frame, verify
    from kpsplit.spark_jobs.view import read_logical, register

__all__ = [
    "read_logical",
    "read_logical_stream",
    "register",
    "size_split",
    "verify",
    "findings_frame",
    "Verdict",
    "local_session",
    "REDACTED",
]

__getattr__ = lazy_names(
    __name__,
    {
        "read_logical": "kpsplit.spark_jobs.view",
        "read_logical_stream": "kpsplit.spark_jobs.streaming.source",
        "register": "kpsplit.spark_jobs.view",
        "size_split": "kpsplit.spark_jobs.plan",
        "local_session": "kpsplit.spark_jobs.session",
        "REDACTED": "kpsplit.spark_jobs.session",
        "verify": "kpsplit.spark_jobs.verification.job",
        "findings_frame": "kpsplit.spark_jobs.verification.job",
        "Verdict": "kpsplit.spark_jobs.verification.findings",
    },
    extra="spark",
)
