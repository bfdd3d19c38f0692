"""A verdict as one self-contained HTML page with pictures: pure, but for ``times_of``."""

from kpsplit.spark_jobs.report.page import report_page
from kpsplit.spark_jobs.report.times import times_of

__all__ = ["report_page", "times_of"]
