"""Slots that arrive: their start is looked up, the application hears of them, then they are read.

A partition of a topic that is not enrolled is this member's alone only while the topic stays so. When an
enrolment is seen, nothing more of it is handed out; what was processed is committed. A member whose view is
old reads on what it reads: the first owner of a slot waits until nobody has the partition itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException

from kpsplit.consumer.commit.group_offsets import (
    UNDECIDED_SECONDS,
    Found,
    NoOffsetError,
    StillOwnedError,
    merged,
    reset_error,
)
from kpsplit.consumer.context import Context
from kpsplit.consumer.events import Callback, kafka_error, named
from kpsplit.consumer.group.subscriptions import Mode
from kpsplit.consumer.slots.assigned import AssignedOffset, AssignedSlot, SlotStage, SlotStart, StartRequest
from kpsplit.consumer.slots.pieces import PieceProgress
from kpsplit.errors import DeadlineExceededError, KpsplitError, UnreachableError
from kpsplit.kafka.clock import monotonic
from kpsplit.splitter.lineage import PhysicalPartition

log = logging.getLogger(__name__)

REST_SECONDS = 0.25
_PASSING = (UnreachableError, DeadlineExceededError)

Announce = Callable[[list[AssignedSlot]], Callback | None]
"""Has the application's on_assign called, for slots that are about to be read."""

AskGiven = Callable[[PhysicalPartition], AssignedOffset | None]
"""Tells where a partition begins for the application, if it has said so."""


