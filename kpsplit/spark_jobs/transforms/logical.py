"""Raw records of physical partitions → the records of the logical partitions."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kpsplit.spark_jobs.schemas import Fate
from kpsplit.spark_jobs.transforms.headers import (
    stamp_epoch,
    stamp_instance,
    stamp_sequence,
    with_our_headers,
    without_stamp,
)
from kpsplit.spark_jobs.transforms.key_hash import reader_hash
from kpsplit.spark_jobs.transforms.placement import fate, logical_offset, placed

NEWER = "kpsplit: a record was written by a newer version of kpsplit; upgrade kpsplit"


def logical_records(raw: DataFrame, regions: DataFrame, *, include_headers: bool = False) -> DataFrame:
    """Return what readers of the logical partitions are given.

    Args:
        raw: records as Kafka's source has them, with ``headers``.
        regions: the stretches that are wanted (``schemas.REGIONS``).
        include_headers: whether to keep the application's own headers.
    """
    return delivered(placed(raw, regions), include_headers=include_headers)


def delivered(records: DataFrame, *, include_headers: bool = False) -> DataFrame:
    """Return what readers are given of records that are ``placed``: each with the region it lies in."""
    newer = F.col("fate") == int(Fate.NEWER)
    is_data = F.when(newer, F.raise_error(F.lit(NEWER)).cast("boolean")).otherwise(
        F.col("fate") == int(Fate.DATA)
    )
    return (
        with_our_headers(records)
        .withColumn("fate", fate())
        .where(is_data)
        .select(
            "key",
            "value",
            F.col("logical_topic").alias("topic"),
            F.col("logical_partition").alias("partition"),
            logical_offset().alias("offset"),
            "timestamp",
            "timestampType",
            *([without_stamp().alias("headers")] if include_headers else []),
            logical_offset().alias("logical_offset"),
            F.col("opened_epoch").alias("epoch"),
            "segment",
            reader_hash().alias("key_hash"),
            F.col("topic").alias("source_topic"),
            F.col("partition").alias("source_partition"),
            F.col("offset").alias("source_offset"),
            stamp_epoch().alias("stamp_epoch"),
            F.lower(F.hex(stamp_instance())).alias("producer"),
            stamp_sequence().alias("sequence"),
        )
    )
