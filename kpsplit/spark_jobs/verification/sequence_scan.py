"""Looks at producers' sequence numbers: block by block, and closely only where something is suspicious."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kpsplit.errors import KpsplitError
from kpsplit.spark_jobs.session import SPARK_ERRORS, reason
from kpsplit.spark_jobs.verification import bitmaps
from kpsplit.spark_jobs.verification.counts import BUCKET, BlockKey, SegmentSpan, SequenceBlock, Who
from kpsplit.spark_jobs.verification.sequence_checks import (
    MOST_BUCKETS,
    Holes,
    at_most,
    holes,
    incomplete,
    may_be_under_way,
    members,
    reaching_beyond,
    split_at_the_cut,
)
from kpsplit.spark_jobs.verification.start import Extent, KnownProducers

_log = logging.getLogger(__name__)

Buckets = Callable[[set[int]], Iterable[DataFrame]]
"""Gives ``bitmaps.buckets`` of some partitions' records; nothing without partitions."""


@dataclass
class SequenceScan:
    """What was seen of the numbers.

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

    beyond: set[Who]
    holes: list[Holes] = field(default_factory=list)
    missing_first: set[Who] = field(default_factory=set)
    again: dict[Who, list[int]] = field(default_factory=dict)
    repeated: set[BlockKey] = field(default_factory=set)
    answered: set[BlockKey] = field(default_factory=set)
    under_way: list[Holes] = field(default_factory=list)
    not_looked_at: set[BlockKey] = field(default_factory=set)


class SequenceScanner:
    """One look at all numbers.

    Args:
        spark: the session.
        writers: who wrote.
        extents: which numbers are judged.
        buckets: ``bitmaps.buckets`` of the data that is judged.
        given: the same of what lies before the time from which on is judged, the nearest first.
        uncommitted: the same of what is judged with the records of aborted transactions.
        later: the same of what was written since the ends of the logs were asked for, later and later.
        hidden: the partitions in which an open transaction hides records.
    """

    def __init__(
        self,
        spark: SparkSession,
        writers: KnownProducers,
        extents: Mapping[Who, Extent],
        buckets: DataFrame,
        given: Buckets,
        uncommitted: Buckets,
        later: Buckets,
        hidden: Collection[int],
    ) -> None:
        self._spark, self._writers, self._extents = spark, writers, extents
        self._buckets, self._given, self._uncommitted = buckets, given, uncommitted
        self._later, self._hidden = later, hidden

    def look(self, spans: Collection[SegmentSpan]) -> SequenceScan:
        """Look at everything; ``spans``: the producers' data by segment.

        What is missing among committed records is looked for before the time, then among the records of
        aborted transactions.
        """
        found = _Search(self._buckets, bitmaps.block_rows(bitmaps.blocks(self._buckets)))
        looked = SequenceScan(reaching_beyond(spans, self._extents))
        looked.repeated = {key for key, block in found.blocks.items() if block.records > block.numbers}
        looked.answered = {key for key, block in found.blocks.items() if block.answered}
        try:
            self._find(found, looked)
            if found.suspects:
                found.buckets = bitmaps.of_producers(found.buckets, self._theirs(found.incomplete))
            for others in self._given(_partitions(found.suspects)):
                if found.suspects:
                    self._note_again(others, found.suspects, looked)
                    self._look_also_at(others, found.suspects, found, looked)
            looked.missing_first = set(found.suspects)
            aborted = {who for who in found.suspects if self._writers.get(*who).transactional}
            for others in self._uncommitted(_partitions(aborted)):
                self._look_also_at(others, aborted, found, looked)
            if found.too_many:
                self._find(found, looked, last=True)
            self._look_after_the_ends(looked)
        finally:
            for frame in found.kept:
                frame.unpersist()
        return looked

    def _look_after_the_ends(self, looked: SequenceScan) -> None:
        """Look for what may have been under way, or hidden, as often as is offered.

        A look that fails proves nothing: what is missing stays so, and what was found before it counts.
        """
        open_ = self._may_come(looked.holes)
        try:
            for others in self._later(_partitions(h.who for h in open_)):
                numbers = {h.who: [n for run in (*h.runs, *h.strays) for n in run] for h in open_}
                wanted = [(*who, min(of) // BUCKET, max(of) // BUCKET) for who, of in numbers.items()]
                near = bitmaps.between(others, bitmaps.keyed_frame(self._spark, wanted, "low", "high"))
                came, looked.holes = split_at_the_cut(
                    looked.holes, bitmaps.bucket_rows(near.limit(MOST_BUCKETS)), self._hidden
                )
                looked.under_way += came
                if not (open_ := self._may_come(looked.holes)):
                    break
        except (*SPARK_ERRORS, KpsplitError) as error:
            _log.warning("kpsplit: the logs could not be looked at again: %s", reason(str(error)))

    def _may_come(self, found: Iterable[Holes]) -> list[Holes]:
        return [h for h in found if may_be_under_way(h, self._hidden)]

    def _look_also_at(
        self, others: DataFrame, wanted: set[Who], found: _Search, looked: SequenceScan
    ) -> None:
        """Count the numbers of other records of some producers as there; find again what is missing."""
        found.buckets = self._with(found.buckets, others, wanted).persist(StorageLevel.MEMORY_AND_DISK)
        found.kept.append(found.buckets)
        found.before |= wanted
        found.blocks |= bitmaps.block_rows(bitmaps.blocks(found.buckets))
        self._find(found, looked)

    def _find(self, found: _Search, looked: SequenceScan, *, last: bool = False) -> None:
        """Find what is missing, and whose it is. If it is too much, it is looked at closely at the last."""
        wanted = incomplete(self._extents, found.blocks, looked.beyond, found.before)
        fitting = at_most(wanted, MOST_BUCKETS)
        found.too_many = len(fitting) < len(wanted) and not last
        closely = set() if found.too_many else fitting
        looked.not_looked_at = wanted.keys() - closely
        rows = bitmaps.bucket_rows(self._around_gaps(found.buckets, closely)) if closely else []
        looked.holes = holes(self._writers, self._extents, found.blocks.keys(), closely, rows)
        found.incomplete = {(p, who) for p, who, _ in wanted} | {h.who for h in looked.holes}
        found.suspects = {h.who for h in looked.holes} | {(p, who) for p, who, _ in looked.not_looked_at}

    def _note_again(self, given: DataFrame, wanted: Collection[Who], looked: SequenceScan) -> None:
        """Note numbers that are there before the time and again after it; aborted ones are not."""
        key = ["logical_partition", "instance", "bucket"]
        plain = [who for who in wanted if not self._writers.get(*who).transactional]
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
            failed = self._writers.get(*who).failed
            again[who].update(n for n in members(bucket.bucket, bucket.data) if n not in failed)
        for who, twice in again.items():
            if twice:
                looked.again[who] = sorted({*looked.again.get(who, ()), *twice})

    def _with(self, buckets: DataFrame, others: DataFrame, wanted: Collection[Who]) -> DataFrame:
        """Return buckets in which the numbers of other records of some producers count as there."""
        key = ["logical_partition", "instance", "bucket"]
        theirs = bitmaps.of_producers(others, self._theirs(wanted))
        zero = F.lit(0).cast("bigint")
        return buckets.join(theirs.select(*key, F.col("data").alias("written")), key, "full_outer").select(
            *key,
            F.coalesce("data", zero).bitwiseOR(F.coalesce("written", zero)).alias("data"),
            F.coalesce("strays", zero).alias("strays"),
            F.coalesce("records", zero).alias("records"),
        )

    def _around_gaps(self, buckets: DataFrame, wanted: Collection[BlockKey]) -> DataFrame:
        return bitmaps.around_gaps(buckets, bitmaps.keyed_frame(self._spark, wanted, "block"))

    def _theirs(self, wanted: Collection[Who]) -> DataFrame:
        return bitmaps.keyed_frame(self._spark, wanted)


@dataclass
class _Search:
    """Where the look stands.

    Attributes:
        buckets: what counts as there; from the second look on only of producers that were not complete.
        blocks: the same, block by block.
        incomplete: producers of which something has to be looked at closely.
        suspects: those of them whose numbers are missing, as far as is known.
        before: those of which numbers before the first that is judged count as there.
        too_many: too much is missing to be looked at closely before everything was tried.
        kept: what is let go of at the end.
    """

    buckets: DataFrame
    blocks: dict[BlockKey, SequenceBlock]
    incomplete: set[Who] = field(default_factory=set)
    suspects: set[Who] = field(default_factory=set)
    before: set[Who] = field(default_factory=set)
    too_many: bool = False
    kept: list[DataFrame] = field(default_factory=list)


def _partitions(of: Iterable[Who]) -> set[int]:
    return {partition for partition, _ in of}
