"""Commits of a member: when, of what, and who hears of it; ordinary offsets are repaired afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit.consumer.commit.group_offsets import Outdated
from kpsplit.consumer.commit.payload import CommitPayloadError
from kpsplit.consumer.commit.sender import Cursors, Piece, send
from kpsplit.consumer.commit.writes import Processed, logical_position
from kpsplit.consumer.context import Context
from kpsplit.consumer.events import kafka_error
from kpsplit.consumer.group.subscriptions import Mode
from kpsplit.consumer.slots.assigned import IN_SINK, AssignedSlot, SlotStage
from kpsplit.consumer.slots.initializer import start_anew
from kpsplit.consumer.slots.owned_slot import OwnedSlot
from kpsplit.errors import FencedError, KpsplitError, UnknownOutcomeError
from kpsplit.kafka.clock import monotonic
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.key_range import KeyRange, uncovered
from kpsplit.splitter.lineage import PhysicalPartition

log = logging.getLogger(__name__)

REST_SECONDS = 0.1
"""Between commits that state asks for before their time: some records may not be processed for long."""
RETRIES = 5
"""How often a commit is repeated with newer metadata of a member that still belongs to the group."""

Parts = list[TopicPartition]

_GONE = KafkaError(
    KafkaError.ILLEGAL_GENERATION,
    "not committed: slots were lost or began anew before it was sent; their records are delivered again",
)


class When(NamedTuple):
    """Of what time a slot's cursors are: ``Context.assignment_epochs`` and ``AssignedSlot.moves`` then."""

    assignment_epoch: int
    moves: int


Times = Mapping[OwnedSlot, When]


class Waiting(NamedTuple):
    """Who waits for a commit, and of which slots."""

    slots: frozenset[OwnedSlot]
    future: Future[Parts]


@dataclass(slots=True)
class _Job:
    """One commit under way. ``gone``: slots of it were lost before they were sent."""

    cursors: Cursors
    times: Times
    parts: Parts
    pieces: list[Piece]
    waiting: list[Waiting]
    gone: bool
    tries: int

    def done(self) -> bool:
        """Tell whether every piece is over, going on with each."""
        return not [piece for piece in self.pieces if not piece.done()]


