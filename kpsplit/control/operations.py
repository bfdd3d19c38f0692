"""The operations of one partition: everything is looked at again, then the driver runs on the real ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from kpsplit.clock import Deadline, SystemClock, monotonic, wall_ms
from kpsplit.control.enrolment import enroller
from kpsplit.control.planning import Planner, refuse_moved_on
from kpsplit.control.plans import Plan, new_attempt_id, under_way
from kpsplit.control.preconditions import LOG_WHOLE, refusal
from kpsplit.control.retirement import Retirement
from kpsplit.control.session import ClusterSession
from kpsplit.control.status import Report, Retirable
from kpsplit.control.subtopics import PartitionTopics, SubTopicTakenError
from kpsplit.errors import ConflictError, FencedError, UsageError, after_a_change
from kpsplit.kafka.control_log import OperationLog
from kpsplit.splitter.driver import Driver, Observer, Ports, StepDone, record_decided
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import (
    Attempt,
    EndedBy,
    Freeze,
    Outcome,
    PartitionState,
    Phase,
    Thaw,
)
from kpsplit.splitter.steps import closing_segments, numbered

LONGEST_PAUSE_MS = 600_000
PAUSE_REPORT_SECONDS = 1.0
"""How long producers' reports of their pauses are waited for."""


DRAIN_INTERVAL_SECONDS = 1.0
"""How often it is looked how far groups are while they are waited for."""


def await_drained(plan: Callable[[], Retirable], seconds: float, observer: Observer) -> None:
    """Return when groups have drained all that only they hold up, or after so long; report who it is."""
    limit, named = Deadline(seconds), ""
    while limit.left() > 0 and (found := plan()).undrained:
        reason = found.kept[found.undrained[0]]
        if reason != named:
            observer(StepDone("Wait", seconds - limit.left(), reason))
        named = reason
        limit.pause(DRAIN_INTERVAL_SECONDS)


