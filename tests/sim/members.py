"""Members of the group: the real reading side (tracks, buffer, cursors, commits), over simulated fetches.

The group's coordinator and the offset log are simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import Message

from kpsplit.consumer.commit.writes import CommitMember as Committer
from kpsplit.consumer.commit.writes import Processed, least, writes
from kpsplit.consumer.fetch.buffer import FetchBuffer
from kpsplit.consumer.fetch.fetch_state import FetchState
from kpsplit.consumer.fetch.gaps import Found, Gap, GapFound, GapPolicy, LogBounds, ReadingEvent
from kpsplit.splitter.commits import CommitFold
from kpsplit.splitter.group_slots import Mode, OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.offsets import RangeCommit
from tests.sim.logs import PARENT, TRANSACTION_SECONDS, Fate

if TYPE_CHECKING:
    from tests.sim.world import World


# -- the coordinator and the offset log ------------------------------------------------------------


GROUP = "g"
SLOTS = 2


@dataclass(slots=True)
class CommitTransaction:
    """One commit in the offset log. ``at``: the log offset of its first record."""

    at: int
    records: tuple[RangeCommit, ...]
    opened: float
    member: str
    fate: Fate = Fate.OPEN
    encoded: list[tuple[bytes, bytes]] = field(default_factory=list)


class OffsetLog:
    """The partition of the offset log that is about the one logical partition."""

    def __init__(self) -> None:
        self.transactions: list[CommitTransaction] = []
        self.committed: list[CommitTransaction] = []
        """What was committed since the oracle last looked."""

    def begin(self, records: tuple[RangeCommit, ...], member: str, now: float) -> CommitTransaction:
        """Write range commits in an open transaction."""
        last = self.transactions[-1] if self.transactions else None
        at = last.at + len(last.records) if last else 0
        transaction = CommitTransaction(at, records, now, member)
        transaction.encoded = [(r.key, r.encode()) for r in records]
        self.transactions.append(transaction)
        return transaction

    def commit(self, transaction: CommitTransaction) -> bool:
        """Commit; False if the transaction is over already."""
        if transaction.fate is not Fate.OPEN:
            return False
        transaction.fate = Fate.COMMITTED
        self.committed.append(transaction)
        return True

    def abort(self, member: str) -> None:
        """Abort what a member left open, as the registration of its successor makes the broker do."""
        for transaction in self.transactions:
            if transaction.member == member and transaction.fate is Fate.OPEN:
                transaction.fate = Fate.ABORTED

    def time_out(self, now: float) -> None:
        """Abort transactions that have been open for too long."""
        for transaction in self.transactions:
            if transaction.fate is Fate.OPEN and now > transaction.opened + TRANSACTION_SECONDS:
                transaction.fate = Fate.ABORTED

    def end(self) -> int:
        """Return the high watermark, counted in transactions."""
        return len(self.transactions)

    def stable(self) -> int:
        """Return the last stable offset, counted in transactions."""
        fates = (i for i, t in enumerate(self.transactions) if t.fate is Fate.OPEN)
        return next(fates, len(self.transactions))


class OffsetTail:
    """The offset log as one reader has folded it."""

    def __init__(self, log: OffsetLog) -> None:
        self._log = log
        self.read = 0
        self.fold = CommitFold()

    def follow(self) -> int:
        """Fold what can be seen by now; return how far that is."""
        stable = self._log.stable()
        for transaction in self._log.transactions[self.read : stable]:
            if transaction.fate is Fate.COMMITTED:
                for number, (key, value) in enumerate(transaction.encoded):
                    self.fold.fold(key, value, transaction.at + number)
        self.read = max(self.read, stable)
        return self.read


class Coordinator:
    """Kafka's side of the group: generation, who owns which slot, ordinary offsets.

    ``expelled``: who has to join anew, and loses what it has first.
    """

    def __init__(self) -> None:
        self.generation = 1
        self.expelled: set[str] = set()
        self.slots = [OwnedSlot(PARENT, index, SLOTS) for index in range(SLOTS)]
        self.owner: dict[OwnedSlot, str] = {}
        self.offsets: dict[PhysicalPartition, int] = {}

    def assign(self, slots: list[OwnedSlot], member: str) -> None:
        """Give slots to a member, in a new generation."""
        self.generation += 1
        for slot in slots:
            self.owner[slot] = member

    def admits(self, generation: int) -> bool:
        """Return whether a commit of a generation is taken."""
        return generation == self.generation


TOKEN = PhysicalPartition("__kpsplit.slots.t", 0)


@dataclass(slots=True)
class CommitJob:
    """A commit on its way: its records are written, its offsets were taken, it is to be ended."""

    cursors: dict[OwnedSlot, Cursor]
    generation: int
    offsets: dict[PhysicalPartition, int]
    transaction: CommitTransaction
    admitted: bool = False


@dataclass(slots=True)
class AssignedSlot:
    """A slot that the member was given. ``wait_for``: the end of the offset log that it must read first.

    ``assignment_epoch`` and ``reader`` are the oracle's: what was handed out of it, under which name.
    """

    wait_for: int | None = None
    reading: bool = False
    leaving: bool = False
    committed: Cursor | None = None
    assignment_epoch: set[bytes] = field(default_factory=set)
    reader: str = ""


class SimMember:
    """One member. Since the oracle last looked: ``out``, what it was handed out; ``reported_gaps``."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.asleep = False
        self.generation = world.coordinator.generation
        self.view = 0
        self.events: list[ReadingEvent] = []
        self._tickets = 0
        self.tracks = FetchState(
            world.control.states[0], self._request_id, self._report, GapPolicy.SKIP_AND_REPORT
        )
        self.buffer = FetchBuffer(locked=False)
        self.tail = OffsetTail(world.offsets)
        self.assigned: dict[OwnedSlot, AssignedSlot] = {}
        self.job: CommitJob | None = None
        self.out: list[Message] = []
        self.in_work: list[Message] = []
        self.processed: list[bytes] = []
        self.reported_gaps: list[Gap] = []
        self._unreported: list[Gap] = []
        self._asked: tuple[int, int] | None = None

    @property
    def state(self) -> PartitionState:
        """What it knows of the partition."""
        return self.world.control.states[self.view]

    def _request_id(self) -> int:
        self._tickets += 1
        return self._tickets

    def _report(self, event: ReadingEvent) -> None:
        self.events.append(event)
        if isinstance(event, GapFound):
            self._unreported.append(event.gap)

    # -- the control topic -------------------------------------------------------------------------

    def see(self, length: int) -> bool:
        """Follow the control topic so far."""
        if length <= self.view:
            return False
        before, self.view = self.state, length
        if self.state is not before:
            self.tracks.update(self.state)
        return True

    def refresh(self) -> bool:
        """Ask for the control topic's end, or read up to what was asked for."""
        if self._asked is None:
            request_id = self.tracks.request_id
            if request_id:
                self._asked = request_id, self.world.control.stable()
            return bool(request_id)
        (request_id, end), self._asked = self._asked, None
        self.see(end)
        self.tracks.refreshed(request_id)
        return True

    # -- the group ---------------------------------------------------------------------------------

    def heartbeat(self) -> bool:
        """Learn the present generation, what was lost and what was assigned."""
        coordinator = self.world.coordinator
        mine = {slot for slot, name in coordinator.owner.items() if name == self.name}
        changed = self.generation != coordinator.generation
        self.generation = coordinator.generation
        kept = set() if self.name in coordinator.expelled else mine
        coordinator.expelled.discard(self.name)
        for slot in [s for s in self.assigned if s not in kept]:
            self.drop(slot)
            changed = True
        for slot in sorted(mine - set(self.assigned)):
            self.assigned[slot] = AssignedSlot()
            changed = True
        return changed

    def start(self, slot: OwnedSlot) -> bool:
        """Look up where a slot begins: ask for the log's end, read to there, begin."""
        slot_state = self.assigned.get(slot)
        if slot_state is None or slot_state.reading:
            return False
        if slot_state.wait_for is None:
            slot_state.wait_for = self.world.offsets.end()
            return True
        if self.tail.follow() < slot_state.wait_for:
            return False
        lineage = self.state.lineage
        pieces = self.tail.fold.cursor(GROUP, PARENT, slot.range, lineage)
        cursors = [c if c is not None else self._fresh(slot).narrowed(r) for r, c in pieces]
        if any(c.ahead_of(lineage) for c in cursors):
            return self.see(self.world.control.stable())
        cursor = cursors[0] if len(cursors) == 1 else least(lineage, cursors)
        slot_state.reading, slot_state.wait_for = True, None
        slot_state.committed = cursor if all(c is not None for _, c in pieces) else None
        self.buffer.taken(slot, cursor)
        self.tracks.own(slot, cursor)
        return True

    def _fresh(self, slot: OwnedSlot) -> Cursor:
        offsets = self.world.coordinator.offsets
        if offsets:
            return Cursor.from_positions(self.state.lineage, slot.range, offsets)
        return Cursor.at_start(slot.range)

    def drop(self, slot: OwnedSlot) -> None:
        """A slot is gone."""
        if self.assigned.pop(slot).reading:
            self.tracks.disown(slot)
            self.buffer.dropped([slot])
        if self.job is not None and slot in self.job.cursors:
            del self.job.cursors[slot]

    def release(self, slot: OwnedSlot) -> bool:
        """Hand out nothing more of a slot; return whether nothing of it is being worked on."""
        return not self.assigned[slot].reading or self.buffer.release([slot])

    # -- reading -----------------------------------------------------------------------------------

    def fetch(self, sources: Sequence[PhysicalPartition], most: int) -> bool:
        """Read on as the client does: runs of records of physical partitions, some of the same one.

        The client reads on after each run, whatever becomes of it.
        """
        positions = self.tracks.wanted()
        return sum(self._fetch_run(source, positions, most) for source in sources) > 0

    def _fetch_run(
        self, source: PhysicalPartition, positions: dict[PhysicalPartition, int], most: int
    ) -> bool:
        """Where the topic is gone the view is refreshed first: with an older one the tracks stop for good."""
        brokers = self.world.brokers
        log, topic_id = brokers.logs.get(source), brokers.topics.get(source.topic)
        refreshed = topic_id is None and self.see(self.world.control.stable())
        start = positions.get(source)
        if start is None:
            return refreshed
        if log is None or topic_id is None or start < log.start:
            if self.tracks.wanted().get(source) != start:
                return refreshed
            bounds = LogBounds(log.start, log.end, log.end) if log is not None else None
            batches = self.tracks.examine(source, Found(topic_id, bounds))
        else:
            entries = log.from_offset(start, most)
            batches = []
            if entries:
                positions[source] = entries[-1].offset + 1
                messages = [e.message() for e in entries]
                batches += self.tracks.take(source, start, messages, all(e.key for e in entries))
            if not entries or entries[-1] is log.entries[-1]:
                start, positions[source] = positions[source], log.end
                batches += self.tracks.at_end(source, start, log.end)
        for batch in batches:
            self.buffer.offer(batch)
        return True

    def work(self, most: int) -> bool:
        """The application finishes what it has, hears of gaps, and asks for more."""
        gaps, self._unreported = self._unreported, []
        self.reported_gaps += gaps
        for gap in gaps:
            for batch in self.tracks.told(gap):
                self.buffer.offer(batch)
        self.processed += [m.value() or b"" for m in self.in_work]
        finished = bool(self.in_work or gaps)
        self.in_work = self.buffer.consume(most)
        if not self.in_work:
            self.buffer.wait(0)
        self.out += self.in_work
        return finished or bool(self.in_work)

    # -- commits -----------------------------------------------------------------------------------

    def commit(self, fault: str = "") -> str | None:
        """Do the next step of a commit: write the records, send the offsets, end the transaction."""
        if self.job is None:
            return self._begin_commit()
        if not self.job.admitted:
            return self._send_offsets()
        return self._end_commit(fault)

    def _begin_commit(self) -> str | None:
        lineage = self.state.lineage
        cursors = {
            slot: self.buffer.cursor(slot)[0].settled(lineage)
            for slot, slot_state in self.assigned.items()
            if slot_state.reading
        }
        if not cursors or all(self.assigned[s].committed == c for s, c in cursors.items()):
            return None
        self.tail.follow()
        committer = Committer(GROUP, self.name, self.generation)
        processed = Processed(self.state, Mode.SLOTS, tuple(cursors.values()), (), TOKEN)
        wanted = writes([processed], committer, self.tail.fold)
        if wanted is None:
            return None
        transaction = self.world.offsets.begin(wanted.records, self.name, self.world.timeline.now)
        self.job = CommitJob(cursors, self.generation, dict(wanted.offsets), transaction)
        return f"writes its range commits, generation {self.generation}"

    def _send_offsets(self) -> str:
        job, world = self.job, self.world
        assert job is not None
        if not world.coordinator.admits(job.generation):
            job.transaction.fate = Fate.ABORTED
            self.job = None
            return "has its commit refused: the group has moved on"
        job.admitted = True
        return "sends its offsets"

    def _end_commit(self, fault: str) -> str:
        job, world = self.job, self.world
        assert job is not None
        self.job = None
        if fault == "lost":
            world.offsets.abort(self.name)
            return "does not know whether it committed; it did not"
        if not world.offsets.commit(job.transaction):
            return "has its commit aborted"
        world.coordinator.offsets.update(job.offsets)
        if fault:
            return "does not know whether it committed; it did"
        for slot, cursor in job.cursors.items():
            self.assigned[slot].committed = cursor
        return "commits"
