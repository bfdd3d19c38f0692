"""From where on a topic is judged: its logs, its producers' numbers, its range commits. Pure.

What lies before is given: nobody says that it was lost, repeated or out of place. A run without a time starts
where the logs start; a run since a time (``Since``) starts at each log's first record that is not older.

**Logs since a time.** Where the first record that is not older is the first record the log still has, and
there were others, the log does not tell how old those were. They count as records that should have been
judged, unless the topic keeps records for longer than since the time (``Since.kept``).

**Numbers.** Of a producer that may have written what cannot be read (``lost``), and in a run since a time,
the least number that is there is the first one that is judged. ``Extent.sure`` says up to where a missing
number may lie among what cannot be read:

* A producer's numbers rise within a log. So what retention removed of a segment is below the first number
  that the segment still holds of it.
* What a segment held is below all that the segments after it hold, if a split closed it: strays have greater
  numbers than what lies before the end of their own log. A merge closes several logs, and a stray of one can
  have a smaller number than a record of another; so there the bound is ``STRAY_SPREAD`` greater.
* A segment that holds nothing of the producer by its certificate cannot have lost anything of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kpsplit.spark_jobs.regions import FirstOffsets
from kpsplit.spark_jobs.snapshot import LogEnds, Lost, Snapshot
from kpsplit.spark_jobs.verification.counts import SegmentSpan, Who
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, SegmentKind
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import GapReason
from kpsplit.splitter.records.data import instance_name
from kpsplit.splitter.records.producers import Certificate, ProducerRegistration


@dataclass(frozen=True, slots=True)
class KnownProducer:
    """One producer in one logical partition; ``certificate`` None: it has not closed, or died.

    ``transactional``: numbers of its may belong to aborted transactions; also where nothing is known of it.
    """

    parent: PhysicalPartition
    producer: str
    certificate: Certificate | None = None
    failed: frozenset[int] = field(default_factory=frozenset)
    transactional: bool = True


class KnownProducers:
    """All producers of a snapshot, also such as the producers topic does not know.

    Attributes:
        open: the names of those that registered for the topic and have not closed, with a partition to report
            them for.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._parents = {state.parent.partition: state.parent for state in snapshot.states}
        ids = {state.parent.partition: state.topic_id for state in snapshot.states}
        self._known: dict[Who, KnownProducer] = {}
        self.open: dict[str, PhysicalPartition] = {}
        by_name: dict[str, list[ProducerRegistration]] = defaultdict(list)
        for record in snapshot.producers:
            by_name[instance_name(record.instance)].append(record)
        for name, records in by_name.items():
            if any(not record.closed and snapshot.topic in record.topics for record in records):
                self.open[name] = next(iter(self._parents.values()))
            for number, parent in self._parents.items():
                last = _certified(records, parent, ids[number])
                certificate = last.certificates[str(parent)] if last else None
                failed = frozenset(certificate.failed if certificate else ())
                transactional = any(r.transactional_id is not None for r in ([last] if last else records))
                self._known[number, name] = KnownProducer(parent, name, certificate, failed, transactional)

    def get(self, partition: int, producer: str) -> KnownProducer:
        return self._known.get((partition, producer)) or KnownProducer(self._parents[partition], producer)

    def certified(self) -> dict[Who, KnownProducer]:
        """Return those that left a certificate, by partition and producer."""
        return {who: writer for who, writer in self._known.items() if writer.certificate is not None}


def _certified(
    records: Iterable[ProducerRegistration], parent: PhysicalPartition, topic_id: str | None
) -> ProducerRegistration | None:
    """Return an instance's latest registration that has a certificate for a partition.

    An instance may have several registrations, also forged ones: without a certificate they hide none.
    A certificate of another topic id speaks of a topic of this name that was deleted.
    """
    for record in sorted(records, key=lambda record: record.generation, reverse=True):
        certificate = record.certificates.get(str(parent)) if record.closed else None
        if certificate is not None and certificate.topic_id in (None, topic_id):
            return record
    return None


NEAR_MS = 10 * 60_000
"""So far before the time a number is looked for first; everything before that only if it is not there."""

STRAY_SPREAD = 1 << 20
"""So far apart are the numbers of one producer that are in flight at one fence, at most: ten times what
librdkafka queues by default. (A stray that is sent again after a merge has one of them.)"""

REACH = 1 << 20
"""So many offsets after the end of a log are read for numbers that were under way when it was asked for."""

UNBOUNDED = 1 << 64
"""Beyond every sequence number."""

Stretches = dict[PhysicalPartition, tuple[int, int]]
"""The offsets [first, behind) of logs."""


