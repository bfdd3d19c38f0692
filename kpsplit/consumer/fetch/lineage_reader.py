"""Reads a logical partition in lineage order: each record once, in each key's order (protocol, section 9).

The segments are read one after the other in the order of their ids, which puts every segment after its
predecessors. An open segment is read to the end that its log had when the segment's turn came. What each
record means is decided by ``splitter.reading``; where that depends on an operation under way, the reader
refreshes its view and waits for the outcome, so a split that takes effect meanwhile is read through as well.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from confluent_kafka import Message

from kpsplit.clock import Deadline
from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.consumer.fetch.physical_reader import LostStartError, PhysicalReader
from kpsplit.consumer.fetch.record_filter import OurHeaders, read_headers
from kpsplit.errors import DeadlineExceededError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.logical_message import Headers, headers_of
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import (
    Deliver,
    Foreign,
    ForeignReason,
    GapReason,
    SkipReason,
    SkipRecord,
    Verdict,
    Wait,
    classify,
    own_stamp,
    unsettled,
    wrong_topic,
)
from kpsplit.splitter.records.data import STAMP_HEADER, Stamp

Refresh = Callable[[], PartitionState]
"""Reads the control topic to its present end and returns the partition's state."""

WAIT_SECONDS = 0.1
NO_TIMESTAMP = 0


@dataclass(frozen=True, slots=True)
class LogicalRecord:
    """One delivered record: its logical place, its content, and where it is stored.

    ``epoch`` is the epoch that opened its segment. ``headers`` are without the stamp. ``timestamp`` is in
    milliseconds since 1970, None if the record has none. ``stamp`` is None for a record that kpsplit's
    producers did not write here: one of another writer, or a copy of a record that stood elsewhere.
    """

    logical_offset: int
    segment: int
    epoch: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    source_topic: str
    source_partition: int
    source_offset: int
    timestamp: int | None
    stamp: Stamp | None

    @property
    def keyless(self) -> bool:
        """Return whether the record has no key."""
        return self.key is None


@dataclass(slots=True)
class LineageTally:
    """What was not delivered, and why."""

    delivered: int = 0
    skipped: Counter[SkipReason] = field(default_factory=Counter)
    foreign: Counter[ForeignReason] = field(default_factory=Counter)
    malformed_headers: int = 0
    gaps: list[Gap] = field(default_factory=list)

    @property
    def strays(self) -> int:
        """Records that their producers sent again to the right segment."""
        return self.skipped[SkipReason.STRAY]


