"""Commits of a member: when, of what, what is sent, who gets the answer; the repair of ordinary offsets.

Enrolled partitions are committed in a transaction, with the changelog of their state. Topics that are not
enrolled: in the ordinary way, after the changelog. While a commit carries outputs all is one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpsplit.clock import Deadline, monotonic
from kpsplit.consumer.broker_executor import BrokerExecutor
from kpsplit.consumer.commit.group_offsets import GroupOffsets, Outdated
from kpsplit.consumer.commit.payload import CommitPayloads, CommitUnit, settled, taken
from kpsplit.consumer.commit.writes import (
    CommitMember,
    CommitPayloadError,
    Processed,
    TransactionParticipant,
    plain_offsets,
)
from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.events import Events, kafka_error
from kpsplit.consumer.group.group_consumer import GroupConsumer, says_no_member
from kpsplit.consumer.slots.assigned import AssignedSlot, never_before
from kpsplit.consumer.slots.assigned_slots import AssignedSlots, Cursors
from kpsplit.errors import FencedError, KpsplitError, UnknownOutcomeError
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import KeyRange, uncovered
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.reading import Cursor

log = logging.getLogger(__name__)

COMMIT_SECONDS = 20.0
"""How long one commit may take; the transaction itself is aborted by the broker after 10 s."""
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
    """When a slot's cursors were taken: ``AssignedSlot.epoch`` and ``AssignedSlot.moves`` then."""

    epoch: int
    moves: int


Times = Mapping[OwnedSlot, When]


class Asked(NamedTuple):
    """A commit that was asked for; a call waits for the future, if there is one."""

    cursors: Cursors
    times: Times
    future: Future[Parts] | None


@dataclass(slots=True)
class _Job:
    """One commit under way. ``gone``: slots of it were lost before they were sent."""

    cursors: Cursors
    times: Times
    parts: Parts
    units: list[CommitUnit]
    waiting: list[Asked]
    gone: bool
    tries: int

    def done(self) -> bool:
        """Return whether every unit is over, going on with each."""
        return not [unit for unit in self.units if not unit.done()]


