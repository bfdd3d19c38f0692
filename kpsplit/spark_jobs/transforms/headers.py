"""What kpsplit wrote into the headers of a record, by native expressions (see ``consumer.logical_record``).

The stamp is the last header of a record that kpsplit wrote, so most records take the first branch; only
those with other headers behind theirs, or none of ours, are searched.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

from kpsplit.splitter.records import marker as markers
from kpsplit.splitter.records import stamp as stamps

_VERSION = f"{stamps.VERSION:02X}"
_MARKER_JSON = "v INT, marker STRING, topic STRING, partition INT, attempt STRING"
_MARKER_FIELDS = 5
_LONGEST_ATTEMPT = 64

_IS_STAMP = f"""h.key = '{stamps.HEADER}' AND octet_length(h.value) = {stamps.SIZE}
    AND hex(substring(h.value, 1, 1)) = '{_VERSION}'"""
_LAST = "get(headers, size(headers) - 1)"
_JSON = "cast(h.value AS STRING)"
_PARSED = f"from_json({_JSON}, '{_MARKER_JSON}')"
_IS_MARKER = f"""h.key = '{markers.HEADER}' AND {_PARSED}.v = {markers.VERSION}
    AND {_PARSED}.marker IN ('seal', 'unseal') AND {_PARSED}.topic IS NOT NULL AND {_PARSED}.partition >= 0
    AND length({_PARSED}.attempt) <= {_LONGEST_ATTEMPT}
    AND size(json_object_keys({_JSON})) = {_MARKER_FIELDS}"""
_MARKER_OF = f"""get(transform(filter(headers, h -> {_IS_MARKER}),
    h -> concat({_PARSED}.topic, '/', {_PARSED}.partition)), 0)"""
_IS_NEWER = f"""(h.key = '{stamps.HEADER}' AND hex(substring(h.value, 1, 1)) > '{_VERSION}')
    OR (h.key = '{markers.HEADER}' AND {_PARSED}.v > {markers.VERSION})"""


def with_our_headers(records: DataFrame) -> DataFrame:
    """Add ``stamp`` (its 21 bytes, or null), ``is_marker`` and ``is_newer`` (a newer format) to records.

    ``marker_of``: the logical partition that a marker names, as ``topic/partition``.

    Garbage under one of our names is none of them: no data are lost by it.
    """
    stamped_last = F.expr(_IS_STAMP.replace("h.", f"{_LAST}."))
    searched = F.expr(
        f"get(filter(headers, h -> {_IS_STAMP}), size(filter(headers, h -> {_IS_STAMP})) - 1).value"
    )
    plain = F.col("headers").isNull() | (F.coalesce(stamped_last, F.lit(False)) & (F.size("headers") == 1))
    return records.select(
        "*",
        F.when(F.col("headers").isNull(), None)
        .when(stamped_last, F.expr(f"{_LAST}.value"))
        .otherwise(searched)
        .alias("stamp"),
        _searched(plain, _IS_MARKER).alias("is_marker"),
        _searched(plain, _IS_NEWER).alias("is_newer"),
        F.when(~plain, F.expr(_MARKER_OF)).alias("marker_of"),
    )


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
    return F.expr("try_cast(conv(hex(substring(stamp, 14, 8)), 16, 10) AS bigint)")


def without_stamp() -> Column:
    """The application's own headers."""
    return F.expr(f"filter(headers, h -> h.key != '{stamps.HEADER}')")