class PartitionOperations:
    """One operation on one partition, as the method of ``Admin`` of that name; in ``with``. One thread."""

    def __init__(self, session: ClusterSession, parent: PhysicalPartition, observer: Observer) -> None:
        self._session = session
        self._parent = parent
        self._observer = observer
        self.planner = Planner(session)

    def __enter__(self) -> PartitionOperations:
        self._deadline = self._session.begin()
        self._log = OperationLog(self._session.connection, self._parent)
        self._topics = PartitionTopics(self._session.admin, self._observer)
        return self

    def __exit__(self, *_: object) -> None:
        self._topics.close()
        self._log.close()

    def run(self, plan: Plan, max_pause_ms: int, force: bool) -> Report:
        _check_pause(max_pause_ms)
        session, deadline, topic = self._session, self._deadline, plan.parent.topic
        state = self._log.peek(deadline)
        view = session.read(deadline)
        refuse_moved_on(plan, state)
        session.registrations().read(deadline).to_ask(topic)  # nobody is refused in the middle
        enrolment = view.enrolments.get(topic)
        unsettled = enrolment is not None and not enrolment.settled and not enrolment.returning
        if enrolment is not None and unsettled:
            enroller(session, self._observer).settle(session.admin.describe(topic), enrolment, deadline)
        with after_a_change(done=unsettled):
            failed = self.planner.failed_now(plan, view, force, deadline)
            if failed is not None:
                freezes = failed.name == LOG_WHOLE and self.freeze(failed.message)
                with after_a_change(done=freezes):
                    raise refusal(failed)
            attempt = numbered(plan.attempt(session.operator, max_pause_ms), state)
            return self._run_checked(plan, state, attempt)

    def _run_checked(self, plan: Plan, state: PartitionState, attempt: Attempt) -> Report:
        started = monotonic()
        self._topics.prepare_markers({s.source for s in closing_segments(state, attempt)})

        def fit(now: PartitionState) -> bool:
            refuse_moved_on(plan, now)
            return True

        with _foreign_name_is_a_conflict():
            outcome = self._driver().run(attempt, plan.epoch, self._deadline, fit)
        return self._report(outcome, started)

    def resume(self, max_pause_ms: int | None) -> Report | None:
        if max_pause_ms is not None:
            _check_pause(max_pause_ms)
        session, deadline = self._session, self._deadline
        session.read_about(self._parent, deadline)
        left = self._log.peek(deadline).attempt
        started = monotonic()

        def fit(now: PartitionState) -> bool:
            if now.attempt not in (None, left):
                raise ConflictError(
                    under_way(now) or "", hint=f"it began meanwhile; look at: kpsplit status {self._parent}"
                )
            return True

        def renew(state: PartitionState, last: Attempt) -> Attempt:
            attempt = replace(
                numbered(last, state),
                id=new_attempt_id(),
                operator=session.operator,
                started_ms=wall_ms(),
                max_pause_ms=max_pause_ms or last.max_pause_ms,
            )
            failed = self.planner.forbidden_now(self._parent, attempt, session.read(deadline), deadline)
            if failed is not None:
                raise refusal(failed)
            self._topics.prepare_markers({s.source for s in closing_segments(state, attempt)})
            return attempt

        with _foreign_name_is_a_conflict():
            outcome = self._driver().resume(renew, deadline, fit)
        return None if outcome is None else self._report(outcome, started)

    def thaw(self) -> None:
        """End a freeze: seal what the interrupted operation emptied, then record the thaw."""
        self._session.read_about(self._parent, self._deadline)
        self._log.peek(self._deadline)
        state = self._log.claim(self._deadline, lambda now: now.phase is Phase.FROZEN)
        if state.phase is Phase.FROZEN:
            self._topics.seal(state.to_seal(), self._deadline)
            record_decided(self._log, state, Thaw(), self._deadline)

    def abort(self, reason: str) -> Outcome | None:
        """Roll back the attempt under way; return how it ended, or None: none was, or it still is."""
        deadline = self._deadline
        self._session.read_about(self._parent, deadline)
        attempt = self._log.peek(deadline).attempt
        if attempt is None:
            return None
        try:
            self._driver().abort(EndedBy.REQUEST, reason, deadline, lambda now: now.attempt == attempt)
        except FencedError:
            last = self._log.peek(deadline).last
            if last is None or last.attempt.id != attempt.id:
                raise
        last = self._log.seen().last
        return last if last is not None and last.attempt.id == attempt.id else None

    def retire(self, force: bool) -> list[str]:
        return self._retirement().run(force, self._deadline)

    def plan_retire(self, force: bool) -> Retirable:
        return self._retirement().plan(force, self._deadline)

    def _retirement(self) -> Retirement:
        self._session.read_about(self._parent, self._deadline)
        session, topic = self._session, self._parent.topic
        return Retirement(
            session.admin,
            self._log,
            lambda deadline: session.read(deadline).enrolments.get(topic),
            self._observer,
        )

    def freeze(self, reason: str) -> bool:
        """Record that the partition needs a human, unless an operation is in progress or it is frozen.

        Returns whether that was recorded now.
        """
        state = self._log.claim(self._deadline, lambda now: now.phase is Phase.STEADY)
        if state.phase is not Phase.STEADY:
            return False
        record_decided(self._log, state, Freeze(reason), self._deadline)
        return True

    def _driver(self) -> Driver:
        ports = Ports(self._log, self._session.registrations(), self._topics, SystemClock())

        def begun(attempt_id: str) -> None:
            self._session.begun[self._parent] = attempt_id

        return Driver(ports, self._observer, begun)

    def _report(self, outcome: Outcome, started: float) -> Report:
        """Return the report. Nothing here may fail: it would look as if nothing had been done."""
        seconds = monotonic() - started
        limit = Deadline(PAUSE_REPORT_SECONDS)
        writers = self._session.registrations()
        pauses = writers.pause_reports(str(self._parent), outcome.attempt.id, limit)
        return Report(outcome, self._log.seen(), pauses, seconds)


def _check_pause(max_pause_ms: int) -> None:
    if not 1 <= max_pause_ms <= LONGEST_PAUSE_MS:
        raise UsageError(
            f"a pause of {max_pause_ms} ms is out of bounds", hint=f"choose 1 to {LONGEST_PAUSE_MS} ms"
        )


@contextmanager
def _foreign_name_is_a_conflict() -> Iterator[None]:
    try:
        yield
    except SubTopicTakenError as error:
        raise ConflictError(error.message, hint=error.hint, changed=error.changed) from error
