"""How the load of a logical view is spread over the key space, condensed to two small tables."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

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


def heaviest(hashes: DataFrame, weight: str, most: int) -> DataFrame:
    """Return the heaviest hashes, heaviest first."""
    return hashes.orderBy(F.desc(weight), "key_hash").limit(most)


def by_cell(hashes: DataFrame, weight: str) -> DataFrame:
    """Return weight and records of every cell that has any: at most 65,536 rows."""
    cell = F.shiftright("key_hash", CELL_BITS).alias("cell")
    return hashes.groupBy(cell).agg(F.sum(weight).alias("weight"), F.sum("records").alias("records"))
