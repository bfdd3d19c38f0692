"""The driver over ports in memory: whatever dies wherever, the partition ends in one layout and writable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from kpsplit.control.operations import PartitionOperations
from kpsplit.control.plans import Check
from kpsplit.errors import (
    CheckFailedError,
    ConflictError,
    DeadlineExceededError,
    FencedError,
    KpsplitError,
    UnknownOutcomeError,
    UnreachableError,
)
from kpsplit.splitter.control_plane import Registrations
from kpsplit.splitter.driver import Driver, Observer, Ports, StepDone
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Abort,
    Attempt,
    Cut,
    EndedBy,
    Event,
    Finish,
    PartitionState,
    Phase,
    Prepare,
    Result,
    SubTopic,
)
from kpsplit.splitter.records.producers import ProducerRegistration, Removed
from kpsplit.splitter.steps import PlannedMarker
from tests.unit.samples import PARENT, UNSPLIT, merge_attempt, split_attempt

LEASE = 5.0
RANGES = WHOLE.split_evenly(2)


T = TypeVar("T")


class DiedError(BaseException):
    """The operator's process is gone."""


@dataclass
class Fault:
    """At the ``at``-th call of any port, before or after its effect, raise."""

    at: int = -1
    after: bool = False
    error: Callable[[], BaseException] = DiedError
    only: str = ""
    hook: Callable[[], None] | None = None


@dataclass
class Cluster:
    """What outlives operators."""

    state: PartitionState = UNSPLIT
    holder: int = 0
    now: float = 100.0
    logs: dict[PhysicalPartition, list[str]] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    sealed: set[str] = field(default_factory=set)
    registrations: Registrations = field(default_factory=Registrations)
    answers: dict[int, str] = field(default_factory=dict)
    """What each producer does: answers, acknowledges nothing ("unacknowledged") or is silent."""
    history: list[PartitionState] = field(default_factory=list)

    def producer(self, instance: int, behaviour: str = "answers") -> None:
        self.answers[instance] = behaviour
        self.registrations.fold(ProducerRegistration(instance, 1, f"p{instance}", topics=(PARENT.topic,)))

    def let_producers_answer(self) -> None:
        attempt = self.state.attempt
        for record in self.registrations.all():
            behaviour = self.answers[record.instance]
            if attempt is None or behaviour == "silent":
                continue
            mine = {str(PARENT): attempt.id}
            if self.state.phase is Phase.PREPARING:
                self.registrations.fold(replace(record, ready=mine))
            elif behaviour == "answers" and self.state.phase is Phase.FENCED and record.ready == mine:
                self.registrations.fold(replace(record, acknowledged=mine))


class Time:
    """A deadline, and the clock, on the cluster's simulated time."""

    def __init__(self, cluster: Cluster, seconds: float = 0.0) -> None:
        self._cluster, self._at = cluster, cluster.now + seconds

    def now(self) -> float:
        return self._cluster.now

    def deadline(self, seconds: float) -> Time:
        return Time(self._cluster, seconds)

    def left(self) -> float:
        return max(0.0, self._at - self._cluster.now)

    def check(self, what: str) -> None:
        if self.left() <= 0:
            raise DeadlineExceededError(f"waited for {what}")


class Simulated:
    """All ports of one operator."""

    def __init__(self, cluster: Cluster, fault: Fault | None = None) -> None:
        self.cluster, self.fault, self.calls, self.token = cluster, fault or Fault(), 0, -1
        self.names: list[str] = []

    @property
    def ports(self) -> Ports:
        return Ports(self, self, self, Time(self.cluster))

    def _around(self, name: str, effect: Callable[[], T]) -> T:
        number, self.calls = self.calls, self.calls + 1
        self.names.append(name)
        self.cluster.now += 0.001
        mine = number == self.fault.at and (not self.fault.only or self.fault.only == name)
        if mine and not self.fault.after:
            self._strike()
        result = effect()
        if mine and self.fault.after:
            self._strike()
        return result

    def _strike(self) -> None:
        if self.fault.hook is not None:
            self.fault.hook()
        else:
            raise self.fault.error()

    def peek(self, deadline: Any) -> PartitionState:
        return self._around("peek", lambda: self.cluster.state)

    def claim(self, deadline: Any, fit: Any = None) -> PartitionState:
        def effect() -> PartitionState:
            if fit is not None and not fit(self.cluster.state):
                return self.cluster.state
            self.cluster.holder += 1
            self.token = self.cluster.holder
            return self.cluster.state

        return self._around("claim", effect)

    def record(self, before: PartitionState, event: Event, deadline: Any) -> PartitionState:
        deadline.check(str(event.kind))

        def effect() -> PartitionState:
            if self.token != self.cluster.holder:
                raise FencedError("another operator took over")
            assert before == self.cluster.state
            self.cluster.state = apply(before, event)
            self.cluster.history.append(self.cluster.state)
            return self.cluster.state

        return self._around("record", effect)

    def lease_seconds(self) -> float:
        return LEASE

    def read(self, deadline: Any) -> Registrations:
        def effect() -> Registrations:
            self.cluster.let_producers_answer()
            return self.cluster.registrations

        return self._around("read", effect)

    def await_change(self, seconds: float) -> None:
        self.cluster.now += seconds

    def remove(self, producers: Iterable[ProducerRegistration], deadline: Any) -> None:
        def effect() -> None:
            for record in producers:
                self.cluster.registrations.fold(Removed(record.key))

        self._around("remove", effect)

    def create_subtopic(self, attempt: Attempt, parent: PhysicalPartition, deadline: Any) -> str:
        def effect() -> str:
            assert attempt.subtopic is not None
            self.cluster.topics.add(attempt.subtopic)
            return f"id of {attempt.subtopic}"

        return self._around("create_subtopic", effect)

    def keep_warm(self) -> None:
        pass

    def co_locate(self, parent: Any, sources: Any, deadline: Any) -> None:
        self._around("co_locate", lambda: None)

    def append_markers(self, markers: Iterable[PlannedMarker], deadline: Any) -> tuple[Cut, ...]:
        def effect() -> tuple[Cut, ...]:
            cuts = []
            for planned in markers:
                log = self.cluster.logs.setdefault(planned.source, ["r"] * 10)
                if planned.marker.attempt_id not in log:
                    log.append(planned.marker.attempt_id)
                cuts.append(Cut(planned.segment, log.index(planned.marker.attempt_id), 0))
            return tuple(cuts)

        return self._around("append_markers", effect)

    def seal(self, subtopics: Iterable[SubTopic], deadline: Any) -> None:
        self._around("seal", lambda: self.cluster.sealed.update(t.name for t in subtopics))

    def delete_abandoned(self, name: str, deadline: Any) -> None:
        self._around("delete_abandoned", lambda: self.cluster.topics.discard(name))


