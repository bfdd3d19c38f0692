"""Checks what the members of a group were given, one by one, against the raw logs.

Pure: it sees values only. A fresh plain client reads every physical partition from its start to its end and
hands over each record, strays and markers too (``raw``). Each reader records when it began with some key
ranges (``began``: an assignment, a seek) and every record that it was given, in its own order (``read``).
Then:

    checker = ReadingChecker([state])
    for record in plain_client: checker.raw(record)
    for event in what_readers_recorded: checker.began(...) or checker.read(...)
    report = checker.report()
    assert report.clean, report

That a group is given a record again after a crash or a seek is no anomaly here: its reader began anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Deliver, SkipReason, SkipRecord, classify, reader_hash
from kpsplit.splitter.records.data import Marker, Stamp
from kpsplit.testing.history import (
    DEFAULT_EXAMPLES,
    Anomaly,
    Delivery,
    FoundAnomalies,
    FoundAnomaly,
    in_words,
)

_Place = tuple[PhysicalPartition, int]


class RawRecord(NamedTuple):
    """One record of a physical partition, as a plain client finds it."""

    source: PhysicalPartition
    offset: int
    id: Hashable
    key: bytes | None
    stamp: Stamp | None = None
    marker: Marker | None = None


@dataclass(frozen=True, slots=True)
class ReadingReport:
    """What readers were given. ``strays``: records of the logs that no reader may be given."""

    raw: int
    strays: int
    read: int
    findings: tuple[FoundAnomaly, ...]

    @property
    def clean(self) -> bool:
        """Return whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        return in_words(self.findings) or f"clean: {self.read} records read, {self.strays} strays passed over"


@dataclass(slots=True)
class _SegmentIndex:
    """The records that a segment delivers: offsets in rising order, each with its hash and id."""

    offsets: list[int] = field(default_factory=list)
    records: list[tuple[int, Hashable]] = field(default_factory=list)


@dataclass(slots=True)
class _Reader:
    """One reader since it began: its key ranges, and by segment how far it was given the records of each."""

    ranges: tuple[KeyRange, ...]
    given: dict[tuple[int, KeyRange], int] = field(default_factory=dict)


class ReadingChecker:
    """Takes the raw logs, then what readers were given, then reports. Not thread safe.

    Args:
        states: of every logical partition, as they were when the raw logs were read; at rest.
        examples: how many examples of each anomaly are kept.
    """

    def __init__(self, states: Iterable[PartitionState], examples: int = DEFAULT_EXAMPLES) -> None:
        self._states = {state.parent: state for state in states}
        self._owner = {s: state.parent for state in self._states.values() for s in state.lineage.sources()}
        self._raw: dict[_Place, Hashable] = {}
        self._strays: set[_Place] = set()
        self._segments: dict[tuple[PhysicalPartition, int], _SegmentIndex] = {}
        self._readers: dict[tuple[str, PhysicalPartition], _Reader] = {}
        self._found = FoundAnomalies(examples)
        self._read = 0

    def raw(self, record: RawRecord) -> None:
        """Take the next record of a physical partition, in the order of offsets."""
        place = (record.source, record.offset)
        parent = self._owner.get(record.source)
        if parent is None:
            return
        self._raw[place] = record.id
        state = self._states[parent]
        verdict = classify(state, record.source, record.offset, record.stamp, record.marker, refreshed=True)
        if isinstance(verdict, Deliver):
            index = self._segments.setdefault((parent, verdict.segment.id), _SegmentIndex())
            index.offsets.append(record.offset)
            hash_ = _placed(record.key, record.offset, verdict.segment.range)
            index.records.append((hash_, record.id))
        elif isinstance(verdict, SkipRecord) and verdict.reason is SkipReason.STRAY:
            self._strays.add(place)

    def began(self, reader: str, partition: PhysicalPartition, ranges: Iterable[KeyRange]) -> None:
        """Note that a reader has these key ranges from now on; it goes on with those that it had before."""
        known = self._readers.get((reader, partition))
        now = _Reader(tuple(ranges))
        if known is not None:
            now.given = {key: at for key, at in known.given.items() if key[1] in now.ranges}
        self._readers[reader, partition] = now

    def anew(self, reader: str, partition: PhysicalPartition, range_: KeyRange) -> None:
        """Note that a reader begins a range from elsewhere: it was assigned again, or moved by a seek."""
        known = self._readers.get((reader, partition))
        if known is not None:
            known.given = {key: at for key, at in known.given.items() if key[1] != range_}

    def read(self, reader: str, delivery: Delivery) -> None:
        """Take the next record that a reader was given."""
        self._read += 1
        place = (delivery.source, delivery.offset)
        what = f"{delivery.id!r} of {delivery.source}@{delivery.offset} was given to {reader}"
        if self._raw.get(place) != delivery.id or place not in self._raw:
            self._found.note(Anomaly.NEVER_WRITTEN, f"{what}; the log has {self._raw.get(place)!r} there")
            return
        if place in self._strays:
            self._found.note(Anomaly.LATE_STRAY, f"{what}: a stray")
            return
        self._check_sequence(reader, delivery, what)

    def report(self) -> ReadingReport:
        """Return everything that was found."""
        return ReadingReport(len(self._raw), len(self._strays), self._read, tuple(self._found.all()))

    def _check_sequence(self, reader: str, delivery: Delivery, what: str) -> None:
        index = self._segments.get((delivery.partition, delivery.segment), _SegmentIndex())
        at = bisect_left(index.offsets, delivery.offset)
        if at == len(index.offsets) or index.offsets[at] != delivery.offset:
            self._found.note(Anomaly.WRONG_PLACE, f"{what}, and is no record of segment {delivery.segment}")
            return
        known = self._readers.get((reader, delivery.partition))
        if known is None:
            return
        hash_ = index.records[at][0]
        range_ = next((r for r in known.ranges if hash_ in r), None)
        if range_ is None:
            return
        last = known.given.get((delivery.segment, range_))
        if last is not None and delivery.offset <= last:
            self._found.note(Anomaly.NOT_MONOTONIC, f"{what} after offset {last}")
            return
        first = self._first(known, delivery, range_, last, at)
        known.given[delivery.segment, range_] = delivery.offset
        for other, id_ in index.records[first:at]:
            if other in range_:
                self._found.note(Anomaly.SKIPPED, f"{id_!r}: {what}, and not this one before it")

    def _first(self, known: _Reader, delivery: Delivery, range_: KeyRange, last: int | None, at: int) -> int:
        """Return from which record of a segment on a reader must have been given everything.

        Where it was given something of a predecessor since it began, from the segment's start.
        """
        lineage = self._states[delivery.partition].lineage
        if last is not None:
            return bisect_left(self._segments[delivery.partition, delivery.segment].offsets, last + 1)
        before = lineage.get(delivery.segment).predecessors
        return 0 if any((p, range_) in known.given for p in before) else at


def _placed(key: bytes | None, offset: int, within: KeyRange) -> int:
    """Return the hash by which readers share a segment's records, also one that is in the wrong segment."""
    hash_ = reader_hash(key, offset, within)
    return hash_ if hash_ in within else within.lo + hash_ % within.width
