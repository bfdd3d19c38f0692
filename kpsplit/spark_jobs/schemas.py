"""The shapes of all DataFrames that kpsplit makes from values of its own, and how a few rows become one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
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

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def _schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


KAFKA = _schema(
    key=BinaryType(),
    value=BinaryType(),
    topic=StringType(),
    partition=IntegerType(),
    offset=LongType(),
    timestamp=TimestampType(),
    timestampType=IntegerType(),
    headers=_HEADERS,
)
"""Kafka's own source, with headers."""

RAW = _schema(
    key=BinaryType(), topic=StringType(), partition=IntegerType(), offset=LongType(), headers=_HEADERS
)
"""What is needed of Kafka's source, physical topic and partition; the value is never looked at."""

REGIONS = _schema(
    topic=StringType(),
    partition=IntegerType(),
    first=LongType(),
    behind=LongType(),
    logical_topic=StringType(),
    logical_partition=IntegerType(),
    home=BinaryType(),
    segment=LongType(),
    lo=LongType(),
    hi=LongType(),
    start=LongType(),
    end=LongType(),
    base=LongType(),
    stride=LongType(),
    opened_epoch=LongType(),
    newest_epoch=LongType(),
)
"""What the offsets [first, behind) of a physical partition are (``regions``); null: nothing of ours.

``home``: what stamps call the physical partition.
"""

LINEAGE = _schema(
    topic=StringType(),
    partition=IntegerType(),
    segment=LongType(),
    kind=StringType(),
    lo=LongType(),
    hi=LongType(),
    source_topic=StringType(),
    source_partition=IntegerType(),
    start=LongType(),
    end=LongType(),
    base=LongType(),
    stride=LongType(),
    predecessors=ArrayType(LongType()),
    opened_epoch=LongType(),
    closed_epoch=LongType(),
)
"""One row per segment, as the control topic says."""

COMMITS = _schema(
    group=StringType(),
    topic=StringType(),
    partition=IntegerType(),
    lo=LongType(),
    hi=LongType(),
    segment=LongType(),
    next=LongType(),
    leader_epoch=LongType(),
    member=StringType(),
    generation=LongType(),
    cause=StringType(),
    log_partition=IntegerType(),
    log_offset=LongType(),
)
"""One row per range commit that is in the offset log and segment that it lists, in the order of the log."""

CERTIFICATES = _schema(
    producer=StringType(),
    client_id=StringType(),
    closed=BooleanType(),
    topic=StringType(),
    partition=IntegerType(),
    next_sequence=LongType(),
    segment=LongType(),
    delivered=LongType(),
    failed=ArrayType(LongType()),
)
"""One row per certificate and segment that it counts (segment null: it counts none)."""

FINDINGS = _schema(
    check=StringType(),
    severity=StringType(),
    topic=StringType(),
    partition=IntegerType(),
    segment=LongType(),
    producer=StringType(),
    group=StringType(),
    key_hash=LongType(),
    first=LongType(),
    last=LongType(),
    count=LongType(),
    message=StringType(),
)
"""One row per finding of ``verify``; what ``first`` and ``last`` count is said by the check."""


class Fate(IntEnum):
    """What becomes of a record, by its place and its stamp (``splitter.reading``); a number is narrow."""

    DATA = 0
    """Delivered."""
    STRAY = 1
    """Skipped: its producer sends it again."""
    MARKER = 2
    """The marker at a segment's end."""
    ORPHAN_MARKER = 3
    """A marker of an attempt that ended nothing here."""
    NOT_THE_MARKER = 4
    """A record where the lineage has a marker, or another partition's marker: not the log that was cut."""
    UNKNOWN_EPOCH = 5
    """A stamp of an epoch that was never reached."""
    BEHIND_THE_END = 6
    """An unstamped record where nothing of this logical partition is stored."""
    NEWER = 7
    """A stamp or marker of a newer format: reading on would be guessing."""


def small_frame(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: StructType) -> DataFrame:
    """Return rows of a schema as a DataFrame: a part of the plan, without a job or a worker."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrow = to_arrow_schema(schema)
    arrays = [pa.array(values, of.type) for values, of in zip(columns, arrow, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)


_OF_RECORDS = {"topic", "partition", "first", "behind"}

PLACED = StructType([*KAFKA.fields, *(f for f in REGIONS.fields if f.name not in _OF_RECORDS)])
"""``topic``, ``partition`` and ``offset`` are the physical ones."""
