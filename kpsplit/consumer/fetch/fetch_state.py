"""From where each physical partition of a logical partition is read, and where reading has to stop. Pure.

Every owned slot has a cursor: what it was given. A *fetch* is what is read of one physical partition now:
the first segment there that some owned slot has not been given in full, from the first offset that one of
them was not given. Others are not given again what they have: each slot has its start offset.

A fetch is not read, and waits at its place, while

* a slot that reads the segment was not given all that comes before it (*not ready*). A segment before which
  nothing is left is never held up by another one, so somebody can always go on;
* it waits for a look-up: a record can only be judged by a view that was read to an end asked for after the
  record had arrived, or by the outcome of an operation under way; or reading begins inside an open segment,
  at a place that was not reached by reading, and it must be known first on which side of a marker that is;
* the log has lost what comes next, and the policy is to stop, or the application does not know of it yet
  (``GapNotices``); or the application paused the partition.

Whoever reads asks for ``wanted`` and gives all that it read to ``take`` and ``at_end``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from confluent_kafka import Message

from kpsplit.consumer.fetch.batch import Batch, size_of
from kpsplit.consumer.fetch.gaps import (
    EndReached,
    ForeignFound,
    Found,
    Gap,
    GapFound,
    GapNotices,
    GapPolicy,
    ReadingEvent,
    Unreadable,
    loss,
    unknown_segment,
)
from kpsplit.consumer.fetch.record_filter import (
    FilteredRecords,
    PendingLookup,
    ReadTally,
    RecordFilter,
    SegmentFetch,
    ViewQuestion,
    divided_at,
    offset_of,
    read_headers,
    records_from,
)
from kpsplit.errors import FutureVersionError, KpsplitError
from kpsplit.kafka.logical_message import headers_of, is_identity, relabelled, wrapped
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import MAX_OFFSET, PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor, ForeignReason, Wait, classify, unsettled


class FetchState:
    """All fetches of one logical partition. Not thread safe.

    Args:
        state: the view of the logical partition.
        request_id: returns the next number for a question that needs a fresh view.
        report: takes what is to be reported.
        on_gap: what is done where records are gone.
        wrap_all: hand out every message as a ``LogicalMessage``.
    """

    def __init__(
        self,
        state: PartitionState,
        request_id: Callable[[], int],
        report: Callable[[ReadingEvent], None],
        on_gap: GapPolicy = GapPolicy.ERROR,
        wrap_all: bool = False,
    ) -> None:
        self.state = state
        self.tally = ReadTally()
        self.changed = False
        """Whether ``wanted`` may have changed since whoever reads last looked; it sets this to False."""
        self._next_request_id = request_id
        self._report = report
        self._on_gap = on_gap
        self._wrap_all = wrap_all
        self._paused = False
        self._held_back: frozenset[KeyRange] = frozenset()
        self._cursors: dict[OwnedSlot, Cursor] = {}
        self._fetches: dict[PhysicalPartition, SegmentFetch] = {}
        self._arranged = True
        """Whether ``_fetches`` are those of the slots, which come by the dozen: arranged once for all."""
        self._questions: dict[PhysicalPartition, ViewQuestion] = {}
        self._stale: ViewQuestion | None = None
        self._stopped: set[PhysicalPartition] = set()
        self._said: dict[PhysicalPartition, object] = {}
        """Why a log cannot be read, as far as that was reported: trying again says nothing new."""
        self._reached: dict[int, int] = {}
        self._fresh_to: dict[PhysicalPartition, int] = {}
        self._notices = GapNotices()
        self._untold: dict[PhysicalPartition, Gap] = {}
        self._at_end: dict[PhysicalPartition, int] = {}
        """Where reading stood when a log's end was read: after a seek back it has not been read."""

    def anew(self) -> FetchState:
        """Return a state that has read nothing, and owns no slot, after an exception came between."""
        new = FetchState(self.state, self._next_request_id, self._report, self._on_gap, self._wrap_all)
        new.tally, new._paused, new._notices = self.tally, self._paused, self._notices
        new._said = self._said
        new.changed = True
        return new

    # what is known and owned

    @property
    def parent(self) -> PhysicalPartition:
        return self.state.parent

    def update(self, state: PartitionState) -> None:
        """Take a newer view."""
        if state == self.state:
            return
        self._settle()
        self.state = state
        self._ask_again()
        self._arrange()

    def own(self, slot: OwnedSlot, cursor: Cursor) -> None:
        """Give a slot everything from a cursor on; for an owned one this is a seek. Ends stops at gaps."""
        self._keep_positions()
        self._cursors[slot] = cursor
        self._stopped.clear()
        self._said.clear()
        self._unsettle()

    def disown(self, slot: OwnedSlot) -> None:
        """Give a slot nothing more."""
        self._keep_positions()
        self._cursors.pop(slot, None)
        self._unsettle()

    def pause(self, paused: bool) -> None:
        """Stop reading at the present places, or go on."""
        self._paused = paused
        self.changed = True

    def hold_back(self, ranges: frozenset[KeyRange]) -> None:
        """Read nothing for slots that have keys of these ranges, where the segment has them too; all else."""
        if ranges != self._held_back:
            self._held_back = ranges
            self.changed = True

    def cursor(self, slot: OwnedSlot) -> Cursor:
        """Return what an owned slot was given."""
        self._keep_positions()
        return self._cursors[slot].settled(self.state.lineage)

    # what needs a fresh view

    @property
    def request_id(self) -> int:
        """The newest number of a question that waits for a fresh view, 0 if there is none."""
        self._settle()
        if not self._questions and self._stale is None:  # asked at every look: this is the rule
            return 0
        return max((q.request_id for q in self._asked() if not q.fresh), default=0)

    def refreshed(self, request_id: int) -> None:
        """The view was read to an end asked for after the questions up to a request id had come up."""
        self._settle()
        answered = [q for q in self._asked() if q.request_id <= request_id and not q.fresh]
        for question in answered:
            question.fresh = True
        if answered:
            self._ask_again()
            self._arrange()
        if self._stale in answered:
            self._report(Unreadable(self.parent, self.parent, unknown_segment(self.parent)))

    # reading

    def wanted(self) -> dict[PhysicalPartition, int]:
        """Return what can be read now: physical partitions, each with the next offset."""
        self._settle()
        return {source: fetch.next for source, fetch in self._fetches.items() if self._reads(source, fetch)}

    def take(
        self, source: PhysicalPartition, start: int, messages: list[Message], keyed: bool
    ) -> list[Batch]:
        """Take records of a physical partition.

        What cannot be handed out yet is left out, with all that was read after it: it is ``wanted`` again
        later. (Nobody could tell what was left out from a hole in the log.)

        Args:
            source: where they were read.
            start: the offset from which on the log was read without a break up to the last of the records.
            messages: the records, without errors, in order.
            keyed: whether each of them has a key that is not empty.
        """
        self._settle()
        self._at_end.pop(source, None)
        messages = [] if self._has_left_out(source, start) else messages
        batches: list[Batch] = []
        while messages and (fetch := self._fetches.get(source)) is not None and self._reads(source, fetch):
            messages = records_from(messages, fetch.next)
            if messages:
                messages = self._take_stretch(source, fetch, messages, keyed, batches)
        return batches

    def at_end(self, source: PhysicalPartition, start: int, offset: int) -> list[Batch]:
        """The log was read from ``start`` to its end, an offset: holes before that are passed."""
        self._settle()
        fetch = self._fetches.get(source)
        if fetch is None or not self._reads(source, fetch) or self._has_left_out(source, start):
            return []
        if offset < fetch.next:  # cut off: it does not reach to where reading goes on
            return []
        end = offset if fetch.segment.end is None else min(offset, fetch.segment.end)
        batches = self._passed(fetch, end)
        self._at_end[source] = fetch.next
        if all(self.ended(s) and other.segment.is_open for s, other in self._fetches.items()):
            last = max(other.segment.logical(other.next) for other in self._fetches.values())
            # A forged commit may have moved it anywhere.
            self._report(EndReached(self.parent, min(last, MAX_OFFSET)))
        return batches

    def _has_left_out(self, source: PhysicalPartition, start: int) -> bool:
        """Return whether something before ``start`` was read and not taken: it is read again first."""
        fetch = self._fetches.get(source)
        self.changed |= (left_out := fetch is not None and fetch.next < start)
        return left_out

    def cut_short(self, source: PhysicalPartition) -> bool:
        """Return whether the log ends where the segment should go on: its bounds have to be looked at.

        An open transaction may hold up its readers, or its end was cut off.
        """
        self._settle()
        end = self._fetches[source].segment.end if self.ended(source) else None
        return end is not None and self._fetches[source].next < end

    def ended(self, source: PhysicalPartition) -> bool:
        """Return whether the log was read to its end and reading still stands there."""
        fetch = self._fetches.get(source)
        return fetch is not None and self._at_end.get(source) == fetch.next

    def examine(self, source: PhysicalPartition, found: Found) -> list[Batch]:
        """Take what was found out about a log; report what it has lost of what is to be read next."""
        self._settle()
        fetch = self._fetches.get(source)
        lost = None if fetch is None else loss(self.state, fetch.segment, fetch.next, found)
        if fetch is None or lost is None:
            return []
        self.changed = True
        if lost.gap is not None and self._on_gap is GapPolicy.SKIP_AND_REPORT:
            return self._at_gap(fetch, lost.gap)
        self._stopped.add(source)
        if lost.gap is None:
            self._say(Unreadable(self.parent, source, lost.error, lost.reason))
        elif self._said.get(source) != (lost.gap.segment, lost.gap.reason):
            self._report(GapFound(self.parent, lost.gap, self._notices.new(lost.gap), lost.error))
            self._notices.given(lost.gap)
            self._said[source] = lost.gap.segment, lost.gap.reason
        return []

    def told(self, gap: Gap) -> list[Batch]:
        """The report of a gap has reached the application: go on after it if reading waits there."""
        self._settle()
        self._notices.told(gap)
        fetch, waiting = self._fetches.get(gap.source), self._untold.get(gap.source)
        if waiting is None or not self._notices.knows(waiting):
            return []
        del self._untold[gap.source]
        self.changed = True
        if fetch is None or not fetch.stands_at(waiting) or not self._reads(gap.source, fetch):
            return []  # whoever reads there later meets the gap again, and goes on at once
        end = fetch.segment.end  # it may have become known while the gap was reported
        return self._jumped(fetch, waiting.end if end is None else min(waiting.end, end))

    def stop(self, source: PhysicalPartition, error: KpsplitError) -> None:
        """A physical partition cannot be read on: report it once, leave it alone until it is tried again."""
        self._stopped.add(source)
        self.changed = True
        self._say(Unreadable(self.parent, source, error))

    @property
    def stopped(self) -> tuple[PhysicalPartition, ...]:
        """The physical partitions that are left alone."""
        return tuple(self._stopped)

    def try_again(self, source: PhysicalPartition) -> None:
        """Read a stopped physical partition again, if that is possible now."""
        self._stopped.discard(source)
        self.changed = True

    def _say(self, event: Unreadable) -> None:
        if event.source is not None and self._said.get(event.source) != event.error.message:
            self._report(event)
            self._said[event.source] = event.error.message

    def _reads(self, source: PhysicalPartition, fetch: SegmentFetch) -> bool:
        held_up = self._paused or source in self._stopped or source in self._questions
        return fetch.ready and not held_up and source not in self._untold and not self._backpressured(fetch)

    def _backpressured(self, fetch: SegmentFetch) -> bool:
        """Return whether somebody to whom the fetch gives records has too many of them already."""
        return any(
            fetch.segment.range.overlaps(range_)
            and any(slot.range.overlaps(range_) for slot in fetch.start_offsets)
            for range_ in self._held_back
        )

    def _take_stretch(
        self,
        source: PhysicalPartition,
        fetch: SegmentFetch,
        messages: list[Message],
        keyed: bool,
        batches: list[Batch],
    ) -> list[Message]:
        """Take the records of one segment; return what stands after its end."""
        inside, rest = divided_at(messages, fetch.segment.end)
        sifted = FilteredRecords([])
        try:
            if inside:
                sifted = fetch.record_filter.sift(inside, keyed, self._fresh_to.get(source, 0), self.tally)
            if rest:
                rest = self._without_marker(source, rest)
        except FutureVersionError as error:
            self.stop(source, error)
            return []
        self._tell_foreign(source, sifted.foreign)
        epoch = inside[-1].leader_epoch() if inside else None
        if sifted.lookup is not None:
            self._ask(source, sifted.lookup.offset, sifted.lookup)
            batches += self._passed(fetch, sifted.lookup.offset, sifted.kept, epoch)
            return []
        read_to = offset_of(inside[-1]) + 1 if inside else fetch.next
        end = read_to if len(inside) == len(messages) else fetch.segment.end or 0
        batches += self._passed(fetch, end, sifted.kept, epoch if end == read_to else None)
        return rest

    def _passed(
        self,
        fetch: SegmentFetch,
        end: int,
        kept: list[Message] | None = None,
        leader_epoch: int | None = None,
    ) -> list[Batch]:
        """Everything of a fetch before an offset was read: hand it out."""
        if end <= fetch.next:
            return []
        raw = kept or []
        size = size_of(raw)  # with the stamps
        told = raw if self._untouched(fetch.segment) else self._in_logical_terms(fetch, raw)
        place = self.parent, fetch.segment, fetch.slots, fetch.next, end
        batch = Batch(*place, told, size, leader_epoch)
        fetch.next = end
        self._said.pop(fetch.segment.source, None)
        self._reached[fetch.segment.id] = max(end, self._reached.get(fetch.segment.id, 0))
        if fetch.segment.end is not None and end >= fetch.segment.end:
            self._arrange()
        return [batch]

    def _in_logical_terms(self, fetch: SegmentFetch, raw: list[Message]) -> list[Message]:
        if fetch.kind is None:
            fetch.kind = relabelled(fetch.segment, self.parent)
        return wrapped(raw, fetch.kind)

    def _at_gap(self, fetch: SegmentFetch, gap: Gap) -> list[Batch]:
        """Go on after a gap, or wait until the application knows of it."""
        if self._notices.knows(gap):
            return self._jumped(fetch, gap.end)
        self._untold[gap.source] = gap
        records = self._notices.new(gap)
        if records:
            self._report(GapFound(self.parent, gap, records, None))
            self._notices.given(gap)
        return []

    def _jumped(self, fetch: SegmentFetch, to: int) -> list[Batch]:
        """Go on after a gap. Nobody has seen which markers were there, so it may have to be asked about."""
        reached = self._reached.get(fetch.segment.id, fetch.segment.start)
        batches = self._passed(fetch, to)
        self._reached[fetch.segment.id] = reached
        self._arrange()
        return batches

    def _untouched(self, segment: Segment) -> bool:
        enrolled = bool(self.state.topic_id)  # its records have a stamp, which a wrapped message leaves out
        return not self._wrap_all and not enrolled and is_identity(segment, self.parent)

    def _without_marker(self, source: PhysicalPartition, rest: list[Message]) -> list[Message]:
        """Return what stands after the place of a marker; report a record that is there instead."""
        end = self._fetches[source].segment.end
        if offset_of(rest[0]) != end:
            return rest
        if read_headers(headers_of(rest[0])).marker is None:
            self.tally.foreign[ForeignReason.NOT_THE_MARKER] += 1
            self._tell_foreign(source, [(end, ForeignReason.NOT_THE_MARKER)])
        return rest[1:]

    def _ask(self, source: PhysicalPartition, offset: int, record: PendingLookup | None) -> None:
        segment = self._fetches[source].segment
        self._questions[source] = ViewQuestion(segment.id, offset, record, self._next_request_id())
        self.changed = True

    # what is read next

    def _unsettle(self) -> None:
        self._fetches = {}
        self._arranged = False
        self._at_end.clear()  # the end is reported anew, and there may be more by then
        self.changed = True

    def _settle(self) -> None:
        if not self._arranged:
            self._arrange()

    def _keep_positions(self) -> None:
        """Bring the cursors up to what was read."""
        for fetch in self._fetches.values():
            for slot, start_offset in fetch.start_offsets.items():
                if fetch.next > start_offset:
                    fetch.start_offsets[slot] = fetch.next
                    self._cursors[slot] = self._cursors[slot].moved(fetch.segment.id, fetch.next)

    def _arrange(self) -> None:
        """Find out anew what is to be read where."""
        self._keep_positions()
        self.changed = True
        self._fetches = {}
        lineage = self.state.lineage
        if any(cursor.ahead_of(lineage) for cursor in self._cursors.values()):
            self._stale = self._stale or ViewQuestion(0, 0, None, self._next_request_id())
            self._arranged = True
            return
        self._stale = None
        needed: dict[int, dict[OwnedSlot, int]] = {}
        not_ready: set[int] = set()
        for slot, cursor in self._cursors.items():
            readable = cursor.readable(lineage)
            for segment_id, position in cursor.pending(lineage).items():
                needed.setdefault(segment_id, {})[slot] = position
                if segment_id not in readable:
                    not_ready.add(segment_id)
        for segment in lineage:
            start_offsets = needed.get(segment.id)
            if start_offsets and segment.source not in self._fetches:
                ready, first = segment.id not in not_ready, min(start_offsets.values())
                record_filter = RecordFilter(self.state, segment, start_offsets)
                self._fetches[segment.source] = SegmentFetch(
                    segment, first, start_offsets, ready, record_filter, tuple(start_offsets)
                )
        self._look_where_fetches_begin()
        self._arranged = True

    def _look_where_fetches_begin(self) -> None:
        for source, question in list(self._questions.items()):
            fetch = self._fetches.get(source)
            if fetch is None or (fetch.segment.id, fetch.next) != (question.segment, question.offset):
                del self._questions[source]
        for source, gap in list(self._untold.items()):
            fetch = self._fetches.get(source)
            if fetch is None or not fetch.stands_at(gap):
                del self._untold[source]
        for source, fetch in self._fetches.items():
            segment = fetch.segment
            reached = self._reached.get(segment.id, segment.start)
            if fetch.ready and segment.is_open and fetch.next > reached and source not in self._questions:
                self._ask(source, fetch.next, None)

    def _asked(self) -> Iterable[ViewQuestion]:
        return (*self._questions.values(), *([self._stale] if self._stale else []))

    def _ask_again(self) -> None:
        """Drop the questions that the view answers now."""
        for source, question in list(self._questions.items()):
            record = question.record
            if record is None:
                if question.fresh and not unsettled(self.state, source):
                    reached = self._reached.get(question.segment, 0)
                    self._reached[question.segment] = max(question.offset, reached)
                    del self._questions[source]
                continue
            stamp, marker = record.headers.stamp, record.headers.marker
            verdict = classify(self.state, source, record.offset, stamp, marker, refreshed=question.fresh)
            if not isinstance(verdict, Wait):
                if question.fresh:
                    self._fresh_to[source] = max(record.offset + 1, self._fresh_to.get(source, 0))
                del self._questions[source]

    def _tell_foreign(self, source: PhysicalPartition, found: list[tuple[int, ForeignReason]]) -> None:
        for reason in dict.fromkeys(reason for _, reason in found):
            offsets = [offset for offset, why in found if why is reason]
            self._report(ForeignFound(self.parent, source, offsets[0], len(offsets), reason))
