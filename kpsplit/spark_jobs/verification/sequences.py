"""Looks at producers' sequence numbers: shelf by shelf, and closely only where something is suspicious."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kpsplit.spark_jobs.transforms import cells
from kpsplit.spark_jobs.verification import tables
from kpsplit.spark_jobs.verification.counted import Span
from kpsplit.spark_jobs.verification.numbers import Run, members, united, unsigned
from kpsplit.spark_jobs.verification.sequence_checks import (
    MOST_SHELVES,
    Bucket,
    Holes,
    Shelf,
    ShelfKey,
    Who,
    holes,
    incomplete,
    numbers_given,
    reaching_beyond,
    tops_of,
)
from kpsplit.spark_jobs.verification.state import State
from kpsplit.spark_jobs.verification.writers import Writers

MOST_EARLY = 200_000
"""So many buckets of numbers that earlier runs may know are looked at."""


@dataclass
class Looked:
    """What was seen of the numbers.

    Attributes:
        given: how many numbers each producer has given.
        beyond: whose data reach beyond that.
        holes: what is missing.
        again: numbers that are there now and were there before.
        arrived: numbers that are there now and were told as lost.
        repeated: shelves on which numbers are there more than once now.
        doubtful: producers of which numbers were missing among committed records.
        aborted: those of them of which some belong to aborted transactions, or may.
        not_looked_at: shelves on which more is missing than was looked at.
    """

    given: dict[Who, int]
    beyond: set[Who] = field(default_factory=set)
    holes: list[Holes] = field(default_factory=list)
    again: dict[Who, list[int]] = field(default_factory=dict)
    arrived: dict[Who, list[Run]] = field(default_factory=dict)
    repeated: set[ShelfKey] = field(default_factory=set)
    doubtful: set[Who] = field(default_factory=set)
    aborted: set[Who] = field(default_factory=set)
    not_looked_at: set[ShelfKey] = field(default_factory=set)
    too_many_early: bool = False


class Sequences:
    """One look at all numbers.

    Args:
        spark: the session.
        writers: who wrote.
        past: what earlier runs know.
        buckets: ``cells.buckets`` of the data that is new.
        uncommitted: the same of the new stretch with the records of aborted transactions.
        uncommitted_before: the same of what earlier runs read, of some partitions.
        given: the same of what lies before the time from which on is judged, the nearest first.
    """

    def __init__(
        self,
        spark: SparkSession,
        writers: Writers,
        past: State,
        buckets: DataFrame,
        uncommitted: Callable[[], DataFrame],
        uncommitted_before: Callable[[set[int]], DataFrame],
        given: Callable[[set[int]], Iterable[DataFrame]],
    ) -> None:
        self._spark, self._writers, self._past = spark, writers, past
        self._buckets = buckets
        self._uncommitted, self._uncommitted_before = uncommitted, uncommitted_before
        self._given = given

    def look(self, spans: Collection[Span]) -> Looked:
        """Look at everything; ``spans``: the producers' new data by segment."""
        given = numbers_given(self._writers, self._past, tops_of(spans, self._past))
        looked = Looked(given, reaching_beyond(spans, given))
        early = self._early(spans, looked)
        accounted = self._known_before(early, looked)
        shelves = tables.shelf_rows(cells.shelves(self._buckets))
        looked.repeated = {key for key, shelf in shelves.items() if shelf.records > shelf.numbers}
        self._find_holes(shelves, accounted, looked)
        return looked

    def _early(self, spans: Collection[Span], looked: Looked) -> list[Bucket]:
        """Return the new buckets that reach below what earlier runs know."""
        below: dict[Who, int] = {}
        for span in spans:
            who = span.partition, span.producer
            known = self._past.ledger(*who)
            if span.first < known.next:
                below[who] = known.next
        if not below:
            return []
        frame = tables.below_frame(self._spark, [(*who, number) for who, number in below.items()])
        rows = tables.bucket_rows(cells.early(self._buckets, frame).limit(MOST_EARLY + 1))
        looked.too_many_early = len(rows) > MOST_EARLY
        return rows

    def _known_before(self, early: list[Bucket], looked: Looked) -> dict[ShelfKey, int]:
        """Return how many of the new numbers earlier runs had accounted for; note those that were there."""
        found: dict[ShelfKey, int] = {}
        late: dict[Who, list[Run]] = defaultdict(list)
        for bucket in early:
            who = bucket.partition, bucket.producer
            known, bits = self._past.ledger(*who), unsigned(bucket.data)
            accounted = bits & known.accounted_bits(bucket.bucket)
            found[bucket.shelf] = found.get(bucket.shelf, 0) + accounted.bit_count()
            failed = self._writers.get(*who).failed
            present = known.present_bits(bucket.bucket)
            if numbers := [n for n in members(bucket.bucket, bits & present) if n not in failed]:
                looked.again.setdefault(who, []).extend(numbers)
            late[who] += [(n, n) for n in members(bucket.bucket, accounted & ~present)]
        looked.arrived = {who: united(runs) for who, runs in late.items()}
        return found

    def _find_holes(
        self, shelves: dict[ShelfKey, Shelf], again: Mapping[ShelfKey, int], looked: Looked
    ) -> None:
        """Look for missing numbers among committed records, then among all if any may have been aborted."""
        wanted = incomplete(self._past, looked.given, shelves, again, looked.beyond)
        if not wanted:
            return
        if len(wanted) > MOST_SHELVES:
            looked.doubtful = {(partition, producer) for partition, producer, _ in wanted}
            looked.aborted = set(looked.doubtful)
            there = self._find_among_all(wanted, shelves, again, looked)
            self._with_given(there, wanted - looked.not_looked_at, looked)
            return
        looked.holes = self._holes(self._buckets, wanted, looked)
        there = self._with_given(self._buckets, wanted, looked)
        committed = looked.holes
        looked.doubtful = {h.who for h in committed}
        if any(h.writer.transactional for h in committed):
            self._find_among_all(wanted, shelves, again, looked, there)
            looked.aborted = {h.who for h in committed if h not in looked.holes}

    def _with_given(self, found: DataFrame, wanted: set[ShelfKey], looked: Looked) -> DataFrame:
        """Return buckets, if anything is missing with those before the time, if there is one."""
        partitions = {h.writer.parent.partition for h in looked.holes}
        for given in self._given(partitions) if partitions else ():
            if looked.holes:
                self._note_given_again(given, wanted, looked)
                found = self._with(found, given, wanted)
                looked.holes = self._holes(found, wanted, looked)
        return found

    def _note_given_again(self, given: DataFrame, wanted: set[ShelfKey], looked: Looked) -> None:
        """Note numbers that are there before the time and again behind it; aborted ones are not."""
        key = ["logical_partition", "instance", "bucket"]
        earlier = self._on(given, wanted).select(*key, F.col("data").alias("earlier"))
        both = self._on(self._buckets, wanted).join(earlier, key).where("data & earlier != 0")
        rows = both.withColumn("data", F.expr("data & earlier")).drop("earlier")
        again: dict[Who, set[int]] = defaultdict(set)
        for bucket in tables.bucket_rows(rows.limit(MOST_EARLY)):
            writer = self._writers.get(bucket.partition, bucket.producer)
            numbers = [n for n in members(bucket.bucket, bucket.data) if n not in writer.failed]
            if numbers and not writer.transactional:
                again[bucket.partition, bucket.producer].update(numbers)
        for who, twice in again.items():
            looked.again[who] = sorted({*looked.again.get(who, ()), *twice})

    def _find_among_all(
        self,
        wanted: set[ShelfKey],
        shelves: dict[ShelfKey, Shelf],
        again: Mapping[ShelfKey, int],
        looked: Looked,
        there: DataFrame | None = None,
    ) -> DataFrame:
        """Look for missing numbers also among the records of aborted transactions; return all buckets.

        ``there``: the buckets that are there; those of the data that is new when not given.
        """
        with_aborted = self._with(self._buckets if there is None else there, self._uncommitted(), wanted)
        left = wanted
        if len(wanted) > MOST_SHELVES:
            more = {**shelves, **tables.shelf_rows(cells.shelves(with_aborted))}
            left = incomplete(self._past, looked.given, more, again, looked.beyond) & wanted
        closely = set(sorted(left)[:MOST_SHELVES])
        looked.not_looked_at = left - closely
        looked.holes = self._holes(with_aborted, closely, looked)
        if older := {h.writer.parent.partition for h in looked.holes if self._maybe_aborted_before(h)}:
            with_aborted = self._with(with_aborted, self._uncommitted_before(older), closely)
            looked.holes = self._holes(with_aborted, closely, looked)
        return with_aborted

    def _holes(self, buckets: DataFrame, wanted: Collection[ShelfKey], looked: Looked) -> list[Holes]:
        rows = tables.bucket_rows(self._on(buckets, wanted))
        return holes(self._writers, self._past, wanted, rows, looked.given)

    def _maybe_aborted_before(self, hole: Holes) -> bool:
        """Tell whether a transaction that was aborted before the last run may be all that is missing.

        Its numbers follow at once on those that were known then.
        """
        partition, producer = hole.writer.parent.partition, hole.writer.producer
        if not hole.writer.transactional or not self._past.past(partition).read:
            return False
        return any(first == self._past.ledger(partition, producer).next for first, _ in hole.runs)

    def _with(self, buckets: DataFrame, others: DataFrame, wanted: Collection[ShelfKey]) -> DataFrame:
        """Return buckets in which the numbers of other records count as there."""
        key = ["logical_partition", "instance", "bucket"]
        aborted = others.select(*key, F.col("data").alias("written"))
        zero = F.lit(0).cast("bigint")
        return (
            self._on(buckets, wanted)
            .join(self._on(aborted, wanted), key, "full_outer")
            .select(
                *key,
                F.coalesce("data", zero).bitwiseOR(F.coalesce("written", zero)).alias("data"),
                F.coalesce("strays", zero).alias("strays"),
                F.coalesce("records", zero).alias("records"),
            )
        )

    def _on(self, frame: DataFrame, wanted: Collection[ShelfKey]) -> DataFrame:
        return cells.on_shelves(frame, tables.shelf_frame(self._spark, wanted)).drop("shelf")
