"""The invariants (protocol, section 13), checked after every event on what is true.

The truth is the last committed record of the control topic and everything that was ever written, whoever
knows it by now. A record is *effective* where the reading rules, in the true state, deliver it. Everything is
checked as it changes, so a check costs little; at the end of a run ``judge`` looks at everything anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Message

from kpsplit.consumer.fetch.batch import placed_hash
from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.kafka.logical_message import physical_offset
from kpsplit.splitter.commits import cursor_of
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.partition_state import PartitionState, SubTopicState
from kpsplit.splitter.reading import Cursor, Deliver, classify
from kpsplit.splitter.records.offsets import RangeCommit
from kpsplit.testing.history import Delivery, HistoryChecker, HistoryReport, Send, SendOutcome
from kpsplit.testing.readings import RawRecord, ReadingChecker
from tests.sim.logs import PARENT, Entry

if TYPE_CHECKING:
    from tests.sim.members import SimMember
    from tests.sim.world import World


FOREIGN = "plain"
"""The name of the writer that does not use kpsplit."""


class ViolationError(Exception):
    """Something that must hold does not."""


@dataclass(slots=True)
class Sent:
    """One record as its application sees it. ``outcome`` None: not reported yet."""

    id: bytes
    producer: str
    key: bytes | None
    number: int
    outcome: SendOutcome | None = None
    logical: int | None = None
    offset: int | None = None


class Effective(NamedTuple):
    """Where a record is delivered from. ``hash``: what decides which slot takes it."""

    segment: int
    offset: int
    logical: int
    hash: int
    entry: Entry


class Oracle:
    """Keeps what was sent and read. ``given_up``: records whose failure is on its way to the application."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._state: PartitionState = world.control.truth
        self.sends: dict[bytes, Sent] = {}
        self.effective: dict[bytes, Effective] = {}
        self.given_up: set[bytes] = set()
        self.overlooked: set[bytes] = set()
        """Without a stamp, on the way when the layout changed: as a plain writer's (protocol, section 11)."""
        self.handed_out: set[bytes] = set()
        self.processed: set[bytes] = set()
        self._of_key: dict[bytes, list[bytes]] = {}
        self._committed: dict[KeyRange, Cursor] = {}
        self._ancestors: dict[int, frozenset[int]] = {0: frozenset()}
        self.readers: dict[str, tuple[OwnedSlot, list[Effective]]] = {}
        """What each stay of a slot with a member was given, in order."""
        self._gone: set[str] = set()
        self._reported_gaps: list[Gap] = []
        self.repeated = 0
        """Records that the group got more than once: after crashes it may."""

    def sent(self, send: Sent) -> None:
        """Note a record that an application sends."""
        self.sends[send.id] = send
        if send.key is not None:
            self._of_key.setdefault(send.key, []).append(send.id)

    def check(self) -> None:
        """Look at what has changed.

        Raises:
            ViolationError: it must not be.
        """
        world = self._world
        if world.control.committed:
            self._check_control()
        if world.brokers.written:
            entries, world.brokers.written = world.brokers.written, []
            for entry in entries:
                self._check_write(entry)
        for producer in world.producers:
            if producer.reported:
                reported, producer.reported = producer.reported, []
                for report in reported:
                    self._check_report(*report)
        for member in world.members:
            if member.processed or member.out or member.reported_gaps:
                self._check_member(member)
        if world.offsets.committed:
            transactions, world.offsets.committed = world.offsets.committed, []
            for transaction in transactions:
                for record in transaction.records:
                    self._check_commit(record)

    # -- the control topic -------------------------------------------------------------------------

    def _check_control(self) -> None:
        records, self._world.control.committed = self._world.control.committed, []
        for record in records:
            before, after = self._state, record.state
            assert after is not None
            if after.revision != before.revision + 1:
                raise ViolationError(
                    f"TWO OPERATORS: revision {after.revision} ({record.event}) follows {before.revision}"
                )
            self._state = after
            if after.epoch != before.epoch:
                self._check_layout(before, after)

    def _check_layout(self, before: PartitionState, after: PartitionState) -> None:
        """Look again at what stands after the ends of segments that closed."""
        if after.epoch != before.epoch + 1:
            raise ViolationError(f"EPOCH {after.epoch} follows {before.epoch}")
        for producer in self._world.producers:
            self.overlooked |= set(producer.overlooked(before.attempt.id if before.attempt else ""))
        problems = after.lineage.problems()
        if problems:
            raise ViolationError(f"LINEAGE: {problems[0]}")
        for segment in after.lineage:
            known = self._ancestors.get
            if segment.id not in self._ancestors:
                above = frozenset(a for p in segment.predecessors for a in (p, *known(p, frozenset())))
                self._ancestors[segment.id] = above
        for segment in after.lineage:
            if segment.closed_epoch == after.epoch and segment.end is not None:
                for entry in self._world.brokers.logs[segment.source].entries:
                    if entry.offset >= segment.end:
                        self._place(entry)

    def _place(self, entry: Entry) -> None:
        """Find out where a record is effective now."""
        if entry.marker is not None:
            return
        verdict = classify(self._state, entry.source, entry.offset, entry.stamp, None, refreshed=True)
        known = self.effective.get(entry.id)
        here = known is not None and known.entry is entry
        if isinstance(verdict, Deliver):
            if known is not None and not here:
                raise ViolationError(
                    f"DUPLICATE {entry.id!r}: at {entry.source}@{entry.offset} and {known.entry.source}"
                    f"@{known.offset}"
                )
            hash_ = placed_hash(entry.key, entry.offset, verdict.segment.range)
            self.effective[entry.id] = Effective(
                verdict.segment.id, entry.offset, verdict.logical_offset, hash_, entry
            )
        elif here:
            del self.effective[entry.id]
            send = self.sends[entry.id]
            if send.outcome is SendOutcome.OK:
                raise ViolationError(
                    f"LOST {entry.id!r}: reported, and {entry.source}@{entry.offset} is a stray"
                )

    # -- what is written and reported ------------------------------------------------------------------

    def _check_write(self, entry: Entry) -> None:
        name = entry.source.topic
        subtopic = self._state.subtopic(name)
        if subtopic is not None and subtopic.state in (SubTopicState.SEALED, SubTopicState.RETIRED):
            raise ViolationError(f"WRITTEN after the hard seal: {entry.source}@{entry.offset}")
        if entry.marker is not None:
            return
        self._place(entry)
        send = self.sends[entry.id]
        if entry.id in self.effective and send.producer != FOREIGN and entry.key is not None:
            self._check_order(send)

    def _check_order(self, send: Sent) -> None:
        if send.outcome is SendOutcome.FAILED or send.id in self.given_up or send.id in self.overlooked:
            return
        for other in map(self.sends.__getitem__, self._of_key[send.key or b""]):
            later = other.producer == send.producer and other.number > send.number
            if (
                later
                and other.id in self.effective
                and other.outcome is not SendOutcome.FAILED
                and other.id not in self.given_up
            ):
                raise ViolationError(f"OUT OF ORDER: {send.id!r} is written after {other.id!r}")

    def _check_report(self, id_: bytes, outcome: SendOutcome, logical: int | None) -> None:
        send = self.sends[id_]
        if send.outcome is not None:
            raise ViolationError(f"REPORTED TWICE: {id_!r}")
        place = self.effective.get(id_)
        if place is not None and place.entry.stamp is None:  # while the topic was not enrolled
            if logical is not None and logical >= 0 and logical != place.offset:
                raise ViolationError(f"MISPLACED {id_!r}: reported at {logical}, is at {place.offset}")
            send.offset, logical = place.offset, None
        send.outcome, send.logical = outcome, logical
        if outcome is not SendOutcome.OK:
            return
        if place is None:
            raise ViolationError(f"LOST {id_!r}: reported at logical offset {logical}, not there")
        if logical is not None and place.logical != logical:
            raise ViolationError(f"MISPLACED {id_!r}: reported at {logical}, is at {place.logical}")

    # -- readers -----------------------------------------------------------------------------------

    def _check_member(self, member: SimMember) -> None:
        processed, member.processed = member.processed, []
        self.processed.update(processed)
        self._reported_gaps += member.reported_gaps
        member.reported_gaps = []
        out, member.out = member.out, []
        for message in out:
            self._check_delivery(member, message)

    def _check_delivery(self, member: SimMember, message: Message) -> None:
        id_ = message.value() or b""
        place = self.effective.get(id_)
        at = f"{member.name} gets {id_!r} at logical offset {message.offset()}"
        if place is None or place.offset != physical_offset(message) or place.logical != message.offset():
            raise ViolationError(f"READER: {at}, which is {'nowhere' if place is None else place.logical}")
        slot = next((s for s in member.assigned if place.hash in s.range), None)
        if slot is not None:
            slot_state = member.assigned[slot]
            if id_ in slot_state.assignment_epoch:
                raise ViolationError(f"READ TWICE: {at}")
            slot_state.assignment_epoch.add(id_)
            slot_state.reader = slot_state.reader or f"{member.name}.{len(self.readers)}"
            self.readers.setdefault(slot_state.reader, (slot, []))[1].append(place)
        self.repeated += id_ in self.handed_out
        key = self.sends[id_].key
        for other in self._of_key.get(key, ()) if key is not None else ():
            before = self.effective.get(other)
            if before is not None and other not in self.handed_out and self._precedes(before, place):
                raise ViolationError(f"TOO EARLY: {at}, before {other!r} of segment {before.segment}")
        self.handed_out.add(id_)

    def _precedes(self, before: Effective, place: Effective) -> bool:
        if before.segment == place.segment:
            earlier = before.offset < place.offset
        else:
            earlier = before.segment in self._ancestors[place.segment]
        return earlier and not self.expired(before)

    def expired(self, place: Effective) -> bool:
        """Return whether a record is gone: by retention, or before anybody knew of the group."""
        if place.entry.source.topic in self._gone:
            return True
        return place.offset < self._world.brokers.logs[place.entry.source].start

    def _check_commit(self, record: RangeCommit) -> None:
        """Neither passes a record that is not processed, nor goes back before one that was (invariant 7).

        It passes one that is gone only if the group worked on it, or it was reported to an application.
        """
        cursor, lineage = cursor_of(record, record.range), self._state.lineage
        known = self._committed.get(record.range)
        left = cursor.pending(lineage)
        left_before = known.pending(lineage) if known is not None else None
        for id_, place in self.effective.items():
            if place.hash not in record.range:
                continue
            what = f"COMMIT of {record.member} for {record.range}"
            if self.expired(place):
                if _passed(place, left) and id_ not in self.processed and not self._was_reported(place):
                    raise ViolationError(f"UNREPORTED {id_!r} is gone: {what} passes it")
            elif _passed(place, left):
                if id_ not in self.processed:
                    raise ViolationError(f"{what} passes {id_!r}, not processed")
            elif left_before is not None and _passed(place, left_before):
                raise ViolationError(f"BACK goes a {what.lower()}, before {id_!r}")
        self._committed[record.range] = cursor

    def _was_reported(self, place: Effective) -> bool:
        source, offset = place.entry.source, place.offset
        return any(gap.source == source and gap.start <= offset < gap.end for gap in self._reported_gaps)

    def deleting(self, name: str, *, known: bool) -> None:
        """Look whether the group has drained a sub-topic that is about to be deleted (invariant 10).

        ``known``: whether it had any commit when the operator looked; one without gets a report of the gap.
        """
        if not known:
            self._gone.add(name)
            return
        for id_, place in self.effective.items():
            if place.entry.source.topic == name and id_ not in self.processed and not self.expired(place):
                raise ViolationError(f"DELETED {name}, and the group has not read {id_!r}")


