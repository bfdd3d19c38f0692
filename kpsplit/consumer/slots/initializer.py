"""Slots that arrive: their start is looked up, on_assign is called, then they are read.

A partition of a topic that is not enrolled is this member's alone only while the topic stays so. When an
enrolment is seen, nothing more of it is handed out; what was processed is committed. A member whose view is
old reads on what it reads: the first owner of a slot waits until no member has the partition itself. Where
the number of slots changes, its owner waits in the same way until no member has the former ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import monotonic
from kpsplit.consumer.broker_executor import BrokerExecutor
from kpsplit.consumer.commit.committer import Committer
from kpsplit.consumer.commit.group_offsets import UNDECIDED_SECONDS, GroupOffsets, reset_error
from kpsplit.consumer.commit.writes import least
from kpsplit.consumer.events import Callback, Events, RebalanceCallbacks, kafka_error, named
from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.consumer.slots.assigned import (
    AssignedSlot,
    Found,
    NoOffsetError,
    SlotStage,
    SlotStart,
    StartRequest,
    StillOwnedError,
    from_plain,
)
from kpsplit.consumer.slots.assigned_slots import AssignedSlots, Cursors
from kpsplit.errors import DeadlineExceededError, KpsplitError
from kpsplit.splitter.group_slots import Mode, OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import Cursor

log = logging.getLogger(__name__)

REST_SECONDS = 0.25
_BESIDE = (
    "{} was assigned by hand, and its topic is enrolled now: nothing more of it is handed out while this "
    "consumer is subscribed; call unsubscribe() to read on, or read it with another consumer and group.id"
)


class SlotInitializer:
    """Brings slots from WANTED to READING. One look-up at a time; it covers every slot that waits."""

    def __init__(
        self,
        slots: AssignedSlots,
        group: GroupConsumer,
        executor: BrokerExecutor[GroupOffsets],
        events: Events,
        callbacks: RebalanceCallbacks,
    ) -> None:
        self._slots = slots
        self._group = group
        self._metadata = slots.metadata
        self._executor = executor
        self._events = events
        self._callbacks = callbacks
        self.held_up = 0
        """How often a start waited for another owner of the partition."""
        self._asked: list[AssignedSlot] = []
        self._answer: Future[list[Found]] | None = None
        self._announced: tuple[Callback, list[tuple[AssignedSlot, int]]] | None = None
        """on_assign, and the slots that begin after it, each with its epoch when they were announced."""
        self._rest_until = 0.0
        self._undecided_until = 0.0

    def turn(self) -> None:
        self._take_answer()
        self._reset()
        self._ask()
        self._announce()
        self._begin_announced()

    def _may_be_asked(self, assigned: AssignedSlot) -> bool:
        fresh = not assigned.mode.plain or self._metadata.fresh()
        return fresh and assigned.mode is not Mode.MOVING and self._slots.may_begin(assigned)

    def _reset(self) -> None:
        """Begin partitions anew whose offset is outside their log, once what was read is processed."""
        reading = self._slots.on((SlotStage.READING,))
        self._slots.start_anew([h for h in reading if h.reset and self._slots.worked_off(h)])

    def _ask(self) -> None:
        if self._answer is not None or monotonic() < self._rest_until:
            return
        self._asked = [h for h in self._slots.on((SlotStage.WANTED,)) if self._may_be_asked(h)]
        if not self._asked:
            self._undecided_until = monotonic() + UNDECIDED_SECONDS
            return
        wanted = [self._request(assigned) for assigned in self._asked]
        for assigned in self._asked:
            assigned.stage = SlotStage.ASKED
        me = self._group.memberid()
        self._answer = self._executor.ask(lambda offsets: offsets.starts(wanted, me))

    def _request(self, assigned: AssignedSlot) -> StartRequest:
        parent = assigned.parent
        state, given = self._slots.state(parent), self._callbacks.given_start(parent)
        known, range_, reset = self._metadata.subscribed(parent.topic), assigned.slot.range, assigned.reset
        before = known.predecessors(parent.partition) if assigned.may_be_shared else frozenset()
        return StartRequest(state.lineage, assigned.mode, range_, given, before, reset, state.retired())

    def _take_answer(self) -> None:
        if self._answer is None or not self._answer.done():
            return
        answer, self._answer = self._answer, None
        waiting = {id(h) for h in self._slots.still(self._asked) if h.stage is SlotStage.ASKED}
        try:
            found = answer.result()
        except Exception as error:  # noqa: BLE001 - whatever ended the look-up, there is another one
            self._failed(error, [h for h in self._asked if id(h) in waiting])
            return
        asked = zip(self._asked, found, strict=True)
        starts = self._judged([(h, start) for h, start in asked if id(h) in waiting])
        failed = {id(start): start for _, start in starts if isinstance(start, KpsplitError)}
        if not failed:
            self._events.trouble = None
        for cause in failed.values():
            self.held_up += isinstance(cause, StillOwnedError)
            self._failed(cause, [h for h, start in starts if start is cause])
        for assigned, start in starts:
            if isinstance(start, SlotStart):
                self._found(assigned, start)
            elif isinstance(start, NoOffsetError):
                assigned.stage = SlotStage.FOUND  # on_assign may name a start

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
            self._metadata.want_refresh()
            self._rest_until = monotonic() + REST_SECONDS / 5
            assigned.stage = SlotStage.WANTED
            return
        assigned.found(start)
        if assigned.saved:
            assigned.begin_by_bookmarks(self._slots.lineage(assigned.parent))

    def _failed(self, error: Exception, waiting: list[AssignedSlot]) -> None:
        self._rest_until = monotonic() + REST_SECONDS
        for assigned in waiting:
            assigned.stage = SlotStage.WANTED
        if isinstance(error, DeadlineExceededError) and monotonic() < self._undecided_until:
            return
        known = error if isinstance(error, KpsplitError) else KpsplitError(str(error))
        if self._events.notice(known):
            internal = not isinstance(error, (KpsplitError, KafkaException))
            log.warning("kpsplit: slots cannot be started: %s", error, exc_info=error if internal else None)
            # What passes by itself is for error_cb, as with the original; the rest is an event of poll().
            report = self._events.warn if known.retriable else self._events.tell
            report(kafka_error(error))

    def _announce(self) -> None:
        if self._announced is not None or self._answer is not None:
            return
        found = [h for h in self._slots.on((SlotStage.FOUND,)) if self._restored(h)]
        if not found:
            return
        self._begin_after(self._callbacks.announce({h.parent for h in found if not h.by_hand}), found)

    def _begin_after(self, callback: Callback | None, found: list[AssignedSlot]) -> None:
        if callback is None:
            self._begin(found)
        else:
            self._announced = callback, [(h, h.epoch) for h in found]

    def _restored(self, assigned: AssignedSlot) -> bool:
        """Return whether a slot has its state; one that waits for it holds up no other."""
        try:
            return self._slots.restored(assigned)
        except KpsplitError as error:
            log.warning("kpsplit: the state of %s cannot be restored: %s", assigned.slot, error)
            reason = KafkaError(
                KafkaError._STATE, f"the state of {assigned.slot} cannot be restored: {error}"
            )
            self._events.tell(reason, **named(assigned.parent))
            return False

    def _begin_announced(self) -> None:
        if self._announced is None or not self._announced[0].done:
            return
        (callback, announced), self._announced = self._announced, None
        # One that began anew meanwhile is announced and restored as if it had come now.
        same = [h for h, epoch in announced if h.stage is SlotStage.FOUND and h.epoch == epoch]
        found = self._slots.still(same)
        told = {h.parent for h in found if not h.by_hand}
        self._begin_after(self._callbacks.announce_again(told) if callback.raised else None, found)

    def _begin(self, found: Iterable[AssignedSlot]) -> None:
        without: set[PhysicalPartition] = set()
        for assigned in found:
            if assigned.start is None:  # nor has on_assign named one
                assigned.stage = SlotStage.STOPPED
                without.add(assigned.parent)
                continue
            assigned.reset, assigned.topic_id = False, self._slots.state(assigned.parent).topic_id
            self._slots.begin(assigned)
        for parent in sorted(without):
            self._events.tell(reset_error(parent), **named(parent))


class EnrolmentGuard:
    """Moves slots between READING and HELD, as enrolments of their topics allow.

    What was assigned by hand is shared with nobody: it is read on, and its ranges are committed from then on.
    Not beside a subscription: the group has a member then, and refuses range commits of what is nobody's.
    Partitions of a topic that returns to plain clients come to one place, also where the application commits
    by itself and has nothing to commit.
    """

    def __init__(
        self, slots: AssignedSlots, committer: Committer, events: Events, subscribed: Callable[[], bool]
    ) -> None:
        self._slots = slots
        self._committer = committer
        self._events = events
        self._subscribed = subscribed
        self._reported: set[PhysicalPartition] = set()
        self._rest_until = 0.0

    def turn(self) -> None:
        beside, known = self._subscribed(), self._slots.metadata.subscribed
        if beside:
            self._refuse({h.parent for h in self._slots if h.by_hand and self._slots.must_be_held(h)})
        for assigned in self._slots:
            if not beside and assigned.by_hand and assigned.must_follow(known(assigned.parent.topic)):
                self._follow(assigned)
            if assigned.stage is SlotStage.READING and self._slots.must_be_held(assigned):
                self._slots.hold(assigned)
                if self._committer.settings.auto_commit:
                    self._committer.ask(self._slots.changed([assigned]))
            elif assigned.stage is SlotStage.HELD and self._slots.may_begin(assigned):
                self._slots.hand_out_again(assigned)
        if monotonic() >= self._rest_until and (level := self._level()) and self._committer.idle():
            self._rest_until = monotonic() + REST_SECONDS
            self._committer.ask(level, Future())  # a future, so that on_commit is not called for it

    def _follow(self, assigned: AssignedSlot) -> None:
        """Have ranges of a partition by hand committed, now that its topic is enrolled.

        Where its lineage has closed segments, because it was split before, the place where it is read is
        another one in it: it begins there anew, once what was handed out is processed.
        """
        slots, state = self._slots, self._slots.metadata.state(assigned.parent)
        anew = len(state.lineage.segments) > 1
        if anew:
            if assigned.stage is SlotStage.READING:
                slots.hold(assigned)
            if assigned.in_sink and not slots.sink.release([assigned.slot]):
                return
            begun = from_plain(assigned.begun_at, state)
            if assigned.in_sink:
                assigned.start = SlotStart(from_plain(slots.sink.cursor(assigned.slot), state), begun=begun)
            elif assigned.start is not None:
                assigned.start = SlotStart(begun)
            elif assigned.stage is SlotStage.ASKED:
                assigned.stage = SlotStage.WANTED
            assigned.committed, assigned.stored = (), None
        assigned.mode = Mode.WHOLE
        assigned.topic_id = state.topic_id  # not before: its places were ordinary offsets
        slots.reorder()  # the view of before is its own also when the topic is left
        if anew and assigned.stage is SlotStage.HELD:
            slots.begin(assigned)

    def _level(self) -> Cursors:
        """Return where partitions stand that were committed in pieces, and of which nothing was handed out.

        Not those for which the application keeps places itself: it may commit nothing at all.
        """
        found: dict[OwnedSlot, tuple[Cursor, ...]] = {}
        for assigned in self._slots.on((SlotStage.READING,)):
            ahead = assigned.ahead
            if ahead is None or not ahead.untouched or assigned.moved:
                continue
            lineage, cursors = self._slots.lineage(assigned.parent), self._slots.sink.cursor(assigned.slot)
            known = self._slots.metadata.returning(assigned.parent.topic, assigned.mode)
            if known and ahead.caught_up(cursors, lineage):
                found[assigned.slot] = (least(lineage, cursors),)
        return {slot: at for slot, at in found.items() if self._slots.unsaved(self._slots[slot], at)}

    def _refuse(self, parents: set[PhysicalPartition]) -> None:
        for parent in sorted(parents - self._reported):
            self._events.tell(KafkaError(KafkaError._STATE, _BESIDE.format(parent)), **named(parent))
        self._reported = parents
