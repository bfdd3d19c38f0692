"""Operators: the real driver in a process of its own, over simulated ports; and what operators do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, cast

from kpsplit.clock import Deadline
from kpsplit.control.plans import Check
from kpsplit.control.retirement import ends_to_reach, undrained
from kpsplit.control.returning import Act, Seen, following, next_step, partition_obstacle
from kpsplit.errors import (
    CheckFailedError,
    ConflictError,
    DeadlineExceededError,
    FencedError,
    UnknownOutcomeError,
    UnreachableError,
)
from kpsplit.kafka.groups import proven_positions
from kpsplit.producer import fence_task
from kpsplit.splitter.claimed_log import ClaimedLog, ClaimQueue
from kpsplit.splitter.control_plane import LEASE_MARGIN, Registrations
from kpsplit.splitter.driver import Driver, Ports
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition, SegmentKind
from kpsplit.splitter.partition_state import (
    Attempt,
    Cut,
    EndedBy,
    Event,
    OperationKind,
    PartitionState,
    Phase,
    Prepare,
    Retire,
    SubTopic,
    SubTopicState,
    Target,
)
from kpsplit.splitter.records.control import Claim, Enrolment
from kpsplit.splitter.records.data import newest_of
from kpsplit.splitter.records.keys import subtopic_name
from kpsplit.splitter.records.producers import ProducerRegistration, Removed
from kpsplit.splitter.steps import PlannedMarker, numbered
from tests.sim.logs import PARENT, RefusedError
from tests.sim.members import GROUP, OffsetTail
from tests.sim.processes import Blocked, Effect, Process, ProcessClock, SimDeadline

if TYPE_CHECKING:
    from tests.sim.world import World


LEASE_SECONDS = 5.0
CALL_SECONDS = 60.0
ANSWER_SECONDS = 8.0


class Operator(ClaimedLog):
    """All ports of one process that works on an operation, and the process itself.

    ``group_known``: whether a retirement found that the group has commits.
    """

    def __init__(self, world: World, name: str, rate: float, work: Callable[[Operator], Any]) -> None:
        self.world = world
        self.name = name
        self.clock = ProcessClock(world.timeline, rate)
        self.process = Process(name, lambda: work(self))
        self.group_known = False
        self._holder = -1
        self._read = 0
        """So many records of the control topic it has read: never more than it waited for."""
        self._length = 0
        self._enrolment = world.control.enrolment
        self._unknown: set[str] = set()
        super().__init__(ClaimQueue(name))

    @property
    def driver(self) -> Driver:
        """A driver over these ports."""
        return Driver(Ports(self, self, self, self))

    def step(self, fault: str = "") -> str:
        """Do one step of the process."""
        self.world.timeline.shown = self.clock
        return self.process.step(fault)

    # -- Clock -------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return what the process reads from its clock."""
        return float(self.process.at_once(self.clock.now))

    def deadline(self, seconds: float) -> SimDeadline:
        """Return the deadline that many seconds from now."""
        return SimDeadline(seconds, self.now)

    # -- ControlPort -------------------------------------------------------------------------------

    def peek(self, deadline: Deadline) -> PartitionState:
        """See ControlPort."""
        self._read = self.process.call(self._peek)
        return self.seen()

    def lease_seconds(self) -> float:
        """See ControlPort."""
        return LEASE_SECONDS

    def connect(self) -> None:
        """Have clients connect."""

    def close(self) -> None:
        """Let go of the claim."""

    def _peek(self) -> Effect:
        yield "looks at the control topic"
        return self.world.control.stable()

    def _announced(self, deadline: Deadline) -> Sequence[Claim]:
        return cast("Sequence[Claim]", self.process.at_once(lambda: tuple(self.world.control.claims)))

    def _announce(self, claim: Claim, deadline: Deadline) -> int:
        return int(self.process.call(lambda: self._write_claim(claim)))

    def _wait(self, seconds: float, deadline: Deadline) -> None:
        self.process.call(lambda: self._pass_time(seconds, deadline))

    def _now(self) -> float:
        return self.now()

    def _take(self, deadline: Deadline) -> None:
        self.process.call(self._claim)

    def _read_decided(self, end: int, deadline: Deadline) -> None:
        self._enrolment = self.process.call(lambda: self._read_log("has read the log", end, deadline))
        self._read = end

    def _read_back(self, end: int, event: Event, deadline: Deadline) -> None:
        self.process.call(lambda: self._read_log("reads back", end, deadline))
        self._read = end

    def _write(self, after: PartitionState, event: Event, deadline: Deadline) -> int:
        return int(self.process.call(lambda: self._commit(after, event, deadline)))

    def seen(self) -> PartitionState:
        return self.world.control.states[self._read]

    def _write_claim(self, claim: Claim) -> Effect:
        yield "announces a claim"
        self.world.control.claims.append(claim)
        return self.world.control.high_watermark()

    def _pass_time(self, seconds: float, deadline: Deadline) -> Effect:
        self._check(deadline, "somebody else's claim")
        at, clock = self.clock.now() + seconds, self.clock
        yield Blocked("has waited for its turn", lambda: clock.now() >= at)

    def _claim(self) -> Effect:
        yield "claims"
        self._holder = self.world.control.claim()

    def _read_log(self, what: str, end: int, deadline: Deadline) -> Effect:
        control = self.world.control
        yield from self._until(what, lambda: control.stable() >= end, deadline)
        return control.enrolments[end]

    def _commit(self, after: PartitionState, event: Event, deadline: Deadline) -> Effect:
        control = self.world.control
        self._check(deadline, f"the {event.kind}")
        if isinstance(event, Prepare) and event.attempt.kind is OperationKind.SPLIT:
            obstacle = "the topic is not enrolled" if self._enrolment.left else self._enrolment.split_obstacle
            if obstacle is not None:
                raise ConflictError(obstacle)
        yield f"writes {event.kind}"
        record = control.begin(self._holder, after, str(event.kind), self.world.timeline.now)
        fault = yield f"commits {event.kind}"
        if fault == "late":
            self.world.late.append((f"commit of {event.kind}", self._late_commit(record)))
        elif fault != "lost":
            control.commit(self._holder, record)
        if fault:
            raise UnknownOutcomeError(f"{event.kind}: no answer")
        return record.offset

    def _late_commit(self, record: Any) -> Callable[[], None]:
        holder, control = self._holder, self.world.control

        def land() -> None:
            try:
                control.commit(holder, record)
            except FencedError:
                return

        return land

    def withdraw(self) -> Effect:
        """Withdraw a claim that led to nothing, unless it is another's turn by now."""
        yield "withdraws its claim"
        if self._queue.has_turn(self.seen().revision, self.world.control.claims):
            self.world.control.claims.clear()

    # -- WritersPort -------------------------------------------------------------------------------

    def read(self, deadline: Deadline) -> Registrations:
        """See WritersPort."""
        return cast(Registrations, self.process.call(lambda: self._read_registrations(deadline)))

    def await_change(self, seconds: float) -> None:
        """See WritersPort."""
        self.process.call(lambda: self._await_change(seconds))

    def remove(self, producers: Iterable[ProducerRegistration], deadline: Deadline) -> None:
        """See WritersPort."""
        wanted = tuple(producers)
        self.process.call(lambda: self._remove(wanted))

    def _read_registrations(self, deadline: Deadline) -> Effect:
        yield "reads the producers topic"
        topic, at = self.world.producers_topic, min(_at(deadline), self.clock.now() + ANSWER_SECONDS)
        if topic.frozen:
            yield Blocked("waits for the producers topic", lambda: not topic.frozen or self.clock.now() >= at)
        if topic.frozen:
            raise UnreachableError("nobody answers for the producers topic")
        self._length = self.world.producers_topic.length
        return self.world.producers_topic.read()

    def _await_change(self, seconds: float) -> Effect:
        known, at = self._length, self.clock.now() + seconds
        topic, clock = self.world.producers_topic, self.clock
        yield Blocked("has waited for answers", lambda: topic.length > known or clock.now() >= at)

    def _remove(self, producers: tuple[ProducerRegistration, ...]) -> Effect:
        names = ", ".join(f"{r.instance}.{r.generation}" for r in producers)
        fault = yield f"removes registrations {names}"
        if fault == "lost" or self.world.producers_topic.frozen:
            raise UnknownOutcomeError("registrations: no acknowledgement")
        for record in producers:
            self.world.producers_topic.append(Removed(record.key))

    # -- TopicsPort --------------------------------------------------------------------------------

    def create_subtopic(self, attempt: Attempt, parent: PhysicalPartition, deadline: Deadline) -> str:
        """See TopicsPort."""
        return cast(str, self.process.call(lambda: self._create(attempt)))

    def co_locate(
        self, parent: PhysicalPartition, sources: Iterable[PhysicalPartition], deadline: Deadline
    ) -> None:
        """See TopicsPort."""
        places = (parent, *sources)
        self.process.call(lambda: self._co_locate(places))

    def keep_warm(self) -> None:
        """See TopicsPort."""

    def append_markers(self, markers: Iterable[PlannedMarker], deadline: Deadline) -> tuple[Cut, ...]:
        """See TopicsPort."""
        wanted = tuple(markers)
        return cast("tuple[Cut, ...]", self.process.call(lambda: self._append_markers(wanted, deadline)))

    def seal(self, subtopics: Iterable[SubTopic], deadline: Deadline) -> None:
        """See TopicsPort."""
        wanted = tuple(subtopics)
        self.process.call(lambda: self._seal(wanted))

    def delete_abandoned(self, name: str, deadline: Deadline) -> None:
        """See TopicsPort."""
        self.process.call(lambda: self._delete(name))

    def _create(self, attempt: Attempt) -> Effect:
        fault = yield f"creates {attempt.subtopic}"
        if fault == "lost":
            raise DeadlineExceededError("the sub-topic was not created in time")
        return self.world.brokers.create(str(attempt.subtopic), len(attempt.ranges))

    def _co_locate(self, places: tuple[PhysicalPartition, ...]) -> Effect:
        yield "moves the leaders"
        for place in places:
            self.world.brokers.logs[place].leader_epoch += 1

    def _append_markers(self, markers: tuple[PlannedMarker, ...], deadline: Deadline) -> Effect:
        """Append one by one; one that an earlier call wrote, without an answer, is found again."""
        self._check(deadline, "the markers")
        cuts, brokers = [], self.world.brokers
        attempts = {m.marker.attempt_id for m in markers}
        look = bool(attempts & self._unknown)
        for planned in markers:
            fault = yield f"appends the marker of segment {planned.segment}"
            offset = self._marker_there(planned) if look else None
            if offset is None:
                append = self._appending(planned)
                if fault == "late":
                    self.world.late.append((f"marker of {planned.marker.attempt_id}", append))
                elif fault != "lost":
                    offset = append()
                if fault or offset is None:
                    self._unknown |= attempts
                    raise UnknownOutcomeError("a marker: no acknowledgement")
            cuts.append(Cut(planned.segment, offset, brokers.logs[planned.source].leader_epoch))
        return tuple(cuts)

    def _appending(self, planned: PlannedMarker) -> Callable[[], int | None]:
        brokers, timeline = self.world.brokers, self.world.timeline

        def append() -> int | None:
            try:
                return brokers.append(planned.source, b"", None, timeline.now, marker=planned.marker)
            except RefusedError:
                return None

        return append

    def _marker_there(self, planned: PlannedMarker) -> int | None:
        log = self.world.brokers.logs[planned.source]
        return newest_of(((entry.offset, entry.marker) for entry in log.entries), planned.marker)

    def _seal(self, subtopics: tuple[SubTopic, ...]) -> Effect:
        for subtopic in subtopics:
            fault = yield f"seals {subtopic.name}"
            if fault == "lost":
                raise DeadlineExceededError("the sub-topic was not sealed in time")
            self.world.brokers.sealed.add(subtopic.name)

    def _delete(self, name: str) -> Effect:
        yield f"deletes {name}"
        if not self.world.brokers.empty(name):
            raise CheckFailedError(f"{name} holds records")
        self.world.brokers.delete(name)

    # -- inside ------------------------------------------------------------------------------------

    def _check(self, deadline: Deadline, what: str) -> None:
        if self.clock.now() >= _at(deadline):
            raise DeadlineExceededError(f"waited for {what}")

    def _until(self, what: str, come: Callable[[], bool], deadline: Deadline) -> Effect:
        at, clock = max(_at(deadline), self.clock.now() + 1.0), self.clock
        yield Blocked(what, lambda: come() or clock.now() >= at)
        if not come():
            raise DeadlineExceededError(f"waited for: {what}")


