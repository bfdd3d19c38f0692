"""Checks of the lineage, of boundary records, and of records by what Spark counted. Pure.

Rows in, findings out. ``sequence_checks`` has those of sequence numbers, ``commit_checks`` those of groups.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations, pairwise
from math import gcd

from kpsplit.spark_jobs.regions import Fate
from kpsplit.spark_jobs.snapshot import Lost, Snapshot, without_boundary
from kpsplit.spark_jobs.verification.counts import SegmentSpan, Total, Who
from kpsplit.spark_jobs.verification.findings import Finding, SegmentTotal, Severity
from kpsplit.spark_jobs.verification.start import (
    JudgedFrom,
    KnownProducer,
    KnownProducers,
    Since,
    is_defect,
    lost,
)
from kpsplit.splitter.key_range import unread_text
from kpsplit.splitter.lineage import MAX_OFFSET, PhysicalPartition, Segment, SegmentKind
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import GapReason
from kpsplit.splitter.records.offsets import Boundary, SegmentEnd
from kpsplit.splitter.records.producers import Certificate


def lineage_sound(snapshot: Snapshot) -> Iterator[Finding]:
    """Return what contradicts the invariants of lineages, but for those of logical offsets."""
    for state in snapshot.states:
        for problem in state.lineage.problems():
            if not _is_of_offsets(problem):
                yield Finding(Severity.FINDING, state.parent, problem)
        yield from _gaps_at_cuts(state)


def logical_offsets_unique(snapshot: Snapshot) -> Iterator[Finding]:
    """Return logical offsets that do not rise along the lineage, or that two segments give."""
    for state in snapshot.states:
        for problem in filter(_is_of_offsets, state.lineage.problems()):
            yield Finding(Severity.FINDING, state.parent, problem)
        yield from _offsets_used_twice(state)


def _is_of_offsets(problem: str) -> bool:
    return "does not begin beyond" in problem


def _gaps_at_cuts(state: PartitionState) -> Iterator[Finding]:
    """A physical partition goes on right after each marker."""
    for source in state.lineage.sources():
        mine = sorted((s for s in state.lineage if s.source == source), key=lambda s: s.start)
        for a, b in pairwise(mine):
            if a.end is not None and b.start > a.end + 1:
                first, last = a.end + 1, b.start - 1
                between = f"between segments {a.id} and {b.id}, in none"
                message = f"offsets {first} to {last} of {source} lie {between}"
                yield _finding(state, message, b.id, first, last)


def _offsets_used_twice(state: PartitionState) -> Iterator[Finding]:
    for a, b in combinations(state.lineage, 2):
        shared = first_shared(a, b)
        if shared is not None:
            message = f"segments {a.id} and {b.id} both give logical offset {shared}"
            yield _finding(state, message, b.id, shared, shared)


def first_shared(a: Segment, b: Segment) -> int | None:
    """Return the least logical offset that two segments both give to a record, None if there is none."""
    first, second = a.progression, b.progression
    low = max(first.base, second.base)
    high = min(_last(a), _last(b))
    if low > high:
        return None
    divisor = gcd(first.stride, second.stride)
    if (second.base - first.base) % divisor:
        return None
    step = second.stride // divisor
    turns = (second.base - first.base) // divisor * pow(first.stride // divisor, -1, step) % step
    found = first.base + first.stride * turns
    least_common = first.stride * step
    found += max(0, -((found - low) // least_common)) * least_common
    return found if found <= high else None


def _last(segment: Segment) -> int:
    return MAX_OFFSET if segment.end is None else segment.logical(segment.end - 1)


def boundaries_agree(snapshot: Snapshot) -> Iterator[Finding]:
    """Return boundary records that say something else than the lineage, and those that are not there."""
    for state, s in without_boundary(snapshot.states, snapshot.boundaries):
        message = f"segment {s.id} was opened in epoch {s.opened_epoch}, but {s.range} has no boundary record"
        yield _finding(state, message, s.id, s.range.lo, s.range.hi - 1)
    states = {state.parent: state for state in snapshot.states}
    for boundary in snapshot.boundaries:
        state = states[boundary.parent]
        if _agrees(state, boundary):
            continue
        range_, opened, what = boundary.range, boundary.opened_segment, "contradicts the lineage"
        if boundary.epoch > state.epoch:  # both are written in one transaction
            what = f"is newer than the control topic, which ends at epoch {state.epoch}: it has lost records"
        message = f"the boundary record of {range_} in epoch {boundary.epoch} {what}"
        yield _finding(state, message, opened, range_.lo, range_.hi - 1)


def slots_findings(snapshot: Snapshot) -> Iterator[Finding]:
    """Return the partitions that were added and that no group reads yet."""
    for parent in sorted(snapshot.unread):
        text = unread_text(parent.topic, range(parent.partition, parent.partition + 1))
        message = f"{text}; run: kpsplit enroll {parent.topic}"
        yield Finding(Severity.NOTE, parent, message)


def _agrees(state: PartitionState, boundary: Boundary) -> bool:
    said = boundary.opened_segment, boundary.range, boundary.opened, boundary.start
    if said not in {(s.id, s.range, s.source, s.start) for s in state.lineage}:
        return False
    ends = {
        SegmentEnd(s.id, s.source, s.end, s.end_leader_epoch)
        for s in state.lineage
        if s.end is not None and s.closed_epoch == boundary.epoch and s.range.overlaps(boundary.range)
    }
    return ends == set(boundary.ends)


def lost_findings(snapshot: Snapshot, start: JudgedFrom) -> Iterator[Finding]:
    """Return what cannot be read.

    What retention or ``retire`` removed is given: a note. In a run since a time it may have been written
    since: then it should have been judged. What was cut off, or is gone otherwise, must not be.
    """
    for one in lost(snapshot, start):
        severity, more = _weight(one, start.since)
        last, count = (None, 1) if one.behind is None else (one.behind - 1, one.behind - one.first)
        place = one.state.parent, f"{one}{more}", one.segment.id
        yield Finding(severity, *place, first=one.first, last=last, count=count)


def _weight(one: Lost, since: Since | None) -> tuple[Severity, str]:
    if is_defect(one):
        return Severity.FINDING, ""
    if since is None:
        return Severity.NOTE, ""
    if one.reason is GapReason.EXPIRED and one.segment.source in since.kept:
        return Severity.NOTE, "; by the topic's retention.ms they were older than the time"
    unknown = "they may be younger than the time, for nothing older is left after them"
    return Severity.UNPROVEN, f"; {unknown}: run it without --since"


def _finding(state: PartitionState, message: str, segment: int, first: int, last: int) -> Finding:
    return Finding(
        Severity.FINDING, state.parent, message, segment, first=first, last=last, count=last - first + 1
    )


_FOREIGN: dict[Fate, str] = {
    Fate.NOT_THE_MARKER: "where the lineage has a marker: this log is not the one that was cut",
    Fate.UNKNOWN_EPOCH: "with a stamp of an epoch that was never reached",
    Fate.BEHIND_THE_END: "without a stamp where nothing of the partition is stored",
}


def foreign_records(snapshot: Snapshot, totals: Iterable[Total]) -> Iterator[Finding]:
    """Return records where nobody of their kind writes; a note, where that is harmless."""
    states = {state.parent.partition: state for state in snapshot.states}
    for t in totals:
        state = states[t.partition]
        if t.fate in _FOREIGN:
            yield _foreign(state.parent, t, Severity.FINDING, _FOREIGN[t.fate])
        elif t.fate is Fate.DATA and t.segment is not None:
            kind = state.lineage.get(t.segment).kind
            if t.stamped and kind is SegmentKind.OVERFLOW:
                where = "with a stamp in an overflow, in no order with those of the phantoms: delivered"
                yield _foreign(state.parent, t, Severity.FINDING, where)
            elif not t.stamped and kind is SegmentKind.PHANTOM:
                yield _foreign(state.parent, t, Severity.FINDING, "in a phantom partition")
            elif not t.stamped:
                where = "without a stamp, written past kpsplit or while the topic was not enrolled: delivered"
                yield _foreign(state.parent, t, Severity.NOTE, where)


def _foreign(parent: PhysicalPartition, t: Total, severity: Severity, where: str) -> Finding:
    message = f"{t.records:,} records {where}, offsets {t.first} to {t.last}"
    return Finding(severity, parent, message, t.segment, first=t.first, last=t.last, count=t.records)


def marker_findings(snapshot: Snapshot, totals: Iterable[Total], start: JudgedFrom) -> Iterator[Finding]:
    """Return segments whose end was read now and holds nothing, although the log reaches that far."""
    marked = {(t.partition, t.segment) for t in totals if t.fate in (Fate.MARKER, Fate.NOT_THE_MARKER)}
    # Where retention took only the beginning of a segment, the marker at its end must still be there.
    cut_off = {(x.state.parent, x.segment.id) for x in snapshot.lost() if x.reason is GapReason.CUT_OFF}
    for state in snapshot.states:
        number = state.parent.partition
        for s in state.lineage:
            if s.end is None or (state.parent, s.id) in cut_off or s.end < start.of(s.source):
                continue
            if (number, s.id) not in marked and snapshot.holds(s.source, s.end):
                message = f"segment {s.id} has no marker at its end, offset {s.end} of {s.source}"
                yield Finding(Severity.FINDING, state.parent, message, s.id, first=s.end, last=s.end)


def unjudged(snapshot: Snapshot, totals: Iterable[Total]) -> Iterator[str]:
    """Return why the records, or kpsplit's own topics, could not be understood."""
    yield from snapshot.garbage
    for state in snapshot.states:
        if state.frozen_reason is not None:
            yield f"{state.parent}: it is frozen: {state.frozen_reason}"
    for t in totals:
        if t.fate is Fate.NEWER:
            yield f"{snapshot.topic}/{t.partition}: {t.records:,} records were written by a newer kpsplit"