class LineageReader:
    """Reads one logical partition from a snapshot of its state. Not thread safe; a context manager.

    Args:
        connection: how to reach the cluster.
        state: a fresh state of the logical partition.
        refresh: returns a fresher one; called when a record shows that the state is too old.
        patience: seconds to wait for an operation under way, or for a broker, before giving up.
    """

    def __init__(
        self,
        connection: Connection,
        state: PartitionState,
        refresh: Refresh | None = None,
        patience: float = 30.0,
    ) -> None:
        self.state = state
        self.tally = LineageTally()
        self._refresh = refresh or (lambda: self.state)
        self._patience = patience
        self._topic_ids: dict[str, str | None] = {}
        self._reader = PhysicalReader(connection, patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()

    def records(self, first: int = 0) -> Iterator[LogicalRecord]:
        """Yield every record whose logical offset is at least ``first``, along the lineage.

        Raises:
            DeadlineExceededError: an operation under way, or an open transaction, did not end in time.
            KpsplitError: a broker cannot be reached, or a right is missing.
        """
        last = -1
        while (segment := next((s for s in self.state.lineage if s.id > last), None)) is not None:
            yield from self._segment(segment, first)
            last = segment.id

    def _segment(self, segment: Segment, first: int) -> Iterator[LogicalRecord]:
        start = segment.start + segment.progression.steps_to(first)
        if start > segment.start:
            self._await_settled(segment.source)
            segment = self.state.lineage.get(segment.id)
        stretch = self._readable(segment, start)
        while stretch is not None:
            try:
                yield from self._stretch(segment, *stretch)
                self._look_behind(segment.id)
                return
            except LostStartError as lost:
                stretch = self._readable(segment, lost.position)

    def _readable(self, segment: Segment, start: int) -> tuple[int, int] | None:
        """Return what can be read of a segment from ``start`` on; report what cannot."""
        if segment.end is not None and start >= segment.end:
            return None
        lost = self._lost(segment.source)
        bounds = None if lost else self._reader.bounds(segment.source, segment.end_leader_epoch)
        if bounds is None:
            self._gap(segment, start, segment.end or start + 1, lost or GapReason.MISSING)
            return None
        end = bounds.stable if segment.end is None else segment.end
        if bounds.low > start:
            self._gap(segment, start, min(bounds.low, end), GapReason.EXPIRED)
        if segment.end is not None and bounds.high < segment.end:
            self._gap(segment, max(start, bounds.high), segment.end, GapReason.CUT_OFF)
            end = bounds.high
        return max(start, bounds.low), end

    def _stretch(self, segment: Segment, start: int, end: int) -> Iterator[LogicalRecord]:
        for message in self._reader.records(segment.source, start, end):
            ours = read_headers(headers_of(message))
            self.tally.malformed_headers += ours.malformed
            verdict = self._verdict(segment.source, message, ours)
            match verdict:
                case Deliver(found, logical) if found.id == segment.id:
                    self.tally.delivered += 1
                    yield _logical_record(
                        message, found, logical, own_stamp(self.state, found.source, ours.stamp)
                    )
                case Deliver():
                    return  # a refresh has shown that the segment ended before this record
                case SkipRecord(reason):
                    self.tally.skipped[reason] += 1
                    if reason is SkipReason.MARKER:
                        return
                case Foreign(foreign):
                    self.tally.foreign[foreign] += 1

    def _look_behind(self, segment_id: int) -> None:
        """Count what stands after the last end of a phantom partition; nothing there is delivered."""
        segment = self.state.lineage.get(segment_id)
        if segment.end is None or any(
            s.source == segment.source and s.start > segment.start for s in self.state.lineage
        ):
            return
        bounds = self._reader.bounds(segment.source)
        if bounds is not None and bounds.low <= segment.end < bounds.stable:
            deque(self._stretch(segment, segment.end + 1, bounds.stable), maxlen=0)

    def _verdict(
        self, source: PhysicalPartition, message: Message, ours: OurHeaders
    ) -> Deliver | SkipRecord | Foreign:
        offset = message.offset() or 0
        verdict: Verdict = classify(self.state, source, offset, ours.stamp, ours.marker)
        limit = Deadline(self._patience)
        while isinstance(verdict, Wait):
            self.state = self._refresh()
            verdict = classify(self.state, source, offset, ours.stamp, ours.marker, refreshed=True)
            if isinstance(verdict, Wait):
                self._pause(limit)
        return verdict

    def _await_settled(self, source: PhysicalPartition) -> None:
        """Where reading begins inside a segment: on which side of a marker it is must be known."""
        limit = Deadline(self._patience)
        while unsettled(self.state, source):
            self._pause(limit)
            self.state = self._refresh()

    def _pause(self, limit: Deadline) -> None:
        if limit.left() <= 0:
            attempt = self.state.attempt
            who = f"attempt {attempt.id} of {attempt.operator}" if attempt else "an operation"
            raise DeadlineExceededError(
                f"waited {self._patience:g} s for the outcome of {who} on {self.state.parent}",
                hint=f"look at: kpsplit status {self.state.parent}",
            )
        time.sleep(min(WAIT_SECONDS, limit.left()))

    def _lost(self, source: PhysicalPartition) -> GapReason | None:
        if source.topic not in self._topic_ids and not self.state.is_retired(source.topic):
            self._topic_ids[source.topic] = self._reader.topic_id(source.topic)
        return wrong_topic(self.state, source, self._topic_ids.get(source.topic))

    def _gap(self, segment: Segment, start: int, end: int, reason: GapReason) -> None:
        if end > start:
            self.tally.gaps.append(Gap(segment.id, segment.source, start, end, reason))


def _logical_record(message: Message, segment: Segment, logical: int, stamp: Stamp | None) -> LogicalRecord:
    kind, timestamp = message.timestamp()
    key, value = message.key(), message.value()
    return LogicalRecord(
        logical_offset=logical,
        segment=segment.id,
        epoch=segment.opened_epoch,
        key=key,
        value=value,
        headers=_without_stamp(headers_of(message)),
        source_topic=segment.source.topic,
        source_partition=segment.source.partition,
        source_offset=message.offset() or 0,
        timestamp=None if kind == NO_TIMESTAMP else timestamp,
        stamp=stamp,
    )


def _without_stamp(headers: Headers | None) -> tuple[tuple[str, bytes | None], ...]:
    """Return the application's own headers."""
    return tuple((name, value) for name, value in headers or () if name != STAMP_HEADER)