def renewed(state: PartitionState, attempt: Attempt) -> Attempt:
    return split_attempt(state, 0, attempt.ranges, f"{attempt.id}'")


def run(
    cluster: Cluster,
    fault: Fault | None = None,
    name: str = "s",
    seconds: float = 60.0,
    observer: Observer = lambda _: None,
) -> Simulated:
    return run_with(Simulated(cluster, fault), name, seconds, observer)


def run_with(
    simulated: Simulated, name: str = "s", seconds: float = 60.0, observer: Observer = lambda _: None
) -> Simulated:
    state = simulated.cluster.state
    attempt = split_attempt(state, 0, RANGES, name)
    Driver(simulated.ports, observer).run(attempt, state.epoch, Time(simulated.cluster, seconds))
    return simulated


def with_producers(*behaviours: str) -> Cluster:
    cluster = Cluster()
    for instance, behaviour in enumerate(behaviours):
        cluster.producer(instance, behaviour)
    return cluster


def number_of_calls() -> int:
    return run(with_producers("answers")).calls


def assert_resting(cluster: Cluster) -> None:
    """The old layout or the new one, nothing under way, nothing fenced."""
    state = cluster.state
    assert state.phase is Phase.STEADY and state.attempt is None and not state.fenced_segments()
    open_ranges = tuple(s.range for s in state.lineage.open_segments())
    assert (state.epoch, open_ranges) in ((0, (WHOLE,)), (1, RANGES))
    if state.epoch == 1:
        segment = state.lineage.get(0)
        assert segment.end is not None and state.last is not None
        assert cluster.logs[PARENT][segment.end] == state.last.attempt.id


def test_a_split_goes_through_all_phases_and_a_merge_back() -> None:
    cluster = with_producers("answers", "answers")
    run(cluster)
    assert_resting(cluster)
    assert [s.phase for s in cluster.history] == [
        Phase.PREPARING,
        Phase.FENCED,
        Phase.COMMITTED,
        Phase.STEADY,
    ]
    simulated = Simulated(cluster)
    attempt = merge_attempt(cluster.state, (2, 3), WHOLE)
    outcome = Driver(simulated.ports).run(attempt, 1, Time(cluster, 60))
    assert outcome.result is Result.COMMITTED and cluster.state.epoch == 2
    assert cluster.sealed == {"orders.split-3-1"} and "co_locate" in simulated.names


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(number_of_calls()))
def test_an_operator_that_dies_anywhere_is_rolled_back_or_finished_by_the_next(at: int, after: bool) -> None:
    cluster = with_producers("answers")
    with pytest.raises(DiedError):
        run(cluster, Fault(at, after))
    committed, under_way = cluster.state.epoch, cluster.state.attempt
    outcome = Driver(Simulated(cluster).ports).resume(renewed, Time(cluster, 60))
    assert_resting(cluster)
    assert (outcome is None) == (under_way is None)
    assert cluster.state.epoch >= committed
    if cluster.state.epoch == 0:  # it died before it recorded anything
        run(cluster)
        assert cluster.state.epoch == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(number_of_calls()))
def test_what_a_dead_operator_left_can_be_aborted_before_its_commit_and_only_then(
    at: int, after: bool
) -> None:
    cluster = with_producers("answers")
    with pytest.raises(DiedError):
        run(cluster, Fault(at, after))
    driver = Driver(Simulated(cluster).ports)
    if cluster.state.phase is Phase.COMMITTED:
        with pytest.raises(ConflictError, match="can only go forward"):
            driver.abort(EndedBy.REQUEST, "asked", Time(cluster, 60))
        assert cluster.state.phase is Phase.COMMITTED
        return
    under_way = cluster.state.attempt
    outcome = driver.abort(EndedBy.REQUEST, "asked", Time(cluster, 60))
    assert_resting(cluster)
    assert (outcome is None) == (under_way is None)
    if outcome is not None:
        assert (outcome.result, outcome.ended_by) == (Result.ROLLED_BACK, EndedBy.REQUEST)
        assert cluster.topics == set(), "the sub-topic was deleted"