class SlotInitializer:
    """Brings slots from WANTED to READING. One look-up at a time; it covers every slot that waits."""

    def __init__(self, context: Context, announce: Announce, given: AskGiven) -> None:
        self._context = context
        self._announce = announce
        self._given = given
        self._asked: list[AssignedSlot] = []
        self._answer: Future[list[Found]] | None = None
        self._told: tuple[Callback, list[AssignedSlot]] | None = None
        self._rest_until = 0.0
        self._undecided_until = 0.0

    def turn(self) -> None:
        """Do what can be done without waiting."""
        self._take_answer()
        self._reset()
        self._ask()
        self._tell()
        self._begin_told()

    def waits(self) -> bool:
        """Tell whether a slot is on its way; one that an enrolment holds up is not."""
        return bool(self._context.assigned_slots.on((SlotStage.ASKED, SlotStage.FOUND))) or any(
            self._ready(h) for h in self._context.assigned_slots.on((SlotStage.WANTED,))
        )

    def _ready(self, assigned: AssignedSlot) -> bool:
        metadata = self._context.metadata
        return assigned.mode is not Mode.MOVING and (assigned.mode is not Mode.PLAIN or metadata.fresh())

    def _reset(self) -> None:
        """Begin partitions anew whose offset is outside their log, once what was read is processed."""
        reading = self._context.assigned_slots.on((SlotStage.READING,))
        start_anew(self._context, [h for h in reading if h.reset and self._worked_off(h)])

    def _worked_off(self, assigned: AssignedSlot) -> bool:
        read = self._context.reader.cursor(assigned.slot).positions
        return all(cursor.positions == read for cursor in self._context.sink.cursor(assigned.slot))

    def _ask(self) -> None:
        context = self._context
        if self._answer is not None or monotonic() < self._rest_until:
            return
        self._asked = [h for h in context.assigned_slots.on((SlotStage.WANTED,)) if self._ready(h)]
        if not self._asked:
            self._undecided_until = monotonic() + UNDECIDED_SECONDS
            return
        wanted = [
            StartRequest(
                context.lineage(h.parent), h.mode, h.slot.range, self._given(h.parent), _shared(h), h.reset
            )
            for h in self._asked
        ]
        for assigned in self._asked:
            assigned.stage = SlotStage.ASKED
        self._answer = context.executor.run(lambda: context.group_offsets.starts(wanted))

    def _take_answer(self) -> None:
        if self._answer is None or not self._answer.done():
            return
        answer, self._answer = self._answer, None
        waiting = {id(h) for h in self._held(self._asked) if h.stage is SlotStage.ASKED}
        try:
            found = answer.result()
        except (KpsplitError, KafkaException) as error:
            self._failed(error, [h for h in self._asked if id(h) in waiting])
            return
        asked = zip(self._asked, found, strict=True)
        starts = self._judged([(h, start) for h, start in asked if id(h) in waiting])
        failed = {id(start): start for _, start in starts if isinstance(start, KpsplitError)}
        if not failed:
            self._context.trouble = None
        for cause in failed.values():
            self._context.counts["starts_held_up"] += isinstance(cause, StillOwnedError)
            self._failed(cause, [h for h, start in starts if start is cause])
        for parent in {start.parent for _, start in starts if isinstance(start, NoOffsetError)}:
            self._no_offset(parent, [h for h, _ in starts if h.parent == parent])
        for assigned, start in starts:
            if isinstance(start, SlotStart):
                self._found(assigned, start)

    def _judged(self, starts: list[tuple[AssignedSlot, Found]]) -> list[tuple[AssignedSlot, Found]]:
        """Take commits of a newer lineage for wrong when the view has had time to reach it."""
        stale = [h for h, start in starts if isinstance(start, SlotStart) and start.stale]
        if not stale or monotonic() < self._undecided_until:
            return starts
        names = ", ".join(sorted({str(h.parent) for h in stale}))
        error = DeadlineExceededError(
            f"the group's commits for {names} list segments that the control topic does not have",
            hint="kpsplit doctor names them",
        )
        return [(h, error if h in stale else start) for h, start in starts]

    def _found(self, assigned: AssignedSlot, start: SlotStart) -> None:
        if start.stale:
            self._context.metadata.want_refresh()
            self._rest_until = monotonic() + REST_SECONDS / 5
            assigned.stage = SlotStage.WANTED
            return
        assigned.start, assigned.reset = start, False
        assigned.committed = start.pieces if start.committed else ()
        assigned.stage = SlotStage.FOUND

    def _no_offset(self, parent: PhysicalPartition, waiting: list[AssignedSlot]) -> None:
        for assigned in waiting:
            assigned.stage = SlotStage.STOPPED
        self._context.events.tell(reset_error(parent), **named(parent))

    def _failed(self, error: Exception, waiting: list[AssignedSlot]) -> None:
        context = self._context
        self._rest_until = monotonic() + REST_SECONDS
        for assigned in waiting:
            assigned.stage = SlotStage.WANTED
        if isinstance(error, DeadlineExceededError) and monotonic() < self._undecided_until:
            return
        if context.trouble is None or str(context.trouble) != str(error):
            log.warning("kpsplit: slots cannot be started: %s", error)
            # What passes by itself is for error_cb, as with the original; the rest is an event of poll().
            tell = context.events.warn if isinstance(error, _PASSING) else context.events.tell
            tell(kafka_error(error))
        context.trouble = error if isinstance(error, KpsplitError) else KpsplitError(str(error))

    def _tell(self) -> None:
        if self._told is not None or self._answer is not None:
            return
        found = [h for h in self._context.assigned_slots.on((SlotStage.FOUND,)) if self._restored(h)]
        if not found:
            return
        callback = self._announce(found)
        if callback is None:
            self._begin(found)
        else:
            self._told = (callback, found)

    def _restored(self, assigned: AssignedSlot) -> bool:
        """Tell whether a slot has its state; one that waits for it holds up no other."""
        context = self._context
        try:
            return context.state_binding.restored(assigned.slot, context.sink)
        except KpsplitError as error:
            log.warning("kpsplit: the state of %s cannot be restored: %s", assigned.slot, error)
            reason = KafkaError(
                KafkaError._STATE, f"the state of {assigned.slot} cannot be restored: {error}"
            )
            context.events.tell(reason, **named(assigned.parent))
            return False

    def _begin_told(self) -> None:
        if self._told is None or not self._told[0].done:
            return
        (_, found), self._told = self._told, None
        self._begin([h for h in self._held(found) if h.stage is SlotStage.FOUND])

    def _held(self, assigned_slots: list[AssignedSlot]) -> list[AssignedSlot]:
        """Return those that are held still; a slot that went and came back is held anew."""
        now = {id(h) for h in self._context.assigned_slots}
        return [h for h in assigned_slots if id(h) in now]

    def _begin(self, found: list[AssignedSlot]) -> None:
        for assigned in found:
            begin(self._context, assigned)