class Committer:
    """Commits of a member, one at a time. Owned by the engine's thread.

    Args:
        settings: ``run()`` uses others while it is under way. slots: what is committed.
        group: ordinary commits, and who this member is. executor: runs transactions. events: calls on_commit.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        slots: AssignedSlots,
        group: GroupConsumer,
        executor: BrokerExecutor[GroupOffsets],
        events: Events,
    ) -> None:
        self._slots = slots
        self._group = group
        self.executor = executor
        self._events = events
        self.commits = self.failed = self.rejected = self.refused_as_no_member = 0
        self.fenced = False
        """The group refused the latest commit that failed: the slots are another member's."""
        self.begun = 0
        """How many commits were begun, whatever came of them."""
        self._metadata: dict[PhysicalPartition, tuple[int, str]] = {}
        self.use(settings)
        self._soonest = 0.0
        self._job: _Job | None = None
        self._warned: str | None = None
        self._asked: list[Asked] = []

    # -- when, and of what -------------------------------------------------------------------------

    def use(self, settings: ConsumerSettings, participant: TransactionParticipant | None = None) -> None:
        """Commit by these settings from now on, and take ``participant`` along: its outputs, in ``run()``."""
        self.settings, self.participant = settings, participant
        self.put_off()

    def turn(self) -> None:
        """Take the answer of the commit under way; begin the next that is asked for, or due.

        What is only due begins in a later turn: a hand-over that waits for the answer ends in between.
        """
        if self._job is not None:
            if not self._job.done():
                return
            self._answered(self._job)
        elif not self._asked and self.settings.auto_commit and self._due():
            self._soonest = monotonic() + REST_SECONDS
            self.put_off()
            self.ask(self._slots.changed(h for h in self._slots if h.may_commit))
        if self.may_begin():
            self._begin_asked()

    def _due(self) -> bool:
        now = monotonic()
        return now >= self._next or (now >= self._soonest and self._slots.state_binding.wants_commit())

    def put_off(self) -> None:
        """Begin the next automatic commit an interval from now: while a group changes it may refuse one."""
        self._next = monotonic() + self.settings.auto_commit_interval

    def ask(self, cursors: Cursors, future: Future[Parts] | None = None) -> None:
        """Commit these cursors, or what is further, as soon as the commit under way is over.

        The future has what was committed; without one, ``on_commit`` gets it.
        """
        held = [self._slots[slot] for slot in cursors if slot in self._slots]
        further = {
            h.slot: never_before(self._slots.lineage(h.parent), self._furthest(h), cursors[h.slot])
            for h in held
        }
        times = {h.slot: When(h.epoch, h.moves) for h in held}
        asked = Asked({**cursors, **further}, times, future)
        if not cursors and self.idle():  # nothing to commit, nor to wait for: there may be no turn any more
            _refuse([asked], KafkaError(KafkaError._NO_OFFSET))
        else:
            self._asked.append(asked)

    def may_be_committed(self, assigned: AssignedSlot) -> list[tuple[Cursor, ...]]:
        """Return what the group may have of a slot, in order."""
        return [cursors for _, cursors in self._sent(assigned)]

    def known_processed(self, assigned: AssignedSlot) -> tuple[Cursor, ...]:
        """Return what is processed by the latest word of the application; nothing is committed before it."""
        return assigned.stored or self._furthest(assigned) or assigned.begun_at

    def _furthest(self, assigned: AssignedSlot) -> tuple[Cursor, ...]:
        """Return the latest of ``_sent`` since the application moved a slot: none of that goes back."""
        now = When(assigned.epoch, assigned.moves)
        return next((cursors for when, cursors in reversed(self._sent(assigned)) if when == now), ())

    def _sent(self, assigned: AssignedSlot) -> list[tuple[When, tuple[Cursor, ...]]]:
        """Return what of a slot was committed, may have been, is under way, and is asked for."""
        slot, epoch = assigned.slot, assigned.epoch
        known = [(assigned.moves_committed, assigned.committed), *assigned.uncertain.items()]
        sent = [one for one in (self._job, *self._asked) if one is not None]
        named = [one for one in sent if slot in one.cursors and slot in one.times]
        return [
            *((When(epoch, moves), cursors) for moves, cursors in known),
            *((one.times[slot], one.cursors[slot]) for one in named),
        ]

    def idle(self) -> bool:
        return self._job is None and not self._asked

    def may_begin(self) -> bool:
        return self._job is None and bool(self._asked)

    def answered(self) -> Callable[[], bool]:
        """Return a function: has everything that is under way or asked for now its answer?

        Where the application asks for commits all the time it is never idle.
        """
        last = self.begun + 1 if self._asked else self.begun
        return lambda: self.begun > last or (self.begun == last and self._job is None)

    def keep_metadata(self, parent: PhysicalPartition, offset: int, text: str | None) -> None:
        """Commit a text of the application's along with an offset, and with no other."""
        if text:
            self._metadata[parent] = offset, text
        else:
            self._metadata.pop(parent, None)

    def forget(self, gone: Iterable[AssignedSlot]) -> None:
        """Slots were dropped: so are the texts that were given for their partitions."""
        for assigned in gone:
            self._metadata.pop(assigned.parent, None)

    def member(self) -> CommitMember:
        """Return who this member is, for range commits."""
        return CommitMember(self.settings.group, self._group.memberid() or "", self._slots.rebalances)

    # -- one commit --------------------------------------------------------------------------------

    def _begin_asked(self) -> None:
        """Begin what was asked for, all in one: later cursors of a slot win."""
        asked, self._asked = self._asked, []
        together: dict[OwnedSlot, tuple[Cursor, ...]] = {}
        times: dict[OwnedSlot, When] = {}
        for one in asked:
            together.update(one.cursors)
            times.update(one.times)
        self._begin(together, times, [one for one in asked if one.future is not None])

    def _begin(self, cursors: Cursors, times: Times, waiting: list[Asked], tries: int = 0) -> None:
        self.begun += not tries  # a repetition is the same commit
        held = {h.slot: cursors[h.slot] for h in self._held(cursors, times)}
        whole = [one for one in waiting if len(self._held(one.cursors, one.times)) == len(one.cursors)]
        _refuse((one for one in waiting if one not in whole), _GONE)
        job = _Job(held, times, [], [], whole, len(held) < len(cursors), tries)
        if not held:
            _refuse(whole, KafkaError(KafkaError._NO_OFFSET))
            if job.gone and not waiting:
                self._call_on_commit(_GONE, job)
            return
        self._job = job
        try:
            offsets = self._slots.logical(held)
            job.parts = [TopicPartition(p.topic, p.partition, offset) for p, offset in offsets.items()]
            for unit in self._send(held, self._moved(held, times)):
                job.units.append(unit)
        except BaseException as error:
            # The next turn answers, when what was sent before is over.
            sent = {slot for unit in job.units for slot in unit.slots}
            job.units.append(CommitUnit(tuple(held.keys() - sent), settled(error)))
            if not isinstance(error, (KpsplitError, KafkaException)):
                raise

    def _answered(self, job: _Job) -> None:
        """Every unit is decided: note it, and report the first that failed."""
        self._job = None
        errors = [error for unit in job.units if (error := self._settled(unit, job)) is not None]
        if not errors:
            self.commits += 1
            self._succeeded(job)
        elif self._worth_repeating(job, errors):
            if job.waiting or not (self._asked and self.settings.auto_commit):  # else the next ones have it
                self._begin(job.cursors, job.times, job.waiting, job.tries + 1)
        else:
            self.fenced = isinstance(errors[0], FencedError)
            self.rejected += self.fenced
            self.refused_as_no_member += any(map(says_no_member, errors))
            self.failed += not self.fenced
            self._failed(job, errors[0])

    def _worth_repeating(self, job: _Job, errors: list[BaseException]) -> bool:
        """Return whether newer metadata of a member that still owns the slots may help."""
        fenced = all(isinstance(e, FencedError) and e.retriable for e in errors)
        return fenced and job.tries < RETRIES and bool(self._held(job.cursors, job.times))

    def _settled(self, unit: CommitUnit, job: _Job) -> BaseException | None:
        """Have a unit's slots and its payload follow its outcome."""
        error, payload = unit.future.exception(), unit.payload
        if error is None:
            if payload is not None:
                payload.committed()
            for assigned in self._held(unit.slots, job.times):
                assigned.count_committed(job.cursors[assigned.slot], job.times[assigned.slot].moves)
        elif payload is not None and isinstance(error, UnknownOutcomeError):
            # Whether outputs or state were committed is not known: the slots start from what the log says.
            self._slots.start_anew(self._held(unit.slots, job.times))
        elif payload is not None:
            payload.aborted()
        elif isinstance(error, UnknownOutcomeError) or not isinstance(error, KpsplitError):
            for assigned in self._held(unit.slots, job.times):
                assigned.uncertain[job.times[assigned.slot].moves] = job.cursors[assigned.slot]
        # Also where it failed: the changelog of a plain topic has the state before positions are committed.
        broken = self._slots.state_binding.broken(self._held(unit.slots, job.times))
        self._slots.start_anew(broken)
        return error

    def _moved(self, slots: Iterable[OwnedSlot], times: Times) -> frozenset[OwnedSlot]:
        """Return the slots that the application has moved to before what is committed."""
        return frozenset(h.slot for h in self._held(slots, times) if times[h.slot].moves > h.moves_committed)

    def _held(self, slots: Iterable[OwnedSlot], times: Times) -> list[AssignedSlot]:
        """Return the slots that are held as they were then; one that started anew since is another."""
        wanted = frozenset(slots) & times.keys()
        return [h for h in self._slots if h.in_sink and h.slot in wanted and h.epoch == times[h.slot].epoch]

    def _succeeded(self, job: _Job) -> None:
        self._warned = None
        for future in (one.future for one in job.waiting if one.future is not None):
            future.set_result(job.parts)
        self._call_on_commit(_GONE if job.gone else None, job)

    def _failed(self, job: _Job, error: BaseException) -> None:
        log.warning("kpsplit: a commit failed: %s", error)
        reported = kafka_error(error)
        _refuse(job.waiting, reported)
        if isinstance(error, CommitPayloadError) and error.message != self._warned:
            self._warned = error.message  # it comes again with every commit
            self._events.warn(reported)
        self._call_on_commit(reported, job)

    def _call_on_commit(self, error: KafkaError | None, job: _Job) -> None:
        """Call on_commit for commits that no call waits for, as the original does."""
        on_commit = self.settings.on_commit
        if on_commit is not None and not job.waiting:
            self._events.call(lambda: on_commit(error, job.parts))

    # -- what is sent ------------------------------------------------------------------------------

    def _send(self, cursors: Cursors, moved: Collection[OwnedSlot]) -> Iterator[CommitUnit]:
        """Begin to commit slots, of which the application has ``moved`` some.

        Raises:
            KpsplitError: the state that belongs to them is not there; no more is sent.
        """
        processed = [
            self._slots.in_commit(parent, cursors, moved)
            for parent in sorted({slot.parent for slot in cursors})
        ]
        if self.participant is not None:
            yield self._with_outputs(self.participant, processed, self._of(processed, cursors))
            return
        plain = [p for p in processed if p.mode.plain]
        enrolled = [p for p in processed if not p.mode.plain]
        if enrolled:
            yield self._in_transaction(enrolled, self._of(enrolled, cursors))
        if plain:
            yield from self._in_the_ordinary_way(plain, self._of(plain, cursors))

    def _of(self, processed: Iterable[Processed], cursors: Cursors) -> list[AssignedSlot]:
        """Return the slots of some logical partitions that are in a commit."""
        parents = {p.parent for p in processed}
        return [h for h in self._slots if h.slot in cursors and h.parent in parents]

    def _with_outputs(
        self, participant: TransactionParticipant, processed: list[Processed], slots: list[AssignedSlot]
    ) -> CommitUnit:
        member, metadata = self.member(), self._metadata_of(slots)
        with taken(self._slots.state_binding.commit(processed, slots)) as state:
            payload = CommitPayloads(participant.payload(processed), *(() if state is None else (state,)))
            future = self.executor.ask(
                lambda offsets: offsets.commit_with_outputs(
                    processed, member, metadata, COMMIT_SECONDS, participant, payload
                )
            )
        return CommitUnit(_named(slots), future, payload)

    def _in_transaction(self, processed: list[Processed], slots: list[AssignedSlot]) -> CommitUnit:
        member, metadata = self.member(), self._metadata_of(slots)
        with taken(self._slots.state_binding.commit(processed, slots)) as payload:
            future = self.executor.ask(
                lambda offsets: offsets.commit(processed, member, metadata, COMMIT_SECONDS, payload)
            )
        return CommitUnit(_named(slots), future, payload)

    def _metadata_of(self, slots: Iterable[AssignedSlot]) -> Any:
        """Return what fences a commit of these; None where all were assigned by hand: nobody's."""
        return None if all(assigned.by_hand for assigned in slots) else self._group.metadata()

    def _in_the_ordinary_way(
        self, processed: list[Processed], slots: list[AssignedSlot]
    ) -> Iterator[CommitUnit]:
        if not (offsets := plain_offsets(processed)):
            return
        with taken(self._slots.state_binding.commit(processed, slots)) as state:
            if state is None:
                yield CommitUnit(_named(slots), self._commit_offsets(offsets))
                return
            flushed = self.executor.run(lambda: state.flush(Deadline(COMMIT_SECONDS)))
        yield CommitUnit(_named(slots), flushed, then=lambda: self._commit_flushed(offsets, slots))

    def _commit_flushed(
        self, offsets: Mapping[PhysicalPartition, int], slots: list[AssignedSlot]
    ) -> Future[None]:
        """Commit ordinary offsets of the slots that are still held as they were when state was flushed."""
        ours = {h.parent for h in self._slots.still(slots)}
        left = {parent: offset for parent, offset in offsets.items() if parent in ours}
        return self._commit_offsets(left) if left else settled()

    def _commit_offsets(self, offsets: Mapping[PhysicalPartition, int]) -> Future[None]:
        texts = {p: text for p, (offset, text) in self._metadata.items() if offsets.get(p) == offset}
        return self._group.commit(offsets, texts)


