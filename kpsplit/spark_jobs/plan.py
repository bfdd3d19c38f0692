"""Boundaries for a split from everything that a partition held over any stretch of time, not from a sample.

    view = read_logical(spark, "orders", connection, partitions=[3], starting_offsets=yesterday)
    sizing = size_split(view, 4)

``kpsplit plan --engine spark`` makes a plan file of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kpsplit.control.plans import label
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.regions import Bound
from kpsplit.spark_jobs.session import SPARK_ERRORS, explained
from kpsplit.spark_jobs.view import read_logical
from kpsplit.splitter.key_range import MIN_SAMPLES_PER_RANGE, WHOLE, KeyRange, Sizing, balanced
from kpsplit.splitter.lineage import PhysicalPartition

CELL_BITS = 16
"""The key space is counted in 2^16 cells of 2^16 hashes each."""


def by_hash(view: DataFrame) -> DataFrame:
    """Return records, bytes and one key of every key hash. Records without a key go anywhere: left out."""
    size = F.octet_length("key") + F.coalesce(F.octet_length("value"), F.lit(0))
    return (
        view.where(F.col("key").isNotNull())
        .groupBy("key_hash")
        .agg(F.count("*").alias("records"), F.sum(size).alias("bytes"), F.min("key").alias("key"))
    )


HEAVY = 500
"""So many of the heaviest hashes are weighed one by one; the others cell by cell."""


class Weight(StrEnum):
    """What the ranges are to balance."""

    BYTES = "bytes"
    RECORDS = "records"


def size_split(view: DataFrame, parts: int, whole: KeyRange = WHOLE, weight: Weight = Weight.BYTES) -> Sizing:
    """Divide a range so that the greatest share of the load is as small as it can be.

    Exact for the ``HEAVY`` heaviest key hashes, and to 1/65,536 of the key space for the others. The result
    names keys too hot to split, and says when the split would not be useful.

    Args:
        view: the logical view of one logical partition, over the time that counts.
        parts: into how many ranges, 2 to 64.
        whole: the range to divide.
        weight: what to balance.

    Raises:
        UsageError: the number of ranges is out of bounds, or the range is too narrow.
    """
    inside = (view["key_hash"] >= whole.lo) & (view["key_hash"] < whole.hi)
    cell_ = F.shiftright("key_hash", CELL_BITS).alias("cell")
    sums = F.sum(weight).alias("weight"), F.sum("records").alias("records")
    hashes = by_hash(view.where(inside)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        heavy = hashes.orderBy(F.desc(weight), "key_hash").limit(HEAVY).collect()
        cells = hashes.groupBy(cell_).agg(*sums).collect()  # at most 65,536 rows
    finally:
        hashes.unpersist()
    rest = {row.cell: (row.weight, row.records) for row in cells}
    for row in heavy:
        weighed, counted = rest[row.key_hash >> CELL_BITS]
        rest[row.key_hash >> CELL_BITS] = weighed - row[weight], counted - row.records
    middle = 1 << (CELL_BITS - 1)
    points = [(row.key_hash, row[weight], row.records) for row in heavy]
    points += [
        (min(max((cell << CELL_BITS) + middle, whole.lo), whole.hi - 1), weighed, counted)
        for cell, (weighed, counted) in rest.items()
        if weighed
    ]
    labels = {row.key_hash: label(bytes(row.key)) for row in heavy}
    sized = balanced(_as_samples(points, MIN_SAMPLES_PER_RANGE * parts), whole, parts, labels)
    return replace(sized, samples=sum(counted for _, _, counted in points))


def size_partition(
    spark: SparkSession,
    connection: Connection,
    parent: PhysicalPartition,
    whole: KeyRange,
    parts: int,
    since: Bound,
    weight: Weight,
) -> Sizing:
    """Divide a range of a partition by all its records since a time; errors as of ``read_logical``."""
    partitions = [parent.partition]
    try:
        view = read_logical(spark, parent.topic, connection, partitions=partitions, starting_offsets=since)
        return size_split(view, parts, whole, weight)
    except SPARK_ERRORS as error:
        raise explained(error) from error


def _as_samples(points: Iterable[tuple[int, int, int]], most: int) -> Iterator[tuple[int, int]]:
    """Yield (hash, weight) for each record, up to so many per point: few keys are no small sample."""
    for hash_, weight, records in points:
        pieces = max(1, min(records, most, weight))
        yield hash_, weight - weight // pieces * (pieces - 1)
        yield from ((hash_, weight // pieces) for _ in range(pieces - 1))
