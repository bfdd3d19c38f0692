"""The key hash by native expressions (``splitter.key_range``, ``splitter.reading.reader_hash``)."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from kpsplit.splitter.key_range import KEY_SPACE, MULTIPLIER


def hash_of(data: Column) -> Column:
    """Return the key hash of some bytes; the product fits a signed 64-bit integer: ANSI mode is content."""
    return F.pmod(F.crc32(data) * F.lit(MULTIPLIER), F.lit(KEY_SPACE))


def reader_hash() -> Column:
    """Return the key hash by which a reader places a record; needs ``key``, ``offset``, ``lo``, ``hi``.

    A record with no key is placed by the hash of its offset (8 bytes, big-endian), brought into the range.
    """
    offset = F.unhex(F.lpad(F.hex("offset"), 16, "0"))
    keyless = F.col("lo") + F.pmod(hash_of(offset), F.col("hi") - F.col("lo"))
    return F.when(F.col("key").isNotNull(), hash_of(F.col("key"))).otherwise(keyless)