class Committer:
    """Commits of a member: when, of what, and who hears of it. One at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next = monotonic() + context.settings.auto_commit_interval
        self._soonest = 0.0
        self._job: _Job | None = None
        self._begun = 0
        self._warned: str | None = None
        self.fenced = False
        """The group refused the latest commit that failed: the slots are another member's."""
        self._asked: list[tuple[Cursors, Times, Future[Parts] | None]] = []

    def turn(self) -> None:
        """Take the answer of the commit under way; begin the next that is asked for, or due."""
        if self._job is not None and self._job.done():
            self._answered(self._job)
        if self._job is not None:
            return
        if self._asked:
            self._begin_asked()
        elif self._context.settings.auto_commit and self._due():
            self._soonest = monotonic() + REST_SECONDS
            self._next = monotonic() + self._context.settings.auto_commit_interval
            ours = [h for h in self._context.assigned_slots.on(IN_SINK) if not h.final]
            cursors = self.changed(ours)
            self._begin(cursors, self._times(cursors), [])

    def _due(self) -> bool:
        now = monotonic()
        return now >= self._next or (now >= self._soonest and self._context.state_binding.wants_commit())

    def ask(self, cursors: Cursors, future: Future[Parts] | None = None) -> None:
        """Commit these cursors as soon as the commit under way is over.

        The future tells what was committed; without one, ``on_commit`` does.
        """
        self._asked.append((cursors, self._times(cursors), future))

    def ask_changed(self, assigned_slots: list[AssignedSlot]) -> None:
        """Commit how far slots are processed, where that is not committed."""
        self.ask(self.changed(assigned_slots))

    def changed(self, assigned_slots: list[AssignedSlot]) -> Cursors:
        """Return how far slots are processed, where that is not committed."""
        now = {h.slot: self._context.processed(h) for h in assigned_slots}
        return {h.slot: now[h.slot] for h in assigned_slots if self._context.unsaved(h, now[h.slot])}

    def may_be_committed(self, assigned: AssignedSlot) -> list[tuple[Cursor, ...]]:
        """Return what the group may have of a slot: what it had, and what is under way or asked for."""
        under_way = [] if self._job is None else [self._job.cursors]
        sent = [*under_way, *(cursors for cursors, *_ in self._asked)]
        return [assigned.committed, *(cursors[assigned.slot] for cursors in sent if assigned.slot in cursors)]

    def idle(self) -> bool:
        """Tell whether nothing is under way or asked for."""
        return self._job is None and not self._asked

    @property
    def begun(self) -> int:
        """How many commits were begun, whatever came of them."""
        return self._begun

    def answered(self) -> Callable[[], bool]:
        """Return what tells whether everything that is under way or asked for now has its answer.

        Where commits take longer than their interval the next one begins in the same turn: never idle.
        """
        last = self._begun + 1 if self._asked else self._begun
        return lambda: self._begun > last or (self._begun == last and self._job is None)

    def _begin_asked(self) -> None:
        """Begin what was asked for, all in one: later cursors of a slot win."""
        asked, self._asked = self._asked, []
        together: dict[OwnedSlot, tuple[Cursor, ...]] = {}
        times: dict[OwnedSlot, When] = {}
        for cursors, of, _ in asked:
            together.update(cursors)
            times.update(of)
        waiting = [Waiting(frozenset(cursors), future) for cursors, _, future in asked if future is not None]
        self._begin(together, times, waiting)

    def _begin(self, cursors: Cursors, times: Times, waiting: list[Waiting], tries: int = 0) -> None:
        self._begun += not tries  # a repetition is the same commit
        held = {h.slot: cursors[h.slot] for h in self._held(cursors, times)}
        whole = [one for one in waiting if one.slots <= held.keys()]
        for future in (one.future for one in waiting if one not in whole):
            future.set_exception(KafkaException(_GONE))
        job = _Job(held, times, self._parts(held), [], whole, len(held) < len(cursors), tries)
        if not held:
            for future in (one.future for one in whole):
                future.set_exception(KafkaException(KafkaError(KafkaError._NO_OFFSET)))
            if job.gone and not waiting:
                self._tell(_GONE, job)
            return
        try:
            job.pieces = send(self._context, held, self._moved(held, times))
        except (KpsplitError, KafkaException) as error:
            self._failed(job, error)
        else:
            self._job = job

    def _parts(self, cursors: Cursors) -> Parts:
        """Return what a commit says in the terms of applications: one logical offset per partition.

        It holds for all slots of the partition that this member has: those that are not in the commit stand
        where they were committed, or where they began.
        """
        parts: Parts = []
        for parent in sorted({slot.parent for slot in cursors}):
            pieces = [c for slot, found in cursors.items() if slot.parent == parent for c in found]
            for assigned in self._context.assigned_slots.of(parent):
                if assigned.slot not in cursors and assigned.start is not None:
                    pieces += assigned.committed or assigned.start.pieces
            offset = logical_position(self._context.lineage(parent), pieces)
            parts.append(TopicPartition(parent.topic, parent.partition, offset))
        return parts

    def _answered(self, job: _Job) -> None:
        """Every piece is decided: note it, and tell of the first that failed."""
        self._job = None
        errors = [error for piece in job.pieces if (error := self._settled(piece, job)) is not None]
        if not errors:
            self._context.counts["commits"] += 1
            self._tell_committed(job)
        elif self._worth_repeating(job, errors):
            self._begin(job.cursors, job.times, job.waiting, job.tries + 1)
        else:
            self.fenced = isinstance(errors[0], FencedError)
            self._context.counts["commits_rejected" if self.fenced else "commits_failed"] += 1
            self._failed(job, errors[0])

    def _worth_repeating(self, job: _Job, errors: list[BaseException]) -> bool:
        """Tell whether newer metadata of a member that still owns the slots may help."""
        fenced = all(isinstance(e, FencedError) and e.retriable for e in errors)
        return fenced and job.tries < RETRIES and bool(self._held(job.cursors, job.times))

    def _settled(self, piece: Piece, job: _Job) -> BaseException | None:
        """Tell a piece's slots and its load how it came out."""
        context, error, payload = self._context, piece.future.exception(), piece.payload
        if error is None:
            if payload is not None:
                payload.committed()
            for assigned in self._held(piece.slots, job.times):
                assigned.committed = job.cursors[assigned.slot]
                assigned.moves_told = job.times[assigned.slot].moves
        elif payload is not None and isinstance(error, UnknownOutcomeError):
            # Whether outputs or state were committed is not known: the slots start from what the log says.
            start_anew(context, self._held(piece.slots, job.times))
        elif payload is not None:
            payload.aborted()
        # Also where it failed: the changelog of a plain topic has the state before positions are committed.
        start_anew(context, self._held(context.state_binding.broken(piece.slots), job.times))
        return error

    def _times(self, slots: Iterable[OwnedSlot]) -> Times:
        moves = {h.slot: h.moves for h in self._context.assigned_slots}
        return {slot: When(self._context.assignment_epochs[slot], moves.get(slot, 0)) for slot in slots}

    def _moved(self, slots: Iterable[OwnedSlot], times: Times) -> frozenset[OwnedSlot]:
        """Return the slots that the application has moved behind what is committed."""
        held = self._held(slots, times)
        return frozenset(h.slot for h in held if times[h.slot].moves > h.moves_told)

    def _held(self, slots: Iterable[OwnedSlot], times: Times) -> list[AssignedSlot]:
        """Return the slots that are held as they were then; one that started anew since is another."""
        now, wanted = self._context.assignment_epochs, frozenset(slots)
        found = (h for h in self._context.assigned_slots.on(IN_SINK) if h.slot in wanted)
        return [h for h in found if times[h.slot].assignment_epoch == now[h.slot]]

    def _tell_committed(self, job: _Job) -> None:
        self._warned = None
        for _, future in job.waiting:
            future.set_result(job.parts)
        self._tell(_GONE if job.gone else None, job)

    def _failed(self, job: _Job, error: BaseException) -> None:
        log.warning("kpsplit: a commit failed: %s", error)
        told = kafka_error(error)
        for _, future in job.waiting:
            future.set_exception(KafkaException(told))
        if isinstance(error, CommitPayloadError) and error.message != self._warned:
            self._warned = error.message  # it comes again with every commit
            self._context.events.warn(told)
        self._tell(told, job)

    def _tell(self, error: KafkaError | None, job: _Job) -> None:
        """Call on_commit for commits that nobody waits for, as the original does."""
        on_commit = self._context.settings.on_commit
        if on_commit is not None and not job.waiting:
            parts = job.parts
            self._context.events.call(lambda: on_commit(error, parts))


