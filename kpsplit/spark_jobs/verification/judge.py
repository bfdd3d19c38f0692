"""Judges a topic from its snapshot and its raw records. The records come from Kafka, or from a test."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession

from kpsplit.spark_jobs.regions import all_regions
from kpsplit.spark_jobs.schemas import REGIONS, Fate
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.transforms import cells
from kpsplit.spark_jobs.verification import tables
from kpsplit.spark_jobs.verification.commit_checks import commit_findings
from kpsplit.spark_jobs.verification.counted import Span, Total, added_up
from kpsplit.spark_jobs.verification.findings import COUNTED, Check, Finding, Severity, Verdict, limited
from kpsplit.spark_jobs.verification.lineage_checks import boundary_findings, lineage_findings, lost_findings
from kpsplit.spark_jobs.verification.record_checks import (
    certificate_findings,
    foreign_findings,
    marker_findings,
    segment_totals,
    suspects,
    unjudged,
)
from kpsplit.spark_jobs.verification.sequence_checks import ShelfKey
from kpsplit.spark_jobs.verification.sequences import Looked, Sequences
from kpsplit.spark_jobs.verification.since import (
    Since,
    not_whole,
    start_of,
    stretches_before,
    with_first_numbers,
)
from kpsplit.spark_jobs.verification.state import State, Stretches, lost_unseen, read_before, to_read
from kpsplit.spark_jobs.verification.succession import Decider, Seen, successor
from kpsplit.spark_jobs.verification.writers import Writers
from kpsplit.splitter.lineage import PhysicalPartition

Read = Callable[[Stretches, bool], DataFrame]
"""Reads stretches of logs (``schemas.RAW``); True: with the records of aborted transactions."""


class Judge:
    """One verification: condenses the records once, looks closely only where something is suspicious.

    Args:
        spark: the session.
        snapshot: everything that is known without the data.
        read: gives the records.
        groups: the consumer groups to look at; all when not given.
        past: what earlier runs know; None: nothing, and no later run is to go on from this one.
        since: judge only what was written since a time; not together with ``past``.
    """

    def __init__(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        read: Read,
        groups: Collection[str] | None = None,
        past: State | None = None,
        since: Since | None = None,
    ) -> None:
        self._spark, self._snapshot, self._groups = spark, snapshot, groups
        self._read, self._going_on, self._time = read, past is not None, since
        given = State("", snapshot.topic) if since is None else start_of(snapshot, since)
        self._start = past or given
        self._began_ms = time.time_ns() // 1_000_000
        self._cut: set[Check] = set()
        self._writers = Writers(snapshot)
        rows = [r.row() for state in snapshot.states for r in all_regions(state)]
        self._regions = spark.createDataFrame(rows, REGIONS)
        self._new = to_read(snapshot, self._start)
        self._records = cells.judged(read(self._new, False), self._regions)
        self._cells = cells.cells(self._records).persist(StorageLevel.MEMORY_AND_DISK)

    def verdict(self) -> Verdict:
        """Run all checks. Blocks until Spark is done; the cells are let go of at the end."""
        try:
            found = list(self._findings())
            why = tuple(unjudged(self._snapshot, self._totals))
            known = [t for n in self._numbers for t in self._past.past(n).totals]
            totals = added_up([*known, *self._totals])
            return Verdict(
                self._snapshot.topic,
                self._numbers,
                self._snapshot,
                tuple(limited(found, self._cut)),
                why,
                segment_totals(self._snapshot, totals),
                tuple(sorted(self._groups or {c.group for c in self._snapshot.commits})),
                _counts(self._snapshot.topic, totals),
                past=self._past if self._going_on else None,
                judged_since_ms=0 if self._time is None else self._time.ms,
                new_records=sum(t.records for t in self._totals if t.fate is Fate.DATA),
                successor=self._successor(found) if self._going_on and not why else None,
            )
        finally:
            self._cells.unpersist()

    @property
    def _numbers(self) -> tuple[int, ...]:
        return tuple(state.parent.partition for state in self._snapshot.states)

    def _successor(self, found: Iterable[Finding]) -> State | None:
        """Return the state to go on from, None if this run does not know enough for one."""
        looked = self._looked
        if looked.not_looked_at or looked.too_many_early:
            return None
        defects = Counter(f.parent.partition for f in found if f.severity is Severity.FINDING)
        seen = Seen(
            *(looked.given, looked.holes, looked.arrived, self._spans, self._totals),
            *(looked.aborted | self._repeaters, dict(defects)),
        )
        return successor(self._snapshot, self._past, self._began_ms, seen, self._decider)

    @cached_property
    def _past(self) -> State:
        """What is known of what lies before that which is read now."""
        if self._time is None:
            return self._start
        return with_first_numbers(self._start, tables.first_rows(cells.firsts(self._cells)), self._writers)

    @cached_property
    def _decider(self) -> Decider:
        return Decider(self._snapshot, self._past, self._going_on)

    @cached_property
    def _totals(self) -> list[Total]:
        return tables.total_rows(cells.totals(self._cells))

    @cached_property
    def _spans(self) -> list[Span]:
        return tables.span_rows(cells.spans(self._cells))

    @cached_property
    def _buckets(self) -> DataFrame:
        return cells.buckets(self._cells)

    @cached_property
    def _looked(self) -> Looked:
        return Sequences(
            *(self._spark, self._writers, self._past, self._buckets),
            lambda: self._buckets_of(self._new),
            lambda partitions: self._buckets_of(read_before(self._snapshot, self._past, partitions)),
            self._before_the_time,
        ).look(self._spans)

    def _before_the_time(self, partitions: set[int]) -> Iterator[DataFrame]:
        """Yield the buckets of what lies before the time, from which on is judged: the nearest first."""
        if self._time is not None:
            for stretches in stretches_before(self._snapshot, self._start, self._time, partitions):
                yield self._buckets_of(stretches)

    @property
    def _doubtful(self) -> set[tuple[int, str]]:
        """Return the producers of which numbers are not all there, or not once."""
        return self._looked.doubtful | self._repeaters

    @property
    def _repeaters(self) -> set[tuple[int, str]]:
        """Return the producers of which numbers are there more than once."""
        repeated = {(partition, producer) for partition, producer, _ in self._looked.repeated}
        return repeated | set(self._looked.again)

    def _buckets_of(self, stretches: Stretches) -> DataFrame:
        """Return the buckets of stretches, with the records of aborted transactions."""
        return cells.buckets(cells.cells(cells.judged(self._read(stretches, True), self._regions)))

    def _findings(self) -> Iterator[Finding]:
        snapshot, totals, past, looked = self._snapshot, self._totals, self._past, self._looked
        yield from lineage_findings(snapshot)
        yield from boundary_findings(snapshot)
        yield from lost_findings(snapshot, past)
        yield from marker_findings(snapshot, totals, past)
        yield from foreign_findings(snapshot, totals)
        yield from self._misplaced()
        yield from self._decider.findings(looked.holes)
        yield from self._too_many()
        yield from self._repeated(looked.repeated)
        yield from self._again()
        yield from self._out_of_order()
        unread = {(x.state.parent.partition, x.segment.id) for x in lost_unseen(snapshot, past)}
        if self._time is not None:
            unread |= not_whole(snapshot, past)
        yield from certificate_findings(snapshot, self._spans, past, self._doubtful, unread)
        yield from commit_findings(snapshot, self._groups, past)

    def _misplaced(self) -> Iterator[Finding]:
        if not any(t.wrong for t in self._totals):
            return
        for r in self._fetched(Check.PLACES, cells.misplaced(self._records)):
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

    def _fetched(self, check: Check, found: DataFrame) -> list[Row]:
        """Return rows that are findings of a check; note when there may be more than are ever fetched."""
        rows = found.limit(COUNTED).collect()
        if len(rows) >= COUNTED:
            self._cut.add(check)
        return rows

    def _too_many(self) -> Iterator[Finding]:
        """Say that more is missing, or came again, than was looked at number by number."""
        for partition, producer in sorted({(p, who) for p, who, _ in self._looked.not_looked_at}):
            parent, message = self._parent(partition), f"producer {producer}: many more numbers are missing"
            yield Finding(Check.MISSING, Severity.UNPROVEN, parent, message, None, producer)
        if self._looked.too_many_early:
            message = "many numbers of records came again that an earlier run had read: begin anew"
            yield Finding(Check.REPEATED, Severity.UNPROVEN, self._snapshot.states[0].parent, message)

    def _repeated(self, shelves: set[ShelfKey]) -> Iterator[Finding]:
        if not shelves:
            return
        wanted = tables.shelf_frame(self._spark, shelves)
        crowded = cells.on_shelves(self._buckets, wanted).where("records > bit_count(data)")
        rows = crowded.drop("shelf").limit(COUNTED)
        keys = [(b.partition, b.producer, b.bucket) for b in tables.bucket_rows(rows)]
        closely = cells.repeated(self._records, tables.bucket_frame(self._spark, keys))
        for r in self._fetched(Check.REPEATED, closely):
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

    def _again(self) -> Iterator[Finding]:
        """Report numbers that an earlier run has seen, at the place where they are now."""
        numbers = [(*who, n) for who, again in self._looked.again.items() for n in again][:COUNTED]
        if not numbers:
            return
        places = cells.places(self._records, tables.number_frame(self._spark, numbers))
        for r in self._fetched(Check.REPEATED, places):
            who = tables.producer_of(r)
            parent = self._parent(r.logical_partition)
            message = (
                f"producer {who}: number {r.sequence} is there again, at logical offset {r.logical_offset}; "
                + ("an earlier run had seen it" if self._time is None else "it is there before the time, too")
            )
            yield Finding(
                *(Check.REPEATED, Severity.FINDING, parent, message, r.segment, who),
                key_hash=r.key_hash,
                first=r.logical_offset,
                last=r.logical_offset,
            )

    def _out_of_order(self) -> Iterator[Finding]:
        wanted = suspects(self._snapshot, self._spans, self._past)
        if not wanted.now:
            return
        failed = [
            (partition, producer, number)
            for (partition, producer), writer in self._writers.certified().items()
            for number in writer.failed
        ]
        news = [(*key, self._since(key[0], key[2])) for key in wanted.now]
        found = cells.out_of_order(
            self._with_earlier(wanted.before),
            tables.segment_frame(self._spark, news),
            tables.number_frame(self._spark, failed),
        )
        for r in self._fetched(Check.ORDER, found):
            who = tables.producer_of(r)
            message = f"producer {who}: number {r.sequence} stands behind {r.before} of the same key"
            yield Finding(
                *(Check.ORDER, Severity.FINDING, self._parent(r.logical_partition), message, r.segment, who),
                key_hash=r.key_hash,
                first=r.sequence,
                last=r.before,
            )
        yield from self._order_out_of_sight(wanted.before)

    def _since(self, partition: int, segment: int) -> int:
        """Return the offset of a segment's log from which on records are new."""
        return self._past.read(partition, self._source(partition, segment))

    def _with_earlier(self, before: Collection[tuple[int, int]]) -> DataFrame:
        """Return the new records, with those of the logs that hold some segments from earlier runs."""
        if not before:
            return self._records
        places = {self._source(*key) for key in before}
        known = read_before(self._snapshot, self._past, {partition for partition, _ in before})
        stretches = {place: known[place] for place in places if place in known}
        return self._records.unionByName(cells.judged(self._read(stretches, False), self._regions))

    def _order_out_of_sight(self, before: Collection[tuple[int, int]]) -> Iterator[Finding]:
        """Say where the records that order would have to be proven with are gone."""
        gone = {(x.state.parent.partition, x.segment.id): x for x in self._snapshot.lost()}
        for key in sorted(before):
            if key in gone:
                message = f"records went behind earlier ones that cannot be read any more ({gone[key]})"
                yield Finding(Check.ORDER, Severity.UNPROVEN, self._parent(key[0]), message, key[1])

    def _source(self, partition: int, segment: int) -> PhysicalPartition:
        state = next(s for s in self._snapshot.states if s.parent.partition == partition)
        return state.lineage.get(segment).source

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
