"""Judges a topic from its snapshot and its raw records. The records come from Kafka, or from a test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession

from kpsplit.spark_jobs.regions import all_regions
from kpsplit.spark_jobs.schemas import REGIONS, Fate, small_frame
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.verification import bitmaps
from kpsplit.spark_jobs.verification.checks import (
    boundaries_agree,
    certificate_findings,
    foreign_records,
    lineage_sound,
    logical_offsets_unique,
    lost_findings,
    marker_findings,
    segment_totals,
    slots_findings,
    suspects,
    uncertified_findings,
    unjudged,
)
from kpsplit.spark_jobs.verification.commit_checks import (
    commits_leave_no_gap,
    commits_move_forward,
    commits_reach_the_end,
    commits_within_data,
)
from kpsplit.spark_jobs.verification.counts import (
    BlockKey,
    ProducerShare,
    SegmentSpan,
    Total,
    Who,
    firsts_of,
    spans_of,
    totals_of,
)
from kpsplit.spark_jobs.verification.findings import COUNTED, Check, Finding, Severity, Verdict, limited
from kpsplit.spark_jobs.verification.sequence_checks import Decider
from kpsplit.spark_jobs.verification.sequence_scan import SequenceScan, SequenceScanner
from kpsplit.spark_jobs.verification.start import (
    Extent,
    KnownProducers,
    Since,
    Stretches,
    extents,
    held_back,
    not_whole,
    start_of,
    stretches_after,
    stretches_before,
    to_read,
)
from kpsplit.splitter.lineage import PhysicalPartition

Observer = Callable[[str], None]
"""Is called at the end of each step that takes time, with its name."""

Read = Callable[[Stretches, bool], DataFrame]
"""Reads stretches of logs (``schemas.RAW``); True: with the records of aborted transactions."""


class Verifier:
    """One verification: condenses the records once, looks closely only where something is suspicious.

    Args:
        spark: the session.
        snapshot: everything that is known without the data.
        read: gives the records.
        groups: the consumer groups to look at; all when not given.
        since: judge only what was written since a time.
        later: snapshots that are newer and newer; taken only while numbers may have been under way.
        require_certificates: a producer without a certificate cannot be judged; otherwise that is a note.
        observer: is called when the records are read ("Records") and their numbers are looked at ("Numbers").
    """

    def __init__(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        read: Read,
        groups: Collection[str] | None = None,
        since: Since | None = None,
        *,
        later: Iterable[Snapshot] = (),
        require_certificates: bool = False,
        observer: Observer = lambda _: None,
    ) -> None:
        self._spark, self._snapshot, self._groups, self._read = spark, snapshot, groups, read
        self._require, self._observer, self._later = require_certificates, observer, later
        self._start = start_of(snapshot, since)
        self._cut: set[Check] = set()
        self._writers = KnownProducers(snapshot)
        self._judged = to_read(snapshot, self._start)
        self._records = self._records_of(snapshot, self._judged)
        self._bitmaps = bitmaps.sequence_bitmaps(self._records).persist(StorageLevel.MEMORY_AND_DISK)

    def verdict(self) -> Verdict:
        """Run all checks. Blocks until Spark is done; the bitmaps are let go of at the end."""
        since = self._start.since
        try:
            found = list(self._findings())
            return Verdict(
                self._snapshot.topic,
                tuple(state.parent.partition for state in self._snapshot.states),
                self._snapshot,
                tuple(limited(found, self._cut)),
                tuple(unjudged(self._snapshot, self._totals)),
                segment_totals(self._snapshot, self._totals),
                tuple(sorted(self._groups or {c.group for c in self._snapshot.commits})),
                _counts(self._snapshot.topic, self._totals),
                judged_since_ms=0 if since is None else since.ms,
            )
        finally:
            self._bitmaps.unpersist()

    @cached_property
    def _shares(self) -> list[ProducerShare]:
        return bitmaps.share_rows(bitmaps.shares(self._bitmaps))

    @cached_property
    def _totals(self) -> list[Total]:
        return totals_of(self._shares)

    @cached_property
    def _spans(self) -> list[SegmentSpan]:
        return spans_of(self._shares)

    @cached_property
    def _extents(self) -> dict[Who, Extent]:
        return extents(self._snapshot, self._start, self._writers, self._spans, firsts_of(self._shares))

    @cached_property
    def _scan(self) -> SequenceScan:
        return SequenceScanner(
            *(self._spark, self._writers, self._extents, bitmaps.buckets(self._bitmaps)),
            self._before_the_time,
            self._with_aborted,
            self._after_the_ends,
            held_back(self._snapshot),
        ).look(self._spans)

    def _before_the_time(self, partitions: set[int]) -> Iterator[DataFrame]:
        """Yield the buckets of what lies before the time, from which on is judged: the nearest first."""
        for stretches in stretches_before(self._snapshot, self._start, partitions) if partitions else ():
            yield self._buckets_of(stretches)

    def _with_aborted(self, partitions: set[int]) -> Iterator[DataFrame]:
        """Yield the buckets of what is judged, with the records of aborted transactions."""
        theirs = {
            s.source for x in self._snapshot.states for s in x.lineage if x.parent.partition in partitions
        }
        if wanted := {place: stretch for place, stretch in self._judged.items() if place in theirs}:
            yield self._buckets_of(wanted)

    def _after_the_ends(self, partitions: set[int]) -> Iterator[DataFrame]:
        """Yield the buckets of what was written since the ends were asked for, aborted records as well."""
        for later in self._later if partitions else ():
            if wanted := stretches_after(self._snapshot, later, partitions):
                yield self._buckets_of(wanted, later)

    def _buckets_of(self, stretches: Stretches, snapshot: Snapshot | None = None) -> DataFrame:
        """Return the buckets of stretches, with the records of aborted transactions."""
        records = self._records_of(snapshot or self._snapshot, stretches, aborted=True)
        return bitmaps.buckets(bitmaps.sequence_bitmaps(records))

    def _records_of(self, snapshot: Snapshot, stretches: Stretches, *, aborted: bool = False) -> DataFrame:
        """Return the records of stretches, each joined with the region of its log that it lies in."""
        regions = [
            region.row()
            for state in snapshot.states
            for region in all_regions(state)
            for first, behind in [stretches.get(region.source, (0, 0))]
            if region.first < behind and first < region.behind
        ]
        return bitmaps.judged(self._read(stretches, aborted), small_frame(self._spark, regions, REGIONS))

    def _findings(self) -> Iterator[Finding]:
        """Run the queries of all checks, check by check."""
        totals = self._totals
        self._observer("Records")
        scan = self._scan
        self._observer("Numbers")
        queries = self._queries(totals, scan)
        for check in Check:
            for query in queries[check]:
                yield from query

    def _queries(
        self, totals: list[Total], scan: SequenceScan
    ) -> Mapping[Check, tuple[Iterator[Finding], ...]]:
        """Return what each check asks. Nothing is asked before it is iterated over."""
        snapshot, start = self._snapshot, self._start
        decider = Decider(snapshot, start, self._extents)
        commits = snapshot, self._groups, start
        return {
            Check.LINEAGE_SOUND: (lineage_sound(snapshot),),
            Check.LOGICAL_OFFSETS_UNIQUE: (logical_offsets_unique(snapshot),),
            Check.BOUNDARIES_AGREE: (boundaries_agree(snapshot),),
            Check.STRETCHES_COMPLETE: (
                lost_findings(snapshot, start),
                marker_findings(snapshot, totals, start),
            ),
            Check.RECORDS_IN_THEIR_SEGMENTS: (self._records_in_their_segments(),),
            Check.FOREIGN_RECORDS: (foreign_records(snapshot, totals),),
            Check.SEQUENCES_COMPLETE: (
                decider.sequences_complete(scan.holes, scan.under_way),
                self._too_many(),
            ),
            Check.SEQUENCES_UNIQUE: (self._repeated(scan.repeated), self._there_before()),
            Check.KEYS_IN_ORDER: (self._keys_in_order(),),
            Check.STRAYS_SENT_AGAIN: (
                decider.strays_sent_again(scan.holes, scan.under_way),
                self._copied(scan.answered),
            ),
            Check.CERTIFICATES_AGREE: (
                uncertified_findings(self._writers, self._spans, required=self._require),
                certificate_findings(
                    *(snapshot, self._writers, self._spans, *self._comparable(decider)),
                    not_whole(snapshot, start),
                ),
            ),
            Check.COMMITS_WITHIN_DATA: (commits_within_data(*commits),),
            Check.COMMITS_MOVE_FORWARD: (commits_move_forward(*commits),),
            Check.COMMITS_LEAVE_NO_GAP: (commits_leave_no_gap(*commits),),
            Check.COMMITS_REACH_THE_END: (slots_findings(snapshot), commits_reach_the_end(*commits)),
        }

    def _comparable(self, decider: Decider) -> tuple[set[Who], set[Who]]:
        """Return whose certificates are looked at, and those of them whose counts prove nothing.

        They count aborted records, of which nobody knows where they lay, and numbers that are lost, or there
        twice: other checks report that. Where only retention and ``retire`` removed something, the other
        segments still hold what the certificate says, also of a producer of which nothing else is there.
        """
        scan, judged = self._scan, set(self._extents)
        of = {who: self._writers.get(*who).transactional for who in judged | self._writers.certified().keys()}
        if self._start.since is None:
            judged |= {who for who, transactional in of.items() if not transactional}
        aborted = scan.missing_first | {who for who, x in self._extents.items() if x.first > 0}
        doubtful = {who for who in aborted if of[who]} | set(scan.again)
        doubtful |= {h.who for h in scan.holes if decider.is_told(h)} | {h.who for h in scan.under_way}
        doubtful |= {(p, who) for p, who, _ in (*scan.not_looked_at, *scan.repeated)}
        return judged, doubtful

    def _records_in_their_segments(self) -> Iterator[Finding]:
        if not any(t.misplaced for t in self._totals):
            return
        check = Check.RECORDS_IN_THEIR_SEGMENTS
        for r in self._fetched(check, bitmaps.misplaced(self._records)):
            message = (
                f"{r.records:,} records whose keys belong to other segments, e.g. key hash {r.key_hash:08x}"
            )
            yield self._finding(check, r, message, r.first, r.last, r.records)

    def _fetched(self, check: Check, found: DataFrame) -> list[Row]:
        """Return rows that are findings of a check; note when there may be more than are ever fetched."""
        rows = found.limit(COUNTED).collect()
        if len(rows) >= COUNTED:
            self._cut.add(check)
        return rows

    def _finding(
        self, check: Check, row: Row, message: str, first: int, last: int, count: int = 1
    ) -> Finding:
        """Return a finding about the place and the producer that a row names."""
        who, parent = bitmaps.producer_of(row), self._parent(row.logical_partition)
        return Finding(
            *(check, Severity.FINDING, parent, f"producer {who}: {message}" if who else message),
            *(row.segment, who),
            key_hash=row.asDict().get("key_hash"),
            first=first,
            last=last,
            count=count,
        )

    def _too_many(self) -> Iterator[Finding]:
        """Say that more is missing, or came again, than was looked at number by number."""
        for partition, producer in sorted({(p, who) for p, who, _ in self._scan.not_looked_at}):
            parent, message = self._parent(partition), f"producer {producer}: many more numbers are missing"
            yield Finding(Check.SEQUENCES_COMPLETE, Severity.UNPROVEN, parent, message, None, producer)

    def _repeated(self, blocks: set[BlockKey]) -> Iterator[Finding]:
        if not blocks:
            return
        wanted = bitmaps.keyed_frame(self._spark, blocks, "block")
        crowded = bitmaps.in_blocks(bitmaps.buckets(self._bitmaps), wanted).where("records > bit_count(data)")
        rows = crowded.drop("block").limit(COUNTED)
        keys = [(b.partition, b.producer, b.bucket) for b in bitmaps.bucket_rows(rows)]
        closely = bitmaps.repeated(self._records, bitmaps.keyed_frame(self._spark, keys, "bucket"))
        for r in self._fetched(Check.SEQUENCES_UNIQUE, closely):
            places = f"at logical offsets {r.first} to {r.last}"
            message = f"number {r.sequence} is there {r.records} times, {places}"
            yield self._finding(Check.SEQUENCES_UNIQUE, r, message, r.first, r.last, r.records - 1)

    def _copied(self, blocks: set[BlockKey]) -> Iterator[Finding]:
        """Report strays that are copies: readers skip them, and nobody sends them again."""
        if not blocks:
            return
        wanted = bitmaps.keyed_frame(self._spark, blocks, "block")
        both = bitmaps.in_blocks(bitmaps.buckets(self._bitmaps), wanted).where("strays & data != 0")
        excused = bitmaps.keyed_frame(self._spark, self._failed, "sequence")
        for r in self._fetched(Check.STRAYS_SENT_AGAIN, bitmaps.copied(self._records, both, excused)):
            message = (
                f"{r.records:,} records with numbers from {r.first} to {r.last}, at physical "
                f"offsets {r.first_offset} to {r.last_offset}, were skipped as strays and not sent again: "
                "they are copies that another program wrote back, and their originals are delivered"
            )
            yield self._finding(Check.STRAYS_SENT_AGAIN, r, message, r.first, r.last, r.records)

    @property
    def _failed(self) -> list[tuple[int, str, int]]:
        """Return the numbers that were reported as failed."""
        return [
            (partition, producer, number)
            for (partition, producer), writer in self._writers.certified().items()
            for number in writer.failed
        ]

    def _there_before(self) -> Iterator[Finding]:
        """Report numbers that are there before the time as well, at the place where they are now."""
        numbers = [(*who, n) for who, again in self._scan.again.items() for n in again][:COUNTED]
        if not numbers:
            return
        places = bitmaps.places(self._records, bitmaps.keyed_frame(self._spark, numbers, "sequence"))
        for r in self._fetched(Check.SEQUENCES_UNIQUE, places):
            at = r.logical_offset
            again = f"number {r.sequence} is there again, at logical offset {at}"
            message = f"{again}; it is there before the time, too"
            yield self._finding(Check.SEQUENCES_UNIQUE, r, message, at, at)

    def _keys_in_order(self) -> Iterator[Finding]:
        wanted = suspects(self._snapshot, self._spans)
        if not wanted:
            return
        found = bitmaps.out_of_order(
            self._records,
            bitmaps.keyed_frame(self._spark, wanted, "segment"),
            bitmaps.keyed_frame(self._spark, self._failed, "sequence"),
        )
        for r in self._fetched(Check.KEYS_IN_ORDER, found):
            message = f"number {r.sequence} lies after {r.before} of the same key"
            yield self._finding(Check.KEYS_IN_ORDER, r, message, r.sequence, r.before)

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