def _at(deadline: Deadline) -> float:
    """Return when a deadline passes; that of a takeover, which reads the clock itself, never does."""
    return deadline.at if isinstance(deadline, SimDeadline) else inf


# -- what operators do -----------------------------------------------------------------------------


MAX_PAUSES_MS = (3_000, 12_000, 40_000)
Work = Callable[[Operator], Any]


def planned(state: PartitionState, name: str, choice: tuple[int, int, int], pause: int) -> Attempt:
    """Return the operation that three numbers choose among those that a state allows."""
    what, first, count = choice
    layout = state.lineage.open_segments()
    attempt = _merge(state, name, what, first, count) if len(layout) > 1 and what % 10 < 5 else None
    if attempt is None:
        source = layout[first % len(layout)]
        lo, hi = source.range.lo, source.range.hi
        middle = lo + (hi - lo) * (1 + count % 3) // 4
        attempt = _attempt(state, name, (source.id,), (KeyRange(lo, middle), KeyRange(middle, hi)))
    return replace(attempt, max_pause_ms=MAX_PAUSES_MS[pause % len(MAX_PAUSES_MS)])


def _merge(state: PartitionState, name: str, what: int, first: int, count: int) -> Attempt | None:
    layout = state.lineage.open_segments()
    if layout[0].kind is SegmentKind.PARENT:
        return None
    if what % 10 < 3 or len(layout) == 2:
        return _attempt(state, name, tuple(s.id for s in layout), (WHOLE,))
    begin = first % (len(layout) - 1)
    chosen = layout[begin : begin + 2 + count % (len(layout) - begin - 1)]
    union = KeyRange(chosen[0].range.lo, chosen[-1].range.hi)
    return _attempt(state, name, tuple(s.id for s in chosen), (union,))


