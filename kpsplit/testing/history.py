"""The history checker: from what was sent and what was read back, everything that went wrong in between.

Pure: it sees values only. Producers record every send with its outcome: ok, failed, *unknown* (a time-out, a
crash), or aborted with its transaction. A fresh reader records every delivery, along the lineage:
predecessors before their successors, each segment in the order of its offsets. Each record has an id of its
own. Then:

    checker = HistoryChecker([lineage])
    for send in sends: checker.sent(send)
    for delivery in deliveries: checker.delivered(delivery)
    report = checker.report()
    assert report.clean, report

``Anomaly`` lists what must not be. Counted, but no anomaly, because the client library does it and kpsplit
cannot help it:

* a record whose delivery failed and that was written after all (after every Kafka error it may have been),
  wherever it stands among the others of its key;
* a second copy in the same segment with the same stamp: the library wrote a batch twice (its duplicates after
  a leader change), and reports either copy's place. What kpsplit sends again goes to a later segment, with
  a newer epoch in its stamp;
* a record that failed and is not there while later ones of its key are (the library's gaps): it was reported.

What the members of a group were given is checked by ``kpsplit.testing.readings``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment, SegmentKind

DEFAULT_EXAMPLES = 10


class Anomaly(StrEnum):
    """What must not be."""

    LOST = "lost"
    """Reported as delivered, and not there."""
    UNSEEN = "unseen"
    """Reported as delivered after the place where the reading of an open segment ended."""
    DUPLICATE = "duplicate"
    """Delivered more than once."""
    OUT_OF_ORDER = "out of order"
    """Delivered after a later record of the same producer and key."""
    NEVER_SENT = "never sent"
    """Delivered, and nobody sent it."""
    WRONG_PLACE = "wrong place"
    """Not where its report says, or not where its logical offset says, or in another logical partition."""
    WRONG_SEGMENT = "wrong segment"
    """In a segment that does not take its key, or that its producer must not write to."""
    WRONG_KEY = "wrong key"
    """Read back with another key than it was sent with."""
    OFFSET_REUSED = "logical offset used twice"
    """Two records of a logical partition have one logical offset."""
    OFFSET_NOT_RISING = "logical offset not rising"
    """Not above every logical offset before it in its segment and in the segments that this one follows."""
    ABORTED_READ = "aborted read"
    """Delivered although its transaction was aborted."""
    NEVER_WRITTEN = "never written"
    """A reader was given it, and the log has something else at that place, or nothing."""
    LATE_STRAY = "late stray"
    """A reader was given a stray: a copy that its producer sends again, or has sent again."""
    SKIPPED = "skipped"
    """A reader was given what comes after it in the segment, and never it itself."""
    NOT_MONOTONIC = "not monotonic"
    """A reader was given it after later ones of its segment, or again, without having begun anew."""


@dataclass(frozen=True, slots=True)
class FoundAnomaly:
    """How often an anomaly was found, and the first examples in words."""

    anomaly: Anomaly
    count: int
    examples: tuple[str, ...]


@dataclass(slots=True)
class FoundAnomalies:
    """Counts per anomaly, with the first ``examples`` of each."""

    examples: int
    _counts: dict[Anomaly, int] = field(default_factory=dict)
    _texts: dict[Anomaly, list[str]] = field(default_factory=dict)

    def note(self, anomaly: Anomaly, text: str) -> None:
        self._counts[anomaly] = self._counts.get(anomaly, 0) + 1
        texts = self._texts.setdefault(anomaly, [])
        if len(texts) < self.examples:
            texts.append(text)

    def copy(self) -> FoundAnomalies:
        """Return findings of their own, with what these have so far."""
        return FoundAnomalies(self.examples, dict(self._counts), {a: list(t) for a, t in self._texts.items()})

    def all(self) -> list[FoundAnomaly]:
        """Return what was found, in the order of ``Anomaly``."""
        return [FoundAnomaly(a, self._counts[a], tuple(self._texts[a])) for a in Anomaly if a in self._counts]


def in_words(findings: Iterable[FoundAnomaly]) -> str:
    """Return findings for people, one line each with its first examples."""
    return "\n".join(f"{f.anomaly}: {f.count}, e.g. {'; '.join(f.examples)}" for f in findings)


Key = bytes | int | None
"""A key, or its key hash where the key itself is not recorded; None: no key, and so no order to keep."""


class SendOutcome(StrEnum):
    """What was reported to the application. A time-out is unknown unless the client says that it failed."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"
    ABORTED = "aborted"
    """Its transaction is known to be aborted."""