def segment_totals(snapshot: Snapshot, totals: Iterable[Total]) -> tuple[SegmentTotal, ...]:
    """Return how many records each segment holds."""
    found: Counter[tuple[int, int | None, Fate]] = Counter()
    for t in totals:
        found[t.partition, t.segment, t.fate] += t.records
    return tuple(
        SegmentTotal(state.parent, s.id, found[(*key, Fate.DATA)], found[(*key, Fate.STRAY)])
        for state in snapshot.states
        for s in state.lineage
        for key in [(state.parent.partition, s.id)]
    )


def suspects(snapshot: Snapshot, spans: Collection[SegmentSpan]) -> set[tuple[int, str, int]]:
    """Return where (partition, producer, segment) the numbers alone do not prove that keys are in order.

    Proven without looking at keys: a producer's numbers rise within a segment, and all its numbers in the
    segments before are below them.
    """
    states = {state.parent.partition: state for state in snapshot.states}
    by_writer: dict[Who, dict[int, SegmentSpan]] = defaultdict(dict)
    for span in spans:
        by_writer[span.partition, span.producer][span.segment] = span
    found: set[tuple[int, str, int]] = set()
    for (partition, producer), mine in by_writer.items():
        lineage = states[partition].lineage
        for segment, span in mine.items():
            keys, before = lineage.get(segment).range, lineage.ancestors(segment) & mine.keys()
            sharing = (s.id for s in lineage if s.id in before and s.range.overlaps(keys))
            later = [i for i in sharing if mine[i].last >= span.first]
            if span.descents or later:
                found.update((partition, producer, i) for i in (segment, *later))
    return found


