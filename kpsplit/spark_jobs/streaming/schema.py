"""What the streaming source gives: records as Kafka's source has them, each with the region it lies in."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kpsplit.spark_jobs.schemas import REGIONS

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_KAFKA = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
    StructField("headers", _HEADERS),
]
_OWN = {"topic", "partition", "first", "behind"}

PLACED = StructType([*_KAFKA, *(f for f in REGIONS.fields if f.name not in _OWN)])
"""``topic``, ``partition`` and ``offset`` are the physical ones."""