def _named(slots: Iterable[AssignedSlot]) -> tuple[OwnedSlot, ...]:
    return tuple(assigned.slot for assigned in slots)


def _refuse(asked: Iterable[Asked], error: KafkaError) -> None:
    for future in (one.future for one in asked if one.future is not None):
        future.set_exception(KafkaException(error))


LOOK_SECONDS = 0.25
"""How long after a commit its record is looked for in the offset log; each further look waits twice that."""
LOOKS = 6


class LagOffsetRepair:
    """Corrects what a member wrote of the group's ordinary offsets while others committed at the same time.

    The range commits are right in any case; the ordinary offsets are what lag tools show (``commit.writes``).
    Not where commits carry outputs or state, to be written a second time. Owned by the engine's thread.
    """

    def __init__(
        self, committer: Committer, slots: AssignedSlots, executor: BrokerExecutor[GroupOffsets]
    ) -> None:
        self._committer = committer
        self._slots = slots
        self._executor = executor
        self.repaired = 0
        self._seen = 0
        self._looks = 0
        self._at = 0.0
        self._asked: tuple[int, Future[Outdated]] | None = None  # after which commit, and the answer

    def turn(self) -> None:
        """Look after each commit of this member, and commit once more what has to be."""
        commits = self._committer.commits
        if commits != self._seen:
            self._seen, self._looks = commits, LOOKS
            self._look_later()
        if self._asked is not None:
            begun, answer = self._asked
            if answer.done():
                self._asked = None
                # One that was begun since may have gone further, also if it failed: its outcome may be open.
                if begun == self._committer.begun and self._committer.idle():
                    self._take(answer)
        elif self._looks and monotonic() >= self._at and self._committer.idle():
            self._look()

    def _look_later(self) -> None:
        self._at = monotonic() + LOOK_SECONDS * 2 ** (LOOKS - self._looks)

    def _look(self) -> None:
        self._looks -= 1
        self._look_later()
        if self._committer.participant is not None or self._slots.state_binding.store is not None:
            return
        shared = [p for parent in self._slots.parents() if (p := self._shared(parent)) is not None]
        if shared:
            member = self._committer.member()
            asked = self._executor.ask(lambda offsets: offsets.outdated(shared, member))
            self._asked = self._committer.begun, asked

    def _shared(self, parent: PhysicalPartition) -> Processed | None:
        """Return where this member's ranges stand; None where they are all there are, or some come or go."""
        mine = self._slots.of(parent)
        stands = tuple(cursor for h in mine for cursor in h.committed)
        first = mine[0]
        settled = all(h.stands for h in mine) and bool(uncovered(c.range for c in stands))
        if not settled or first.mode.plain:
            return None
        return Processed(self._slots.state(parent), first.mode, (), stands, first.place)

    def _take(self, answer: Future[Outdated]) -> None:
        try:
            found = answer.result()
        except KpsplitError:
            return  # whatever has to read the log next reports it
        cursors = {h.slot: h.committed for item in found.items() for h in self._one_of(*item)}
        if cursors:
            self.repaired += 1
            self._committer.ask(cursors, Future())  # a future, so that on_commit is not called for it
        elif None not in found.values():
            self._looks = 0

    def _one_of(self, parent: PhysicalPartition, ranges: frozenset[KeyRange] | None) -> list[AssignedSlot]:
        """Return a slot that stands as the latest commit says: nothing older is written after that."""
        wanted = ranges or frozenset()
        found = [h for h in self._slots.of(parent) if h.stands and {c.range for c in h.committed} <= wanted]
        return found[:1]