class Send(NamedTuple):
    """One record as it was sent.

    ``sequence`` rises with every record of the producer (gaps are fine). ``logical_offset`` is what the
    delivery report said; ``place`` the physical partition and offset where a producer reports those instead.
    """

    producer: str
    partition: PhysicalPartition
    key: Key
    id: Hashable
    sequence: int
    outcome: SendOutcome
    logical_offset: int | None = None
    place: tuple[PhysicalPartition, int] | None = None


class Delivery(NamedTuple):
    """One record as it was read back: its logical place, and the physical one, ``source`` and ``offset``.

    ``epoch``: that of its stamp, None if it has none or if it is not recorded.
    """

    partition: PhysicalPartition
    logical_offset: int
    segment: int
    key: Key
    id: Hashable
    source: PhysicalPartition
    offset: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """What a history amounts to.

    ``sent`` = ``ok`` + ``failed`` + ``unknown`` + ``aborted``. ``delivered``: how many of the records sent
    were read back, each counted once; ``read``: how many deliveries there were. ``failed_but_written``,
    ``unknown_but_written``: read back although their outcome was not ok; ``failed_out_of_order``: of the
    former, those after later ones of their key. ``library_duplicates`` and ``library_gaps``: what the client
    library did, see the module.
    """

    sent: int
    ok: int
    failed: int
    unknown: int
    read: int
    delivered: int
    failed_but_written: int
    unknown_but_written: int
    failed_out_of_order: int
    findings: tuple[FoundAnomaly, ...]
    aborted: int = 0
    library_duplicates: int = 0
    library_gaps: int = 0

    @property
    def clean(self) -> bool:
        """Return whether nothing was found."""
        return not self.findings

    @property
    def lost(self) -> int:
        """Records that were reported as delivered and were not read back."""
        return self.count(Anomaly.LOST) + self.count(Anomaly.UNSEEN)

    @property
    def duplicated(self) -> int:
        """Deliveries beyond the first of a record."""
        return self.count(Anomaly.DUPLICATE)

    @property
    def out_of_order(self) -> int:
        """Records after later ones of the same producer and key."""
        return self.count(Anomaly.OUT_OF_ORDER)

    def count(self, anomaly: Anomaly) -> int:
        """Return how often an anomaly was found."""
        return next((f.count for f in self.findings if f.anomaly is anomaly), 0)

    def __str__(self) -> str:
        if self.clean:
            return f"clean: {self.delivered} of {self.sent} records delivered, each once and in order"
        return in_words(self.findings)