LOOK_SECONDS = 0.25
"""How long after a commit its record is looked for in the offset log; each further look waits twice that."""
LOOKS = 6


class LagOffsetRepair:
    """Puts right what a member wrote of the group's ordinary offsets while others committed at the same time.

    The range commits are right in any case; the ordinary offsets are what lag tools show. See
    ``commit.writes``.

    Owned by the engine's thread; the log is read in the executor's thread.

    Nothing is done where commits carry outputs or state: they would have to be carried a second time.
    """

    def __init__(self, context: Context, committer: Committer) -> None:
        self._context = context
        self._committer = committer
        self._seen = 0
        self._looks = 0
        self._at = 0.0
        self._asked: tuple[int, Future[Outdated]] | None = None
        """Behind which commit, and the answer."""

    def turn(self) -> None:
        """Look after each commit of this member, and commit once more what has to be."""
        commits = self._context.counts["commits"]
        if commits != self._seen:
            self._seen, self._looks = commits, LOOKS
            self._look_later()
        if self._asked is not None:
            begun, answer = self._asked
            if answer.done():
                self._asked = None
                # A commit that was begun since may have gone further, also one that failed: its outcome may
                # be unknown.
                if begun == self._committer.begun and self._committer.idle():
                    self._take(answer)
        elif self._looks and monotonic() >= self._at and self._committer.idle():
            self._look()

    def _look_later(self) -> None:
        self._at = monotonic() + LOOK_SECONDS * 2 ** (LOOKS - self._looks)

    def _look(self) -> None:
        self._looks -= 1
        self._look_later()
        context = self._context
        if context.participant is not None or context.state_binding.store is not None:
            return
        shared = [p for parent in context.assigned_slots.parents() if (p := self._shared(parent)) is not None]
        if shared:
            member = context.member()
            asked = context.executor.run(lambda: context.group_offsets.outdated(shared, member))
            self._asked = self._committer.begun, asked

    def _shared(self, parent: PhysicalPartition) -> Processed | None:
        """Return where this member's ranges stand; None where nobody else has one, or some come or go."""
        assigned_slots = self._context.assigned_slots.of(parent)
        stands = tuple(cursor for h in assigned_slots for cursor in h.committed)
        if not all(map(_stays, assigned_slots)) or not uncovered(c.range for c in stands):
            return None
        first = assigned_slots[0]
        if first.mode is Mode.PLAIN:
            return None
        return Processed(self._context.metadata.state(parent), first.mode, (), stands, first.place)

    def _take(self, answer: Future[Outdated]) -> None:
        try:
            found = answer.result()
        except KpsplitError:
            return  # whoever has to read the log says so
        cursors = {
            h.slot: h.committed for parent, again in found.items() for h in self._one_of(parent, again)
        }
        if cursors:
            self._context.counts["ordinary_offsets_righted"] += 1
            self._committer.ask(cursors, Future())  # one that nobody reads: on_commit is not called for it
        elif None not in found.values():
            self._looks = 0

    def _one_of(self, parent: PhysicalPartition, ranges: frozenset[KeyRange] | None) -> list[AssignedSlot]:
        """Return a slot that stands as the latest commit says: nothing older is written after that."""
        assigned_slots = self._context.assigned_slots.of(parent)
        found = [
            h
            for h in assigned_slots
            if _stays(h) and {c.range for c in h.committed} <= (ranges or frozenset())
        ]
        return found[:1]


def _stays(assigned: AssignedSlot) -> bool:
    """Tell whether a slot stands where its latest commit says: not where the application has moved it since.

    That commit says nothing of the move, and its success must not count as having told it.
    """
    here = assigned.stage in (SlotStage.READING, SlotStage.HELD) and not assigned.final
    moved = assigned.moves != assigned.moves_told
    return here and not assigned.by_hand and not moved and bool(assigned.committed)