def _passed(place: Effective, left: Mapping[int, int]) -> bool:
    """Return whether a cursor that has this left has passed a record."""
    return place.segment not in left or place.offset < left[place.segment]


# -- the last word: the public history checker looks at everything anew ----------------------------


def judge(world: World) -> HistoryReport:
    """Check all sends against what a reader finds who goes through the logs along the lineage, once at rest.

    Raises:
        ViolationError: the history checker found something.
    """
    sends = [_send(world.oracle, sent) for sent in world.oracle.sends.values()]
    foreign = {send.producer for send in sends if send.producer.startswith(FOREIGN)}
    checker = HistoryChecker([world.control.truth.lineage], foreign, examples=3)
    for send in sends:
        checker.sent(send)
    for delivery in _deliveries(world):
        checker.delivered(delivery)
    report = checker.report()
    if not report.clean:
        raise ViolationError(f"HISTORY: {report}")
    _judge_readings(world)
    return report


def _judge_readings(world: World) -> None:
    """Check what each member was given, unless records have gone that it may have been given or not."""
    logs = world.brokers.logs.values()
    if any(log.start or log.source.topic not in world.brokers.topics for log in logs):
        return
    checker = ReadingChecker([world.control.truth], examples=3)
    for log in logs:
        for e in log.entries:
            checker.raw(RawRecord(e.source, e.offset, e.id, e.key, e.stamp, e.marker))
    for reader, (slot, given) in world.oracle.readers.items():
        checker.began(reader, PARENT, [slot.range])
        for at in given:
            e = at.entry
            checker.read(reader, Delivery(PARENT, at.logical, at.segment, e.key, e.id, e.source, e.offset))
    report = checker.report()
    if not report.clean:
        raise ViolationError(f"READINGS: {report}")


