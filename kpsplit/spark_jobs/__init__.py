"""The data pipeline on Spark: logical view, verification, small tables. Needs ``kpsplit[spark]``."""

from kpsplit.spark_jobs.logical_view import read_logical
from kpsplit.spark_jobs.streaming.view import read_logical_stream
from kpsplit.spark_jobs.verification.findings import Verdict
from kpsplit.spark_jobs.verification.job import findings_frame, verify

__all__ = ["read_logical", "read_logical_stream", "verify", "findings_frame", "Verdict"]