def certificate_findings(
    writers: KnownProducers,
    spans: Collection[SegmentSpan],
    judged: Collection[Who],
    doubtful: Collection[Who],
    unread: Collection[tuple[int, int]],
) -> Iterator[Finding]:
    """Return where a producer's certificate says other than its segments hold.

    Args:
        writers: with the certificates.
        spans: the producers' data by segment.
        judged: the producers that are judged at all.
        doubtful: producers whose numbers are not all there, or not once: reported elsewhere, or of aborted
            transactions.
        unread: segments (partition, id) of which not all was read.
    """
    held: dict[Who, dict[int, SegmentSpan]] = defaultdict(dict)
    for s in spans:
        held[s.partition, s.producer][s.segment] = s
    for who, writer in writers.certified().items():
        if writer.certificate is None or who not in judged:
            continue
        yield from _never_given(writer, writer.certificate, held.get(who, {}))
        if who not in doubtful:
            without = {i for n, i in unread if n == who[0]}
            yield from _miscounted(writer, writer.certificate, held.get(who, {}), without)


def _never_given(
    writer: KnownProducer, certificate: Certificate, held: Mapping[int, SegmentSpan]
) -> Iterator[Finding]:
    """Return data of numbers beyond the last that a producer says it gave."""
    for segment, data in sorted(held.items()):
        if data.last >= certificate.next_sequence:
            gave = f"producer {writer.producer} gave {certificate.next_sequence:,} numbers"
            message = f"{gave}, and number {data.last} is there"
            who = Severity.FINDING, writer.parent, message, segment, writer.producer
            yield Finding(*who, first=data.last, last=data.last)


def _miscounted(
    writer: KnownProducer, certificate: Certificate, held: Mapping[int, SegmentSpan], unread: Collection[int]
) -> Iterator[Finding]:
    """Return segments that hold other counts than a certificate says: 0 of those it does not name."""
    said = {int(name): count for name, count in certificate.delivered.items()}
    for segment in sorted(said.keys() | held.keys()):
        delivered = said.get(segment, 0)
        there = held[segment].records if segment in held else 0
        if segment in unread or delivered <= there <= delivered + len(writer.failed):
            continue
        counted = f"producer {writer.producer} delivered {delivered:,} records to segment {segment}"
        message = f"{counted}, which holds {there:,}"
        who = Severity.FINDING, writer.parent, message, segment, writer.producer
        yield Finding(*who, count=abs(there - delivered))


def uncertified_findings(
    writers: KnownProducers, spans: Collection[SegmentSpan], *, required: bool
) -> Iterator[Finding]:
    """Yield, for producers without a certificate, up to which number their records are proven.

    ``required``: that cannot be judged; otherwise it is a note.
    """
    severity = Severity.UNPROVEN if required else Severity.NOTE
    last: dict[Who, int] = {}
    for span in spans:
        who = span.partition, span.producer
        last[who] = max(last.get(who, 0), span.last)
    certified = writers.certified()
    for who, top in sorted(last.items()):
        if who not in certified:
            message = (
                f"producer {who[1]} has left no certificate (it is open still, died, or could not publish "
                f"one): judged up to number {top:,}; nothing is known of what it delivered after that"
            )
            parent = writers.get(*who).parent
            yield Finding(severity, parent, message, producer=who[1], first=top, last=top)
    here = {producer for _, producer in last}
    for name, parent in sorted(writers.open.items()) if required else ():
        if name not in here:
            message = f"producer {name} registered for the topic, has not closed, and nothing of it is there"
            yield Finding(severity, parent, message, producer=name)
