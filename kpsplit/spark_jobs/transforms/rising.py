"""Whether offsets rise with sequence numbers, told from bits: nothing is sorted, rows may come in any order.

Of the up to 64 numbers of a cell, ``bits`` says which are there. One more integer for each bit that the
offsets differ in says of which numbers the offset has that bit; ``bit_or`` gathers them all. Then the offsets
of all numbers are compared with that of the number before, at once. Numbers may be missing in between: added
to a 1 in every gap, the 1 of a number is carried over the gap behind it, to the next number that is there.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

_NO_SIGN = (1 << 63) - 1
_INNER_GAPS = (1 << 62) - 1
"""A gap at the end carries to nobody, and would carry into the sign."""


def offset_bits(width: int) -> list[Column]:
    """Return the aggregates that gather the last bits of ``offset`` by ``sequence``; null is no number."""
    at = "CAST(sequence & 63 AS INT)"
    return [
        F.expr(f"coalesce(bit_or(shiftleft(shiftright(offset, {bit}) & 1, {at})), 0L)").alias(name)
        for bit, name in enumerate(_names("offset", width))
    ]


def with_descents(cells: DataFrame, width: int) -> DataFrame:
    """Replace the columns of ``offset_bits`` by ``descents``: 0 if offsets rise from number to number.

    Needs ``bits``, 0 where there are no numbers, and ``records``. If a number is there twice, they do not.
    """
    offsets, before = _names("offset", width), _names("before", width)
    gaps = f"shiftrightunsigned(~bits, 1) & {_INNER_GAPS}L AS gaps"
    carried = [f"gaps + ({mine} & {_NO_SIGN}L)" for mine in ("bits", *offsets)]
    prepared = cells.selectExpr("*", gaps).selectExpr(
        "*", *(f"{sum_} AS {name}" for sum_, name in zip(carried, ("behind_one", *before), strict=True))
    )
    falls = f"bit_count({_one_down('bits')} & behind_one & ~{_above(before, offsets)})"
    descents = F.expr(f"IF(bits = 0, 0, {falls} + records - bit_count(bits))").alias("descents")
    return prepared.select(*(name for name in cells.columns if name not in offsets), descents)


def _names(of: str, width: int) -> list[str]:
    return [f"{of}_bit_{bit}" for bit in range(width)]


def _above(before: list[str], offsets: list[str]) -> str:
    """The numbers whose offset is above that of the number before: the highest bit that differs tells."""
    above = "0L"
    for last, mine in zip(before, map(_one_down, offsets), strict=True):
        above = f"((~{last} & {mine}) | (~({last} ^ {mine}) & {above}))"
    return above


def _one_down(bits: str) -> str:
    """Bring the bit of each number to where the one of the number before is carried."""
    return f"shiftrightunsigned({bits}, 1)"
