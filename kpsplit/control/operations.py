"""The operations of one partition: planned, and run after everything was looked at again."""

from __future__ import annotations

from kpsplit.control.enrolment import enroller
from kpsplit.control.planning import Planner
from kpsplit.control.plans import Plan
from kpsplit.control.preconditions import LOG_WHOLE, refusal
from kpsplit.control.runner import Retirement, Runner, refuse_moved_on
from kpsplit.control.session import ClusterSession
from kpsplit.control.status import Report, Retirable
from kpsplit.errors import UsageError, behind_a_change
from kpsplit.splitter.driver import Observer
from kpsplit.splitter.key_range import KeyRange, Sizing
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Attempt, Outcome

LONGEST_PAUSE_MS = 600_000


class PartitionOperations:
    """The operations of one partition. One thread."""

    def __init__(self, session: ClusterSession, parent: PhysicalPartition, observer: Observer) -> None:
        self._session = session
        self._planner = Planner(session.admin)
        self._parent = parent
        self._observer = observer

    def plan_split(
        self, ranges: int, of: KeyRange | None, even: bool, sample: int, sizing: Sizing | None
    ) -> Plan:
        """Plan a split; as ``Admin.plan_split``."""
        deadline = self._session.begin()
        view = self._session.read(deadline)
        return self._planner.split(self._parent, view, ranges, of, even, sample, deadline, sizing)

    def plan_merge(self, range_: KeyRange | None) -> Plan:
        """Plan a merge; as ``Admin.plan_merge``."""
        deadline = self._session.begin()
        return self._planner.merge(self._parent, self._session.read(deadline), range_, deadline)

    def run(self, plan: Plan, max_pause_ms: int, force: bool) -> Report:
        """Run a plan; as ``Admin.run``."""
        deadline = self._session.begin()
        _check_pause(max_pause_ms)
        with self._runner() as runner:
            state = runner.log.peek(deadline)
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
            runner.log.peek(deadline)
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
            attempt = runner.log.peek(deadline).attempt
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
        return Retirement(self._session.admin, runner.log, self._observer)

    def _runner(self) -> Runner:
        session = self._session
        log = session.registrations()
        return Runner(session.admin, log, self._parent, session.operator, self._observer)


def _check_pause(max_pause_ms: int) -> None:
    if not 1 <= max_pause_ms <= LONGEST_PAUSE_MS:
        raise UsageError(
            f"a pause of {max_pause_ms} ms is out of bounds", hint=f"choose 1 to {LONGEST_PAUSE_MS} ms"
        )
