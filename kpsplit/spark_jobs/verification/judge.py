"""Judges a topic from its snapshot and its raw records. The records come from Kafka, or from a test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cached_property

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kpsplit.spark_jobs.regions import all_regions
from kpsplit.spark_jobs.schemas import REGIONS, Fate
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.transforms import cells
from kpsplit.spark_jobs.verification import tables
from kpsplit.spark_jobs.verification.commit_checks import commit_findings
from kpsplit.spark_jobs.verification.findings import MOST, Check, Finding, Severity, Verdict, limited
from kpsplit.spark_jobs.verification.lineage_checks import boundary_findings, lineage_findings, lost_findings
from kpsplit.spark_jobs.verification.record_checks import (
    Span,
    Total,
    certificate_findings,
    foreign_findings,
    marker_findings,
    segment_totals,
    suspects,
    unjudged,
)
from kpsplit.spark_jobs.verification.sequence_checks import (
    Holes,
    Shelf,
    ShelfKey,
    hole_findings,
    holes,
    incomplete,
)
from kpsplit.spark_jobs.verification.writers import Writers
from kpsplit.splitter.lineage import PhysicalPartition

MOST_SHELVES = 256
"""So many shelves of sequence numbers are looked at number by number: at most 16 million numbers."""


class Judge:
    """One verification: condenses the records once, looks closely only where something is suspicious.

    Args:
        spark: the session.
        snapshot: everything that is known without the data.
        committed: the records of all physical partitions that can be read, read committed (``schemas.RAW``).
        uncommitted: the same stretches with the records of aborted transactions; called only when numbers
            are missing.
        groups: the consumer groups to look at; all when not given.
    """

    def __init__(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        committed: DataFrame,
        uncommitted: Callable[[], DataFrame],
        groups: Collection[str] | None = None,
    ) -> None:
        self._spark, self._snapshot, self._groups = spark, snapshot, groups
        self._uncommitted = uncommitted
        self._writers = Writers(snapshot)
        self._doubtful: set[tuple[int, str]] = set()
        self._not_looked_at: set[ShelfKey] = set()
        rows = [r.row() for state in snapshot.states for r in all_regions(state)]
        self._regions = spark.createDataFrame(rows, REGIONS)
        self._records = cells.judged(committed, self._regions)
        self._cells = cells.cells(self._records).persist(StorageLevel.MEMORY_AND_DISK)

    def verdict(self) -> Verdict:
        """Run all checks. Blocks until Spark is done; the cells are let go of at the end."""
        try:
            findings = limited(self._findings())
            counts = _counts(self._snapshot.topic, self._totals)
            return Verdict(
                self._snapshot.topic,
                tuple(state.parent.partition for state in self._snapshot.states),
                self._snapshot,
                tuple(findings),
                tuple(unjudged(self._snapshot, self._totals)),
                segment_totals(self._snapshot, self._totals),
                tuple(sorted(self._groups or {c.group for c in self._snapshot.commits})),
                counts,
            )
        finally:
            self._cells.unpersist()

    @cached_property
    def _totals(self) -> list[Total]:
        return tables.total_rows(cells.totals(self._cells))

    @cached_property
    def _spans(self) -> list[Span]:
        return tables.span_rows(cells.spans(self._cells))

    @cached_property
    def _buckets(self) -> DataFrame:
        return cells.buckets(self._cells)

    def _findings(self) -> Iterator[Finding]:
        snapshot, totals = self._snapshot, self._totals
        yield from lineage_findings(snapshot)
        yield from boundary_findings(snapshot)
        yield from lost_findings(snapshot)
        yield from marker_findings(snapshot, totals)
        yield from foreign_findings(snapshot, totals)
        yield from self._misplaced()
        shelves = tables.shelf_rows(cells.shelves(self._buckets))
        gone = self._holes(shelves)
        yield from hole_findings(snapshot, gone)
        yield from self._too_many()
        repeated = [key for key, shelf in shelves.items() if shelf.records > shelf.numbers]
        yield from self._repeated(repeated)
        yield from self._out_of_order()
        doubtful = self._doubtful | {(partition, producer) for partition, producer, _ in repeated}
        yield from certificate_findings(snapshot, self._spans, doubtful)
        yield from commit_findings(snapshot, self._groups)

    def _misplaced(self) -> Iterator[Finding]:
        if not any(t.wrong for t in self._totals):
            return
        for r in cells.misplaced(self._records).limit(MOST).collect():
            who = tables.producer_of(r)
            parent = self._parent(r.logical_partition)
            message = (
                f"{r.records:,} records whose keys belong to other segments, e.g. key hash {r.key_hash:08x}"
            )
            yield Finding(
                *(Check.PLACES, Severity.FINDING, parent, message, r.segment, who),
                key_hash=r.key_hash,
                first=r.first,
                last=r.last,
                count=r.records,
            )

    def _holes(self, shelves: dict[ShelfKey, Shelf]) -> list[Holes]:
        """Look for missing numbers among committed records, then among all if any seem to be missing."""
        wanted = incomplete(self._writers, shelves)
        if not wanted:
            return []
        tops = self._tops()
        if len(wanted) <= MOST_SHELVES:
            rows = tables.bucket_rows(self._on(self._buckets, wanted))
            seen = holes(self._writers, wanted, rows, tops)
            self._doubtful = {(h.writer.parent.partition, h.writer.producer) for h in seen}
            if not seen:
                return []
        else:
            self._doubtful = {(partition, producer) for partition, producer, _ in wanted}
        accounted = self._accounted(wanted)
        left = incomplete(self._writers, {**shelves, **tables.shelf_rows(cells.shelves(accounted))}) & wanted
        closely = set(sorted(left)[:MOST_SHELVES])
        self._not_looked_at = left - closely
        return holes(self._writers, closely, tables.bucket_rows(self._on(accounted, closely)), tops)

    def _too_many(self) -> Iterator[Finding]:
        """Say that more is missing than was looked at number by number."""
        for partition, producer in sorted({(p, who) for p, who, _ in self._not_looked_at}):
            parent, message = self._parent(partition), f"producer {producer}: many more numbers are missing"
            yield Finding(Check.MISSING, Severity.UNPROVEN, parent, message, None, producer)

    def _accounted(self, wanted: set[ShelfKey]) -> DataFrame:
        """Return buckets in which the numbers of aborted transactions count as there."""
        everything = cells.buckets(cells.cells(cells.judged(self._uncommitted(), self._regions)))
        key = ["logical_partition", "instance", "bucket"]
        aborted = everything.select(*key, F.col("data").alias("written"))
        known = self._on(self._buckets, wanted)
        zero = F.lit(0).cast("bigint")
        return known.join(self._on(aborted, wanted), key, "full_outer").select(
            *key,
            F.coalesce("data", zero).bitwiseOR(F.coalesce("written", zero)).alias("data"),
            F.coalesce("strays", zero).alias("strays"),
            F.coalesce("records", zero).alias("records"),
        )

    def _on(self, frame: DataFrame, wanted: set[ShelfKey]) -> DataFrame:
        return cells.on_shelves(frame, tables.shelf_frame(self._spark, wanted)).drop("shelf")

    def _tops(self) -> dict[tuple[int, str], int]:
        found: dict[tuple[int, str], int] = {}
        for span in self._spans:
            key = span.partition, span.producer
            found[key] = max(found.get(key, -1), span.last)
        return found

    def _repeated(self, shelves: list[ShelfKey]) -> Iterator[Finding]:
        if not shelves:
            return
        rows = self._on(self._buckets, set(shelves)).where("records > bit_count(data)").limit(MOST)
        keys = [(b.partition, b.producer, b.bucket) for b in tables.bucket_rows(rows)]
        closely = cells.repeated(self._records, tables.bucket_frame(self._spark, keys))
        for r in closely.limit(MOST).collect():
            who = tables.producer_of(r)
            message = (
                f"producer {who}: number {r.sequence} is there {r.records} times, "
                f"at logical offsets {r.first} to {r.last}"
            )
            yield Finding(
                *(
                    Check.REPEATED,
                    Severity.FINDING,
                    self._parent(r.logical_partition),
                    message,
                    r.segment,
                    who,
                ),
                key_hash=r.key_hash,
                first=r.first,
                last=r.last,
                count=r.records - 1,
            )

    def _out_of_order(self) -> Iterator[Finding]:
        wanted = suspects(self._snapshot, self._spans)
        if not wanted:
            return
        failed = [
            (partition, producer, number)
            for (partition, producer), writer in self._writers.certified().items()
            for number in writer.failed
        ]
        excused = tables.number_frame(self._spark, failed)
        found = cells.out_of_order(self._records, tables.segment_frame(self._spark, wanted), excused)
        for r in found.limit(MOST).collect():
            who = tables.producer_of(r)
            message = f"producer {who}: number {r.sequence} stands behind {r.before} of the same key"
            yield Finding(
                *(Check.ORDER, Severity.FINDING, self._parent(r.logical_partition), message, r.segment, who),
                key_hash=r.key_hash,
                first=r.sequence,
                last=r.before,
            )

    def _parent(self, partition: int) -> PhysicalPartition:
        return next(s.parent for s in self._snapshot.states if s.parent.partition == partition)


def _counts(topic: str, totals: list[Total]) -> dict[str, dict[str, int]]:
    """Return how many records of each fate each partition has, and how many of its data are not stamped."""
    found: dict[str, dict[str, int]] = {}
    for t in totals:
        mine = found.setdefault(f"{topic}/{t.partition}", {})
        names = [t.fate.name.lower(), *(["unstamped"] if t.fate is Fate.DATA and not t.stamped else [])]
        for name in names:
            mine[name] = mine.get(name, 0) + t.records
    return found
