"""The order of numbers is told from bitmaps, however Spark cuts and mixes the records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise
from random import Random

import pytest

from kpsplit.spark_jobs.regions import Fate
from kpsplit.spark_jobs.verification import bitmaps
from kpsplit.spark_jobs.verification.counts import BLOCK, BUCKET, missing

JUDGED = (
    "logical_partition INT, segment BIGINT, fate TINYINT, misplaced BOOLEAN, instance BINARY, "
    "sequence BIGINT, offset BIGINT"
)
BUCKETS = "logical_partition INT, instance BINARY, bucket BIGINT, data BIGINT, strays BIGINT, records BIGINT"
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
    spans = bitmaps.share_rows(bitmaps.shares(condensed))
    assert {s.segment: (s.records, s.descents == 0, s.last) for s in spans} == expected
    assert {rises for _, rises, _ in expected.values()} == {True, False}


def blocks_of_numbers() -> Iterator[set[int]]:
    """The numbers of a block that are there: full buckets, some of which are emptied, or miss one number."""
    random = Random(7)
    whole = [set(range(bucket * BUCKET, (bucket + 1) * BUCKET)) for bucket in range(BLOCK // BUCKET)]
    yield set.union(*whole)
    yield from ({n} for n in (0, 63, 64, BLOCK - 1))
    for _ in range(30):
        first, last = sorted(random.sample(range(BLOCK // BUCKET), 2))
        kept = [set(bucket) for bucket in whole[first : last + 1] if random.random() < 0.9]
        for bucket in random.sample(kept, len(kept) // 10):
            bucket.remove(random.choice(sorted(bucket)))
        if kept:
            yield set.union(*kept)


def test_what_is_missing_on_a_block_is_told_from_the_buckets_around_its_gaps(spark) -> None:
    expected, rows = {}, []
    for name, there in enumerate(blocks_of_numbers()):
        number = name % 3
        bits: dict[int, int] = {}
        for n in there:
            bits[n // BUCKET] = bits.get(n // BUCKET, 0) | 1 << n % BUCKET
        signed = {b: v - (1 << BUCKET) if v >> (BUCKET - 1) else v for b, v in bits.items()}
        producer, first = f"{name:016x}", number * BLOCK // BUCKET
        rows += [(0, bytes.fromhex(producer), first + b, v, 0, 1) for b, v in signed.items()]
        expected[0, producer, number] = {number * BLOCK + n for n in set(range(BLOCK)) - there}
    Random(8).shuffle(rows)
    buckets = spark.createDataFrame(rows, BUCKETS).repartition(3)
    close = bitmaps.around_gaps(buckets, bitmaps.keyed_frame(spark, expected, "block"))
    found = sorted(bitmaps.bucket_rows(close), key=lambda b: b.bucket)
    for key, absent in expected.items():
        runs = list(missing(key[2], [b for b in found if b.block == key]))
        assert {n for a, b in runs for n in range(a, b + 1)} == absent


@pytest.mark.parametrize("sequence", [None, 7])
def test_a_number_that_nobody_reaches_hides_no_descent_behind_it(spark, sequence) -> None:
    numbers = [8, sequence, 3]
    rows = [(0, 0, int(Fate.DATA), False, b"producer", n, 100 * i) for i, n in enumerate(numbers)]
    condensed = bitmaps.sequence_bitmaps(spark.createDataFrame(rows, JUDGED))
    (span,) = bitmaps.share_rows(bitmaps.shares(condensed))
    assert (span.records, bool(span.descents)) == (3, True)
