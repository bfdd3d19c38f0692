"""Finds the region of every record, and its fate by the rules of ``splitter.reading``."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kpsplit.spark_jobs.schemas import Fate
from kpsplit.spark_jobs.transforms.headers import stamp_epoch


def placed(records: DataFrame, regions: DataFrame) -> DataFrame:
    """Join each record with the region that holds it; records outside all regions are left out."""
    small = F.broadcast(regions.withColumnsRenamed({"topic": "_topic", "partition": "_partition"}))
    here = (F.col("topic") == F.col("_topic")) & (F.col("partition") == F.col("_partition"))
    inside = (F.col("offset") >= F.col("first")) & (F.col("offset") < F.col("behind"))
    return records.join(small, here & inside, "inner").drop("_topic", "_partition")


def fate() -> Column:
    """The fate of a placed record with the columns of ``with_our_headers``: a number of ``Fate``.

    The view that the regions come from was read behind every record: nothing is left to wait for.
    """
    stamped = F.col("stamp").isNotNull()
    stray = stamped & (stamp_epoch() < F.col("opened_epoch"))
    at_end = F.col("offset") == F.col("end")
    ours = F.col("marker_of") == F.concat_ws("/", "logical_topic", "logical_partition")
    return (
        F.when(F.col("is_newer"), _is(Fate.NEWER))
        .when(at_end & F.col("is_marker") & ours, _is(Fate.MARKER))
        .when(at_end, _is(Fate.NOT_THE_MARKER))
        .when(F.col("is_marker"), _is(Fate.ORPHAN_MARKER))
        .when(stamped & (stamp_epoch() > F.col("newest_epoch")), _is(Fate.UNKNOWN_EPOCH))
        .when(F.col("segment").isNull() & stamped, _is(Fate.STRAY))
        .when(F.col("segment").isNull(), _is(Fate.BEHIND_THE_END))
        .when(stray, _is(Fate.STRAY))
        .otherwise(_is(Fate.DATA))
        .cast("tinyint")
    )


def logical_offset() -> Column:
    """The logical offset of a record inside a segment."""
    return F.col("base") + F.col("stride") * (F.col("offset") - F.col("start"))


def _is(fate: Fate) -> Column:
    return F.lit(int(fate))
