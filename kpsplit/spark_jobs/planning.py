"""Boundaries for a split from everything that a partition held over any stretch of time, not from a sample.

view = read_logical(spark, "orders", connection, partitions=[3], starting_offsets=yesterday)
sizing = size_split(view, 4)
kpsplit split orders/3 --ranges …
"""

from __future__ import annotations

from enum import StrEnum

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from kpsplit.kafka.sampling import label
from kpsplit.spark_jobs.transforms import load
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.sizing import Sizing, balanced

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
    hashes = load.by_hash(view.where(inside)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        heavy = load.heaviest(hashes, weight, HEAVY).collect()
        cells = load.by_cell(hashes, weight).collect()
    finally:
        hashes.unpersist()
    rest = {row.cell: row.weight for row in cells}
    for row in heavy:
        rest[row.key_hash >> load.CELL_BITS] -= row[weight]
    middle = 1 << (load.CELL_BITS - 1)
    samples = [(row.key_hash, row[weight]) for row in heavy]
    samples += [
        (min(max((cell << load.CELL_BITS) + middle, whole.lo), whole.hi - 1), left)
        for cell, left in rest.items()
        if left
    ]
    return balanced(samples, whole, parts, {row.key_hash: label(bytes(row.key)) for row in heavy})
