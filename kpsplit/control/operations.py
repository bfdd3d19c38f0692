"""Runs, resumes and aborts the operation of one partition, after everything was looked at again."""

from __future__ import annotations

from kpsplit.control.enrolment import enroller
from kpsplit.control.planning import Planner
from kpsplit.control.plans import Plan
from kpsplit.control.preconditions import LOG_WHOLE, refusal
from kpsplit.control.retirement import Retirable, Retirement
from kpsplit.control.runner import Runner, refuse_moved_on
from kpsplit.control.session import ClusterSession
from kpsplit.control.status import Report
from kpsplit.errors import UsageError, behind_a_change
from kpsplit.splitter.driver import Observer
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Attempt, Outcome

LONGEST_PAUSE_MS = 600_000


class PartitionOperations:
    """The operations of one partition. One thread."""

    def __init__(
        self, session: ClusterSession, planner: Planner, parent: PhysicalPartition, observer: Observer
    ) -> None:
        self._session = session
        self._planner = planner
        self._parent = parent
        self._observer = observer

    def run(self, plan: Plan, max_pause_ms: int, force: bool) -> Report:
        """Run a plan; as ``Admin.run``."""
        deadline = self._session.begin()
        _check_pause(max_pause_ms)
        with self._runner() as runner:
            state = runner.peek(deadline)
            view = self._session.read(deadline)
            refuse_moved_on(plan, state)
            topic = plan.parent.topic
            self._session.registrations().read(deadline).to_ask(topic)  # nobody is refused in the middle
            enrolment = view.enrolments.get(topic)
            if enrolment is not None and not enrolment.settled:
                facts = self._session.admin.describe(topic)
                enroller(self._session, self._observer).settle(facts, enrolment, deadline)
            failed = self._planner.failed_now(plan, view, force, deadline)
            if failed is not None:
                freezes = failed.name == LOG_WHOLE and runner.freeze(failed.message, deadline)
                with behind_a_change(done=freezes):
                    raise refusal(failed)
            return runner.run(plan, state, max_pause_ms, deadline)

    def resume(self, max_pause_ms: int | None, thaw: bool) -> Report | None:
        """Finish what a dead operator left; as ``Admin.resume``."""
        deadline = self._session.begin()
        if max_pause_ms is not None:
            _check_pause(max_pause_ms)
        self._session.read_about(self._parent, deadline)
        with self._runner() as runner:
            runner.peek(deadline)
            if thaw:
                runner.thaw(deadline)
                return None

            def refuse_unfit_attempt(attempt: Attempt) -> None:
                view = self._session.read(deadline)
                failed = self._planner.forbidden_now(self._parent, attempt, view, deadline)
                if failed is not None:
                    raise refusal(failed)

            return runner.resume(max_pause_ms, refuse_unfit_attempt, deadline)

    def abort(self, reason: str) -> Outcome | None:
        """Roll back the attempt under way; as ``Admin.abort``."""
        deadline = self._session.begin()
        self._session.read_about(self._parent, deadline)
        with self._runner() as runner:
            attempt = runner.peek(deadline).attempt
            return None if attempt is None else runner.abort(attempt.id, reason, deadline)

    def retire(self, force: bool) -> list[str]:
        """Delete the sub-topics that nobody needs; as ``Admin.retire``."""
        deadline = self._session.begin()
        self._session.read_about(self._parent, deadline)
        with self._runner() as runner:
            return self._retirement(runner).run(force, deadline)

    def plan_retire(self, force: bool) -> Retirable:
        """Return what ``retire`` would do; as ``Admin.plan_retire``."""
        deadline = self._session.begin()
        self._session.read_about(self._parent, deadline)
        with self._runner() as runner:
            return self._retirement(runner).plan(force, deadline)

    def _retirement(self, runner: Runner) -> Retirement:
        return Retirement(self._session.admin, runner, self._observer)

    def _runner(self) -> Runner:
        session = self._session
        log = session.registrations()
        return Runner(session.admin, log, self._parent, session.operator, self._observer)


def _check_pause(max_pause_ms: int) -> None:
    if not 1 <= max_pause_ms <= LONGEST_PAUSE_MS:
        raise UsageError(
            f"a pause of {max_pause_ms} ms is out of bounds", hint=f"choose 1 to {LONGEST_PAUSE_MS} ms"
        )
