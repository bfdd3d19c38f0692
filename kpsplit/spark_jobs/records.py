"""Raw records of physical partitions → the records of the logical partitions. DataFrame in, DataFrame out.

Native expressions only: no session, and no Python on the data path. The rules are those of
``splitter.reading`` and ``consumer.fetch.record_filter``.

The stamp is the last header of a record that kpsplit wrote, so most records take the first branch of
``with_our_headers``; only those with other headers after it, or with none of ours, are searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kpsplit.spark_jobs.regions import Fate
from kpsplit.splitter.key_range import KEY_SPACE, MULTIPLIER
from kpsplit.splitter.records.data import (
    MARKER_FORM,
    MARKER_HEADER,
    MARKER_VERSION,
    NEWER_MARKER,
    STAMP_HEADER,
    STAMP_SIZES,
    STAMP_VERSION,
)
from kpsplit.splitter.records.keys import MAX_PARTITION
from kpsplit.splitter.records.strict_json import ANY_VERSION, MAX_BYTES

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_KINDS: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "bigints": ArrayType(LongType()),
    "headers": _HEADERS,
}


def schema(columns: str) -> StructType:
    """Make a schema of "name kind, …", as in SQL. Spark's own parser of that needs a session."""
    pairs = (column.split() for column in columns.split(","))
    return StructType([StructField(name, _KINDS[kind]) for name, kind in pairs])


_REGION = """logical_topic string, logical_partition int, home binary, segment bigint, lo bigint, hi bigint,
    start bigint, end bigint, base bigint, stride bigint, opened_epoch bigint, newest_epoch bigint"""

KAFKA = schema(
    """key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,
    timestampType int, headers headers"""
)
"""Kafka's own source, with headers."""

REGIONS = schema(f"topic string, partition int, first bigint, behind bigint, {_REGION}")
"""What the offsets [first, behind) of a physical partition are (``regions``); null: nothing of ours.

``home``: what stamps call the physical partition.
"""

PLACED = StructType([*KAFKA.fields, *schema(_REGION).fields])
"""``topic``, ``partition`` and ``offset`` are the physical ones."""


