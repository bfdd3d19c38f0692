"""Runs plans: wires the driver with the real ports, and reports how it went."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from kpsplit.clock import Deadline, SystemClock, monotonic
from kpsplit.control.facts import closing_segments, under_way
from kpsplit.control.plans import Plan, new_attempt_id, wall_ms
from kpsplit.control.status import Report
from kpsplit.control.subtopics import PartitionTopics, SubTopicTakenError
from kpsplit.errors import ConflictError, FencedError, InvariantError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.control_log import OperationLog
from kpsplit.kafka.producers_log import ProducersLog
from kpsplit.splitter.driver import Driver, Observer, Ports
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import (
    Attempt,
    EndedBy,
    Event,
    Freeze,
    Outcome,
    PartitionState,
    Phase,
    Prepare,
    Thaw,
)
from kpsplit.splitter.steps import Fit, numbered

PAUSE_REPORT_SECONDS = 1.0
"""How long producers' reports of their pauses are waited for."""


class Runner:
    """Runs operations on one logical partition. Not thread safe; a context manager."""

    def __init__(
        self,
        admin: ClusterAdmin,
        writers: ProducersLog,
        parent: PhysicalPartition,
        operator: str,
        observer: Observer,
    ) -> None:
        self._parent = parent
        self._operator = operator
        self._writers = writers
        self._log = OperationLog(admin.connection, parent)
        self._topics = PartitionTopics(admin, observer)
        self._observer = observer

    def __enter__(self) -> Runner:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the claim and end the clients."""
        self._topics.close()
        self._log.close()

    def peek(self, deadline: Deadline) -> PartitionState:
        """Return the partition's state without claiming it."""
        return self._log.peek(deadline)

    def run(self, plan: Plan, state: PartitionState, max_pause_ms: int, deadline: Deadline) -> Report:
        """Run a plan for the state that was just read."""
        started = monotonic()
        attempt = numbered(plan.attempt(self._operator, max_pause_ms), state)
        self._topics.prepare_markers({s.source for s in closing_segments(state, attempt)})

        def fit(now: PartitionState) -> bool:
            refuse_moved_on(plan, now)
            return True

        with _foreign_name_is_a_conflict():
            outcome = self._driver().run(attempt, plan.epoch, deadline, fit)
        return self._report(outcome, started)

    def resume(
        self, max_pause_ms: int | None, check: Callable[[Attempt], None], deadline: Deadline
    ) -> Report | None:
        """Finish what a dead operator left; ``check`` raises if what would begin anew may not be done."""
        started = monotonic()

        def renew(state: PartitionState, last: Attempt) -> Attempt:
            attempt = replace(
                numbered(last, state),
                id=new_attempt_id(),
                operator=self._operator,
                started_ms=wall_ms(),
                max_pause_ms=max_pause_ms or last.max_pause_ms,
            )
            check(attempt)
            self._topics.prepare_markers({s.source for s in closing_segments(state, attempt)})
            return attempt

        with _foreign_name_is_a_conflict():
            outcome = self._driver().resume(renew, deadline)
        return None if outcome is None else self._report(outcome, started)

    def abort(self, attempt_id: str, reason: str, deadline: Deadline) -> Outcome | None:
        """Roll back an attempt; return how it ended, or None while it is still under way."""
        try:
            self._driver().abort(EndedBy.REQUEST, reason, deadline)
        except FencedError:
            last = self.peek(deadline).last
            if last is None or last.attempt.id != attempt_id:
                raise
        last = self._log.seen().last
        return last if last is not None and last.attempt.id == attempt_id else None

    def thaw(self, deadline: Deadline) -> PartitionState:
        """End a freeze: seal what the interrupted operation emptied, then record the thaw."""
        state = self._log.claim(deadline, lambda now: now.phase is Phase.FROZEN)
        if state.phase is not Phase.FROZEN:
            return state
        self._topics.seal(state.to_seal(), deadline)
        return self._log.record(state, Thaw(), deadline)

    def freeze(self, reason: str, deadline: Deadline) -> bool:
        """Record that the partition needs a human, unless an operation is in progress or it is frozen.

        Returns whether that was recorded now.
        """
        state = self._log.claim(deadline, lambda now: now.phase is Phase.STEADY)
        if state.phase is not Phase.STEADY:
            return False
        self._log.record(state, Freeze(reason), deadline)
        return True

    def record(self, state: PartitionState, event: Event, deadline: Deadline) -> PartitionState:
        """Record an event under the claim."""
        return self._log.record(state, event, deadline)

    def claim(self, deadline: Deadline, fit: Fit) -> PartitionState:
        """Claim the partition's operation where ``fit`` says so."""
        return self._log.claim(deadline, fit)

    def _driver(self) -> Driver:
        return Driver(Ports(self._log, self._writers, self._topics, SystemClock()), self._observer)

    def _report(self, outcome: Outcome, started: float) -> Report:
        """Return the report. Nothing here may fail: it would look as if nothing had been done."""
        seconds = monotonic() - started
        limit = Deadline(PAUSE_REPORT_SECONDS)
        pauses = self._writers.pause_reports(str(self._parent), outcome.attempt.id, limit)
        return Report(outcome, self._log.seen(), pauses, seconds)


def refuse_moved_on(plan: Plan, state: PartitionState) -> None:
    """Do nothing if the plan still fits the state.

    Raises:
        ConflictError: an operation is in progress, or the partition is not as it was when the plan was made.
    """
    busy = under_way(state)
    if busy is not None:
        parent = state.parent
        raise ConflictError(
            busy,
            hint=f"wait; if its operator is dead run: kpsplit resume {parent}, or kpsplit abort {parent}",
        )
    if state.epoch != plan.epoch:
        raise ConflictError(
            f"{state.parent} is at epoch {state.epoch}; the plan was made for epoch {plan.epoch}",
            hint="plan again",
        )
    if state.topic_id != plan.topic_id:
        raise ConflictError(f"topic {state.parent.topic} is not the one of the plan", hint="plan again")
    if state.phase is Phase.STEADY:
        try:
            apply(state, Prepare(numbered(plan.attempt("", 1), state)))
        except InvariantError as error:  # a saved plan that somebody has edited
            raise ConflictError(f"the plan does not fit: {error.message}", hint="plan again") from None


@contextmanager
def _foreign_name_is_a_conflict() -> Iterator[None]:
    try:
        yield
    except SubTopicTakenError as error:
        raise ConflictError(error.message, hint=error.hint, changed=error.changed) from error
