"""Completeness of sequence numbers: which are missing, which strays were never sent again. Pure.

The driver looks at blocks first (2^16 numbers each). A block of which nothing is there is missing as a
whole, with all its neighbours that are not there either: how far numbers reach costs nothing. Of blocks that
are there and not full, only the buckets at which something is missing are fetched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.verification.counts import (
    BLOCK,
    BUCKET,
    BlockKey,
    Bucket,
    SegmentSpan,
    SequenceBlock,
    Who,
)
from kpsplit.spark_jobs.verification.findings import Finding, Severity
from kpsplit.spark_jobs.verification.start import Extent, JudgedFrom, KnownProducer, KnownProducers, held_back

_ALL = (1 << BUCKET) - 1

Run = tuple[int, int]
"""Numbers from the first to the last, both included."""


def unsigned(bits: int) -> int:
    """Return a signed 64-bit integer's bits as a number that is not negative."""
    return bits & _ALL


def members(bucket: int, bits: int) -> Iterator[int]:
    """Yield the numbers of a bucket that the bits name, rising."""
    rest = unsigned(bits)
    while rest:
        lowest = rest & -rest
        yield bucket * BUCKET + lowest.bit_length() - 1
        rest ^= lowest


def missing(block: int, buckets: Iterable[Bucket]) -> Iterator[Run]:
    """Yield the runs of numbers of a block that are not there, rising.

    Args:
        block: its number.
        buckets: what ``bitmaps.around_gaps`` returns of it, rising: the others are full or absent.
    """
    next_ = block * BLOCK
    for b in buckets:
        first = b.bucket * BUCKET
        if b.after_gap:
            yield next_, first - 1
        yield from ((n, n) for n in members(b.bucket, ~unsigned(b.data)))
        next_ = first + BUCKET
    if next_ < (block + 1) * BLOCK:
        yield next_, (block + 1) * BLOCK - 1


def joined(runs: Iterable[Run]) -> list[Run]:
    """Return rising runs with neighbours made one."""
    found: list[Run] = []
    for first, last in runs:
        if found and found[-1][1] + 1 >= first:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def minus(runs: Iterable[Run], others: Iterable[Run]) -> list[Run]:
    """Return the rising runs of numbers that are in the first ones and not in the others, which rise too."""
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

    def inside() -> Iterator[Run]:
        rest = iter(runs)
        run = next(rest, None)
        for n in numbers:
            while run is not None and run[1] < n:
                run = next(rest, None)
            if run is None:
                return
            if run[0] <= n:
                yield n, n

    return joined(inside())


def split_at(runs: Iterable[Run], number: int) -> tuple[list[Run], list[Run]]:
    """Return what of runs is below a number, and what is not."""
    below, rest = [], []
    for first, last in runs:
        if first < number:
            below.append((first, min(last, number - 1)))
        if last >= number:
            rest.append((max(first, number), last))
    return below, rest


MOST_BUCKETS = 1 << 18
"""At so many buckets the driver looks number by number: bounds its memory."""

_OPEN = "; lost, failed or still under way: the producer left no certificate"
_UNDER_WAY = "was under way when the ends of the logs were asked for: it lies after them"
_EATEN = "; it may be among the data that cannot be read any more"
_HIDDEN = "; it may be hidden by a transaction that is open"


@dataclass(frozen=True, slots=True)
class Holes:
    """Numbers of one producer in one partition that are not there as data, save those that failed.

    ``strays``: those of them that went astray; the others are ``runs``.
    """

    writer: KnownProducer
    runs: tuple[Run, ...]
    strays: tuple[Run, ...]

    @property
    def who(self) -> Who:
        """Whose they are."""
        return self.writer.parent.partition, self.writer.producer


def reaching_beyond(spans: Iterable[SegmentSpan], extents: Mapping[Who, Extent]) -> set[Who]:
    """Return the producers with data of a number that they never gave."""
    return {
        who for s in spans if (who := (s.partition, s.producer)) in extents and s.last >= extents[who].behind
    }


