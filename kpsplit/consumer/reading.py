"""Reading for a consumer: from the reader into the sink, with gaps, ends and what begins anew."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from confluent_kafka import KafkaError

from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.events import Callback, Events, kafka_error, named
from kpsplit.consumer.fetch.gaps import EndReached, ForeignFound, Gap, GapFound, ReadingEvent, Unreadable
from kpsplit.consumer.fetch.reader import SlotReader
from kpsplit.consumer.slots.assigned import SlotStage
from kpsplit.consumer.slots.assigned_slots import AssignedSlots
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import GapReason

log = logging.getLogger(__name__)

STEPS = 8
"""A step reads one part in so many of the buffer at most: one lane that gets it all must not fill it."""
_BEGINNINGS = {"earliest", "latest"}
_OUTSIDE = {GapReason.EXPIRED, GapReason.CUT_OFF}


@dataclass(frozen=True, slots=True)
class Notice:
    """A gap that is being reported to the application; ``callback`` is None where it has no ``error_cb``.

    Then the log and the counts are all there is, and those have it at once.
    """

    parent: PhysicalPartition
    gap: Gap
    callback: Callback | None

    @property
    def reported(self) -> bool:
        """Whether ``error_cb`` has returned, if there is one."""
        return self.callback is None or self.callback.done


class Reading:
    """Reads: what the reader returns goes to the sink, what it reports besides goes to the application.

    Used by the thread that holds the engine's lock.
    """

    def __init__(
        self, settings: ConsumerSettings, reader: SlotReader, slots: AssignedSlots, events: Events
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._slots = slots
        self._events = events
        self.ends: dict[PhysicalPartition, int] = {}
        """Logical partitions that were read to their ends, with the offset there, until that is reported."""
        self.notices: list[Notice] = []
        """Gaps after which reading has not gone on yet."""
        self.torn = False
        """Whether what is read and what is handed out may differ: an exception came between, or may now."""
        self.gaps = self.gap_records = self.foreign_records = self.unreadable = self.offsets_reset = 0
        self.internal_errors = self.read_anew = self.turns_without_room = 0

    def internal_error(self) -> None:
        """Count an exception that ended something halfway; reading begins anew."""
        self.torn = True
        self.internal_errors += 1

    def read(self, seconds: float) -> None:
        """Read what there is room for, waiting so long for the first record.

        The reader's positions move when a record is read, the sink's when it is offered. Both are certain to
        agree only when everything that was read was offered; whatever ends this before that, and whichever
        duty was ended by an internal error, reading begins anew from what was handed out.
        """
        self.mend()
        self._report_ends()
        sink = self._slots.sink
        self._reader.hold_back(sink.backpressured())
        room = self._settings.buffer_bytes - sink.waiting_bytes()
        room = min(room, max(1, self._settings.buffer_bytes // STEPS))
        self._reader.most = sink.most
        ends, self.ends = self.ends, {}
        self.torn = True
        for batch in self._reader.step(seconds, room):
            self._slots.offer(batch)
            if batch.messages:
                ends.pop(batch.parent, None)
        self.torn = False
        self.ends = {**ends, **self.ends}
        self._report_ends()

    def mend(self) -> None:
        """Begin anew where an exception came between what is read and what is handed out."""
        if self.is_torn:
            self._read_anew()

    @property
    def is_torn(self) -> bool:
        """Whether an exception came between what is read and what is handed out."""
        return self.torn or self._slots.sink.torn

    def _read_anew(self) -> None:
        """Begin to read from what was handed out; slots that the sink does not know begin from the log."""
        slots = self._slots
        self.torn = True
        places = slots.sink.start_over()
        being_read = slots.on((SlotStage.READING,))
        slots.sink.dropped([slot for slot in places if slot not in slots])
        self._reader.start_over({h.slot: places[h.slot] for h in being_read if h.slot in places})
        slots.start_anew([h for h in being_read if h.slot not in places])
        self.ends.clear()
        self.read_anew += 1
        self.torn = False

    def go_on_after_gaps(self) -> None:
        """Read on after the gaps that were reported to the application meanwhile."""
        self.mend()  # what was read before a gap is handed out before what follows it
        for notice in [n for n in self.notices if n.reported]:
            torn, self.torn = self.torn, True
            for batch in self._reader.told(notice.parent, notice.gap):
                self._slots.offer(batch)
            self.notices.remove(notice)
            self.torn = torn

    def _report_ends(self) -> None:
        """Report that partitions were read to their ends; never before their last record was handed out."""
        if not self.ends or self._slots.sink.waiting_bytes():
            return
        if self._settings.eof:
            for parent, offset in self.ends.items():
                eof = KafkaError(KafkaError._PARTITION_EOF, f"{parent}: reached end of partition")
                self._events.tell(eof, **named(parent), offset=offset)
        self.ends.clear()

    def report(self, event: ReadingEvent) -> None:
        """Count an event; report it to the application, or begin anew where ``auto.offset.reset`` says."""
        if self._resets(event):
            return
        if isinstance(event, GapFound):
            self.gaps += 1
            self.gap_records += event.records
            self._report_gap(event)
        elif isinstance(event, ForeignFound):
            self.foreign_records += event.count
        elif isinstance(event, EndReached):
            self.ends[event.parent] = event.offset
        else:
            self.unreadable += 1
            self._events.trouble = event.error
            self._events.tell(kafka_error(event.error), **named(event.parent))

    def _resets(self, event: ReadingEvent) -> bool:
        """Have a partition begin anew whose offset is outside its log; return whether it does.

        As the original. Only where the topic is not enrolled: there is no lineage that says what is missing.
        """
        where = self._settings.reset
        if where not in _BEGINNINGS or isinstance(event, ForeignFound | EndReached):
            return False
        stops = isinstance(event, Unreadable) or event.error is not None
        reason = event.gap.reason if isinstance(event, GapFound) else event.reason
        if event.parent is None or not stops or reason not in _OUTSIDE:
            return False
        assigned_slots = [h for h in self._slots.of(event.parent) if h.mode.plain]
        for assigned in assigned_slots:
            assigned.reset = True
            self.offsets_reset += 1
            log.warning("kpsplit: %s; it begins anew at the %s offset", event.error, where)
        return bool(assigned_slots)

    def _report_gap(self, event: GapFound) -> None:
        if event.error is not None:
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET, str(event.error))
            self._events.tell(error, **named(event.parent))
            return
        what = f"{event.parent}: {event.gap}"
        log.warning("kpsplit: %s; it is skipped", what)
        callback = self._events.warn(KafkaError(KafkaError._AUTO_OFFSET_RESET, what))
        self.notices.append(Notice(event.parent, event.gap, callback))
