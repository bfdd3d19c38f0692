"""Spark's small result tables as plain rows, and runs of sequence numbers. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kpsplit.spark_jobs.regions import Fate

BUCKET_BITS = 6
BLOCK_BITS = 16
"""2^16 sequence numbers are a block: what the driver looks at first."""

BLOCK = 1 << BLOCK_BITS
BUCKET = 1 << BUCKET_BITS
"""So many sequence numbers are the bits of one integer."""

Who = tuple[int, str]
"""Partition, producer."""

BlockKey = tuple[int, str, int]
"""Partition, producer, block."""


@dataclass(frozen=True, slots=True)
class ProducerShare:
    """One producer's records (None: without a stamp) of one segment (None: of none) with one fate.

    ``descents``: 0 if its numbers rise with the offsets.
    """

    partition: int
    segment: int | None
    fate: Fate
    producer: str | None
    records: int
    misplaced: int
    descents: int
    first_offset: int
    last_offset: int
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Total:
    """Records of one segment (None: of no segment) with one fate; offsets are physical."""

    partition: int
    segment: int | None
    fate: Fate
    stamped: bool
    records: int
    misplaced: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """A producer's data in one segment; ``descents``: 0 if its numbers rise in the log."""

    partition: int
    segment: int
    producer: str
    records: int
    descents: int
    first: int
    last: int


def totals_of(shares: Iterable[ProducerShare]) -> list[Total]:
    """Return the shares of all producers together, those with a stamp and those without."""
    found: dict[tuple[int, int | None, Fate, bool], list[ProducerShare]] = defaultdict(list)
    for s in shares:
        found[s.partition, s.segment, s.fate, s.producer is not None].append(s)
    return [
        Total(
            *(*key, sum(s.records for s in mine), sum(s.misplaced for s in mine)),
            *(min(s.first_offset for s in mine), max(s.last_offset for s in mine)),
        )
        for key, mine in found.items()
    ]


def spans_of(shares: Iterable[ProducerShare]) -> list[SegmentSpan]:
    return [
        SegmentSpan(s.partition, s.segment, s.producer, s.records, s.descents, s.first, s.last)
        for s in shares
        if s.fate is Fate.DATA
        if s.segment is not None and s.producer is not None and s.first is not None and s.last is not None
    ]


def firsts_of(shares: Iterable[ProducerShare]) -> dict[Who, int]:
    """Return the least number of each producer, as data or as a stray."""
    found: dict[Who, int] = {}
    for s in shares:
        if s.fate in (Fate.DATA, Fate.STRAY) and s.producer is not None and s.first is not None:
            who = s.partition, s.producer
            found[who] = min(found.get(who, s.first), s.first)
    return found


@dataclass(frozen=True, slots=True)
class SequenceBlock:
    """How many of 2^16 numbers of a producer are there, how often, and how many of them went astray.

    ``unsent``: strays whose numbers are not there; ``answered``: strays whose numbers are.
    """

    numbers: int
    records: int
    unsent: int
    answered: int = 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """64 numbers of a producer: which are data, which strays (bits), how many records the data are.

    ``after_gap``: nothing is there of the 64 numbers before, which are on the same block.
    """

    partition: int
    producer: str
    bucket: int
    data: int
    strays: int
    records: int
    after_gap: bool = False

    @property
    def block(self) -> BlockKey:
        return self.partition, self.producer, self.bucket * BUCKET // BLOCK


_ALL = (1 << BUCKET) - 1

Run = tuple[int, int]
"""Numbers from the first to the last, both included."""


def members(bucket: int, bits: int) -> Iterator[int]:
    """Yield the numbers of a bucket that the bits of a signed 64-bit integer name, rising."""
    rest = bits & _ALL
    while rest:
        lowest = rest & -rest
        yield bucket * BUCKET + lowest.bit_length() - 1
        rest ^= lowest


def missing(block: int, buckets: Iterable[Bucket]) -> Iterator[Run]:
    """Yield the runs of numbers of a block that are not there, rising.

    ``buckets``: what ``bitmaps.around_gaps`` returns of it, rising: the others are full or absent.
    """
    next_ = block * BLOCK
    for b in buckets:
        first = b.bucket * BUCKET
        if b.after_gap:
            yield next_, first - 1
        yield from ((n, n) for n in members(b.bucket, ~b.data))
        next_ = first + BUCKET
    if next_ < (block + 1) * BLOCK:
        yield next_, (block + 1) * BLOCK - 1


def joined(runs: Iterable[Run]) -> list[Run]:
    found: list[Run] = []
    for first, last in runs:
        if found and found[-1][1] + 1 >= first:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def minus(runs: Iterable[Run], others: Iterable[Run]) -> list[Run]:
    """Return what of rising runs is not in others, which rise too."""
    found: list[Run] = []
    rest = list(others)
    at = 0
    for first, last in runs:
        while at < len(rest) and rest[at][1] < first:
            at += 1
        begin, i = first, at
        while i < len(rest) and rest[i][0] <= last:
            if begin < rest[i][0]:
                found.append((begin, rest[i][0] - 1))
            begin, i = rest[i][1] + 1, i + 1
        if begin <= last:
            found.append((begin, last))
    return found


def common(runs: Iterable[Run], numbers: Iterable[int]) -> list[Run]:
    """Return, as runs, the rising numbers that lie in rising runs."""
    found: list[Run] = []
    rest = iter(runs)
    run = next(rest, None)
    for n in numbers:
        while run is not None and run[1] < n:
            run = next(rest, None)
        if run is not None and run[0] <= n:
            found.append((n, n))
    return joined(found)


def split_at(runs: Iterable[Run], number: int) -> tuple[list[Run], list[Run]]:
    """Return what of runs is below a number, and what is not."""
    below, rest = [], []
    for first, last in runs:
        if first < number:
            below.append((first, min(last, number - 1)))
        if last >= number:
            rest.append((max(first, number), last))
    return below, rest