def _shared(assigned: AssignedSlot) -> bool:
    """Tell whether others may have read the partition of a slot as a whole."""
    return assigned.mode is Mode.SLOTS and not assigned.by_hand


def must_be_held(context: Context, assigned: AssignedSlot) -> bool:
    """Tell whether nothing more of a slot may be handed out: its topic is shared in another way now.

    Not where the view is only old: no first owner of a key range begins while this member has the partition.
    """
    if assigned.mode is Mode.SLOTS or assigned.by_hand:
        return False
    return context.metadata.subscribed(assigned.parent.topic).mode is not assigned.mode


def may_begin(context: Context, assigned: AssignedSlot) -> bool:
    """Tell whether a slot may be handed out that was not until now.

    A partition as a whole only by a fresh view: slots of the topic may have owners already.
    """
    fresh = assigned.mode is not Mode.PLAIN or assigned.by_hand or context.metadata.fresh()
    return fresh and not must_be_held(context, assigned)


def hold(context: Context, assigned: AssignedSlot) -> None:
    """Hand out nothing more of a slot for now."""
    context.reader.disown([assigned.slot])
    context.sink.release([assigned.slot])
    context.counts["slots_withheld"] += 1
    assigned.stage = SlotStage.HELD


def begin(context: Context, assigned: AssignedSlot) -> None:
    """Read a slot from its start, if it may be handed out still: restoring its state may have taken long."""
    start, parent = assigned.start, assigned.parent
    if start is None:
        return
    lineage = context.lineage(parent)
    cursor = merged(lineage, start)
    if len(start.pieces) > 1:
        assigned.ahead = PieceProgress(start.pieces)
    context.reader.update(context.metadata.state(parent))
    context.reader.own(assigned.slot, cursor)
    context.sink.taken(assigned.slot, cursor)
    assigned.stage = SlotStage.READING
    if not may_begin(context, assigned):
        hold(context, assigned)


def start_anew(context: Context, assigned_slots: list[AssignedSlot]) -> None:
    """Have slots start again from what the log says; of those that leave nothing more is committed."""
    if assigned_slots:
        context.take_back(assigned_slots)
    for assigned in assigned_slots:
        assigned.stage = SlotStage.STOPPED if assigned.stage is SlotStage.LEAVING else SlotStage.WANTED
        assigned.start, assigned.committed = None, ()


def start_at(context: Context, assigned: AssignedSlot, start: SlotStart) -> None:
    """Move a slot, whatever is done for it: a seek, or offsets that on_assign gave."""
    assigned.start, assigned.reset = start, False
    if assigned.stage in (SlotStage.READING, SlotStage.HELD):
        cursor = merged(context.lineage(assigned.parent), start)
        assigned.ahead = None
        context.sink.taken(assigned.slot, cursor)
        if assigned.stage is SlotStage.READING:
            context.reader.seek(assigned.slot, cursor)
        else:
            context.sink.release([assigned.slot])
    elif assigned.stage in (SlotStage.STOPPED, SlotStage.WANTED, SlotStage.ASKED):
        assigned.stage = SlotStage.FOUND


class EnrolmentGuard:
    """Moves slots between READING and HELD. ``commit`` has what is processed of slots committed."""

    def __init__(self, context: Context, commit: Callable[[list[AssignedSlot]], None]) -> None:
        self._context = context
        self._commit = commit

    def turn(self) -> None:
        """Hold what must not be handed out now, let go what may be again."""
        for assigned in self._context.assigned_slots.on((SlotStage.READING, SlotStage.HELD)):
            if assigned.stage is SlotStage.READING and must_be_held(self._context, assigned):
                self._hold(assigned)
            elif assigned.stage is SlotStage.HELD and may_begin(self._context, assigned):
                self._let_go(assigned)

    def _hold(self, assigned: AssignedSlot) -> None:
        hold(self._context, assigned)
        if self._context.settings.auto_commit:
            self._commit([assigned])

    def _let_go(self, assigned: AssignedSlot) -> None:
        context = self._context
        if not context.sink.release([assigned.slot]):
            return  # what the application still works on would be handed out again
        cursors, lineage = context.sink.cursor(assigned.slot), context.lineage(assigned.parent)
        pieces = context.settled(assigned, cursors, lineage)
        assigned.start = SlotStart(pieces, committed=bool(assigned.committed))
        begin(context, assigned)
