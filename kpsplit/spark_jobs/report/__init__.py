"""A verdict as one self-contained HTML page with pictures. Pure: values in, text out."""

from kpsplit.spark_jobs.report.page import report_page

__all__ = ["report_page"]