class HistoryChecker:
    """Takes all sends, then all deliveries, then reports. Not thread safe.

    Args:
        lineages: of every logical partition that was written to, as they were when reading ended.
        foreign: the producers that do not use kpsplit: they write to parents and overflows only, the others
            to everything but overflows.
        examples: how many examples of each anomaly are kept.
    """

    def __init__(
        self, lineages: Iterable[Lineage], foreign: Collection[str] = (), examples: int = DEFAULT_EXAMPLES
    ) -> None:
        self._foreign = frozenset(foreign)
        self._partitions = {lineage.parent: _PartitionRead(lineage) for lineage in lineages}
        self._sends: dict[Hashable, Send] = {}
        self._delivered_at: dict[Hashable, Delivery] = {}
        self._elsewhere: dict[Hashable, Delivery] = {}  # not where its report says, so far
        self._library_duplicates = 0
        self._found = FoundAnomalies(examples)
        self._counts = dict.fromkeys(SendOutcome, 0)
        self._written = dict.fromkeys(SendOutcome, 0)
        self._failed_out_of_order = 0
        self._read = 0

    def sent(self, send: Send) -> None:
        """Take the next send, in any order.

        Raises:
            UsageError: another send has the same id, so nothing could be told apart.
        """
        if self._sends.setdefault(send.id, send) is not send:
            raise UsageError(f"two sends have the id {send.id!r}", hint="give every record an id of its own")
        self._counts[send.outcome] += 1

    def delivered(self, delivery: Delivery) -> None:
        """Take the next delivery, in the order of reading."""
        self._read += 1
        partition = self._partitions.get(delivery.partition)
        segment = partition.segments.get(delivery.segment) if partition else None
        if partition is None or segment is None:
            self._note(Anomaly.WRONG_PLACE, delivery, "the lineage has no such segment")
            return
        self._check_place(partition, segment, delivery)
        send = self._sends.get(delivery.id)
        if send is None:
            self._note(Anomaly.NEVER_SENT, delivery, "nobody sent it")
        elif delivery.id in self._delivered_at:
            self._again(send, self._delivered_at[delivery.id], delivery)
        else:
            self._delivered_at[delivery.id] = delivery
            self._written[send.outcome] += 1
            if send.outcome is SendOutcome.ABORTED:
                self._note(Anomaly.ABORTED_READ, delivery, "its transaction was aborted")
            self._check_against(send, segment, delivery)
            if send.key is not None:
                self._check_order(partition, send, delivery)

    def report(self) -> HistoryReport:
        """Look for what was not delivered, and return everything that was found."""
        late = self._found.copy()
        for id_, delivery in self._elsewhere.items():
            late.note(Anomaly.WRONG_PLACE, _at(delivery, f"its report says {_reported(self._sends[id_])}"))
        for send in self._sends.values():
            if send.outcome is SendOutcome.OK and send.id not in self._delivered_at:
                anomaly = Anomaly.UNSEEN if self._beyond_reading(send) else Anomaly.LOST
                late.note(anomaly, _describe(send))
        return HistoryReport(
            sent=len(self._sends),
            ok=self._counts[SendOutcome.OK],
            failed=self._counts[SendOutcome.FAILED],
            unknown=self._counts[SendOutcome.UNKNOWN],
            read=self._read,
            delivered=len(self._delivered_at),
            failed_but_written=self._written[SendOutcome.FAILED],
            unknown_but_written=self._written[SendOutcome.UNKNOWN],
            failed_out_of_order=self._failed_out_of_order,
            findings=tuple(late.all()),
            aborted=self._counts[SendOutcome.ABORTED],
            library_duplicates=self._library_duplicates,
            library_gaps=self._library_gaps(),
        )

    def _again(self, send: Send, first: Delivery, delivery: Delivery) -> None:
        """Separate the library's second copies from ours."""
        same_stamp = first.epoch == delivery.epoch and (
            first.epoch is not None or send.producer in self._foreign
        )
        twice_written = (first.source, first.segment) == (delivery.source, delivery.segment)
        if same_stamp and twice_written and first.offset != delivery.offset:
            self._library_duplicates += 1
            if _where_reported(send, delivery):
                self._elsewhere.pop(send.id, None)
        else:
            self._note(
                Anomaly.DUPLICATE, delivery, f"delivered at logical offset {first.logical_offset} before"
            )

    def _library_gaps(self) -> int:
        return sum(
            send.outcome is SendOutcome.FAILED
            and send.key is not None
            and send.id not in self._delivered_at
            and partition.last_sequence.get((send.producer, send.key), send.sequence) > send.sequence
            for send in self._sends.values()
            if (partition := self._partitions.get(send.partition)) is not None
        )

    def _check_place(self, partition: _PartitionRead, segment: _SegmentRead, delivery: Delivery) -> None:
        """Check what the record's place and key alone can show."""
        logical = delivery.logical_offset
        if segment.logical(delivery.source, delivery.offset) != logical:
            self._note(Anomaly.WRONG_PLACE, delivery, "the lineage puts another number there")
        if logical in partition.used_offsets:
            self._note(Anomaly.OFFSET_REUSED, delivery, "another record has the same logical offset")
        partition.used_offsets.add(logical)
        floor = segment.floor()
        if logical <= floor:
            self._note(Anomaly.OFFSET_NOT_RISING, delivery, f"logical offset {floor} came before")
        segment.last = logical
        if delivery.key is not None and not segment.takes(_hash(delivery.key)):
            self._note(Anomaly.WRONG_SEGMENT, delivery, f"key hash {_hash(delivery.key):08x} is outside it")

    def _check_against(self, send: Send, segment: _SegmentRead, delivery: Delivery) -> None:
        """Check a record's first delivery against how it was sent."""
        if send.partition is not delivery.partition and send.partition != delivery.partition:
            self._note(Anomaly.WRONG_PLACE, delivery, f"it was sent to {send.partition}")
        if send.key != delivery.key and not _same_key(send.key, delivery.key):
            self._note(Anomaly.WRONG_KEY, delivery, f"it was sent with key {send.key!r}")
        if not _where_reported(send, delivery):
            self._elsewhere[send.id] = delivery
        forbidden = SegmentKind.PHANTOM if send.producer in self._foreign else SegmentKind.OVERFLOW
        if segment.kind is forbidden:
            self._note(Anomaly.WRONG_SEGMENT, delivery, f"{send.producer} must not write to {segment.kind}s")

    def _check_order(self, partition: _PartitionRead, send: Send, delivery: Delivery) -> None:
        path = (send.producer, send.key)
        last = partition.last_sequence.get(path)
        if last is None or send.sequence > last:
            partition.last_sequence[path] = send.sequence
        elif send.outcome is SendOutcome.FAILED:
            self._failed_out_of_order += 1
        else:
            self._note(
                Anomaly.OUT_OF_ORDER, delivery, f"number {send.sequence} of {send.producer} after {last}"
            )

    def _beyond_reading(self, send: Send) -> bool:
        """Return whether a missing record lies after what was read of a segment that is still open."""
        partition = self._partitions.get(send.partition)
        if partition is None:
            return True
        lineage = partition.lineage
        if send.place is not None:
            segment = lineage.at(*send.place)
            logical = segment.logical(send.place[1]) if segment else None
        else:
            logical = send.logical_offset
            found = None if logical is None else lineage.find(logical)
            segment = found[0] if found else None
        if segment is None or logical is None or not segment.is_open:
            return False
        return logical > partition.segments[segment.id].last

    def _note(self, anomaly: Anomaly, delivery: Delivery, why: str) -> None:
        self._found.note(anomaly, _at(delivery, why))


