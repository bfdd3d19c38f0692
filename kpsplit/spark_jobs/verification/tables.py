"""Spark's small result tables as plain rows, and back. Collects nothing that grows with the data."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, Row, SparkSession

from kpsplit.spark_jobs.schemas import Fate
from kpsplit.spark_jobs.verification.counted import Span, Total
from kpsplit.spark_jobs.verification.sequence_checks import Bucket, Shelf, ShelfKey, Who

_WHO = "logical_partition INT, instance BINARY"


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
            r.numbers, r.records, r.unsent, r.last_bucket
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


def segment_frame(spark: SparkSession, keys: Iterable[tuple[int, str, int, int]]) -> DataFrame:
    """Return producers and segments as a DataFrame; ``since``: the offset from which on there is news."""
    rows = [(partition, bytes.fromhex(who), *rest) for partition, who, *rest in sorted(keys)]
    return spark.createDataFrame(rows, f"{_WHO}, segment BIGINT, since BIGINT")


def below_frame(spark: SparkSession, keys: Iterable[tuple[int, str, int]]) -> DataFrame:
    """Return producers, each with a number, as a DataFrame."""
    return _keyed(spark, keys, "below")


def number_frame(spark: SparkSession, keys: Iterable[tuple[int, str, int]]) -> DataFrame:
    """Return sequence numbers of producers as a DataFrame."""
    return _keyed(spark, keys, "sequence")


def producer_name(instance: bytes | bytearray | None) -> str:
    """Return a producer's name: 16 hexadecimal digits."""
    return bytes(instance or b"").hex()


def producer_of(row: Row) -> str | None:
    """Return the producer of a row, None for a record without a stamp."""
    return None if row.instance is None else producer_name(row.instance)


def _keyed(spark: SparkSession, keys: Iterable[tuple[int, str, int]], last: str) -> DataFrame:
    rows = [(partition, bytes.fromhex(producer), number) for partition, producer, number in sorted(keys)]
    return spark.createDataFrame(rows, f"{_WHO}, {last} BIGINT")