@pytest.mark.parametrize("error", [KpsplitError, KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(number_of_calls()))
def test_an_error_anywhere_rolls_back_or_says_that_the_layout_changed(
    at: int, after: bool, error: type[BaseException]
) -> None:
    cluster = with_producers("answers")
    raised = error("broken")
    with pytest.raises(error) as caught:
        run(cluster, Fault(at, after, lambda: raised))
    if cluster.state.phase is Phase.COMMITTED:
        if isinstance(caught.value, KpsplitError):
            assert caught.value.changed and "resume" in (caught.value.hint or "")
        Driver(Simulated(cluster).ports).resume(renewed, Time(cluster, 60))
        assert cluster.state.epoch == 1
    assert_resting(cluster)


@pytest.mark.parametrize("after", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("at", range(number_of_calls()))
def test_a_write_of_unknown_outcome_is_read_back_and_never_repeated_blindly(at: int, after: bool) -> None:
    cluster = with_producers("answers")
    unknown = Fault(at, after, lambda: UnknownOutcomeError("no acknowledgement"))
    try:
        simulated = run(cluster, unknown)
    except UnknownOutcomeError:  # the very first claim: nothing had begun
        assert at == 0 and cluster.state == UNSPLIT
        return
    assert_resting(cluster)
    assert cluster.state.epoch == 1
    assert [s.phase for s in cluster.history].count(Phase.COMMITTED) == 1
    assert cluster.logs[PARENT].count("s") == 1, "the marker of the same attempt is reused"
    assert simulated.calls > at


@pytest.mark.parametrize("at", range(1, number_of_calls()))
def test_of_two_operators_the_newer_wins_and_the_older_stops(at: int) -> None:
    cluster = with_producers("answers")
    newer: list[PartitionState] = []

    def another() -> None:
        attempt = split_attempt(UNSPLIT, 0, RANGES, "newer")
        if cluster.state.next_split > 1:
            attempt = replace(attempt, subtopic="orders.split-3-2")
        try:
            Driver(Simulated(cluster).ports).run(attempt, 0, Time(cluster, 60))
        except ConflictError:  # the older one had committed: its layout is finished
            assert cluster.state.epoch == 1
        newer.append(cluster.state)

    try:
        run(cluster, Fault(at, True, hook=another))
    except (ConflictError, FencedError):
        pass
    else:
        assert newer[0].epoch == 1 and newer[0].last is not None and newer[0].last.attempt.id == "s"
    assert_resting(cluster)
    assert cluster.state == newer[0] and cluster.state.epoch == 1
    assert [s.phase for s in cluster.history].count(Phase.COMMITTED) == 1


@pytest.mark.parametrize("goes_on", [False, True], ids=["only rolled back", "another attempt"])
@pytest.mark.parametrize(
    "at", [n for n, name in enumerate(run(with_producers("answers")).names) if name == "read"]
)
def test_an_operator_that_slept_beyond_its_time_while_others_ended_its_attempt_is_fenced(
    at: int, goes_on: bool
) -> None:
    cluster = with_producers("answers")
    holders: list[int] = []

    def asleep() -> None:
        other = Driver(Simulated(cluster).ports)
        other.abort(EndedBy.TAKEOVER, "gone", Time(cluster, 60))
        if goes_on:
            other.run(split_attempt(cluster.state, 0, RANGES, "newer"), 0, Time(cluster, 60))
        cluster.now += 3600
        holders.append(cluster.holder)

    with pytest.raises(FencedError) as caught:
        run(cluster, Fault(at, False, hook=asleep))
    assert caught.value.changed is False, "it never sent a COMMIT"
    assert_resting(cluster)
    assert cluster.state.epoch == goes_on
    last = cluster.state.last
    assert last is not None and last.attempt.id == ("newer" if goes_on else "s")
    assert holders == [cluster.holder], "it fences nobody who is at work"


@pytest.mark.parametrize("goes_on", [False, True], ids=["nobody else", "another attempt"])
def test_an_operator_that_slept_beyond_its_time_before_its_prepare_says_who_was_at_work_meanwhile(
    goes_on: bool,
) -> None:
    cluster = with_producers("answers")

    def asleep() -> None:
        if goes_on:
            other = Driver(Simulated(cluster).ports)
            other.run(split_attempt(cluster.state, 0, RANGES, "newer"), 0, Time(cluster, 60))
        raise DeadlineExceededError("waited 1 min for the prepare")

    with pytest.raises(KpsplitError, match="waited 1 min for the prepare") as caught:
        run(cluster, Fault(1, False, hook=asleep))
    assert isinstance(caught.value, FencedError) == goes_on
    assert caught.value.changed is False
    assert cluster.state.epoch == goes_on


@pytest.mark.parametrize(
    "at", [n for n, name in enumerate(run(with_producers("answers")).names) if name == "record"][1:]
)
def test_an_operator_whose_transaction_the_brokers_ended_rolls_back_what_nobody_took_over(at: int) -> None:
    """Its epoch is fenced as by a successor, and there is none: nobody else would end its attempt."""
    cluster = with_producers("answers")

    def ended() -> None:
        raise FencedError("another operator took over")

    with pytest.raises(DeadlineExceededError, match="the brokers ended a transaction") as caught:
        run(cluster, Fault(at, False, hook=ended))
    committed = cluster.state.phase is Phase.COMMITTED
    assert caught.value.changed is committed
    assert committed or (cluster.state.epoch, cluster.state.attempt) == (0, None)
    assert not committed or "kpsplit resume" in (caught.value.hint or "")


def test_an_operator_that_is_fenced_before_its_prepare_leaves_nothing_and_claims_nothing() -> None:
    """Somebody else claims, finds nothing to do, and is done: ``resume``."""
    cluster = with_producers("answers")
    holders: list[int] = []

    def another() -> None:
        Driver(Simulated(cluster).ports).resume(renewed, Time(cluster, 60))
        holders.append(cluster.holder)

    with pytest.raises(FencedError) as caught:
        run(cluster, Fault(1, False, hook=another))
    assert caught.value.changed is False
    assert (cluster.state, holders) == (UNSPLIT, [cluster.holder])


@pytest.mark.parametrize("late", [False, True], ids=["in time", "its time is over"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["only finished", "another attempt"])
def test_an_operator_that_slept_behind_its_commit_does_not_say_that_nothing_was_changed(
    goes_on: bool, late: bool
) -> None:
    cluster = with_producers("answers")
    holders: list[int] = []
    raised: list[KpsplitError] = [DeadlineExceededError("too late")] if late else []

    def asleep() -> None:
        other = Driver(Simulated(cluster).ports)
        other.resume(renewed, Time(cluster, 60))
        if goes_on:
            merge = merge_attempt(
                cluster.state, tuple(s.id for s in cluster.state.lineage.open_segments()), WHOLE
            )
            other.run(merge, 1, Time(cluster, 60))
        holders.append(cluster.holder)
        if raised:
            raise raised[0]

    finish = len(run(with_producers("answers")).names) - 1
    with pytest.raises(KpsplitError) as caught:
        run(cluster, Fault(finish, False, hook=asleep))
    assert isinstance(caught.value, FencedError) == (goes_on or not late)
    assert caught.value.changed is not False
    assert holders == [cluster.holder], "it fences nobody who is at work"


def test_a_producer_that_never_acknowledges_in_time_aborts_the_attempt() -> None:
    cluster = with_producers("answers", "unacknowledged")
    with pytest.raises(DeadlineExceededError, match="acknowledgement of the fence") as caught:
        run(cluster)
    assert caught.value.changed is False
    assert_resting(cluster)
    assert cluster.state.epoch == 0 and cluster.logs == {}


def test_answers_that_cannot_be_read_until_the_time_is_over_are_a_time_that_is_over() -> None:
    names, cluster = run(with_producers("answers")).names, with_producers("answers")
    at = names.index("append_markers") - 1
    assert names[at] == "read"

    def late() -> UnreachableError:
        cluster.now += 60.0
        return UnreachableError("no answer")

    with pytest.raises(DeadlineExceededError, match="acknowledgement of the fence"):
        run(cluster, Fault(at, error=late))
    assert_resting(cluster)
    again = with_producers("answers")
    run(again, Fault(at, error=lambda: UnreachableError("no answer")))
    assert again.state.epoch == 1, "it is asked again while there is time"


def test_nobody_is_silent_while_the_brokers_cannot_be_asked() -> None:
    """The broker that leads the producers topic stands still at PREPARE, for longer than a lease."""
    names = run(with_producers("answers")).names
    cluster = with_producers("answers")
    simulated = Simulated(cluster)
    answer, read, tries = cluster.let_producers_answer, simulated.read, iter(range(1000))
    cluster.let_producers_answer = lambda: None  # type: ignore[method-assign]

    def frozen(deadline: Any) -> Registrations:
        number = next(tries)
        if number == 3:
            cluster.now += 2 * LEASE
            raise UnreachableError("no answer")
        if number == 4:
            cluster.now += 2 * LEASE  # the answers come right behind the end of the outage
        elif number == 5:
            cluster.let_producers_answer = answer  # type: ignore[method-assign]
        return read(deadline)

    simulated.read = frozen  # type: ignore[method-assign]
    run_with(simulated)
    assert cluster.state.epoch == 1 and "remove" not in simulated.names
    assert "append_markers" in names


def test_silent_producers_are_asked_once_and_not_waited_for_in_the_fence() -> None:
    cluster = with_producers("answers", "silent")
    before = cluster.now
    simulated = run(cluster)
    assert cluster.state.epoch == 1
    assert [r.instance for r in cluster.registrations.all()] == [0], "the dead one's registration is gone"
    assert LEASE < cluster.now - before < LEASE * 1.3
    fenced_for = simulated.names.index("append_markers") - simulated.names.index("remove")
    assert fenced_for < 5


def test_an_operation_does_not_depend_on_the_removal_of_dead_registrations() -> None:
    names = run(with_producers("answers", "silent")).names
    cluster = with_producers("answers", "silent")
    told: list[StepDone] = []
    run(
        cluster,
        Fault(names.index("remove"), error=lambda: UnreachableError("no answer")),
        observer=told.append,
    )
    assert cluster.state.epoch == 1
    assert "dead registrations stay: no answer" in [step.detail for step in told]


def test_a_deadline_that_passes_in_preparation_rolls_back() -> None:
    cluster = with_producers("silent")
    with pytest.raises(DeadlineExceededError, match="readiness"):
        run(cluster, seconds=1.0)
    assert_resting(cluster)
    assert cluster.state.last is not None and "readiness" in cluster.state.last.reason


def test_a_plan_for_another_epoch_is_refused() -> None:
    cluster = with_producers()
    run(cluster)
    attempt = split_attempt(UNSPLIT, 0, RANGES, "late")
    with pytest.raises(ConflictError, match="at epoch 1; the plan was made for epoch 0"):
        Driver(Simulated(cluster).ports).run(attempt, 0, Time(cluster, 60))
    assert_resting(cluster)


def test_there_may_be_nothing_to_resume_or_to_abort() -> None:
    cluster = with_producers()
    driver = Driver(Simulated(cluster).ports)
    assert driver.resume(renewed, Time(cluster, 60)) is None
    assert driver.abort(EndedBy.REQUEST, "asked", Time(cluster, 60)) is None
    assert cluster.history == []


@pytest.mark.parametrize("verb", ["abort", "resume"])
def test_what_somebody_began_after_an_operator_had_looked_is_left_alone(verb: str) -> None:
    """It was asked for another attempt; somebody is at work on this one."""
    cluster = with_producers("answers")
    with pytest.raises(DiedError):
        run(cluster, Fault(number_of_calls() - 4))
    newer = Simulated(cluster)

    class Late(Simulated):
        def peek(self, deadline: Any) -> PartitionState:
            before = super().peek(deadline)
            Driver(newer.ports).abort(EndedBy.REQUEST, "asked", Time(cluster, 60))
            state = newer.claim(Time(cluster, 60))
            newer.record(state, Prepare(split_attempt(state, 0, RANGES, "newer")), Time(cluster, 60))
            return before

        def seen(self) -> PartitionState:
            return self.cluster.state

    late = Late(cluster)
    operations: Any = object.__new__(PartitionOperations)
    operations._parent, operations._deadline, operations._log = PARENT, Time(cluster, 60), late
    operations._session = SimpleNamespace(read_about=lambda *_: None)
    operations._driver = lambda: Driver(late.ports)
    if verb == "abort":
        outcome = operations.abort("not today")
        assert outcome is not None and outcome.attempt.id == "s" and outcome.reason == "asked"
    else:
        with pytest.raises(ConflictError, match="in progress since"):
            operations.resume(None)
    assert newer.token == cluster.holder, "who is at work was not fenced"
    assert cluster.state.attempt is not None and cluster.state.attempt.id == "newer"


def test_a_seal_whose_outcome_is_never_known_ends_with_the_time() -> None:
    cluster = with_producers("answers")
    run(cluster)

    class Unsealable(Simulated):
        def seal(self, subtopics: Iterable[SubTopic], deadline: Any) -> None:
            self.cluster.now += 1.0
            raise UnknownOutcomeError("no answer")

    with pytest.raises(DeadlineExceededError) as caught:
        attempt = merge_attempt(cluster.state, (2, 3), WHOLE)
        Driver(Unsealable(cluster).ports).run(attempt, 1, Time(cluster, 60))
    assert caught.value.changed and "kpsplit resume" in (caught.value.hint or "")
    Driver(Simulated(cluster).ports).resume(renewed, Time(cluster, 60))
    assert cluster.state.phase is Phase.STEADY and cluster.sealed == {"orders.split-3-1"}


class Undeletable(Simulated):
    def delete_abandoned(self, name: str, deadline: Any) -> None:
        raise UnknownOutcomeError("no answer")


def test_a_deletion_of_unknown_outcome_harms_neither_an_abort_nor_a_rollback_nor_a_takeover() -> None:
    def left_behind() -> Cluster:
        cluster = with_producers("answers")
        with pytest.raises(DiedError):
            run(cluster, Fault(number_of_calls() - 4))
        assert cluster.topics
        return cluster

    cluster = left_behind()
    outcome = Driver(Undeletable(cluster).ports).abort(EndedBy.REQUEST, "asked", Time(cluster, 60))
    assert outcome is not None and outcome.result is Result.ROLLED_BACK
    assert_resting(cluster)

    cluster = left_behind()
    attempt = split_attempt(cluster.state, 0, RANGES, "next")
    attempt = replace(attempt, subtopic="orders.split-3-2")
    assert Driver(Undeletable(cluster).ports).run(attempt, 0, Time(cluster, 60)).result is Result.COMMITTED
    assert_resting(cluster)

    cluster = with_producers("answers", "unacknowledged")
    with pytest.raises(DeadlineExceededError) as caught:
        attempt = split_attempt(cluster.state, 0, RANGES, "s")
        Driver(Undeletable(cluster).ports).run(attempt, 0, Time(cluster, 60))
    assert caught.value.changed is True and "orders.split-3-1 is left over" in (caught.value.hint or "")
    assert_resting(cluster)


def test_a_claim_that_is_lost_after_the_rollback_was_recorded_is_no_failed_rollback() -> None:
    cluster = with_producers("answers", "unacknowledged")

    class Taken(Simulated):
        def delete_abandoned(self, name: str, deadline: Any) -> None:
            raise FencedError("another operator took over")

    with pytest.raises(DeadlineExceededError) as caught:
        Driver(Taken(cluster).ports).run(split_attempt(UNSPLIT, 0, RANGES, "s"), 0, Time(cluster, 60))
    assert "rolling back failed" not in str(caught.value) and caught.value.changed is False
    assert_resting(cluster)


@pytest.mark.parametrize("at", range(2, number_of_calls()))
def test_an_operator_that_was_fenced_says_whether_its_attempt_took_effect(at: int) -> None:
    cluster = with_producers("answers")

    def another() -> None:
        other = Driver(Simulated(cluster).ports)
        with suppress(ConflictError):
            other.abort(EndedBy.REQUEST, "asked", Time(cluster, 60))
        other.resume(renewed, Time(cluster, 60))

    try:
        run(cluster, Fault(at, False, hook=another))
    except FencedError as error:
        last = cluster.state.last
        assert last is not None
        committed = last.attempt.id == "s" and last.result is Result.COMMITTED
        assert error.changed is committed
    assert_resting(cluster)


def test_a_retirement_of_unknown_outcome_is_read_back() -> None:
    cluster = with_producers("answers", "unacknowledged")
    names: list[str] = []

    class Forgetful(Simulated):
        def record(self, before: PartitionState, event: Event, deadline: Any) -> PartitionState:
            after = super().record(before, event, deadline)
            names.append(type(event).__name__)
            if names[-1] == "Retire":
                raise UnknownOutcomeError("no answer")
            return after

    with pytest.raises(DeadlineExceededError) as caught:
        attempt = split_attempt(cluster.state, 0, RANGES, "s")
        Driver(Forgetful(cluster).ports).run(attempt, 0, Time(cluster, 60))
    assert names[-1] == "Retire"
    assert caught.value.changed is False
    assert_resting(cluster)


@pytest.mark.parametrize(
    "at", [n for n, name in enumerate(run(with_producers("answers")).names) if name == "record"]
)
@pytest.mark.parametrize("written", [False, True], ids=["not written", "written"])
def test_a_write_of_unknown_outcome_fences_nobody_who_began_something_since(at: int, written: bool) -> None:
    cluster = with_producers("answers")
    newer = Simulated(cluster)

    def begin_another() -> None:
        with suppress(ConflictError):
            Driver(newer.ports).abort(EndedBy.REQUEST, "asked", Time(cluster, 60))
        Driver(newer.ports).resume(renewed, Time(cluster, 60))
        state = newer.claim(Time(cluster, 60))
        merge = merge_attempt(state, tuple(s.id for s in state.lineage.open_segments()), WHOLE)
        attempt = merge if state.epoch else split_attempt(state, 0, RANGES, "newer")
        newer.record(state, Prepare(replace(attempt, id="newer")), Time(cluster, 60))
        raise UnknownOutcomeError("no acknowledgement")

    with pytest.raises(FencedError) as caught:
        run(cluster, Fault(at, written, hook=begin_another))
    assert newer.token == cluster.holder, "who is at work was not fenced"
    assert cluster.state.attempt is not None and cluster.state.attempt.id == "newer"
    assert caught.value.changed is bool(cluster.state.epoch)


@pytest.mark.parametrize("written", [False, True], ids=["not written", "written"])
def test_an_attempt_that_somebody_ended_before_its_prepare_was_read_back_is_not_begun_again(
    written: bool,
) -> None:
    cluster = with_producers("answers")
    first = next(n for n, name in enumerate(run(with_producers("answers")).names) if name == "record")

    def end_it() -> None:
        Driver(Simulated(cluster).ports).abort(EndedBy.REQUEST, "asked", Time(cluster, 60))
        raise UnknownOutcomeError("no acknowledgement")

    simulated = Simulated(cluster, Fault(first, written, hook=end_it))
    if written:
        with pytest.raises(FencedError, match=r"attempt s was ended by another process \(asked\)"):
            run_with(simulated)
    else:
        run_with(simulated)
    assert cluster.state.epoch == (not written)
    assert_resting(cluster)


@pytest.mark.parametrize("event", ["fence", "commit"])
@pytest.mark.parametrize("ended_by", [EndedBy.TAKEOVER, EndedBy.REQUEST])
def test_an_attempt_that_somebody_ended_before_a_write_was_read_back_is_not_done(
    event: str, ended_by: EndedBy
) -> None:
    cluster = with_producers("answers")
    names = run(with_producers("answers")).names
    records = [n for n, name in enumerate(names) if name == "record"]
    holders: list[int] = []

    def end_it() -> None:
        Driver(Simulated(cluster).ports).abort(ended_by, "too late", Time(cluster, 60))
        holders.append(cluster.holder)
        raise UnknownOutcomeError("no acknowledgement")

    with pytest.raises(FencedError, match=r"ended by another process \(too late\)") as caught:
        run(cluster, Fault(records[1 + (event == "commit")], False, hook=end_it))
    assert caught.value.changed is False and "kpsplit status orders/3" in (caught.value.hint or "")
    assert holders == [cluster.holder], "it fences nobody"
    assert cluster.state.epoch == 0
    assert_resting(cluster)


class Unsure(Simulated):
    """The first rollback that it records has an unknown outcome; then ``meanwhile`` is called."""

    def __init__(
        self, cluster: Cluster, *, written: bool, meanwhile: Callable[[], None] | None = None
    ) -> None:
        super().__init__(cluster)
        self._written, self._meanwhile, self.rollbacks = written, meanwhile, 0

    def record(self, before: PartitionState, event: Event, deadline: Any) -> PartitionState:
        first = isinstance(event, Abort) and not self.rollbacks
        self.rollbacks += isinstance(event, Abort)
        if not first or self._written:
            after = super().record(before, event, deadline)
        if first:
            if self._meanwhile is not None:
                self._meanwhile()
            self.token = -1  # its producer is not used again
            raise UnknownOutcomeError("Unknown broker error")
        return after


@pytest.mark.parametrize("verb", ["run", "resume", "abort", "roll back"])
@pytest.mark.parametrize("written", [False, True], ids=["not written", "written"])
def test_a_rollback_of_unknown_outcome_is_decided_by_another_claim(verb: str, written: bool) -> None:
    """Brokers answer so to an operator whose transactional id is taken while it commits."""
    cluster = with_producers("answers", *(["unacknowledged"] if verb == "roll back" else []))
    if verb != "roll back":
        with pytest.raises(DiedError):
            run(cluster, Fault(number_of_calls() - 4))
        assert cluster.state.phase is Phase.FENCED
    simulated = Unsure(cluster, written=written)
    driver, limit = Driver(simulated.ports), Time(cluster, 60)
    outcome: object = None
    if verb == "resume":
        outcome = driver.resume(renewed, limit)
    elif verb == "abort":
        outcome = driver.abort(EndedBy.REQUEST, "asked", limit)
    elif verb == "run":
        outcome = driver.run(split_attempt(cluster.state, 0, RANGES, "next"), 0, limit)
    else:
        with pytest.raises(DeadlineExceededError) as caught:
            run_with(simulated)
        assert caught.value.changed is False and "rolling back failed" not in str(caught.value)
    assert (outcome is None) is (verb == "roll back")
    assert cluster.state.epoch == (verb in ("run", "resume"))
    assert simulated.rollbacks == 2 - written, "what is written is not written again"
    assert "orders.split-3-1" not in cluster.topics
    assert_resting(cluster)


@pytest.mark.parametrize("written", [False, True], ids=["not written", "written"])
def test_a_rollback_of_unknown_outcome_fences_nobody_who_began_something_since(written: bool) -> None:
    cluster = with_producers("answers")
    with pytest.raises(DiedError):
        run(cluster, Fault(number_of_calls() - 4))
    newer = Simulated(cluster)

    def begin_another() -> None:
        Driver(newer.ports).abort(EndedBy.REQUEST, "asked", Time(cluster, 60))
        state = newer.claim(Time(cluster, 60))
        newer.record(state, Prepare(split_attempt(state, 0, RANGES, "newer")), Time(cluster, 60))

    unsure = Unsure(cluster, written=written, meanwhile=begin_another)
    with pytest.raises(FencedError, match="another operator was at work meanwhile") as caught:
        Driver(unsure.ports).run(split_attempt(cluster.state, 0, RANGES, "next"), 0, Time(cluster, 60))
    assert newer.token == cluster.holder, "who is at work was not fenced"
    assert caught.value.changed is None


def test_a_rollback_of_unknown_outcome_says_so_when_no_time_is_left_to_decide_it() -> None:
    cluster = with_producers("answers")
    with pytest.raises(DiedError):
        run(cluster, Fault(number_of_calls() - 4))

    def late() -> None:
        cluster.now += 60

    unsure = Unsure(cluster, written=False, meanwhile=late)
    with pytest.raises(UnknownOutcomeError):
        Driver(unsure.ports).abort(EndedBy.REQUEST, "asked", Time(cluster, 60))
    assert unsure.rollbacks == 1


@pytest.mark.parametrize("written", [False, True], ids=["not written", "written"])
def test_a_freeze_and_a_thaw_of_unknown_outcome_are_decided_by_another_claim(written: bool) -> None:
    cluster = Cluster()
    for phase in (Phase.FROZEN, Phase.STEADY):
        # Its calls: a look (of thaw only), the claim, the write.
        at = 1 if phase is Phase.FROZEN else 2
        log = Simulated(cluster, Fault(at, written, lambda: UnknownOutcomeError("Unknown broker error")))
        operations: Any = object.__new__(PartitionOperations)
        operations._parent, operations._deadline, operations._log = PARENT, Time(cluster, 60), log
        operations._session = SimpleNamespace(read_about=lambda *_: None)
        operations._topics = SimpleNamespace(seal=lambda *_: None)
        operations.freeze("the log was cut off") if phase is Phase.FROZEN else operations.thaw()
        assert cluster.state.phase is phase
        assert log.names[at:] == ["record", "claim", *([] if written else ["record"])]


def test_what_a_dead_operator_left_is_settled_without_fencing_who_begins_something_then() -> None:
    cluster = with_producers("answers")
    with pytest.raises(DiedError):
        run(cluster, Fault(number_of_calls() - 1))
    assert cluster.state.phase is Phase.COMMITTED
    newer = Simulated(cluster)

    class Overtaken(Simulated):
        def record(self, before: PartitionState, event: Event, deadline: Any) -> PartitionState:
            after = super().record(before, event, deadline)
            if isinstance(event, Finish):
                state = newer.claim(deadline)
                merge = merge_attempt(state, tuple(s.id for s in state.lineage.open_segments()), WHOLE)
                newer.record(state, Prepare(merge), deadline)
            return after

    with pytest.raises(FencedError, match="is under way") as caught:
        Driver(Overtaken(cluster).ports).run(split_attempt(UNSPLIT, 0, RANGES, "x"), 1, Time(cluster, 60))
    assert newer.token == cluster.holder and caught.value.changed is True


def dead_in_the_fence() -> Cluster:
    cluster = with_producers("answers")
    with pytest.raises(DiedError):
        run(cluster, Fault(number_of_calls() - 4))
    assert cluster.state.phase is Phase.FENCED
    return cluster


@pytest.mark.parametrize("left", [False, True], ids=["nothing to settle", "an attempt to settle"])
@pytest.mark.parametrize("where", ["renew", "begin"])
def test_a_resume_that_fails_after_it_has_rolled_back_does_not_say_that_nothing_was_changed(
    where: str, left: bool
) -> None:
    cluster = dead_in_the_fence()
    if not left:
        Driver(Simulated(cluster).ports).abort(EndedBy.TAKEOVER, "gone", Time(cluster, 60))
    cluster.producer(1, "unacknowledged")
    revision = cluster.state.revision

    def renew(state: PartitionState, last: Attempt) -> Attempt:
        if where == "begin":
            return renewed(state, last)
        assert (state.revision > revision) is left
        raise CheckFailedError("orders/3 has no leader", hint="wait for it")

    error = CheckFailedError if where == "renew" else DeadlineExceededError
    with pytest.raises(error) as caught:
        Driver(Simulated(cluster).ports).resume(renew, Time(cluster, 60))
    assert caught.value.changed is left
    assert where == "begin" or caught.value.hint == "wait for it"
    assert_resting(cluster)


def test_a_run_that_fails_after_it_has_taken_over_does_not_say_that_nothing_was_changed() -> None:
    cluster = dead_in_the_fence()
    with pytest.raises(ConflictError, match="the plan was made for epoch 7") as caught:
        Driver(Simulated(cluster).ports).run(split_attempt(UNSPLIT, 0, RANGES, "late"), 7, Time(cluster, 60))
    assert caught.value.changed is True
    assert_resting(cluster)


def test_an_abort_that_is_fenced_after_its_rollback_says_that_something_was_changed() -> None:
    cluster = dead_in_the_fence()

    class Taken(Simulated):
        def delete_abandoned(self, name: str, deadline: Any) -> None:
            raise FencedError("another operator took over")

    with pytest.raises(FencedError) as caught:
        Driver(Taken(cluster).ports).abort(EndedBy.REQUEST, "asked", Time(cluster, 60))
    assert caught.value.changed is True
    assert_resting(cluster)


@pytest.mark.parametrize("settled", [False, True])
def test_a_run_that_is_refused_after_it_settled_the_enrolment_says_that_something_was_changed(
    settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    enroller = SimpleNamespace(settle=lambda *what: written.append(what))
    monkeypatch.setattr("kpsplit.control.operations.enroller", lambda *_: enroller)
    monkeypatch.setattr("kpsplit.control.operations.refuse_moved_on", lambda *_: None)
    enrolment = SimpleNamespace(settled=settled, returning=False)
    operations: Any = object.__new__(PartitionOperations)
    operations._parent, operations._deadline, operations._observer = PARENT, None, None
    operations._log = SimpleNamespace(peek=lambda _: UNSPLIT)
    registered = SimpleNamespace(read=lambda _: Registrations())
    operations._session = SimpleNamespace(
        read=lambda _: SimpleNamespace(enrolments={PARENT.topic: enrolment}),
        registrations=lambda: registered,
        admin=SimpleNamespace(describe=lambda topic: topic),
    )
    failed = Check("leader", False, "orders/3 has no leader", "wait for it")
    operations.planner = SimpleNamespace(failed_now=lambda *_: failed)
    with pytest.raises(CheckFailedError, match="has no leader") as caught:
        operations.run(SimpleNamespace(parent=PARENT), 1000, False)
    assert caught.value.changed is not settled and bool(written) is not settled


def test_an_abort_of_what_is_committed_leaves_its_live_operator_alone() -> None:
    cluster = with_producers("answers")
    run(cluster)
    merge = merge_attempt(cluster.state, (2, 3), WHOLE)
    refused: list[KpsplitError] = []

    class Asked(Simulated):
        """While it seals somebody asks to roll it back."""

        def seal(self, subtopics: Iterable[SubTopic], deadline: Any) -> None:
            super().seal(subtopics, deadline)
            attempt = self.cluster.state.attempt
            for fit in (None, lambda now: now.attempt == attempt):
                with pytest.raises(ConflictError, match="can only go forward") as caught:
                    Driver(Simulated(cluster).ports).abort(EndedBy.REQUEST, "asked", Time(cluster, 60), fit)
                refused.append(caught.value)

    outcome = Driver(Asked(cluster).ports).run(merge, 1, Time(cluster, 60))
    assert outcome.result is Result.COMMITTED and cluster.state.phase is Phase.STEADY
    assert [error.changed for error in refused] == [False, False]


@pytest.mark.parametrize(("at", "begun"), [(0, {}), (1, {PARENT: "s"})], ids=["claim", "prepare"])
def test_an_attempt_is_begun_when_it_has_the_claim_and_before_it_is_on_record(
    at: int, begun: dict[PhysicalPartition, str]
) -> None:
    """Who is interrupted while it waits for its turn has begun nothing."""
    waiting = Simulated(Cluster(), Fault(at, False, KeyboardInterrupt))
    operations: Any = object.__new__(PartitionOperations)
    operations._parent, operations._log, operations._topics = PARENT, waiting, waiting
    operations._session = SimpleNamespace(begun={}, registrations=lambda: waiting)
    operations._observer = lambda _: None
    with pytest.raises(KeyboardInterrupt):
        operations._driver().run(split_attempt(UNSPLIT, 0, RANGES, "s"), 0, Time(waiting.cluster, 60))
    assert operations._session.begun == begun
    assert waiting.cluster.history == []