@dataclass(frozen=True, slots=True)
class Since:
    """The time, and the first offset of each log that is not older; logs that have none are left out.

    ``ms``: since 1970, as the records' timestamps count it. ``first``: of the data and of the offset log;
    ``near``: the same of ``NEAR_MS`` before. ``kept``: logs from which age removes nothing that is so young.
    """

    ms: int
    first: FirstOffsets
    near: FirstOffsets
    kept: frozenset[PhysicalPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class JudgedFrom:
    """From where on a topic is judged.

    Attributes:
        since: the time; None: from the start of the logs on.
        read: the offset from which on a log is read; 0 for those that are left out.
        commits_read: per logical partition the offset from which on the offset log's range commits are
            judged; those before it are in force.
    """

    since: Since | None = None
    read: Mapping[PhysicalPartition, int] = field(default_factory=dict)
    commits_read: Mapping[int, int] = field(default_factory=dict)

    def of(self, place: PhysicalPartition) -> int:
        return self.read.get(place, 0)


def start_of(snapshot: Snapshot, since: Since | None) -> JudgedFrom:
    """Return where a run since a time starts; without a time where the logs do."""
    if since is None:
        return JudgedFrom()
    read: dict[PhysicalPartition, int] = {}
    for state in snapshot.states:
        read |= _beginnings(snapshot, state, since)
    commits_read = {s.parent.partition: _commits_read(snapshot, s, since) for s in snapshot.states}
    return JudgedFrom(since, read, commits_read)


def to_read(snapshot: Snapshot, start: JudgedFrom) -> Stretches:
    """Return what the logs hold, is decided, and is judged."""
    found = {}
    for place in snapshot.owners():
        bounds = snapshot.ends(place)
        if bounds is not None and (first := max(bounds.low, start.of(place))) < bounds.stable:
            found[place] = first, bounds.stable
    return found


def stretches_before(snapshot: Snapshot, start: JudgedFrom, partitions: Collection[int]) -> list[Stretches]:
    """Return where numbers are looked for that do not lie after the time: near it, then everywhere."""
    if start.since is None or not partitions:
        return []
    near_of = start.since.near
    everything: Stretches = {}
    for place, partition in snapshot.owners().items():
        bounds = snapshot.ends(place)
        if partition in partitions and bounds is not None:
            behind = min(start.of(place), bounds.stable)
            if bounds.low < behind:
                everything[place] = bounds.low, behind
    near = {
        place: (max(first, near_of[place]), behind)
        for place, (first, behind) in everything.items()
        if near_of.get(place, behind) < behind
    }
    return [near, everything] if near and near != everything else [everything]


def stretches_after(snapshot: Snapshot, later: Snapshot, partitions: Collection[int]) -> Stretches:
    """Return what a later snapshot has after the ends of an earlier one: up to ``REACH`` of each log."""
    found: Stretches = {}
    for place, partition in later.owners().items():
        bounds = later.ends(place)
        if partition in partitions and bounds is not None:
            asked = snapshot.bounds.get(place)
            first = max(bounds.low, 0 if asked is None else asked.stable)
            if first < bounds.stable:
                found[place] = first, min(bounds.stable, first + REACH)
    return found


def lost(snapshot: Snapshot, start: JudgedFrom) -> list[Lost]:
    """Return what segments had, should be judged, and cannot be read.

    That a log was cut off, or that a topic is gone, is reported whatever the time is.
    """
    found = []
    for one in snapshot.lost():
        first = max(one.first, start.of(one.segment.source))
        if is_defect(one):
            found.append(one)
        elif one.behind is None or first < one.behind:
            found.append(Lost(one.state, one.segment, first, one.behind, one.reason))
    return found


def is_defect(one: Lost) -> bool:
    """Return whether what cannot be read should be there: neither retention nor ``retire`` removed it."""
    return one.reason in (GapReason.CUT_OFF, GapReason.MISSING, GapReason.MADE_ANEW)


def not_whole(snapshot: Snapshot, start: JudgedFrom) -> set[tuple[int, int]]:
    """Return the segments (partition, id) of which a part, or all, is not read."""
    all_ = ((state.parent.partition, s) for state in snapshot.states for s in state.lineage)
    before = {(number, s.id) for number, s in all_ if start.of(s.source) > s.start}
    return before | {(x.state.parent.partition, x.segment.id) for x in lost(snapshot, start)}


def held_back(snapshot: Snapshot) -> set[int]:
    """Return the partitions of which an open transaction hides records that are in the logs."""
    owners = snapshot.owners()
    return {owners[place] for place, b in snapshot.bounds.items() if place in owners and b.stable < b.high}


@dataclass(frozen=True, slots=True)
class Extent:
    """Which numbers of one producer in one partition are judged: [first, behind).

    ``sure``: a missing number below it may lie among what cannot be read; one at or above it does not.
    """

    first: int
    behind: int
    sure: int = 0


def extents(
    snapshot: Snapshot,
    start: JudgedFrom,
    writers: KnownProducers,
    spans: Collection[SegmentSpan],
    firsts: Mapping[Who, int],
) -> dict[Who, Extent]:
    """Return which numbers are judged; producers that are left out are not judged at all.

    A certificate says how many numbers were given; what is beyond fills no hole. ``spans``: the producers'
    data by segment; ``firsts``: the least number of each that is there, as data or as a stray.
    """
    tops: dict[Who, int] = {}
    held: dict[Who, dict[int, int]] = defaultdict(dict)
    for span in spans:
        who = span.partition, span.producer
        tops[who] = max(tops.get(who, -1), span.last)
        held[who][span.segment] = span.first
    gaps = _Gaps(lost(snapshot, start))
    found = {}
    for who in sorted(tops.keys() | firsts.keys() | writers.certified().keys()):
        writer = writers.get(*who)
        sure = gaps.bound(writer, held.get(who, {}))
        given_start = start.since is not None or sure > 0
        if given_start and who not in firsts:
            continue
        first = firsts[who] if given_start else 0
        behind = writer.certificate.next_sequence if writer.certificate else tops.get(who, -1) + 1
        found[who] = Extent(first, behind, max(sure, first))
    return found


class _Gaps:
    """What cannot be read, per partition, with what was written after it."""

    def __init__(self, gone: Iterable[Lost]) -> None:
        self._of: dict[int, list[tuple[Lost, frozenset[int], bool]]] = defaultdict(list)
        for one in gone:
            lineage = one.state.lineage
            later, by_merge = _heirs(lineage, one.segment.id), _closed_by_merge(lineage, one.segment.id)
            self._of[one.state.parent.partition].append((one, later, by_merge))

    def bound(self, writer: KnownProducer, held: Mapping[int, int]) -> int:
        """Return a number that is greater than all of a producer's that may lie in what cannot be read.

        ``held``: the first number of it that each segment holds.
        """
        found = 0
        for one, later, by_merge in self._of.get(writer.parent.partition, ()):
            if writer.certificate and not writer.certificate.delivered.get(str(one.segment.id)):
                continue
            if one.reason is GapReason.EXPIRED and one.segment.id in held:
                bound = held[one.segment.id]
            else:
                bound = min((first for s, first in held.items() if s in later), default=UNBOUNDED)
                bound += STRAY_SPREAD if by_merge else 0
            found = max(found, bound)
        return found


def _heirs(lineage: Lineage, segment: int) -> frozenset[int]:
    found = {segment}
    for s in lineage:
        if found.intersection(s.predecessors):
            found.add(s.id)
    return frozenset(found - {segment})


def _closed_by_merge(lineage: Lineage, segment: int) -> bool:
    """Return whether what comes directly after a segment took over from others as well (overflows aside)."""
    return any(
        sum(lineage.get(p).kind is not SegmentKind.OVERFLOW for p in s.predecessors) > 1
        for s in lineage.successors(segment)
    )


def _beginnings(snapshot: Snapshot, state: PartitionState, since: Since) -> dict[PhysicalPartition, int]:
    over = _over(snapshot, state, since)
    found = {}
    for place in state.lineage.sources():
        closed = [s.end for s in state.lineage if s.id in over and s.source == place and s.end is not None]
        passed = max(closed, default=-1) + 1
        bounds = snapshot.ends(place)
        if bounds is None:
            found[place] = passed
        else:
            cut = _cut(bounds, place, since)
            found[place] = min(passed, cut) if _is_doubtful(bounds, cut) else cut
    return {place: offset for place, offset in found.items() if offset}


def _over(snapshot: Snapshot, state: PartitionState, since: Since) -> set[int]:
    """Return the segments that were closed before the time: what comes after them has an older record."""
    found: set[int] = set()
    for s in reversed(state.lineage.segments):
        for later in state.lineage.successors(s.id):
            bounds, place = snapshot.ends(later.source), later.source
            older = bounds and max(bounds.low, later.start) < _cut(bounds, place, since)
            if later.id in found or older:
                found.add(s.id)
    return found


def doubtful(snapshot: Snapshot, since: Since) -> set[PhysicalPartition]:
    """Return the logs that have lost records, and do not tell how old those were: they count as younger."""
    found = ((place, snapshot.ends(place)) for place in snapshot.owners())
    return {place for place, b in found if b is not None and _is_doubtful(b, _cut(b, place, since))}


def _is_doubtful(bounds: LogEnds, cut: int) -> bool:
    return 0 < bounds.low == cut


def _cut(bounds: LogEnds, place: PhysicalPartition, since: Since) -> int:
    """Return the first offset of a log that is not older than the time."""
    return max(bounds.low, min(since.first.get(place, bounds.stable), bounds.stable))


def _commits_read(snapshot: Snapshot, state: PartitionState, since: Since) -> int:
    """Return the offset of the offset log from which on a partition's range commits are not older."""
    mine = [c for c in snapshot.commits if c.key.parent == state.parent]
    if not mine:
        return 0
    return since.first.get(mine[0].log, max(c.log_offset + 1 for c in mine))