def _attempt(
    state: PartitionState, name: str, sources: tuple[int, ...], ranges: tuple[KeyRange, ...]
) -> Attempt:
    kind = OperationKind.SPLIT if len(ranges) > 1 else OperationKind.MERGE
    target = Target.PARENT if ranges == (WHOLE,) else Target.PHANTOMS
    subtopic = subtopic_name(PARENT, state.next_split) if target is Target.PHANTOMS else None
    return Attempt(name, kind, name, 0, sources, ranges, target, subtopic, 0)


def run(attempt: Attempt, epoch: int) -> Work:
    """Run a planned operation."""
    return lambda operator: operator.driver.run(attempt, epoch, operator.deadline(CALL_SECONDS))


def resume(operator: Operator) -> object:
    """Finish what a dead operator left."""

    def renew(state: PartitionState, last: Attempt) -> Attempt:
        return replace(numbered(last, state), id=operator.name, operator=operator.name)

    return operator.driver.resume(renew, operator.deadline(CALL_SECONDS))


def abort(operator: Operator) -> object:
    """Roll back what is under way."""
    return operator.driver.abort(EndedBy.REQUEST, "somebody asked for it", operator.deadline(CALL_SECONDS))


def take_over(attempt_id: str, wait: float) -> Work:
    """Roll back an attempt whose operator is gone, as a producer does that reserves the turn until it is due.

    ``wait``: it is due in so many seconds.
    """

    def work(operator: Operator) -> object:
        operator._queue = ClaimQueue(operator.name, operator.now() + wait)
        return fence_task.roll_back(cast(Any, operator), PARENT, attempt_id)

    return work