def check_history(
    sends: Iterable[Send],
    deliveries: Iterable[Delivery],
    lineages: Iterable[Lineage],
    foreign: Collection[str] = (),
) -> HistoryReport:
    """Check a whole history at once; see ``HistoryChecker``."""
    checker = HistoryChecker(lineages, foreign)
    for send in sends:
        checker.sent(send)
    for delivery in deliveries:
        checker.delivered(delivery)
    return checker.report()


_NOTHING = -1
"""Below every logical offset."""


class _SegmentRead:
    """What the lineage says about a segment, flat for speed, and how far it was read.

    ``last``: the latest logical offset read from it, ``_NOTHING`` at first.
    """

    def __init__(self, segment: Segment, predecessors: tuple[_SegmentRead, ...]) -> None:
        self.kind: SegmentKind = segment.kind
        self.last = _NOTHING
        self._lo, self._hi = segment.range.lo, segment.range.hi
        self._source, self._start, self._end = segment.source, segment.start, segment.end
        self._base, self._stride = segment.progression.base, segment.progression.stride
        self._predecessors = predecessors
        self._inherited: int | None = None

    def logical(self, source: PhysicalPartition, offset: int) -> int | None:
        """Return the logical offset that belongs to a physical place, None if it is outside the segment."""
        if source != self._source or offset < self._start or (self._end is not None and offset >= self._end):
            return None
        return self._base + self._stride * (offset - self._start)

    def takes(self, hash_: int) -> bool:
        return self._lo <= hash_ < self._hi

    def floor(self) -> int:
        """Return the logical offset that the next record must be above."""
        if self.last != _NOTHING:
            return self.last
        if self._inherited is None:  # asked for when the predecessors have been read
            self._inherited = max((p.floor() for p in self._predecessors), default=_NOTHING)
        return self._inherited


class _PartitionRead:
    """One logical partition as its reading goes on."""

    def __init__(self, lineage: Lineage) -> None:
        self.lineage = lineage
        self.segments: dict[int, _SegmentRead] = {}
        for segment in lineage:
            before = tuple(self.segments[i] for i in segment.predecessors)
            self.segments[segment.id] = _SegmentRead(segment, before)
        self.used_offsets: set[int] = set()
        self.last_sequence: dict[tuple[str, Key], int] = {}


def _hash(key: bytes | int) -> int:
    return key if isinstance(key, int) else key_hash(key)


def _same_key(one: Key, other: Key) -> bool:
    if one is None or other is None or type(one) is type(other):
        return False
    return _hash(one) == _hash(other)


def _where_reported(send: Send, delivery: Delivery) -> bool:
    place = (delivery.source, delivery.offset)
    return send.logical_offset in (None, delivery.logical_offset) and send.place in (None, place)


def _reported(send: Send) -> str:
    if send.place is not None:
        return f"{send.place[0]}@{send.place[1]}"
    return "no place" if send.logical_offset is None else f"logical offset {send.logical_offset}"


def _at(delivery: Delivery, why: str) -> str:
    return (
        f"{delivery.id!r} at logical offset {delivery.logical_offset} of {delivery.partition}"
        f" (segment {delivery.segment}, {delivery.source}@{delivery.offset}): {why}"
    )


def _describe(send: Send) -> str:
    who = f"{send.id!r}, number {send.sequence} of {send.producer}"
    return f"{who}, reported in {send.partition}: {_reported(send)}"
