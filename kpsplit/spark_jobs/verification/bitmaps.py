"""Condenses records to what the proofs need, with narrow columns only: never a value, never a key.

1. ``judged``: one narrow row per record. Only the few that are looked at closely are ever shuffled.
2. ``sequence_bitmaps``: up to 64 consecutive sequence numbers of one producer in one chunk (2^18 offsets) of
   one segment are one row: an integer, whose bits say which numbers are there. So completeness and uniqueness
   are exact, and no set of numbers is ever sorted. ``with_descents`` tells from bits whether they rise.
3. Everything else is made from the bitmaps, which are 1/64 to 1/8 of the records: for the order of numbers,
   bitmaps are put in the order of the log, chunk by chunk, and then chunks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from kpsplit.spark_jobs.records import (
    fate,
    hash_of,
    logical_offset,
    placed,
    reader_hash,
    small_frame,
    stamp_epoch,
    stamp_instance,
    stamp_sequence,
    with_our_headers,
)
from kpsplit.spark_jobs.regions import Fate
from kpsplit.spark_jobs.verification.counts import (
    BLOCK_BITS,
    BUCKET_BITS,
    BlockKey,
    Bucket,
    ProducerShare,
    SequenceBlock,
)

CHUNK_BITS = 18
"""2^18 offsets are a chunk. The fewer, the cheaper is a record, and the less is in a bitmap if many
producers take turns."""
_BEYOND = (1 << 63) - 1
"""Stands for numbers of 2^63 and more: all of them are forged, and judged like any beyond all sense."""


def judged(raw: DataFrame, regions: DataFrame) -> DataFrame:
    """Return one narrow row per record: place, ``fate``, ``misplaced`` (its key is another segment's), stamp.

    Lazily also ``epoch``, ``key_hash``, ``key_print`` and ``logical_offset``, for the few records that are
    looked at closely.
    """
    records = with_our_headers(placed(raw, regions))
    inside = (hash_of(F.col("key")) >= F.col("lo")) & (hash_of(F.col("key")) < F.col("hi"))
    return records.select(
        "logical_partition",
        "segment",
        "offset",
        fate().alias("fate"),
        F.coalesce(F.col("key").isNotNull() & ~inside, F.lit(False)).alias("misplaced"),
        F.when(F.col("stamp").isNotNull(), stamp_instance()).alias("instance"),
        F.when(F.col("stamp").isNotNull(), F.coalesce(stamp_sequence(), F.lit(_BEYOND))).alias("sequence"),
        stamp_epoch().alias("epoch"),
        F.when(F.col("segment").isNotNull(), reader_hash()).alias("key_hash"),
        F.xxhash64("key").alias("key_print"),
        F.col("key").isNotNull().alias("keyed"),
        logical_offset().alias("logical_offset"),
    )


def sequence_bitmaps(records: DataFrame) -> DataFrame:
    """Condense judged records; ``descents``: 0 if the offsets of a bitmap rise with its numbers.

    It makes no difference how Spark cuts the logs into partitions, nor in which order it has the records.
    """
    gathered = records.groupBy(
        "logical_partition",
        "segment",
        "fate",
        "instance",
        F.shiftright("offset", CHUNK_BITS).alias("chunk"),
        F.shiftright("sequence", BUCKET_BITS).alias("bucket"),
    ).agg(
        F.expr("coalesce(bit_or(shiftleft(1L, CAST(sequence & 63 AS INT))), 0L)").alias("bits"),
        F.count("*").alias("records"),
        F.count_if("misplaced").alias("misplaced"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.min("sequence").alias("first_sequence"),
        F.max("sequence").alias("last_sequence"),
        *offset_bits(),
    )
    return with_descents(gathered)


def shares(bitmaps: DataFrame) -> DataFrame:
    """Count records by segment, fate and producer, with the offsets and numbers that they span.

    ``descents``: 0 if the numbers rise with the offsets.
    """
    place = ["logical_partition", "segment", "fate", "instance"]
    in_chunk = Window.partitionBy(*place, "chunk").orderBy("first_offset")
    in_log = Window.partitionBy(*place).orderBy("chunk")
    behind = _not_behind_all("sequence", in_chunk) | _not_behind_all("offset", in_chunk)
    chunks = _summed(bitmaps.withColumn("behind", behind), *place, "chunk")
    return _summed(chunks.withColumn("behind", _not_behind_all("sequence", in_log)), *place)


def _summed(rows: DataFrame, *place: str) -> DataFrame:
    """Sum up bitmaps, or sums of them; each that is ``behind`` one before it is a descent."""
    return rows.groupBy(*place).agg(
        F.sum("records").alias("records"),
        F.sum("misplaced").alias("misplaced"),
        (F.sum("descents") + F.count_if("behind")).alias("descents"),
        F.min("first_offset").alias("first_offset"),
        F.max("last_offset").alias("last_offset"),
        F.min("first_sequence").alias("first_sequence"),
        F.max("last_sequence").alias("last_sequence"),
    )


def _not_behind_all(what: str, window: WindowSpec) -> Column:
    """Whether the first sequence or offset of a row is not above the last ones of all rows before it."""
    before = F.max(f"last_{what}").over(window.rowsBetween(Window.unboundedPreceding, -1))
    return F.coalesce(F.col(f"first_{what}") <= before, F.lit(False))


def buckets(bitmaps: DataFrame) -> DataFrame:
    """Return, per producer and 64 sequence numbers, which of them are data, and which are strays."""
    is_data, is_stray = (F.col("fate") == int(f) for f in (Fate.DATA, Fate.STRAY))
    return (
        bitmaps.where(F.col("bucket").isNotNull() & (is_data | is_stray))
        .groupBy("logical_partition", "instance", "bucket")
        .agg(
            F.coalesce(F.bit_or(F.when(is_data, F.col("bits"))), F.lit(0)).alias("data"),
            F.coalesce(F.bit_or(F.when(is_stray, F.col("bits"))), F.lit(0)).alias("strays"),
            F.coalesce(F.sum(F.when(is_data, F.col("records"))), F.lit(0)).alias("records"),
        )
    )


def blocks(buckets_: DataFrame) -> DataFrame:
    """Return, per producer and 2^16 numbers: how many are there, how often, and how many went astray.

    ``unsent``: strays whose numbers are not there; ``answered``: strays whose numbers are.
    """
    block = F.shiftright("bucket", BLOCK_BITS - BUCKET_BITS).alias("block")
    return buckets_.groupBy("logical_partition", "instance", block).agg(
        F.sum(F.bit_count("data")).alias("numbers"),
        F.sum("records").alias("records"),
        F.sum(F.expr("bit_count(strays & ~data)")).alias("unsent"),
        F.sum(F.expr("bit_count(strays & data)")).alias("answered"),
    )


def in_blocks(buckets_: DataFrame, wanted: DataFrame) -> DataFrame:
    """Return the buckets of some blocks (logical_partition, instance, block)."""
    block = F.shiftright("bucket", BLOCK_BITS - BUCKET_BITS)
    return buckets_.withColumn("block", block).join(
        F.broadcast(wanted), ["logical_partition", "instance", "block"], "left_semi"
    )


def around_gaps(buckets_: DataFrame, wanted: DataFrame) -> DataFrame:
    """Return the buckets of some blocks that are not full, or beside which one is absent; each block's last.

    What is not returned is full or absent. ``after_gap``: the bucket before it is absent.
    """
    found = in_blocks(buckets_, wanted)
    path = Window.partitionBy("logical_partition", "instance", "block").orderBy("bucket")
    is_first = F.col("bucket") == F.shiftleft("block", BLOCK_BITS - BUCKET_BITS)
    after_gap = ~is_first & ~F.coalesce(F.lag("bucket").over(path) == F.col("bucket") - 1, F.lit(False))
    before_gap = ~F.coalesce(F.lead("bucket").over(path) == F.col("bucket") + 1, F.lit(False))
    found = found.withColumns({"after_gap": after_gap, "before_gap": before_gap})
    return found.where("data != -1 OR after_gap OR before_gap").drop("block", "before_gap")


def of_producers(buckets_: DataFrame, wanted: DataFrame) -> DataFrame:
    return buckets_.join(F.broadcast(wanted), ["logical_partition", "instance"], "left_semi")


def between(buckets_: DataFrame, wanted: DataFrame) -> DataFrame:
    """Return the buckets of some producers from one to another (logical_partition, instance, low, high)."""
    inside = (F.col("bucket") >= F.col("low")) & (F.col("bucket") <= F.col("high"))
    joined = buckets_.join(F.broadcast(wanted), ["logical_partition", "instance"])
    return joined.where(inside).drop("low", "high")


def repeated(records: DataFrame, wanted: DataFrame) -> DataFrame:
    """Return numbers that are data more than once, in some buckets, with their first and last place."""
    return (
        records.where(F.col("fate") == int(Fate.DATA))
        .withColumn("bucket", F.shiftright("sequence", BUCKET_BITS))
        .join(F.broadcast(wanted), ["logical_partition", "instance", "bucket"], "left_semi")
        .groupBy("logical_partition", "instance", "sequence")
        .agg(
            F.count("*").alias("records"),
            F.min_by("segment", "logical_offset").alias("segment"),
            F.min("logical_offset").alias("first"),
            F.max("logical_offset").alias("last"),
            F.min_by("key_hash", "logical_offset").alias("key_hash"),
        )
        .where("records > 1")
    )


def copied(records: DataFrame, wanted: DataFrame, excused: DataFrame) -> DataFrame:
    """Return strays in some buckets that nobody sent again, although their numbers are there as data.

    What is sent again has a newer epoch than the stray. Where no data have one, the data are the original,
    and the stray is a copy of it that another program wrote back.

    Args:
        records: judged records.
        wanted: the buckets (logical_partition, instance, bucket).
        excused: numbers that may stand anywhere (logical_partition, instance, sequence): reported as failed.
    """
    number = ["logical_partition", "instance", "sequence"]
    newest = F.max(F.when(F.col("fate") == int(Fate.DATA), F.col("epoch"))).over(Window.partitionBy(*number))
    return (
        records.where(F.col("fate").isin(int(Fate.DATA), int(Fate.STRAY)))
        .withColumn("bucket", F.shiftright("sequence", BUCKET_BITS))
        .join(wanted, ["logical_partition", "instance", "bucket"], "left_semi")
        .join(F.broadcast(excused), number, "left_anti")
        .withColumn("newest", newest)
        .where((F.col("fate") == int(Fate.STRAY)) & (F.col("newest") <= F.col("epoch")))
        .groupBy("logical_partition", "segment", "instance")
        .agg(
            F.count("*").alias("records"),
            F.min("sequence").alias("first"),
            F.max("sequence").alias("last"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
        )
    )


def misplaced(records: DataFrame) -> DataFrame:
    """Return records whose key belongs to another segment, by segment and producer, with an example."""
    return (
        records.where(F.col("misplaced") & (F.col("fate") == int(Fate.DATA)))
        .groupBy("logical_partition", "segment", "instance")
        .agg(
            F.count("*").alias("records"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.min_by("key_hash", "offset").alias("key_hash"),
        )
    )


def out_of_order(records: DataFrame, wanted: DataFrame, excused: DataFrame) -> DataFrame:
    """Return data that lie after a greater number of the same producer and key, along the lineage.

    Args:
        records: judged records.
        wanted: the producers and segments to look at (logical_partition, instance, segment).
        excused: numbers that may stand anywhere (logical_partition, instance, sequence): reported as failed.
    """
    path = Window.partitionBy("logical_partition", "instance", "key_hash", "key_print").orderBy(
        "logical_offset"
    )
    return (
        records.where((F.col("fate") == int(Fate.DATA)) & F.col("keyed"))
        .join(F.broadcast(wanted), ["logical_partition", "instance", "segment"], "left_semi")
        .join(F.broadcast(excused), ["logical_partition", "instance", "sequence"], "left_anti")
        .withColumn("before", F.lag("sequence").over(path))
        .where("before > sequence")
    )


def places(records: DataFrame, wanted: DataFrame) -> DataFrame:
    """Return where some numbers (logical_partition, instance, sequence) are data."""
    return (
        records.where(F.col("fate") == int(Fate.DATA))
        .join(F.broadcast(wanted), ["logical_partition", "instance", "sequence"], "left_semi")
        .select("logical_partition", "instance", "sequence", "segment", "logical_offset", "key_hash")
    )


_NO_SIGN = (1 << 63) - 1
_INNER_GAPS = (1 << 62) - 1
"""A gap at the end carries to nobody, and would carry into the sign."""


def offset_bits() -> list[Column]:
    """Return the aggregates that gather the last bits of ``offset`` by ``sequence``; null is no number."""
    at = "CAST(sequence & 63 AS INT)"
    return [
        F.expr(f"coalesce(bit_or(shiftleft(shiftright(offset, {bit}) & 1, {at})), 0L)").alias(name)
        for bit, name in enumerate(_names("offset"))
    ]


def with_descents(bitmaps: DataFrame) -> DataFrame:
    """Replace the columns of ``offset_bits`` by ``descents``: 0 if offsets rise from number to number.

    Needs ``bits``, 0 where there are no numbers, and ``records``. If a number is there twice, they do not.
    """
    offsets, before = _names("offset"), _names("before")
    gaps = f"shiftrightunsigned(~bits, 1) & {_INNER_GAPS}L AS gaps"
    carried = [f"gaps + ({mine} & {_NO_SIGN}L)" for mine in ("bits", *offsets)]
    prepared = bitmaps.selectExpr("*", gaps).selectExpr(
        "*", *(f"{sum_} AS {name}" for sum_, name in zip(carried, ("behind_one", *before), strict=True))
    )
    falls = f"bit_count({_one_down('bits')} & behind_one & ~{_above(before, offsets)})"
    descents = F.expr(f"IF(bits = 0, 0, {falls} + records - bit_count(bits))").alias("descents")
    return prepared.select(*(name for name in bitmaps.columns if name not in offsets), descents)


def _names(of: str) -> list[str]:
    return [f"{of}_bit_{bit}" for bit in range(CHUNK_BITS)]


def _above(before: list[str], offsets: list[str]) -> str:
    """The numbers whose offset is above that of the number before: the highest bit that differs tells."""
    above = "0L"
    for last, mine in zip(before, map(_one_down, offsets), strict=True):
        above = f"((~{last} & {mine}) | (~({last} ^ {mine}) & {above}))"
    return above


def _one_down(bits: str) -> str:
    """Bring the bit of each number to where the one of the number before is carried."""
    return f"shiftrightunsigned({bits}, 1)"


_WHO = StructType([StructField("logical_partition", IntegerType()), StructField("instance", BinaryType())])


def share_rows(frame: DataFrame) -> list[ProducerShare]:
    return [
        ProducerShare(partition, segment, Fate(fate), instance and producer_name(instance), *rest)
        for partition, segment, fate, instance, *rest in frame.collect()
    ]


def block_rows(frame: DataFrame) -> dict[BlockKey, SequenceBlock]:
    return {
        (r.logical_partition, producer_name(r.instance), r.block): SequenceBlock(
            r.numbers, r.records, r.unsent, r.answered
        )
        for r in frame.collect()
    }


def bucket_rows(frame: DataFrame) -> list[Bucket]:
    return [
        Bucket(partition, producer_name(instance), *rest) for partition, instance, *rest in frame.collect()
    ]


def keyed_frame(spark: SparkSession, keys: Iterable[tuple[Any, ...]], *last: str) -> DataFrame:
    """Return keys (partition, producer, …) as a DataFrame; ``last``: its columns after these two."""
    rows = [(partition, bytes.fromhex(producer), *rest) for partition, producer, *rest in sorted(keys)]
    return small_frame(spark, rows, StructType([*_WHO.fields, *(StructField(n, LongType()) for n in last)]))


def producer_name(instance: bytes | bytearray | None) -> str:
    return bytes(instance or b"").hex()


def producer_of(row: Row) -> str | None:
    """Return the producer of a row, None for a record without a stamp."""
    return None if row.instance is None else producer_name(row.instance)