def incomplete(
    extents: Mapping[Who, Extent],
    blocks: Mapping[BlockKey, SequenceBlock],
    beyond: Collection[Who] = (),
    before: Collection[Who] = (),
) -> dict[BlockKey, int]:
    """Return the blocks that are there and not full as far as is judged, or hold strays never sent again.

    With each: how many of its buckets have to be looked at, at most. A block only counts what it holds: where
    numbers that are not judged may be among them, it is no proof.

    Args:
        extents: which numbers are judged.
        blocks: what is there.
        beyond: the producers with numbers that they never gave.
        before: the producers of which numbers before the first that is judged count as there.
    """
    found = {}
    for key, block in blocks.items():
        partition, producer, number = key
        who = partition, producer
        extent = extents.get(who)
        if extent is None:
            continue
        wanted = min((number + 1) * BLOCK, extent.behind) - max(number * BLOCK, extent.first)
        mixed = (who in beyond and number == extent.behind // BLOCK) or (
            who in before and number == extent.first // BLOCK
        )
        more = wanted - block.numbers
        if block.unsent or more > 0 or (mixed and wanted > 0):
            there = min(BLOCK // BUCKET, block.numbers + block.unsent)
            # a number that is missing touches two buckets at most, and so do the ends of what is judged
            found[key] = there if mixed else min(there, 2 * max(block.unsent, more) + 4)
    return found


def at_most(wanted: Mapping[BlockKey, int], buckets: int) -> set[BlockKey]:
    """Return blocks that together need at most so many buckets to be looked at: as many as can be."""
    found = set()
    for key in sorted(wanted, key=lambda key: (wanted[key], key)):
        buckets -= wanted[key]
        if buckets < 0:
            break
        found.add(key)
    return found


def absent(extents: Mapping[Who, Extent], blocks: Iterable[BlockKey]) -> dict[Who, list[Run]]:
    """Return the numbers that are judged and lie in blocks of which nothing is there."""
    there: dict[Who, list[int]] = defaultdict(list)
    for partition, producer, number in blocks:
        there[partition, producer].append(number)
    found = {}
    for who, extent in extents.items():
        full = [(n * BLOCK, (n + 1) * BLOCK - 1) for n in sorted(there[who])]
        if extent.first < extent.behind and (gaps := minus([(extent.first, extent.behind - 1)], full)):
            found[who] = gaps
    return found


def holes(
    writers: KnownProducers,
    extents: Mapping[Who, Extent],
    blocks: Collection[BlockKey],
    closely: Collection[BlockKey],
    buckets: Iterable[Bucket],
) -> list[Holes]:
    """Return what is not there, apart from what was reported as failed.

    Args:
        writers: who wrote.
        extents: which numbers are judged.
        blocks: those of which something is there.
        closely: those that are looked at number by number.
        buckets: those of the latter at which something is missing (``bitmaps.around_gaps``).
    """
    there: dict[BlockKey, list[Bucket]] = defaultdict(list)
    for bucket in sorted(buckets, key=lambda b: b.bucket):
        there[bucket.block].append(bucket)
    runs: dict[Who, list[Run]] = defaultdict(list)
    for who, gaps in absent(extents, blocks).items():
        runs[who] += minus(gaps, [(n, n) for n in sorted(writers.get(*who).failed)])
    astray: dict[Who, list[Run]] = defaultdict(list)
    for key in sorted(closely):
        partition, producer, number = key
        who = partition, producer
        failed, extent = writers.get(*who).failed, extents[who]
        unsent = [
            (n, n)
            for b in there[key]
            for n in members(b.bucket, unsigned(b.strays) & ~unsigned(b.data))
            if n not in failed
        ]
        first, behind = max(number * BLOCK, extent.first), min((number + 1) * BLOCK, extent.behind)
        judged = split_at(split_at(joined(missing(number, there[key])), first)[1], behind)[0]
        runs[who] += minus(minus(judged, [(n, n) for n in sorted(failed)]), unsent)
        astray[who] += unsent
    return [
        Holes(writers.get(*who), tuple(joined(sorted(runs[who]))), tuple(joined(astray[who])))
        for who in sorted(runs.keys() | astray.keys())
        if runs[who] or astray[who]
    ]


def may_be_under_way(found: Holes, hidden: Collection[int]) -> bool:
    """Return whether what is missing may have been written, and lie after the ends of the logs.

    What a producer with a certificate delivered lies before the ends, because certificates are read first. It
    can lie after the end only in partitions where an open transaction hides records (``hidden``).
    """
    return found.writer.certificate is None or found.writer.parent.partition in hidden


def split_at_the_cut(
    found: Iterable[Holes], later: Iterable[Bucket], hidden: Collection[int] = ()
) -> tuple[list[Holes], list[Holes]]:
    """Part what is missing into what lies after the ends that were asked for, and what is missing still.

    One snapshot asks the logs for their ends one after the other, while producers write. So of two numbers
    the greater one may lie before the end of its log, and the smaller one after the end of another. A number
    that was written after the ends was under way, not lost: the run that reads on judges it.

    Args:
        found: what is not there.
        later: what of it, and of others, a later reading found after the ends, as data or as strays. A
            closed producer sends no stray again, and a second stray is no copy of the first.
        hidden: the partitions in which an open transaction hides records.
    """
    there: dict[Who, list[Bucket]] = defaultdict(list)
    for b in sorted(later, key=lambda b: b.bucket):
        there[b.partition, b.producer].append(b)
    under_way, missing_still = [], []
    for h in found:
        mine = there[h.who] if may_be_under_way(h, hidden) else []
        is_open = h.writer.certificate is None
        either = (n for b in mine for n in members(b.bucket, b.data | (b.strays if is_open else 0)))
        data = (n for b in mine for n in members(b.bucket, b.data))
        came = Holes(h.writer, tuple(common(h.runs, either)), tuple(common(h.strays, data)))
        left = Holes(h.writer, tuple(minus(h.runs, came.runs)), tuple(minus(h.strays, came.strays)))
        under_way += [came] if came.runs or came.strays else []
        missing_still += [left] if left.runs or left.strays else []
    return under_way, missing_still


class Decider:
    """Decides about missing numbers: lost, not to be judged, or given.

    A number is lost if its producer has left a certificate and everything that it delivered can be read.

    Args:
        snapshot: with what an open transaction hides.
        start: whether what cannot be read is given, or should have been judged.
        extents: which numbers are judged.
    """

    def __init__(self, snapshot: Snapshot, start: JudgedFrom, extents: Mapping[Who, Extent]) -> None:
        self._extents, self._hidden = extents, held_back(snapshot)
        self._eaten = Severity.NOTE if start.since is None else Severity.UNPROVEN

    def sequences_complete(self, found: Iterable[Holes], under_way: Iterable[Holes]) -> Iterator[Finding]:
        """Yield one finding per run of numbers that are lost, and one for all others of a producer."""
        for h in found:
            yield from self._decided(h.writer, h.runs, "is not there")
        for h in under_way:
            yield from _reported(h.writer, h.runs, _UNDER_WAY, Severity.NOTE)

    def strays_sent_again(self, found: Iterable[Holes], under_way: Iterable[Holes]) -> Iterator[Finding]:
        """Yield the same of strays that nobody sent again."""
        for h in found:
            what = "went astray and was not sent again"
            yield from self._decided(h.writer, h.strays, what)
        for h in under_way:
            what = f"went astray, and its copy {_UNDER_WAY}"
            yield from _reported(h.writer, h.strays, what, Severity.NOTE)

    def _decided(self, writer: KnownProducer, runs: Sequence[Run], what: str) -> Iterator[Finding]:
        sure = self._extents[writer.parent.partition, writer.producer].sure
        eaten, rest = split_at(runs, sure)
        yield from _reported(writer, eaten, what + _EATEN, self._eaten)
        yield from _reported(writer, rest, *self._said(writer, what))

    def is_decided(self, found: Holes) -> bool:
        """Return whether more is said of missing numbers than that they may be among what cannot be read."""
        sure = self._extents[found.who].sure
        return any(last >= sure for _, last in (*found.runs, *found.strays))

    def _said(self, writer: KnownProducer, what: str) -> tuple[str, Severity]:
        if writer.certificate is None:
            return what + _OPEN, Severity.UNPROVEN
        if writer.parent.partition in self._hidden:
            return what + _HIDDEN, Severity.UNPROVEN
        return what, Severity.FINDING


def _reported(writer: KnownProducer, runs: Sequence[Run], what: str, severity: Severity) -> Iterator[Finding]:
    """Yield a finding per run, or one for all of them where they have one cause and none is a defect.

    A sub-topic that is gone leaves a hole wherever its records stood between those of others: thousands.
    """
    together = severity is not Severity.FINDING
    for part in [runs] if together and runs else [[run] for run in runs]:
        first, last, count = part[0][0], part[-1][1], sum(b - a + 1 for a, b in part)
        numbers = f"number {first}" if count == 1 else f"each of the numbers {first} to {last}"
        if count < last - first + 1:
            numbers = f"each of {count:,} numbers between {first} and {last}"
        yield Finding(
            *(severity, writer.parent, f"producer {writer.producer}: {numbers} {what}", None),
            producer=writer.producer,
            first=first,
            last=last,
            count=count,
        )
