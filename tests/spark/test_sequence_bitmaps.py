"""The order of numbers is told from bitmaps, however Spark cuts and mixes the records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise
from random import Random

import pytest

from kpsplit.spark_jobs.schemas import Fate
from kpsplit.spark_jobs.verification import bitmaps
from kpsplit.spark_jobs.verification.bitmaps import span_rows

JUDGED = (
    "logical_partition INT, segment BIGINT, fate TINYINT, misplaced BOOLEAN, instance BINARY, "
    "sequence BIGINT, offset BIGINT"
)
CHUNK = 1 << bitmaps.CHUNK_BITS
STARTS = (0, 1, 50, CHUNK - 70, 3 * CHUNK - 1)
RECORDS = 150

Log = list[tuple[int, int]]
"""Offset and sequence number of one producer's records in one segment."""


def rising(random: Random, start: int) -> Log:
    """Numbers that rise, some left out, beside other producers' records and transactions' markers."""
    offset, number = start, random.choice((0, 1, 63, 1 << 20))
    sparse_log, sparse_numbers = random.choice((1, 3, 200)), random.choice((1, 4, 90))
    log = []
    for _ in range(RECORDS):
        log.append((offset, number))
        offset += random.randint(1, sparse_log)
        number += random.randint(1, sparse_numbers)
    return log


def spoiled(log: Log, at: int, other: int) -> Log:
    """The log with two numbers changed for each other, or one there twice."""
    numbers = [number for _, number in log]
    if at == other:
        numbers[at] = numbers[at - 1]
    else:
        numbers[at], numbers[other] = numbers[other], numbers[at]
    return [(offset, number) for (offset, _), number in zip(log, numbers, strict=True)]


def logs() -> Iterator[Log]:
    random = Random(5)
    for start in STARTS:
        for _ in range(6):
            yield rising(random, start)
        for _ in range(14):
            at = random.randrange(1, RECORDS)
            yield spoiled(rising(random, start), at, random.choice((at, at - 1, random.randrange(RECORDS))))
        yield spoiled(rising(random, start), 0, RECORDS - 1)


def test_numbers_that_do_not_rise_are_seen_wherever_logs_are_cut_and_no_others(spark) -> None:
    expected, rows = {}, []
    for segment, log in zip(count(), logs(), strict=False):
        name = segment % 3
        rows += [(0, segment, int(Fate.DATA), False, bytes([name]) * 8, n, offset) for offset, n in log]
        rises = all(a < b for (_, a), (_, b) in pairwise(log))
        expected[segment] = RECORDS, rises, log[-1][1] if rises else max(n for _, n in log)
    Random(6).shuffle(rows)
    condensed = bitmaps.sequence_bitmaps(spark.createDataFrame(rows, JUDGED).repartition(3))
    spans = span_rows(bitmaps.spans(condensed))
    assert {s.segment: (s.records, s.descents == 0, s.last) for s in spans} == expected
    assert {rises for _, rises, _ in expected.values()} == {True, False}


@pytest.mark.parametrize("sequence", [None, 7])
def test_a_number_that_nobody_reaches_hides_no_descent_behind_it(spark, sequence) -> None:
    numbers = [8, sequence, 3]
    rows = [(0, 0, int(Fate.DATA), False, b"producer", n, 100 * i) for i, n in enumerate(numbers)]
    (span,) = span_rows(bitmaps.spans(bitmaps.sequence_bitmaps(spark.createDataFrame(rows, JUDGED))))
    assert (span.records, bool(span.descents)) == (3, True)
