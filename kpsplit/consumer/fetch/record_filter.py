"""What is read of one segment, which of its records the owned slots are given, and in which form. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Message

from kpsplit.consumer.fetch.batch import placed_hash
from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.kafka.logical_message import (
    Headers,
    RelabelledMessage,
    headers_of,
    obvious_until,
    of_key_ranges,
)
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import Segment, SegmentKind
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Foreign, ForeignReason, SkipReason, SkipRecord, Wait, classify
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, Marker, Stamp

_key = Message.key


@dataclass(slots=True)
class ReadTally:
    """What was read and not handed out, and why."""

    skipped: Counter[SkipReason] = field(default_factory=Counter)
    foreign: Counter[ForeignReason] = field(default_factory=Counter)
    malformed_headers: int = 0

    @property
    def strays(self) -> int:
        """Records that their producers sent again to the right segment."""
        return self.skipped[SkipReason.STRAY]


@dataclass(frozen=True, slots=True)
class OurHeaders:
    """What kpsplit wrote into a record's headers. ``malformed``: there is garbage under one of our names."""

    stamp: Stamp | None = None
    marker: Marker | None = None
    malformed: bool = False


NONE_OF_OURS = OurHeaders()


def read_headers(headers: Headers | None) -> OurHeaders:
    """Find the stamp and the marker among a record's headers. Garbage is neither: no data are lost by it.

    Raises:
        FutureVersionError: a newer kpsplit wrote them.
    """
    if not headers:
        return NONE_OF_OURS
    stamp: Stamp | None = None
    marker: Marker | None = None
    malformed = False
    for name, value in headers:
        try:
            if name == STAMP_HEADER:
                stamp = Stamp.decode(value)
            elif name == MARKER_HEADER:
                marker = Marker.decode(value)
        except FutureVersionError:
            raise
        except RecordError:
            malformed = True
    return OurHeaders(stamp, marker, malformed)


@dataclass(frozen=True, slots=True)
class PendingLookup:
    """The record that cannot be judged yet, and what kpsplit wrote into its headers."""

    offset: int
    headers: OurHeaders


@dataclass(slots=True)
class FilteredRecords:
    """The records to be handed out, as they were read; ``lookup``: the first one that cannot be judged yet.

    ``foreign`` are the offsets of records that contradict the lineage, with the reasons.
    """

    kept: list[Message]
    lookup: PendingLookup | None = None
    foreign: list[tuple[int, ForeignReason]] = field(default_factory=list)


