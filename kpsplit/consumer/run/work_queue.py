"""Between the engine's thread and the workers: the lanes under one lock. A sink (protocol, section 10).

The lock is held for single steps of the scheduler only, never while anybody's code runs and never while a
batch is hashed. Workers that find nothing wait in the executor's own way; ``wake`` tells how many of them
have something to do. Nothing here polls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from kpsplit.clock import monotonic
from kpsplit.consumer.commit.writes import Processed
from kpsplit.consumer.fetch.batch import NOWHERE, Backpressured, Batch
from kpsplit.consumer.run.handlers import Output
from kpsplit.consumer.run.lanes import Lane, LaneScheduler, LaneState, Outbox, SlotQueue, Transfer
from kpsplit.consumer.run.policies import DeadLetter, Final, Judge, Rest, Skip, Stop, stopped
from kpsplit.consumer.state.slots import Room
from kpsplit.errors import ConflictError, KpsplitError
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import Cursor

if TYPE_CHECKING:
    from kpsplit.consumer.state.slots import StateHooks

log = logging.getLogger(__name__)

MOST = 1000
"""How many records are read at once: each call of the client waits for handlers to let the interpreter go."""

LANES_PER_WORKER = 8
"""So many that a worker finds a lane although keys are distributed at random over them."""

LANE_SHARE = 8
"""Of a lane that holds one part in so many of the buffer nothing more is read; the rest is for the others."""


@dataclass(slots=True)
class RunStats:
    """What became of the records since the run began, and how its lanes stand now; docs/consumer.md.

    Attributes:
        processed: records whose handler has returned.
        failures: how often a handler has raised; each try of a record counts.
        skipped: records that ``Skip`` gave up.
        dead_letters: records that were written to the dead-letter topic, or will be with the next commit of a
            transactional run.
        late: records of those that were finished after their slots had left; another member works on
            them as well.
        lanes: of all slots that this member has.
        busy: lanes whose record a worker has.
        parked: lanes that rest before another try (``Retry``).
        waiting_bytes: of records that were read and are not finished.
        backpressured: the key ranges whose records fill their share of the buffer: reading waits for them.
    """

    processed: int = 0
    failures: int = 0
    skipped: int = 0
    dead_letters: int = 0
    late: int = 0
    lanes: int = 0
    busy: int = 0
    parked: int = 0
    waiting_bytes: int = 0
    backpressured: tuple[str, ...] = ()


class WorkQueue:
    """Implements ``RecordSink`` for ``run()``: the engine calls that part, workers and the runner the other.

    Args:
        workers: how many workers there are.
        buffer_bytes: the bound of ``waiting_bytes``, at which the engine stops reading.
        judge: decides about failures.
        transactional: handlers have outputs, which are kept until they are committed.
        state: whose units of work are around the calls of handlers; None where they keep no state.
    """

    def __init__(
        self,
        workers: int,
        buffer_bytes: int,
        judge: Judge,
        state: StateHooks | None = None,
        *,
        transactional: bool = False,
    ) -> None:
        self.lock = threading.Lock()
        self.scheduler = LaneScheduler(workers * LANES_PER_WORKER, buffer_bytes // LANE_SHARE)
        self.wake: Callable[[int], None] = lambda _lanes: None
        """Set by the executor; called with the lock held: so many lanes can be taken."""
        self.closed = False
        """No lane is given out any more. Set with the lock held."""
        self.error: BaseException | None = None
        """Why the run has to end, None while it has not."""
        self.over = threading.Event()
        """Set when the run has to end, by ``end()`` or an error."""
        self.on_attention: Callable[[], None] = lambda: None
        """Called with the lock held when the runner has to look: the run is over, or a commit is wanted."""
        self._open_until = inf
        self._found_shut = False
        """A worker has found that moment passed, and waits."""
        self._found_room = Room.LEFT
        """What a worker was held back by since they were last woken: too much state that waits."""
        self._commit_wanted = False
        self._stuck = False
        """The outbox is full and commits make no room: the slowest lanes hold back what they cover."""
        self._judge = judge
        self._outbox = Outbox(buffer_bytes) if transactional else None
        self._state = state
        self._stats = RunStats()

    # -- the engine's side ---------------------------------------------------------------------------

    def taken(self, slot: OwnedSlot, cursor: Cursor) -> None:
        with self.lock:
            for slot_queue in self.scheduler.taken(slot, cursor):
                self._forget(slot_queue)

    def offer(self, batch: Batch) -> None:
        """Only this thread changes which lanes there are, so dividing needs no lock."""
        with self.lock:
            self.scheduler.prepare(batch.parent)
        parts = self.scheduler.divide(batch)
        with self.lock:
            self._woken(self.scheduler.add(batch, parts))

    @property
    def most(self) -> int:
        return 0 if self.scheduler.supplied else MOST

    def waiting_bytes(self) -> int:
        """Return the bytes of records that are not processed and of outputs that are not committed."""
        return self.scheduler.waiting_bytes + (self._outbox.bytes if self._outbox else 0)

    def backpressured(self) -> Backpressured:
        """A slow or failing key keeps nothing waiting but what is read together with it."""
        if not self.scheduler.backpressured:
            return NOWHERE
        with self.lock:
            return self.scheduler.backpressured_ranges()

    def keep_open(self, until: float) -> None:
        self._open_until = until
        changed = self._found_room is not Room.LEFT and self._found_room is not self._room()
        if (self._found_shut and until) or changed:
            with self.lock:
                self._found_shut, self._found_room = False, Room.LEFT
                self.wake(-1)

    def cursor(self, slot: OwnedSlot) -> Sequence[Cursor]:
        """Neighbouring lanes at the same positions are one piece."""
        with self.lock:
            return self.scheduler.cursor(slot)

    def level(self, slot: OwnedSlot) -> bool:
        """Everything of it is processed, or nothing more is given out."""
        with self.lock:
            read = self.scheduler.places().get(slot)
            return read is None or all(c.positions == read.positions for c in self.scheduler.cursor(slot))

    def release(self, slots: Iterable[OwnedSlot]) -> bool:
        with self.lock:
            return self.scheduler.release(slots)

    def pause(self, parents: Collection[PhysicalPartition]) -> Mapping[OwnedSlot, Cursor]:
        """What was read stays in its lanes."""
        with self.lock:
            self.scheduler.pause(parents, paused=True)
        return {}

    def resume(self, parents: Collection[PhysicalPartition]) -> None:
        with self.lock:
            self._woken(self.scheduler.pause(parents, paused=False))

    torn = False
    """An offer is taken whole or not at all, and an exception in a worker ends the run."""

    def start_over(self) -> Mapping[OwnedSlot, Cursor]:
        """Nothing that waits is forgotten."""
        with self.lock:
            self.wake(-1)
            return self.scheduler.places()

    def mark(self) -> int:
        return 0

    def passed(self, mark: int) -> bool:
        """A record whose slot has left never counts, however long its handler takes."""
        return True

    def dropped(self, slots: Iterable[OwnedSlot]) -> None:
        with self.lock:
            for slot_queue in self.scheduler.dropped(slots):
                self._forget(slot_queue)

    # -- the workers' side ---------------------------------------------------------------------------

    def take(self) -> Lane | None:
        """Return a lane to work on, None if there is none now. The lock is held by the caller."""
        if self.closed:
            return None
        if monotonic() > self._open_until:
            self._found_shut = True
            return None
        lane = self._next()
        while lane is not None and self._state is not None and not self._attempted(lane, self._state):
            lane = self._next()
        return lane

    def done(self, lane: Lane, outputs: tuple[Output, ...] = ()) -> None:
        """The lane's record was processed, and that is what it gave."""
        with self.lock:
            self.processed(lane, outputs)

    def processed(self, lane: Lane, outputs: tuple[Output, ...]) -> None:
        """Do what ``done`` does. The lock is held by the caller."""
        if self._state is None or self._published(lane):
            self._stats.processed += 1
            self._done(lane, outputs)

    def failed(self, lane: Lane, error: BaseException) -> Rest | Final:
        """The handler raised: return what comes next.

        After a ``Rest`` the caller lets ``scheduler.unpark`` follow, after a ``DeadLetter``
        ``done_with_letter`` or ``undeliverable``; everything else is done.
        """
        try:
            step, memory = self._judge.failed(error, lane.memory)
        except Exception as broken:  # noqa: BLE001 - a strategy of the application's: raised by run()
            step, memory, error = Stop(), None, broken
        with self.lock:
            self._stats.failures += 1
            lane.memory = memory
            match step:
                case Rest():
                    self._woken(self.scheduler.park(lane))
                case Skip():
                    self._stats.skipped += 1
                    self._done(lane)
                case Stop():
                    self._stop(lane, error)
                case DeadLetter():
                    pass
        return step

    def done_with_letter(self, lane: Lane, outputs: tuple[Output, ...]) -> None:
        """The lane's record is in the dead-letter topic, or will be with ``outputs``."""
        with self.lock:
            self._stats.dead_letters += 1
            self._done(lane, outputs)

    def undeliverable(self, lane: Lane, error: BaseException) -> None:
        """The lane's record could not be written to the dead-letter topic: the run ends."""
        with self.lock:
            self._stop(lane, error)

    def give_back(self, lane: Lane) -> None:
        """The lane's record was given up before it was processed, because the run ends."""
        with self.lock:
            self.scheduler.give_back(lane)

    # -- commits with outputs ------------------------------------------------------------------------

    def covered(self, processed: Sequence[Processed]) -> Transfer:
        """Return the outputs of exactly those records that a commit covers."""
        with self.lock:
            if self._outbox is None:
                return ()
            transfer = self._outbox.covered(processed)
            self._note_stuck(not transfer)
            return transfer

    def keeps(self, slot: OwnedSlot) -> bool:
        with self.lock:
            return self._outbox is not None and self._outbox.keeps(slot)

    def committed(self, transfer: Transfer) -> None:
        """The outputs were committed: forget them."""
        with self.lock:
            if self._outbox is not None:
                self._outbox.committed(transfer)
                self._note_stuck(True)
                self._look_for_room()
                self.wake(-1)

    def wants_commit(self) -> bool:
        """Tell, once, whether a commit should not wait for its time."""
        with self.lock:
            wanted, self._commit_wanted = self._commit_wanted, False
            return wanted

    # -- the end -------------------------------------------------------------------------------------

    def end(self, error: BaseException | None = None) -> None:
        """Give out nothing more; workers end after the records that they have."""
        with self.lock:
            self._end(error)

    def stats(self) -> RunStats:
        """Return what became of the records so far."""
        with self.lock:
            scheduler = self.scheduler
            states = [lane.state for lane in scheduler.lanes()]
            return replace(
                self._stats,
                lanes=len(states),
                busy=states.count(LaneState.BUSY),
                parked=states.count(LaneState.PARKED),
                waiting_bytes=scheduler.waiting_bytes,
                backpressured=tuple(
                    f"{lane.slot_queue.slot.parent} {lane.range}" for lane in scheduler.backpressured
                ),
            )

    # -- inside, with the lock held ------------------------------------------------------------------

    def _next(self) -> Lane | None:
        """Give out a lane; where outputs or state are full none but those that commits wait for, if any."""
        full, room = self._outbox is not None and self._outbox.full, self._room()
        if not full and room is Room.LEFT:
            return self.scheduler.next()
        if self._found_room is Room.LEFT:
            self._found_room = room
        held = (full and not self._stuck) or room.holds
        return None if held else self.scheduler.next_oldest()

    def _room(self) -> Room:
        return Room.LEFT if self._state is None else self._state.room()

    def _note_stuck(self, nothing_to_take: bool) -> None:
        before, self._stuck = self._stuck, nothing_to_take and self._outbox is not None and self._outbox.full
        if self._stuck and not before:
            self.wake(-1)

    def _attempted(self, lane: Lane, state: StateHooks) -> bool:
        """Give a lane's next try its unit of work, that of the state that the slot has now."""
        try:
            lane.attempt = state.attempt(lane.slot_queue.slot, lane.queue[0].place)
        except KpsplitError as error:
            self._wait_for_state(lane, error)
            return False
        return True

    def _published(self, lane: Lane) -> bool:
        """Publish what a try wrote, now that its record counts; nothing does where the slot has left."""
        if lane.slot_queue.gone:
            return True
        try:
            lane.attempt.publish()
        except KpsplitError as error:
            self._wait_for_state(lane, error)
            return False
        return True

    def _wait_for_state(self, lane: Lane, error: KpsplitError) -> None:
        """The engine is about to have the slot start anew: then this lane is no more."""
        log.info("kpsplit: %s: %s", lane.slot_queue.slot, error)
        self._woken(self.scheduler.park(lane))
        if not isinstance(error, ConflictError):  # the store was closed, or its disk failed
            self._end(error)

    def _forget(self, slot_queue: SlotQueue) -> None:
        if self._outbox is not None:
            full = self._outbox.full
            self._outbox.forget(slot_queue)
            if full:
                self.wake(-1)

    def _done(self, lane: Lane, outputs: tuple[Output, ...] = ()) -> None:
        self._stats.late += lane.slot_queue.gone
        if outputs and self._outbox is not None and not lane.slot_queue.gone:
            self._outbox.add(lane.slot_queue, lane.queue[0], outputs)
        if outputs or self._stuck:
            self._look_for_room()
        # The worker that comes from this record takes one of the lanes that are ready now itself.
        self._woken(self.scheduler.done(lane) - 1)

    def _stop(self, lane: Lane, error: BaseException) -> None:
        message = lane.record
        self.scheduler.stop(lane)
        failure = stopped(message, error)
        failure.__cause__ = error
        self._end(failure)

    def _end(self, error: BaseException | None) -> None:
        self.error = self.error or error
        self.closed = True
        self.over.set()
        self.wake(-1)
        self.on_attention()

    def _look_for_room(self) -> None:
        if self._outbox is not None and self._outbox.wants_commit and not self._commit_wanted:
            self._commit_wanted = True
            self.on_attention()

    def _woken(self, lanes: int) -> None:
        if lanes > 0:
            self.wake(lanes)