def retire(operator: Operator) -> int:
    """Delete the sub-topics that the group has drained, as the product's ``Retirement`` does."""
    deadline = operator.deadline(CALL_SECONDS)
    before: PartitionState = operator.process.call(lambda: _look(operator))
    sealed = [t.name for t in before.subtopics if t.state is SubTopicState.SEALED]

    def drained(name: str) -> bool:
        return bool(operator.process.call(partial(_drained, operator, before, name, deadline)))

    going = [name for name in sealed if drained(name)]
    if before.phase is not Phase.STEADY or not going:
        return 0
    state = operator.claim(deadline, lambda now: now.revision == before.revision)
    if state.revision != before.revision:
        raise ConflictError("it has changed meanwhile")
    for name in filter(drained, going):  # again: the claim may have waited for its turn
        state = operator.record(state, Retire(name), deadline)
        operator.process.call(partial(_delete, operator, name))
    return len(going)


def _look(operator: Operator) -> Effect:
    yield "reads the control topic"
    return operator.world.control.seen()


def _drained(operator: Operator, state: PartitionState, name: str, deadline: Deadline) -> Effect:
    yield f"looks who has to read {name}"
    world = operator.world
    ordinary = {GROUP: dict(world.coordinator.offsets)} if world.coordinator.offsets else {}
    end = world.offsets.end()
    yield from operator._until("reads the offset log", lambda: world.offsets.stable() >= end, deadline)
    tail = OffsetTail(world.offsets)
    tail.follow()
    positions = proven_positions(ordinary, tail.fold, state)
    operator.group_known = bool(positions)
    starts = {place: log.start for place, log in world.brokers.logs.items()}
    return not undrained(ends_to_reach(state, name), starts, positions)