def _send(oracle: Oracle, sent: Sent) -> Send:
    """Return a send. The client gave up a record whose application died before the report: it failed.

    What was given up or overlooked without a stamp may come later: as a record of a plain writer of its own.
    """
    given_up, known = sent.id in oracle.given_up, oracle.effective.get(sent.id)
    late = given_up or sent.id in oracle.overlooked
    plainly = late and known is not None and known.entry.stamp is None
    place = (PARENT, sent.offset) if sent.offset is not None else None
    outcome = sent.outcome or (SendOutcome.FAILED if given_up else SendOutcome.UNKNOWN)
    producer = f"{FOREIGN} {sent.number}" if plainly else sent.producer
    return Send(producer, PARENT, sent.key, sent.id, sent.number, outcome, sent.logical, place)


def _deliveries(world: World) -> Iterator[Delivery]:
    state = world.control.truth
    for segment in state.lineage:
        for entry in world.brokers.logs[segment.source].entries:
            if not segment.holds(entry.offset):
                continue
            verdict = classify(state, entry.source, entry.offset, entry.stamp, entry.marker, refreshed=True)
            if isinstance(verdict, Deliver):
                yield Delivery(
                    PARENT,
                    verdict.logical_offset,
                    segment.id,
                    entry.key,
                    entry.id,
                    entry.source,
                    entry.offset,
                )
