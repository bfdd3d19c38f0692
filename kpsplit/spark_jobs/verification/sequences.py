"""Producers' sequence numbers: which are missing, which strays were never sent again, and what that proves.

The driver looks at blocks first (2^16 numbers each). A block of which nothing is there is missing as a
whole, with all its neighbours that are not there either: how far numbers reach costs nothing. Of blocks that
are there and not full, only the buckets at which something is missing are fetched.

Pure but for ``SequenceScan``, which asks Spark.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kpsplit.errors import KpsplitError
from kpsplit.spark_jobs.session import SPARK_ERRORS, reason
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.verification import bitmaps
from kpsplit.spark_jobs.verification.counts import (
    BLOCK,
    BUCKET,
    BlockKey,
    Bucket,
    Run,
    SegmentSpan,
    SequenceBlock,
    Who,
    common,
    joined,
    members,
    minus,
    missing,
    split_at,
)
from kpsplit.spark_jobs.verification.findings import Finding, Severity
from kpsplit.spark_jobs.verification.start import Extent, JudgedFrom, KnownProducer, KnownProducers, held_back

_log = logging.getLogger(__name__)
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
        return self.writer.parent.partition, self.writer.producer


def reaching_beyond(spans: Iterable[SegmentSpan], extents: Mapping[Who, Extent]) -> set[Who]:
    """Return the producers with data of a number that they never gave."""
    lasts = (((s.partition, s.producer), s.last) for s in spans)
    return {who for who, last in lasts if who in extents and last >= extents[who].behind}


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

    ``blocks``: those of which something is there; ``closely``: those that are looked at number by number;
    ``buckets``: those of the latter at which something is missing (``bitmaps.around_gaps``).
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
            (n, n) for b in there[key] for n in members(b.bucket, b.strays & ~b.data) if n not in failed
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
    """Whether what is missing may have been written, and lie after the ends of the logs.

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


Buckets = Callable[[set[int]], Iterable[DataFrame]]
"""Gives ``bitmaps.buckets`` of some partitions' records; nothing without partitions."""


