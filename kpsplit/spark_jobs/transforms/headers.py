"""What kpsplit wrote into the headers of a record, by native expressions (see ``consumer.logical_record``).

The stamp is the last header of a record that kpsplit wrote, so most records take the first branch; only
those with other headers behind theirs, or none of ours, are searched.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

from kpsplit.splitter.records import marker as markers
from kpsplit.splitter.records import stamp as stamps
from kpsplit.splitter.records.keys import MAX_PARTITION
from kpsplit.splitter.records.strict_json import MAX_BYTES

_VERSION = f"{stamps.VERSION:02X}"

_FORMS = " OR ".join(
    f"octet_length(h.value) = {size} AND hex(substring(h.value, 1, 1)) = '{version:02X}'"
    for version, size in stamps.SIZES.items()
)
_IS_STAMP = f"h.key = '{stamps.HEADER}' AND ({_FORMS})"
_IS_COPY = f"octet_length(stamp) = {stamps.SIZES[stamps.VERSION]} AND substring(stamp, 14, 8) != home"
_LAST = "get(headers, size(headers) - 1)"
_TEXT = "cast(h.value AS STRING)"


def _matches(pattern: str) -> str:
    small = f"h.key = '{markers.HEADER}' AND octet_length(h.value) <= {MAX_BYTES}"
    return small + rf" AND {_TEXT} rlike r'\A{pattern}\z'"


def _group(pattern: str, number: int) -> str:
    return f"regexp_extract({_TEXT}, r'{pattern}', {number})"


_IS_MARKER = f"""{_matches(markers.FORM)}
    AND try_cast({_group(markers.FORM, 3)} AS BIGINT) <= {MAX_PARTITION}"""
_MARKERS = f"filter(headers, h -> {_IS_MARKER})"
_PLACE = f"concat({_group(markers.FORM, 4)}, '/', {_group(markers.FORM, 3)})"
_MARKER_OF = f"get(transform({_MARKERS}, h -> {_PLACE}), size({_MARKERS}) - 1)"
_IS_NEWER = f"""(h.key = '{stamps.HEADER}' AND hex(substring(h.value, 1, 1)) > '{_VERSION}')
    OR ({_matches(markers.NEWER)} AND try_cast({_group(markers.NEWER, 2)} AS INT)
        BETWEEN {markers.VERSION + 1} AND {markers.MAX_VERSION})"""


def with_our_headers(records: DataFrame) -> DataFrame:
    """Add ``stamp`` (its bytes, or null), ``is_marker`` and ``is_newer`` (a newer format) to records.

    ``marker_of``: the logical partition that a marker names, as ``topic/partition``. The stamp is null too
    where it was made for another physical partition than ``home``: the record is a copy.

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
        _searched(plain, _IS_MARKER).alias("is_marker"),
        _searched(plain, _IS_NEWER).alias("is_newer"),
        F.when(~plain, F.expr(_MARKER_OF)).alias("marker_of"),
    )
    return found.withColumn("stamp", F.when(F.expr(_IS_COPY), None).otherwise(F.col("stamp")))


def _searched(plain: Column, condition: str) -> Column:
    found = F.coalesce(F.expr(f"exists(headers, h -> {condition})"), F.lit(False))
    return F.when(plain, F.lit(False)).otherwise(found)


def stamp_epoch() -> Column:
    """The epoch in the stamp."""
    return F.conv(F.hex(F.substring("stamp", 2, 4)), 16, 10).cast("bigint")


def stamp_instance() -> Column:
    """The producer instance in the stamp: 8 bytes, in the order of the number."""
    return F.substring("stamp", 6, 8)


def stamp_sequence() -> Column:
    """The sequence number in the stamp; null for one that no producer ever reaches (2^63 and more)."""
    return F.expr("try_cast(conv(hex(substring(stamp, -8, 8)), 16, 10) AS bigint)")


def without_stamp() -> Column:
    """The application's own headers."""
    return F.expr(f"filter(headers, h -> h.key != '{stamps.HEADER}')")
