"""Completeness of sequence numbers: which are missing, which strays were never sent again. Pure.

The driver looks at shelves first (2^16 numbers each). Only shelves that are not full are fetched in detail.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.transforms.cells import BUCKET_BITS, SHELF_BITS
from kpsplit.spark_jobs.verification.findings import Check, Finding, Severity
from kpsplit.spark_jobs.verification.numbers import Run, joined, members, missing, unsigned
from kpsplit.spark_jobs.verification.writers import Writer, Writers

SHELF = 1 << SHELF_BITS
MOST_NUMBERS = 1 << 35
"""What a certificate says beyond so many numbers is not looked for: no producer sends that much."""
_BUCKET = 1 << BUCKET_BITS

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
    """Numbers of one producer in one partition that are not there as data."""

    writer: Writer
    runs: tuple[Run, ...]
    strays: tuple[Run, ...]


def incomplete(writers: Writers, shelves: Mapping[ShelfKey, Shelf]) -> set[ShelfKey]:
    """Return the shelves that are not full as far as numbers were given, or hold strays never sent again.

    Numbers were given up to the certificate's ``next_sequence``, or without one at least up to the greatest
    there.
    """
    tops: dict[tuple[int, str], int] = {key: _given(w) for key, w in writers.certified().items()}
    for (partition, producer, number), shelf in shelves.items():
        if shelf.last_bucket is not None and writers.get(partition, producer).certificate is None:
            top = tops.get((partition, producer), 0)
            tops[partition, producer] = max(top, (number + 1) * SHELF)
    found = {key for key, shelf in shelves.items() if shelf.unsent}
    for (partition, producer), top in tops.items():
        for number in range(-(-min(top, MOST_NUMBERS) // SHELF)):
            key = partition, producer, number
            given = min(SHELF, top - number * SHELF)
            if key not in shelves or shelves[key].numbers < given:
                found.add(key)
    return found


def _given(writer: Writer) -> int:
    return 0 if writer.certificate is None else writer.certificate.next_sequence


def holes(
    writers: Writers,
    wanted: Collection[ShelfKey],
    buckets: Iterable[Bucket],
    tops: Mapping[tuple[int, str], int],
) -> list[Holes]:
    """Return what is not there on the shelves that were looked at, apart from what was reported as failed.

    Args:
        writers: who wrote.
        wanted: the shelves that were looked at.
        buckets: all their buckets.
        tops: the greatest number that is there as data, by partition and producer.
    """
    data: dict[ShelfKey, dict[int, int]] = defaultdict(dict)
    strays: dict[ShelfKey, dict[int, int]] = defaultdict(dict)
    for b in buckets:
        data[b.shelf][b.bucket] = b.data
        strays[b.shelf][b.bucket] = b.strays
    found: dict[tuple[int, str], tuple[list[Run], list[Run]]] = defaultdict(lambda: ([], []))
    for key in sorted(wanted):
        partition, producer, number = key
        writer = writers.get(partition, producer)
        behind = _given(writer) if writer.certificate else tops.get((partition, producer), -1) + 1
        unsent = [
            (n, n)
            for bucket, bits in sorted(strays[key].items())
            for n in members(bucket, unsigned(bits) & ~unsigned(data[key].get(bucket, 0)))
            if n not in writer.failed
        ]
        excused = writer.failed | frozenset(n for n, _ in unsent)
        gone = missing(number * SHELF, min((number + 1) * SHELF, behind), data[key], excused)
        found[partition, producer][0].extend(gone)
        found[partition, producer][1].extend(joined(unsent))
    return [
        Holes(writers.get(*who), tuple(joined(runs)), tuple(joined(stray)))
        for who, (runs, stray) in found.items()
        if runs or stray
    ]


def hole_findings(snapshot: Snapshot, found: Iterable[Holes]) -> Iterator[Finding]:
    """Return one finding per run of numbers that are not there."""
    eaten = {lost.state.parent for lost in snapshot.lost()}
    for h in found:
        why = _doubt(h.writer, h.writer.parent in eaten)
        severity = Severity.UNPROVEN if why else Severity.FINDING
        for check, runs, what in (
            (Check.MISSING, h.runs, "is not there"),
            (Check.STRAYS, h.strays, "went astray and was not sent again"),
        ):
            for first, last in runs:
                numbers = f"number {first}" if first == last else f"each of the numbers {first} to {last}"
                message = f"producer {h.writer.producer}: {numbers} {what}{why}"
                yield Finding(
                    *(check, severity, h.writer.parent, message, None, h.writer.producer),
                    first=first,
                    last=last,
                    count=last - first + 1,
                )


def _doubt(writer: Writer, eaten: bool) -> str:
    if eaten:
        return "; it may be among the data that cannot be read any more"
    if writer.certificate is None:
        return "; lost, failed or still under way: the producer left no certificate"
    return ""