class RecordFilter:
    """Judges the records of one segment for the slots that read it.

    The first segment of a physical partition, if it is no overflow, is *plain*: everything before its end
    belongs to it, since no epoch before it wrote there and markers are met in order. There only records
    without a key are looked at closely, because a marker has none; stamps are not read.

    Args:
        state: the view of the logical partition.
        segment: the segment.
        start_offsets: by slot that reads it, the first offset that the slot was not given.
    """

    def __init__(
        self, state: PartitionState, segment: Segment, start_offsets: Mapping[OwnedSlot, int]
    ) -> None:
        self._state = state
        self._segment = segment
        self._home = state.home(segment.source)
        self._plain = _is_first(state, segment) and segment.kind is not SegmentKind.OVERFLOW
        slots = sorted(start_offsets, key=lambda slot: slot.range)
        self._bounds = _bounds(slot.range for slot in slots)
        self._everything = _inside(self._bounds, segment.range)
        self._lows = [slot.range.lo for slot in slots]
        self._start_offsets = [start_offsets[slot] for slot in slots]
        self._last_floor = max(self._start_offsets, default=0)

    def sift(self, messages: list[Message], keyed: bool, fresh_to: int, tally: ReadTally) -> FilteredRecords:
        """Return what is handed out of records of the segment, which are in the order of their offsets.

        Args:
            messages: the records, without errors; at least one.
            keyed: whether each of them has a key that is not empty.
            fresh_to: the view was read to an end asked for after every record before this offset had arrived.
            tally: counts what is skipped.
        """
        untouched = self._plain and keyed
        result = FilteredRecords(messages) if untouched else self._judged(messages, fresh_to, tally)
        if not self._everything or (result.kept and (result.kept[0].offset() or 0) < self._last_floor):
            result.kept = self._of_slots(result.kept, keyed)
        return result

    def _judged(self, messages: list[Message], fresh_to: int, tally: ReadTally) -> FilteredRecords:
        result = FilteredRecords([])
        home, epochs = self._home, (self._segment.opened_epoch, self._state.epoch)
        at = 0
        while True:
            if not self._plain:
                start, at = at, obvious_until(messages, at, home, epochs)
                result.kept += messages[start:at]
            if at == len(messages) or not self._judge(messages[at], fresh_to, tally, result):
                return result
            at += 1

    def _judge(self, message: Message, fresh_to: int, tally: ReadTally, result: FilteredRecords) -> bool:
        headers = None if self._plain and _key(message) is not None else headers_of(message)
        if not headers:
            result.kept.append(message)
            return True
        ours = read_headers(headers)
        tally.malformed_headers += ours.malformed
        if self._obvious(ours):
            result.kept.append(message)
            return True
        return self._looked_up(message, ours, fresh_to, tally, result)

    def _obvious(self, ours: OurHeaders) -> bool:
        """Return whether a record inside the segment is delivered in every view; saves looking it up.

        ``obvious_until`` says the same of a whole stamp.
        """
        if ours.marker is not None:
            return False
        stamp = ours.stamp
        if stamp is None or self._plain or not stamp.is_at(self._home):
            return True
        return self._segment.opened_epoch <= stamp.epoch <= self._state.epoch

    def _looked_up(
        self, message: Message, ours: OurHeaders, fresh_to: int, tally: ReadTally, result: FilteredRecords
    ) -> bool:
        offset = message.offset() or 0
        verdict = classify(
            self._state,
            self._segment.source,
            offset,
            ours.stamp,
            ours.marker,
            refreshed=offset < fresh_to,
        )
        match verdict:
            case Wait():
                result.lookup = PendingLookup(offset, ours)
                return False
            case SkipRecord(reason):
                tally.skipped[reason] += 1
            case Foreign(foreign):
                tally.foreign[foreign] += 1
                result.foreign.append((offset, foreign))
            case _:
                result.kept.append(message)
        return True

    def _of_slots(self, messages: list[Message], keyed: bool) -> list[Message]:
        if not messages or not keyed or (messages[0].offset() or 0) < self._last_floor:
            return [m for m in messages if self._wanted(_key(m), m.offset() or 0)]
        return of_key_ranges(messages, self._bounds, self._segment.range)

    def _wanted(self, key: bytes | None, offset: int) -> bool:
        hash_ = placed_hash(key, offset, self._segment.range)
        if not bisect_right(self._bounds, hash_) & 1:
            return False
        return offset >= self._start_offsets[bisect_right(self._lows, hash_) - 1]


def _is_first(state: PartitionState, segment: Segment) -> bool:
    return not any(s.source == segment.source and s.id < segment.id for s in state.lineage)


def _bounds(ranges: Iterable[KeyRange]) -> list[int]:
    """Return where the union of ranges, in rising order, begins and ends: inside, the count before is odd."""
    bounds: list[int] = []
    for range_ in ranges:
        if bounds and bounds[-1] == range_.lo:
            bounds[-1] = range_.hi
        else:
            bounds += [range_.lo, range_.hi]
    return bounds


def _inside(bounds: list[int], range_: KeyRange) -> bool:
    at = bisect_right(bounds, range_.lo)
    return bool(at & 1) and range_.hi <= bounds[at]


@dataclass(slots=True)
class SegmentFetch:
    """What is read of one physical partition now: ``segment`` from ``next`` on."""

    segment: Segment
    next: int
    start_offsets: dict[OwnedSlot, int]
    ready: bool
    record_filter: RecordFilter
    slots: tuple[OwnedSlot, ...]
    kind: type[RelabelledMessage] | None = None
    """The class of its messages in logical terms, once there are any."""

    def stands_at(self, gap: Gap) -> bool:
        return (self.segment.id, self.next) == (gap.segment, gap.start)


@dataclass(slots=True)
class ViewQuestion:
    """What has to be known before a fetch goes on; ``record`` None: whether reading may begin here.

    ``fresh``: the view was refreshed since; ``request_id``: the number under which that was asked for.
    """

    segment: int
    offset: int
    record: PendingLookup | None
    request_id: int
    fresh: bool = False


def records_from(messages: list[Message], offset: int) -> list[Message]:
    if offset_of(messages[0]) >= offset:
        return messages
    return messages[bisect_left(messages, offset, key=offset_of) :]


def divided_at(messages: list[Message], end: int | None) -> tuple[list[Message], list[Message]]:
    if end is None or offset_of(messages[-1]) < end:
        return messages, []
    cut = bisect_left(messages, end, key=offset_of)
    return messages[:cut], messages[cut:]


def offset_of(message: Message) -> int:
    return message.offset() or 0
