"""Spark's small result tables as plain rows, and back. Collects nothing that grows with the data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from kpsplit.spark_jobs.schemas import Fate
from kpsplit.spark_jobs.small_frame import small_frame
from kpsplit.spark_jobs.verification.counted import Bucket, Shelf, ShelfKey, Span, Total, Who

_WHO = StructType([StructField("logical_partition", IntegerType()), StructField("instance", BinaryType())])


def total_rows(frame: DataFrame) -> list[Total]:
    """Read ``cells.totals``."""
    return [
        Total(
            *(r.logical_partition, r.segment, Fate(r.fate), r.stamped),
            *(r.records, r.wrong, r.first_offset, r.last_offset),
        )
        for r in frame.collect()
    ]


def span_rows(frame: DataFrame) -> list[Span]:
    """Read ``cells.spans``; one row per producer and segment."""
    return [
        Span(
            *(r.logical_partition, r.segment, producer_name(r.instance)),
            *(r.records, r.descents, r.first_sequence, r.last_sequence),
        )
        for r in frame.collect()
    ]


def first_rows(frame: DataFrame) -> dict[Who, int]:
    """Read ``cells.firsts``; one row per producer."""
    return {(r.logical_partition, producer_name(r.instance)): r.first_sequence for r in frame.collect()}


def shelf_rows(frame: DataFrame) -> dict[ShelfKey, Shelf]:
    """Read ``cells.shelves``; one row per producer and 2^16 numbers."""
    return {
        (r.logical_partition, producer_name(r.instance), r.shelf): Shelf(
            r.numbers, r.records, r.unsent, r.answered
        )
        for r in frame.collect()
    }


def bucket_rows(frame: DataFrame) -> list[Bucket]:
    """Read ``cells.buckets`` of some shelves."""
    return [
        Bucket(r.logical_partition, producer_name(r.instance), r.bucket, r.data, r.strays, r.records)
        for r in frame.collect()
    ]


def shelf_frame(spark: SparkSession, keys: Iterable[ShelfKey]) -> DataFrame:
    """Return the keys of some shelves as a DataFrame."""
    return _keyed(spark, keys, "shelf")


def bucket_frame(spark: SparkSession, keys: Iterable[tuple[int, str, int]]) -> DataFrame:
    """Return the keys of some buckets as a DataFrame."""
    return _keyed(spark, keys, "bucket")


def segment_frame(spark: SparkSession, keys: Iterable[tuple[int, str, int]]) -> DataFrame:
    """Return producers and segments as a DataFrame."""
    return _keyed(spark, keys, "segment")


def who_frame(spark: SparkSession, keys: Iterable[Who]) -> DataFrame:
    """Return producers as a DataFrame."""
    return _keyed(spark, keys)


def number_frame(spark: SparkSession, keys: Iterable[tuple[int, str, int]]) -> DataFrame:
    """Return sequence numbers of producers as a DataFrame."""
    return _keyed(spark, keys, "sequence")


def producer_name(instance: bytes | bytearray | None) -> str:
    """Return a producer's name: 16 hexadecimal digits."""
    return bytes(instance or b"").hex()


def producer_of(row: Row) -> str | None:
    """Return the producer of a row, None for a record without a stamp."""
    return None if row.instance is None else producer_name(row.instance)


def _keyed(spark: SparkSession, keys: Iterable[tuple[Any, ...]], *last: str) -> DataFrame:
    """``last``: what a key has beside partition and producer."""
    rows = [(partition, bytes.fromhex(producer), *rest) for partition, producer, *rest in sorted(keys)]
    return small_frame(spark, rows, StructType([*_WHO.fields, *(StructField(n, LongType()) for n in last)]))
