"""Boundaries from a whole history are those that the sizing of the core finds in the same records."""

from __future__ import annotations

import pytest

from kpsplit.spark_jobs.plan import Weight, size_split
from kpsplit.splitter.key_range import WHOLE, balanced, key_hash

SHAPE = "key BINARY, value BINARY, key_hash BIGINT"


def rows(hot: int) -> list[tuple[bytes | None, bytes, int]]:
    keys = [b"key-%d" % (i % 300) for i in range(900)] + [b"hot"] * hot + [None] * 50
    return [(k, b"v" * (1 + i % 7), 0 if k is None else key_hash(k)) for i, k in enumerate(keys)]


@pytest.mark.parametrize("weight", Weight)
def test_the_ranges_are_those_of_the_same_records_weighed_one_by_one(spark, weight) -> None:
    data = rows(hot=40)
    sizing = size_split(spark.createDataFrame(data, SHAPE), 4, weight=weight)
    weighed = [(h, 1 if weight is Weight.RECORDS else len(k) + len(v)) for k, v, h in data if k is not None]
    expected = balanced(weighed, WHOLE, 4)
    assert sizing.samples == len(weighed)
    assert (sizing.ranges, sizing.shares, sizing.useful) == (expected.ranges, expected.shares, True)


def test_a_key_too_hot_to_split_is_named(spark) -> None:
    sizing = size_split(spark.createDataFrame(rows(hot=5000), SHAPE), 4, weight=Weight.RECORDS)
    assert not sizing.useful
    assert sizing.heaviest[0].label == "hot"
    assert sizing.heaviest[0].share > 0.8


def test_only_the_range_that_is_divided_counts(spark) -> None:
    half = WHOLE.split_evenly(2)[1]
    sizing = size_split(spark.createDataFrame(rows(hot=0), SHAPE), 2, half)
    assert (sizing.ranges[0].lo, sizing.ranges[-1].hi) == (half.lo, half.hi)
    assert max(sizing.shares) < 0.6


def test_few_keys_with_many_records_are_no_small_sample(spark) -> None:
    """Four keys of the same weight: each range gets one."""
    data = [(b"key-%d" % (i % 4), b"v", key_hash(b"key-%d" % (i % 4))) for i in range(200)]
    sizing = size_split(spark.createDataFrame(data, SHAPE), 4)
    assert (sizing.reason, sizing.samples) == ("", 200)
    assert sizing.shares == (0.25, 0.25, 0.25, 0.25)
