"""Completeness of sequence numbers: which are missing, which strays were never sent again. Pure.

The driver looks at shelves first (2^16 numbers each). Only shelves that are not full are fetched in detail.
What earlier runs know (``ledger``) counts as if it were on the shelves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kpsplit.spark_jobs.transforms.cells import BUCKET_BITS, SHELF_BITS
from kpsplit.spark_jobs.verification.counted import Span
from kpsplit.spark_jobs.verification.numbers import (
    Run,
    bits_of,
    joined,
    members,
    missing,
    unsigned,
    within,
)
from kpsplit.spark_jobs.verification.state import State
from kpsplit.spark_jobs.verification.writers import Writer, Writers

SHELF = 1 << SHELF_BITS
MOST_NUMBERS = 1 << 35
"""What a certificate says beyond so many numbers is not looked for: no producer sends that much."""
_BUCKET = 1 << BUCKET_BITS

MOST_SHELVES = 256
"""So many shelves of sequence numbers are looked at number by number: at most 16 million numbers."""
MOST_MISSING = (MOST_SHELVES + 2) * SHELF
"""So many missing numbers are on more shelves than are looked at."""

Who = tuple[int, str]
"""Partition, producer."""

ShelfKey = tuple[int, str, int]
"""Partition, producer, shelf."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """How many of 2^16 numbers of a producer are there, how often, and strays that were never sent again."""

    numbers: int
    records: int
    unsent: int
    last_bucket: int | None


@dataclass(frozen=True, slots=True)
class Bucket:
    """64 numbers of a producer: which are data, which strays (bits), how many records the data are."""

    partition: int
    producer: str
    bucket: int
    data: int
    strays: int
    records: int

    @property
    def shelf(self) -> ShelfKey:
        """The shelf that it stands on."""
        return self.partition, self.producer, self.bucket * _BUCKET // SHELF


@dataclass(frozen=True, slots=True)
class Holes:
    """Numbers of one producer in one partition that are not there as data, save those that failed.

    ``strays``: those of them that went astray; the others are ``runs``.
    """

    writer: Writer
    runs: tuple[Run, ...]
    strays: tuple[Run, ...]

    @property
    def who(self) -> Who:
        """Whose they are."""
        return self.writer.parent.partition, self.writer.producer


def numbers_given(writers: Writers, past: State, tops: Mapping[Who, int]) -> dict[Who, int]:
    """Return how many numbers each producer has given, as far as is known, where there is anything to judge.

    Args:
        writers: with a certificate, its ``next_sequence``; what is beyond fills no hole.
        past: a producer that was judged with its certificate counts only if it wrote again.
        tops: the greatest number that is there as data now.
    """
    found: dict[Who, int] = {}
    for partition, known in past.partitions.items():
        if partition in writers.partitions:
            found |= {(partition, name): w.next for name, w in known.ledgers.items() if not w.closed}
    for who, top in tops.items():
        found[who] = max(top + 1, past.ledger(*who).next)
    for who, writer in writers.certified().items():
        if writer.certificate and (who in found or not past.ledger(*who).closed):
            found[who] = min(writer.certificate.next_sequence, MOST_NUMBERS)
    return found


def tops_of(spans: Iterable[Span], past: State) -> dict[Who, int]:
    """Return the greatest number of each producer that is there as data and that can be believed.

    Anybody who may write data can forge a stamp with any number. One that would leave more numbers missing
    than are ever looked at counts as the last of those: what is missing is told all the same, and what is
    done about it does not depend on the forged number.
    """
    last: dict[Who, int] = {}
    records: dict[Who, int] = defaultdict(int)
    for span in spans:
        who = span.partition, span.producer
        last[who] = max(last.get(who, -1), span.last)
        records[who] += span.records
    return {who: min(top, past.ledger(*who).next + records[who] + MOST_MISSING) for who, top in last.items()}


def reaching_beyond(spans: Iterable[Span], given: Mapping[Who, int]) -> set[Who]:
    """Return the producers with data of a number that they never gave."""
    return {who for s in spans if (who := (s.partition, s.producer)) in given and s.last >= given[who]}


def incomplete(
    past: State,
    given: Mapping[Who, int],
    shelves: Mapping[ShelfKey, Shelf],
    again: Mapping[ShelfKey, int],
    beyond: Collection[Who] = (),
) -> set[ShelfKey]:
    """Return the shelves that are not full as far as numbers were given, or hold strays never sent again.

    A shelf only counts what it holds: where numbers that were never given may be among them, it is no proof.

    Args:
        past: what earlier runs know.
        given: as ``numbers_given``.
        shelves: what is there now.
        again: how many of that earlier runs had accounted for.
        beyond: whose data reach beyond what was given.
    """
    found = {key for key, shelf in shelves.items() if shelf.unsent}
    found |= {(*who, given[who] // SHELF) for who in beyond if given[who] % SHELF}
    touched: dict[Who, set[int]] = defaultdict(set)
    for partition, producer, number in shelves:
        touched[partition, producer].add(number)
    for (partition, producer), behind in given.items():
        known = past.ledger(partition, producer)
        ours = touched[partition, producer] | set(range(known.next // SHELF, -(-behind // SHELF)))
        for first, last in known.open:
            ours.update(range(first // SHELF, last // SHELF + 1))
        found |= {(partition, producer, a // SHELF) for a, _ in known.strays}
        for number in ours:
            key = partition, producer, number
            end = min((number + 1) * SHELF, behind)
            there = shelves[key].numbers - again.get(key, 0) if key in shelves else 0
            if there + known.accounted(number * SHELF, end) < end - number * SHELF:
                found.add(key)
    return found


def holes(
    writers: Writers,
    past: State,
    wanted: Collection[ShelfKey],
    buckets: Iterable[Bucket],
    given: Mapping[Who, int],
) -> list[Holes]:
    """Return what is not there on the shelves that were looked at, apart from what was reported as failed.

    Args:
        writers: who wrote.
        past: what earlier runs know.
        wanted: the shelves that were looked at.
        buckets: all their buckets.
        given: as ``numbers_given``.
    """
    data: dict[ShelfKey, dict[int, int]] = defaultdict(dict)
    strays: dict[ShelfKey, dict[int, int]] = defaultdict(dict)
    for b in buckets:
        data[b.shelf][b.bucket] = b.data
        strays[b.shelf][b.bucket] = b.strays
    found: dict[Who, tuple[list[Run], list[Run]]] = defaultdict(lambda: ([], []))
    for key in sorted(wanted):
        partition, producer, number = key
        _remember(past, key, data[key], strays[key])
        writer = writers.get(partition, producer)
        unsent = [
            (n, n)
            for bucket, bits in sorted(strays[key].items())
            for n in members(bucket, unsigned(bits) & ~unsigned(data[key].get(bucket, 0)))
            if n not in writer.failed
        ]
        excused = writer.failed | frozenset(n for n, _ in unsent)
        behind = given.get((partition, producer), 0)
        gone = missing(number * SHELF, min((number + 1) * SHELF, behind), data[key], excused)
        found[partition, producer][0].extend(gone)
        found[partition, producer][1].extend(joined(unsent))
    return [
        Holes(writers.get(*who), tuple(joined(runs)), tuple(joined(stray)))
        for who, (runs, stray) in found.items()
        if runs or stray
    ]


def _remember(past: State, key: ShelfKey, data: dict[int, int], strays: dict[int, int]) -> None:
    """Add what earlier runs know to the buckets of a shelf."""
    partition, producer, shelf = key
    whole = past.ledger(partition, producer)
    here = within(whole.open, shelf * SHELF, (shelf + 1) * SHELF)
    known = replace(whole, fresh=tuple(here), doubted=(), strays=())
    first = shelf * SHELF // _BUCKET
    for bucket in range(first, min(first + SHELF // _BUCKET, -(-known.next // _BUCKET))):
        if bits := known.accounted_bits(bucket):
            data[bucket] = unsigned(data.get(bucket, 0)) | bits
    for a, b in within(whole.strays, shelf * SHELF, (shelf + 1) * SHELF):
        for bucket in range(a // _BUCKET, b // _BUCKET + 1):
            strays[bucket] = unsigned(strays.get(bucket, 0)) | bits_of(whole.strays, bucket)