def small_frame(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: StructType) -> DataFrame:
    """Return rows of a schema as a DataFrame: a part of the plan, without a job or a worker."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrow = to_arrow_schema(schema)
    arrays = [pa.array(values, of.type) for values, of in zip(columns, arrow, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)


_VERSION = f"{STAMP_VERSION:02X}"

_FORMS = " OR ".join(
    f"octet_length(h.value) = {size} AND hex(substring(h.value, 1, 1)) = '{version:02X}'"
    for version, size in STAMP_SIZES.items()
)
_IS_STAMP = f"h.key = '{STAMP_HEADER}' AND ({_FORMS})"
_IS_COPY = f"octet_length(stamp) = {STAMP_SIZES[STAMP_VERSION]} AND substring(stamp, 14, 8) != home"
_OF_APPLICATION = f"filter(headers, h -> h.key != '{STAMP_HEADER}')"
_LAST = "get(headers, size(headers) - 1)"
_TEXT = "cast(h.value AS STRING)"


def _matches(pattern: str) -> str:
    small = f"h.key = '{MARKER_HEADER}' AND octet_length(h.value) <= {MAX_BYTES}"
    return small + rf" AND {_TEXT} rlike r'\A{pattern}\z'"


def _group(pattern: str, number: int) -> str:
    return f"regexp_extract({_TEXT}, r'{pattern}', {number})"


_IS_MARKER = f"""{_matches(MARKER_FORM)}
    AND try_cast({_group(MARKER_FORM, 3)} AS BIGINT) <= {MAX_PARTITION}"""
_MARKERS = f"filter(headers, h -> {_IS_MARKER})"
_PLACE = f"concat({_group(MARKER_FORM, 4)}, '/', {_group(MARKER_FORM, 3)})"
_MARKER_OF = f"get(transform({_MARKERS}, h -> {_PLACE}), size({_MARKERS}) - 1)"
_IS_NEWER = f"""(h.key = '{STAMP_HEADER}' AND hex(substring(h.value, 1, 1)) > '{_VERSION}')
    OR ({_matches(NEWER_MARKER)} AND try_cast({_group(NEWER_MARKER, 2)} AS INT)
        BETWEEN {MARKER_VERSION + 1} AND {ANY_VERSION})"""


def with_our_headers(records: DataFrame) -> DataFrame:
    """Add ``stamp`` (its bytes, or null), ``marker_of`` and ``is_newer`` (a newer format) to records.

    ``marker_of``: the logical partition that a marker names, as ``topic/partition``; null: it is no marker.
    The stamp is null too where it was made for another physical partition than ``home``: a copy.

    Garbage under one of our names is none of them: no data are lost by it.
    """
    stamped_last = F.expr(_IS_STAMP.replace("h.", f"{_LAST}."))
    searched = F.expr(
        f"get(filter(headers, h -> {_IS_STAMP}), size(filter(headers, h -> {_IS_STAMP})) - 1).value"
    )
    plain = F.col("headers").isNull() | (F.coalesce(stamped_last, F.lit(False)) & (F.size("headers") == 1))
    found = records.select(
        "*",
        F.when(F.col("headers").isNull(), None)
        .when(stamped_last, F.expr(f"{_LAST}.value"))
        .otherwise(searched)
        .alias("stamp"),
        (~plain & F.coalesce(F.expr(f"exists(headers, h -> {_IS_NEWER})"), F.lit(False))).alias("is_newer"),
        F.when(~plain, F.expr(_MARKER_OF)).alias("marker_of"),
    )
    return found.withColumn("stamp", F.when(F.expr(_IS_COPY), None).otherwise(F.col("stamp")))


def stamp_epoch() -> Column:
    return F.conv(F.hex(F.substring("stamp", 2, 4)), 16, 10).cast("bigint")


def stamp_instance() -> Column:
    """The producer instance in the stamp: 8 bytes, in the order of the number."""
    return F.substring("stamp", 6, 8)


def stamp_sequence() -> Column:
    """The sequence number in the stamp; null for one that no producer ever reaches (2^63 and more)."""
    return F.expr("try_cast(conv(hex(substring(stamp, -8, 8)), 16, 10) AS bigint)")


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


def placed(records: DataFrame, regions: DataFrame) -> DataFrame:
    """Join each record with the region that holds it; records outside all regions are left out."""
    small = F.broadcast(regions.withColumnsRenamed({"topic": "_topic", "partition": "_partition"}))
    here = (F.col("topic") == F.col("_topic")) & (F.col("partition") == F.col("_partition"))
    inside = (F.col("offset") >= F.col("first")) & (F.col("offset") < F.col("behind"))
    return records.join(small, here & inside, "inner").drop("_topic", "_partition")


def fate() -> Column:
    """The fate of a placed record with the columns of ``with_our_headers``: a number of ``Fate``.

    The view that the regions come from was read after every record: nothing is left to wait for.
    """
    stamped = F.col("stamp").isNotNull()
    stray = stamped & (stamp_epoch() < F.col("opened_epoch"))
    at_end = F.col("offset") == F.col("end")
    ours = F.col("marker_of") == F.concat_ws("/", "logical_topic", "logical_partition")
    return (
        F.when(F.col("is_newer"), _is(Fate.NEWER))
        .when(at_end & ours, _is(Fate.MARKER))
        .when(at_end, _is(Fate.NOT_THE_MARKER))
        .when(F.col("marker_of").isNotNull(), _is(Fate.ORPHAN_MARKER))
        .when(stamped & (stamp_epoch() > F.col("newest_epoch")), _is(Fate.UNKNOWN_EPOCH))
        .when(F.col("segment").isNull() & stamped, _is(Fate.STRAY))
        .when(F.col("segment").isNull(), _is(Fate.BEHIND_THE_END))
        .when(stray, _is(Fate.STRAY))
        .otherwise(_is(Fate.DATA))
        .cast("tinyint")
    )


def logical_offset() -> Column:
    return F.col("base") + F.col("stride") * (F.col("offset") - F.col("start"))


def _is(fate: Fate) -> Column:
    return F.lit(int(fate))


NEWER = "kpsplit: a record was written by a newer version of kpsplit; upgrade kpsplit"


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
            *([F.expr(_OF_APPLICATION).alias("headers")] if include_headers else []),
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