class SequenceScan:
    """One look at all numbers: block by block, and closely only where something is suspicious.

    Args:
        spark: the session.
        writers: who wrote.
        extents: which numbers are judged.
        buckets: ``bitmaps.buckets`` of the data that is judged.
        hidden: the partitions in which an open transaction hides records.

    Attributes:
        beyond: the producers with data of a number that they never gave.
        holes: what is missing.
        missing_first: whose numbers are missing among committed records.
        again: numbers that are there now and before the time.
        repeated: blocks on which numbers are there more than once.
        answered: blocks on which numbers are there that went astray, too.
        under_way: what was missing, and lies after the ends of the logs.
        not_looked_at: blocks on which more is missing than was looked at.
    """

    def __init__(
        self,
        spark: SparkSession,
        writers: KnownProducers,
        extents: Mapping[Who, Extent],
        buckets: DataFrame,
        hidden: Collection[int],
    ) -> None:
        self._spark, self._writers, self._extents = spark, writers, extents
        self._buckets, self._hidden = buckets, hidden
        self.beyond: set[Who] = set()
        self.holes: list[Holes] = []
        self.missing_first: set[Who] = set()
        self.again: dict[Who, list[int]] = {}
        self.repeated: set[BlockKey] = set()
        self.answered: set[BlockKey] = set()
        self.under_way: list[Holes] = []
        self.not_looked_at: set[BlockKey] = set()
        # What counts as there; from the second look on only of producers that were not complete.
        self._there = buckets
        self._blocks: dict[BlockKey, SequenceBlock] = {}
        # Producers of which something has to be looked at closely; those whose numbers are missing so far.
        self._incomplete: set[Who] = set()
        self._suspects: set[Who] = set()
        # Those of which numbers before the first that is judged count as there.
        self._before: set[Who] = set()
        self._too_many = False
        self._kept: list[DataFrame] = []

    def look(
        self, spans: Collection[SegmentSpan], given: Buckets, uncommitted: Buckets, later: Buckets
    ) -> Self:
        """Look at everything. What is missing is looked for elsewhere, where it is cheapest first.

        Args:
            spans: the producers' data by segment.
            given: what lies before the time from which on is judged, the nearest first.
            uncommitted: what is judged, with the records of aborted transactions.
            later: what was written since the ends of the logs were asked for, later and later.
        """
        self._blocks = bitmaps.block_rows(bitmaps.blocks(self._buckets))
        self.beyond = reaching_beyond(spans, self._extents)
        self.repeated = {key for key, block in self._blocks.items() if block.records > block.numbers}
        self.answered = {key for key, block in self._blocks.items() if block.answered}
        try:
            self._find()
            if self._suspects:
                self._there = bitmaps.of_producers(self._there, self._theirs(self._incomplete))
            for others in given(_partitions(self._suspects)):
                if self._suspects:
                    self._note_again(others)
                    self._count_also(others, self._suspects)
            self.missing_first = set(self._suspects)
            aborted = {who for who in self._suspects if self._writers.get(*who).transactional}
            for others in uncommitted(_partitions(aborted)):
                self._count_also(others, aborted)
            if self._too_many:
                self._find(last=True)
            self._look_after_the_ends(later)
        finally:
            for frame in self._kept:
                frame.unpersist()
        return self

    def _find(self, *, last: bool = False) -> None:
        """Find what is missing, and whose it is. If it is too much, it is looked at closely at the last."""
        wanted = incomplete(self._extents, self._blocks, self.beyond, self._before)
        fitting = at_most(wanted, MOST_BUCKETS)
        self._too_many = len(fitting) < len(wanted) and not last
        closely = set() if self._too_many else fitting
        self.not_looked_at = wanted.keys() - closely
        rows: list[Bucket] = []
        if closely:
            near = bitmaps.around_gaps(self._there, bitmaps.keyed_frame(self._spark, closely, "block"))
            rows = bitmaps.bucket_rows(near)
        self.holes = holes(self._writers, self._extents, self._blocks.keys(), closely, rows)
        missing_ = {h.who for h in self.holes}
        self._incomplete = {(p, who) for p, who, _ in wanted} | missing_
        self._suspects = {(p, who) for p, who, _ in self.not_looked_at} | missing_

    def _count_also(self, others: DataFrame, wanted: set[Who]) -> None:
        """Count the numbers of other records of some producers as there; find again what is missing."""
        key = ["logical_partition", "instance", "bucket"]
        zero = F.lit(0).cast("bigint")
        theirs = bitmaps.of_producers(others, self._theirs(wanted)).select(*key, F.col("data").alias("more"))
        both = self._there.join(theirs, key, "full_outer").select(
            *key,
            F.coalesce("data", zero).bitwiseOR(F.coalesce("more", zero)).alias("data"),
            F.coalesce("strays", zero).alias("strays"),
            F.coalesce("records", zero).alias("records"),
        )
        self._there = both.persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(self._there)
        self._before |= wanted
        self._blocks |= bitmaps.block_rows(bitmaps.blocks(self._there))
        self._find()

    def _note_again(self, given: DataFrame) -> None:
        """Note numbers that are there before the time and again after it; aborted ones are not."""
        key = ["logical_partition", "instance", "bucket"]
        plain = [who for who in self._suspects if not self._writers.get(*who).transactional]
        if not plain:
            return
        earlier = bitmaps.of_producers(given, self._theirs(plain)).select(
            *key, F.col("data").alias("earlier")
        )
        both = self._buckets.join(earlier, key).where("data & earlier != 0")
        rows = both.withColumn("data", F.expr("data & earlier")).drop("earlier")
        again: dict[Who, set[int]] = defaultdict(set)
        for bucket in bitmaps.bucket_rows(rows.limit(MOST_BUCKETS)):
            who = bucket.partition, bucket.producer
            again[who].update({*members(bucket.bucket, bucket.data)} - self._writers.get(*who).failed)
        for who, twice in again.items():
            if twice:
                self.again[who] = sorted({*self.again.get(who, ()), *twice})

    def _look_after_the_ends(self, later: Buckets) -> None:
        """Look for what may have been under way, or hidden, as often as is offered.

        A look that fails proves nothing: what is missing stays so, and what was found before it counts.
        """
        open_ = self._may_come()
        try:
            for others in later(_partitions(h.who for h in open_)):
                numbers = {h.who: [n for run in (*h.runs, *h.strays) for n in run] for h in open_}
                wanted = [(*who, min(of) // BUCKET, max(of) // BUCKET) for who, of in numbers.items()]
                near = bitmaps.between(others, bitmaps.keyed_frame(self._spark, wanted, "low", "high"))
                came, self.holes = split_at_the_cut(
                    self.holes, bitmaps.bucket_rows(near.limit(MOST_BUCKETS)), self._hidden
                )
                self.under_way += came
                if not (open_ := self._may_come()):
                    break
        except (*SPARK_ERRORS, KpsplitError) as error:
            _log.warning("kpsplit: the logs could not be looked at again: %s", reason(str(error)))

    def _may_come(self) -> list[Holes]:
        return [h for h in self.holes if may_be_under_way(h, self._hidden)]

    def _theirs(self, wanted: Collection[Who]) -> DataFrame:
        return bitmaps.keyed_frame(self._spark, wanted)


def _partitions(of: Iterable[Who]) -> set[int]:
    return {partition for partition, _ in of}


class Decider:
    """Decides about missing numbers: lost, not to be judged, or given.

    A number is lost if its producer has left a certificate and everything that it delivered can be read.
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
            yield from self._decided(h.writer, h.strays, "went astray and was not sent again")
        for h in under_way:
            yield from _reported(h.writer, h.strays, f"went astray, and its copy {_UNDER_WAY}", Severity.NOTE)

    def _decided(self, writer: KnownProducer, runs: Sequence[Run], what: str) -> Iterator[Finding]:
        sure = self._extents[writer.parent.partition, writer.producer].sure
        eaten, rest = split_at(runs, sure)
        yield from _reported(writer, eaten, what + _EATEN, self._eaten)
        if writer.certificate is None:
            yield from _reported(writer, rest, what + _OPEN, Severity.UNPROVEN)
        elif writer.parent.partition in self._hidden:
            yield from _reported(writer, rest, what + _HIDDEN, Severity.UNPROVEN)
        else:
            yield from _reported(writer, rest, what, Severity.FINDING)

    def is_decided(self, found: Holes) -> bool:
        """Whether more is said of missing numbers than that they may be among what cannot be read."""
        sure = self._extents[found.who].sure
        return any(last >= sure for _, last in (*found.runs, *found.strays))


def _reported(writer: KnownProducer, runs: Sequence[Run], what: str, severity: Severity) -> Iterator[Finding]:
    """Yield a finding per run, or one for all of them where they have one cause and none is a defect.

    A sub-topic that is gone leaves a hole wherever its records stood between those of others: thousands.
    """
    together = severity is not Severity.FINDING
    for part in [runs] if together and runs else [[run] for run in runs]:
        first, last, count = part[0][0], part[-1][1], sum(b - a + 1 for a, b in part)
        if count == 1:
            numbers = f"number {first}"
        elif count == last - first + 1:
            numbers = f"each of the numbers {first} to {last}"
        else:
            numbers = f"each of {count:,} numbers between {first} and {last}"
        yield Finding(
            *(severity, writer.parent, f"producer {writer.producer}: {numbers} {what}", None),
            producer=writer.producer,
            first=first,
            last=last,
            count=count,
        )