def _delete(operator: Operator, name: str) -> Effect:
    yield f"deletes {name}"
    operator.world.oracle.deleting(name, known=operator.group_known)
    operator.world.brokers.delete(name)
    operator.world.count("retired")


def unenroll(operator: Operator) -> object:
    """Lead the topic back to plain clients, as far as it concerns producers: groups are not looked at."""
    done_for: dict[Act, Enrolment] = {}
    while True:
        recorded, state = operator.process.call(partial(_look_at_enrolment, operator))
        claimed, lease_over = (done_for.get(act) == recorded for act in (Act.CLAIM, Act.LEASE))
        at_work = recorded.returning and not recorded.settled and (claimed or recorded.former is None)
        found = () if at_work or recorded.left else _obstacles(state)
        seen = Seen(found, claimed, lease_over=lease_over, withdrawn=True)
        match next_step(recorded, seen):
            case Act.CLAIM:
                deadline = operator.deadline(CALL_SECONDS)
                _refuse(_obstacles(operator.claim(deadline, lambda found: not _obstacles(found))))
                operator.process.call(operator.withdraw)
                done_for[Act.CLAIM] = recorded
            case Act.LEASE:
                operator.process.call(partial(_wait_a_lease, operator))
                done_for[Act.LEASE] = recorded
            case Act.RECORD:
                after = following(recorded)
                assert after is not None
                operator.process.call(partial(_enrol, operator, recorded, after))
            case Act.DONE:
                return recorded
            case _:
                _refuse(found)


def enroll(operator: Operator) -> object:
    """Enrol the topic again, and record that a lease has passed."""
    recorded, _ = operator.process.call(partial(_look_at_enrolment, operator))
    if recorded.left:
        slots, number = len(operator.world.coordinator.slots), recorded.generation + 1
        again = replace(recorded, slots=slots, returning=False, settled=False, generation=number)
        operator.process.call(partial(_enrol, operator, recorded, again))
        recorded = again
    if recorded.returning or recorded.settled:
        raise ConflictError("it returns to plain clients, or is enrolled")
    operator.process.call(partial(_wait_a_lease, operator))
    return operator.process.call(partial(_enrol, operator, recorded, replace(recorded, settled=True)))


def _obstacles(state: PartitionState) -> tuple[Check, ...]:
    """Return why the partition cannot return. Sub-topics may be there: that matters to plain readers only."""
    return tuple(filter(None, [partition_obstacle(replace(state, subtopics=()))]))


def _refuse(obstacles: Sequence[Check]) -> None:
    if obstacles:
        raise ConflictError(obstacles[0].message)


def _look_at_enrolment(operator: Operator) -> Effect:
    control = operator.world.control
    end = control.high_watermark()
    yield Blocked("reads the enrolment", lambda: control.stable() >= end)
    at = control.stable()
    return control.enrolments[at], control.states[at]


def _wait_a_lease(operator: Operator) -> Effect:
    clock = operator.clock
    at = clock.now() + LEASE_SECONDS * LEASE_MARGIN
    yield Blocked("has waited for a lease", lambda: clock.now() >= at)


def _enrol(operator: Operator, before: Enrolment, after: Enrolment) -> Effect:
    what = "left" if after.left else "returning" if after.returning else "enrolled"
    yield f"records that the topic is {what}, {'' if after.settled else 'not '}settled"
    control = operator.world.control
    if control.enrolment != before:
        raise ConflictError("the enrolment has changed meanwhile")
    control.enrol(after, operator.world.timeline.now)
    operator.world.count(f"records of the enrolment: {what}")


def due_for_takeover(world: World, state: PartitionState) -> tuple[str, float] | None:
    """Return the attempt that will soon have held producers up for longer than it may, if there is one.

    And in how many seconds.
    """
    if state.phase is not Phase.FENCED or state.attempt is None:
        return None
    fenced_at = next((r.opened for r in world.control.records if r.state == state), world.timeline.now)
    pause = state.attempt.max_pause_ms / 1000
    wait = fenced_at + pause + fence_task.GRACE_SECONDS - world.timeline.now
    soon = fence_task.GRACE_SECONDS + min(fence_task.AHEAD_SECONDS, pause / 2)
    return (state.attempt.id, max(wait, 0.0)) if wait < soon else None
