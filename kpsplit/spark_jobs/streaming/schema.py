"""What the streaming source gives: records as Kafka's source has them, each with the region it lies in."""

from __future__ import annotations

from pyspark.sql.types import StructType

from kpsplit.spark_jobs.schemas import KAFKA, REGIONS

_OWN = {"topic", "partition", "first", "behind"}

PLACED = StructType([*KAFKA.fields, *(f for f in REGIONS.fields if f.name not in _OWN)])
"""``topic``, ``partition`` and ``offset`` are the physical ones."""
