"""Judges a topic from its snapshot and its raw records. The records come from Kafka, or from a test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Self

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession

from kpsplit.spark_jobs.records import REGIONS, small_frame
from kpsplit.spark_jobs.regions import Fate, all_regions
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
    in_order,
)
from kpsplit.spark_jobs.verification.counts import (
    ProducerShare,
    SegmentSpan,
    Total,
    Who,
    firsts_of,
    spans_of,
    totals_of,
)
from kpsplit.spark_jobs.verification.findings import COUNTED, Finding, Severity, Verdict, limited
from kpsplit.spark_jobs.verification.sequences import Decider, SequenceScan
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
"""Reads stretches of logs (Kafka's columns; no value is looked at); True: with aborted transactions'."""


CheckQuery = Callable[["Verifier"], Iterator[Finding]]


class VerifyCheck(StrEnum):
    """The checks: the name of each, its meaning with what ``first`` and ``last`` count, what proves it."""

    meaning: str
    query: CheckQuery

    def __new__(cls, name: str, meaning: str, query: CheckQuery) -> Self:
        made = str.__new__(cls, name)
        made._value_ = name
        made.meaning, made.query = meaning, query
        return made

    LINEAGE_SOUND = (
        "lineage_sound",
        "in every epoch the open ranges tile the key space; stretches do not overlap",
        lambda v: lineage_sound(v.snapshot),
    )
    LOGICAL_OFFSETS_UNIQUE = (
        "logical_offsets_unique",
        "no two records have one logical offset; numbers rise along the lineage (logical offsets)",
        lambda v: logical_offsets_unique(v.snapshot),
    )
    BOUNDARIES_AGREE = (
        "boundaries_agree",
        "the offset log and the control topic say the same of every range that was opened",
        lambda v: boundaries_agree(v.snapshot),
    )
    STRETCHES_COMPLETE = (
        "stretches_complete",
        "each segment is there from its start to the marker at its end (physical offsets)",
        lambda v: chain(lost_findings(v.snapshot, v.start), marker_findings(v.snapshot, v.totals, v.start)),
    )
    RECORDS_IN_THEIR_SEGMENTS = (
        "records_in_their_segments",
        "every record lies in the segment of its key (physical offsets)",
        lambda v: v.records_in_their_segments(),
    )
    FOREIGN_RECORDS = (
        "foreign_records",
        "no other program wrote to phantoms, after ends or in place of markers, no producer to overflows "
        "(physical offsets)",
        lambda v: foreign_records(v.snapshot, v.totals),
    )
    SEQUENCES_COMPLETE = (
        "sequences_complete",
        "no sequence number of a producer is missing, save those it reported as failed",
        lambda v: chain(v.decider.sequences_complete(v.scan.holes, v.scan.under_way), v.too_many()),
    )
    SEQUENCES_UNIQUE = (
        "sequences_unique",
        "no sequence number of a producer is there twice (logical offsets)",
        lambda v: chain(v.repeated(), v.there_before()),
    )
    KEYS_IN_ORDER = (
        "keys_in_order",
        "per producer and key the sequence numbers rise along the lineage (sequence numbers)",
        lambda v: v.keys_in_order(),
    )
    STRAYS_SENT_AGAIN = (
        "strays_sent_again",
        "every stray was sent again (sequence numbers)",
        lambda v: chain(v.decider.strays_sent_again(v.scan.holes, v.scan.under_way), v.copied()),
    )
    CERTIFICATES_AGREE = (
        "certificates_agree",
        "each segment holds as many records of a producer as its certificate says",
        lambda v: v.certificates_agree(),
    )
    COMMITS_WITHIN_DATA = (
        "commits_within_data",
        "range commits lie inside the data (physical offsets)",
        lambda v: commits_within_data(v.snapshot, v.commits),
    )
    COMMITS_MOVE_FORWARD = (
        "commits_move_forward",
        "range commits do not go back, except by a seek (physical offsets)",
        lambda v: commits_move_forward(v.commits),
    )
    COMMITS_LEAVE_NO_GAP = (
        "commits_leave_no_gap",
        "no group goes on after a segment that it has not finished (physical offsets)",
        lambda v: commits_leave_no_gap(v.snapshot, v.groups),
    )
    COMMITS_REACH_THE_END = (
        "commits_reach_the_end",
        "range commits end where the data end; nothing went before a group had read it (physical offsets)",
        lambda v: chain(slots_findings(v.snapshot), commits_reach_the_end(v.snapshot, v.groups)),
    )


MEANINGS = {str(check): check.meaning for check in VerifyCheck}


class Verifier:
    """One verification: condenses the records once, looks closely only where something is suspicious.

    Checks read its attributes; each is computed when it is first asked for.

    Args:
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
        self._spark, self._read, self.groups = spark, read, groups
        self._require, self._observer, self._later = require_certificates, observer, later
        self.snapshot = snapshot
        self.start = start_of(snapshot, since)
        self.commits = in_order(snapshot, groups, self.start)
        self._writers = KnownProducers(snapshot)
        self._judged = to_read(snapshot, self.start)
        self._records = self._records_of(snapshot, self._judged)
        self._bitmaps = bitmaps.sequence_bitmaps(self._records).persist(StorageLevel.MEMORY_AND_DISK)

    def verdict(self) -> Verdict:
        """Run all checks. Blocks until Spark is done; the bitmaps are let go of at the end."""
        since = self.start.since
        try:
            return Verdict(
                self.snapshot.topic,
                tuple(state.parent.partition for state in self.snapshot.states),
                self.snapshot,
                tuple(limited(self._findings())),
                tuple(unjudged(self.snapshot, self.totals)),
                segment_totals(self.snapshot, self.totals),
                tuple(sorted(self.groups or self.snapshot.groups())),
                _counts(self.snapshot.topic, self.totals),
                judged_since_ms=0 if since is None else since.ms,
                checks=MEANINGS,
            )
        finally:
            self._bitmaps.unpersist()

    @cached_property
    def _shares(self) -> list[ProducerShare]:
        return bitmaps.share_rows(bitmaps.shares(self._bitmaps))

    @cached_property
    def totals(self) -> list[Total]:
        return totals_of(self._shares)

    @cached_property
    def spans(self) -> list[SegmentSpan]:
        return spans_of(self._shares)

    @cached_property
    def _extents(self) -> dict[Who, Extent]:
        return extents(self.snapshot, self.start, self._writers, self.spans, firsts_of(self._shares))

    @cached_property
    def scan(self) -> SequenceScan:
        return SequenceScan(
            *(self._spark, self._writers, self._extents, bitmaps.buckets(self._bitmaps)),
            held_back(self.snapshot),
        ).look(self.spans, self._before_the_time, self._with_aborted, self._after_the_ends)

    def _before_the_time(self, partitions: set[int]) -> Iterator[DataFrame]:
        """Yield the buckets of what lies before the time, from which on is judged: the nearest first."""
        return map(self._buckets_of, stretches_before(self.snapshot, self.start, partitions))

    def _with_aborted(self, partitions: set[int]) -> Iterator[DataFrame]:
        """Yield the buckets of what is judged, with the records of aborted transactions."""
        owners, judged = self.snapshot.owners(), self._judged.items()
        if wanted := {place: stretch for place, stretch in judged if owners[place] in partitions}:
            yield self._buckets_of(wanted)

    def _after_the_ends(self, partitions: set[int]) -> Iterator[DataFrame]:
        """Yield the buckets of what was written since the ends were asked for, aborted records as well."""
        for later in self._later if partitions else ():
            if wanted := stretches_after(self.snapshot, later, partitions):
                yield self._buckets_of(wanted, later)

    def _buckets_of(self, stretches: Stretches, snapshot: Snapshot | None = None) -> DataFrame:
        """Return the buckets of stretches, with the records of aborted transactions."""
        records = self._records_of(snapshot or self.snapshot, stretches, aborted=True)
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

    @cached_property
    def decider(self) -> Decider:
        return Decider(self.snapshot, self.start, self._extents)

    def _findings(self) -> Iterator[Finding]:
        self.totals  # noqa: B018 - reads the records
        self._observer("Records")
        self.scan  # noqa: B018 - looks at their numbers
        self._observer("Numbers")
        for check in VerifyCheck:
            for finding in check.query(self):
                yield replace(finding, check=str(check))

    def certificates_agree(self) -> Iterator[Finding]:
        """Yield what certificates say otherwise than segments hold, and who left none."""
        yield from uncertified_findings(self._writers, self.spans, required=self._require)
        unread = not_whole(self.snapshot, self.start)
        yield from certificate_findings(self._writers, self.spans, *self._comparable(), unread)

    def _comparable(self) -> tuple[set[Who], set[Who]]:
        """Return whose certificates are looked at, and those of them whose counts prove nothing.

        They count aborted records, of which nobody knows where they lay, and numbers that are lost, or there
        twice: other checks report that. Where only retention and ``retire`` removed something, the other
        segments still hold what the certificate says, also of a producer of which nothing else is there.
        """
        scan, judged = self.scan, set(self._extents)
        of = {who: self._writers.get(*who).transactional for who in judged | self._writers.certified().keys()}
        if self.start.since is None:
            judged |= {who for who, transactional in of.items() if not transactional}
        aborted = scan.missing_first | {who for who, x in self._extents.items() if x.first > 0}
        doubtful = {who for who in aborted if of[who]} | set(scan.again)
        doubtful |= {h.who for h in scan.holes if self.decider.is_decided(h)}
        doubtful |= {h.who for h in scan.under_way}
        doubtful |= {(p, who) for p, who, _ in (*scan.not_looked_at, *scan.repeated)}
        return judged, doubtful

    def records_in_their_segments(self) -> Iterator[Finding]:
        if not any(t.misplaced for t in self.totals):
            return
        for r in self._fetched(bitmaps.misplaced(self._records)):
            example = f"e.g. key hash {r.key_hash:08x}"
            message = f"{r.records:,} records whose keys belong to other segments, {example}"
            yield self._finding(r, message, r.first, r.last, r.records)

    def _fetched(self, found: DataFrame) -> list[Row]:
        # So many at most as are counted.
        return found.limit(COUNTED).collect()

    def _finding(self, row: Row, message: str, first: int, last: int, count: int = 1) -> Finding:
        """Return a finding about the place and the producer that a row names."""
        who, parent = bitmaps.producer_of(row), self._parent(row.logical_partition)
        return Finding(
            *(Severity.FINDING, parent, f"producer {who}: {message}" if who else message),
            *(row.segment, who),
            key_hash=row.asDict().get("key_hash"),
            first=first,
            last=last,
            count=count,
        )

    def too_many(self) -> Iterator[Finding]:
        """Report that more is missing, or came again, than was looked at number by number."""
        for partition, producer in sorted({(p, who) for p, who, _ in self.scan.not_looked_at}):
            parent, message = self._parent(partition), f"producer {producer}: many more numbers are missing"
            yield Finding(Severity.UNPROVEN, parent, message, None, producer)

    def repeated(self) -> Iterator[Finding]:
        if not self.scan.repeated:
            return
        wanted = bitmaps.keyed_frame(self._spark, self.scan.repeated, "block")
        crowded = bitmaps.in_blocks(bitmaps.buckets(self._bitmaps), wanted).where("records > bit_count(data)")
        rows = crowded.drop("block").limit(COUNTED)
        keys = [(b.partition, b.producer, b.bucket) for b in bitmaps.bucket_rows(rows)]
        closely = bitmaps.repeated(self._records, bitmaps.keyed_frame(self._spark, keys, "bucket"))
        for r in self._fetched(closely):
            places = f"at logical offsets {r.first} to {r.last}"
            message = f"number {r.sequence} is there {r.records} times, {places}"
            yield self._finding(r, message, r.first, r.last, r.records - 1)

    def copied(self) -> Iterator[Finding]:
        """Report strays that are copies: readers skip them, and nobody sends them again."""
        if not self.scan.answered:
            return
        wanted = bitmaps.keyed_frame(self._spark, self.scan.answered, "block")
        both = bitmaps.in_blocks(bitmaps.buckets(self._bitmaps), wanted).where("strays & data != 0")
        excused = bitmaps.keyed_frame(self._spark, self._failed, "sequence")
        for r in self._fetched(bitmaps.copied(self._records, both, excused)):
            message = (
                f"{r.records:,} records with numbers from {r.first} to {r.last}, at physical "
                f"offsets {r.first_offset} to {r.last_offset}, were skipped as strays and not sent again: "
                "they are copies that another program wrote back, and their originals are delivered"
            )
            yield self._finding(r, message, r.first, r.last, r.records)

    @property
    def _failed(self) -> list[tuple[int, str, int]]:
        return [
            (partition, producer, number)
            for (partition, producer), writer in self._writers.certified().items()
            for number in writer.failed
        ]

    def there_before(self) -> Iterator[Finding]:
        """Report numbers that are there before the time as well, at the place where they are now."""
        numbers = [(*who, n) for who, again in self.scan.again.items() for n in again][:COUNTED]
        if not numbers:
            return
        places = bitmaps.places(self._records, bitmaps.keyed_frame(self._spark, numbers, "sequence"))
        for r in self._fetched(places):
            at = r.logical_offset
            again = f"number {r.sequence} is there again, at logical offset {at}"
            message = f"{again}; it is there before the time, too"
            yield self._finding(r, message, at, at)

    def keys_in_order(self) -> Iterator[Finding]:
        wanted = suspects(self.snapshot, self.spans)
        if not wanted:
            return
        found = bitmaps.out_of_order(
            self._records,
            bitmaps.keyed_frame(self._spark, wanted, "segment"),
            bitmaps.keyed_frame(self._spark, self._failed, "sequence"),
        )
        for r in self._fetched(found):
            message = f"number {r.sequence} lies after {r.before} of the same key"
            yield self._finding(r, message, r.sequence, r.before)

    def _parent(self, partition: int) -> PhysicalPartition:
        return next(s.parent for s in self.snapshot.states if s.parent.partition == partition)


def _counts(topic: str, totals: list[Total]) -> dict[str, dict[str, int]]:
    """Return how many records of each fate each partition has, and how many of its data are not stamped."""
    found: dict[str, dict[str, int]] = {}
    for t in totals:
        mine = found.setdefault(f"{topic}/{t.partition}", {})
        names = [t.fate.name.lower(), *(["unstamped"] if t.fate is Fate.DATA and not t.stamped else [])]
        for name in names:
            mine[name] = mine.get(name, 0) + t.records
    return found
