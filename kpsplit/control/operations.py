"""Everything that the command line does to a cluster, as one façade (protocol, sections 4 to 8)."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from kpsplit.control.doctor import Findings, SetAside, diagnose, examine
from kpsplit.control.enrolment import (
    Enroller,
    check_records,
    existing_enrolment,
    refuse_unfit,
    wait_a_lease,
    withdraw_commits,
)
from kpsplit.control.group_progress import PartitionProgress, group_progress
from kpsplit.control.own_topics import AGAIN, create_own_topics, settings_to_write, write_settings
from kpsplit.control.planning import Planner
from kpsplit.control.plans import Check, HotKey, Plan
from kpsplit.control.preconditions import LOG_WHOLE, refusal
from kpsplit.control.retirement import Retirable, Retirement
from kpsplit.control.runner import Runner, refuse_moved_on
from kpsplit.control.seeking import Forgettable, Seek, Seeker, Target
from kpsplit.control.slots_topic import SlotsTopics
from kpsplit.control.status import PartitionStatus, Report, statuses
from kpsplit.errors import ConflictError, UsageError, behind_a_change
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin, no_partition
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.kafka.producers_log import AcknowledgedWriter, ProducersLog
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.driver import Observer, StepDone
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Attempt, Outcome, PartitionState
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.keys import CONTROL_TOPIC
from kpsplit.splitter.registrations import Registrations
from kpsplit.splitter.sizing import Sizing

__all__ = [
    "Operations",
    "Plan",
    "Check",
    "HotKey",
    "Report",
    "PartitionStatus",
    "Observer",
    "StepDone",
    "ignore_steps",
]


FIRST_CONTACT_SECONDS = 6.0
LONGEST_PAUSE_MS = 600_000
MOST_OFFSETS_PARTITIONS = 10_000


def ignore_steps(_step: StepDone) -> None:
    """Observe nothing."""


def operator_name() -> str:
    """Return how an operator is called in the control topic: ``user@host pid N``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "somebody"
    return f"{user}@{socket.gethostname()} pid {os.getpid()}"


class Operations:
    """Operations on one cluster. A context manager; one thread.

    Args:
        connection: how to reach the cluster.
        timeout_seconds: for each call as a whole (enrolment and operations wait for leases within it).
    """

    def __init__(self, connection: Connection, timeout_seconds: float = 60.0) -> None:
        self._connection = connection
        self._timeout = timeout_seconds
        self._operator = operator_name()
        self._admin = ClusterAdmin(connection)
        self._planner = Planner(connection, self._admin)
        self._control: ControlTail | None = None
        self._writers: ProducersLog | None = None
        self._writer: AcknowledgedWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all clients."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._writers is not None:
            self._writers.close()
            self._writers = None

    def initialise(self, lease_ms: int | None = None, offsets_partitions: int | None = None) -> list[str]:
        """Create kpsplit's topics; return the names of those that were created.

        None: what is set already, else 5000 ms and 16 partitions.

        Raises:
            CheckFailedError: one of them exists with another policy, partition count or replication factor;
                nothing was changed.
            ConflictError: another lease is set and topics are enrolled already.
        """
        deadline = self._begin()
        if offsets_partitions is not None and not 1 <= offsets_partitions <= MOST_OFFSETS_PARTITIONS:
            raise UsageError(f"{offsets_partitions} is no number of partitions for the offset log")
        created = create_own_topics(self._connection, self._admin, offsets_partitions, deadline)
        with behind_a_change(AGAIN, done=bool(created)):
            tail = self._control = self._control or ControlTail(self._connection)
            settings = settings_to_write(tail.read_all(deadline), lease_ms)
            if settings is not None:
                wait_a_lease(tail, deadline)  # an enrolment waits for the new lease only
                write_settings(self._acknowledged(), settings, deadline)
        return created

    def enrol(
        self,
        topic: str,
        partitioner: Partitioner,
        observer: Observer = ignore_steps,
        *,
        slots: int | None = None,
    ) -> Enrolment:
        """Enrol a topic: make its slots topic, record it, wait one lease, record that it is settled.

        Idempotent; again it repairs: what is missing is made, and slots are added where the topic has grown.
        ``slots``: how many per partition, None for what the topic has, else the default.

        Raises:
            UsageError: unknown, kpsplit's own, or compacted topic; or a partitioner that real records of the
                topic contradict; or a number of slots out of bounds.
            ConflictError: enrolled otherwise already.
            CheckFailedError: a topic that is no slots topic stands in its place.
        """
        deadline = self._begin()
        view = self._read(deadline)
        if not view.initialised:
            raise UsageError("kpsplit is not set up on this cluster", hint="run: kpsplit init")
        facts = self._admin.describe(topic)
        refuse_unfit(facts, view)
        known = existing_enrolment(facts, partitioner, view)
        if known is None:
            check = check_records(self._connection, self._admin, facts, partitioner, deadline)
            if not check.ok and not check.forceable:
                raise UsageError(f"topic {topic}: {check.message}", hint=check.remedy)
        groups: tuple[str, ...] = ()
        if known is None and topic in view.enrolments:  # of the topic that had this name before
            groups = withdraw_commits(self._connection, self._admin, self._acknowledged, facts, deadline)
            for group in groups:
                observer(StepDone("Withdraw", 0.0, f"what {group} had committed of the topic before"))
        with behind_a_change(done=bool(groups)):
            return self._enroller(observer).enrol(facts, partitioner, known, slots, deadline)

    def plan_split(
        self,
        parent: PhysicalPartition,
        ranges: int,
        *,
        of: KeyRange | None = None,
        even: bool = False,
        sample: int = 20_000,
        sizing: Sizing | None = None,
    ) -> Plan:
        """Plan the split of an open segment; ``of`` names it by its range (None: the only one there is).

        ``sizing``: boundaries that were found otherwise; the sample then checks the partitioner only.
        """
        deadline, tail = self._begin(), sample
        return self._planner.split(parent, self._read(deadline), ranges, of, even, tail, deadline, sizing)

    def plan_merge(self, parent: PhysicalPartition, range_: KeyRange | None = None) -> Plan:
        """Plan the merge of the open segments in a range; None: of all, back into the parent."""
        deadline = self._begin()
        return self._planner.merge(parent, self._read(deadline), range_, deadline)

    def run(
        self,
        plan: Plan,
        *,
        max_pause_ms: int,
        observer: Observer = ignore_steps,
        force: bool = False,
    ) -> Report:
        """Run a plan.

        Raises:
            ConflictError: an operation is in progress (the message says whose and since when), or the
                partition is not at the plan's epoch any more.
            CheckFailedError: a check of the plan fails now; ``force`` passes over forceable ones.
            DeadlineExceededError: rolled back, see ``changed``.
        """
        deadline = self._begin()
        _check_pause(max_pause_ms)
        with self._runner(plan.parent, observer) as runner:
            state = runner.peek(deadline)
            view = self._read(deadline)
            refuse_moved_on(plan, state)
            self._registrations().read(deadline).to_ask(plan.parent.topic)  # nobody is refused in the middle
            enrolment = view.enrolments.get(plan.parent.topic)
            if enrolment is not None and not enrolment.settled:
                facts = self._admin.describe(plan.parent.topic)
                self._enroller(observer).settle(facts, enrolment, deadline)
            failed = self._planner.failed_now(plan, view, force, deadline)
            if failed is not None:
                freezes = failed.name == LOG_WHOLE and runner.freeze(failed.message, deadline)
                with behind_a_change(done=freezes):
                    raise refusal(failed)
            return runner.run(plan, state, max_pause_ms, deadline)

    def resume(
        self,
        parent: PhysicalPartition,
        *,
        max_pause_ms: int | None = None,
        observer: Observer = ignore_steps,
        thaw: bool = False,
    ) -> Report | None:
        """Finish what a dead operator left; None if there is nothing. ``thaw``: end a freeze first.

        Raises:
            KpsplitError: what was begun anew may not be done any more (a check of ``plan`` fails that
                ``--force`` does not pass over), or as ``run``.
        """
        deadline = self._begin()
        if max_pause_ms is not None:
            _check_pause(max_pause_ms)
        self._read_about(parent, deadline)
        with self._runner(parent, observer) as runner:
            runner.peek(deadline)
            if thaw:
                runner.thaw(deadline)
                return None

            def refuse_unfit_attempt(attempt: Attempt) -> None:
                failed = self._planner.forbidden_now(parent, attempt, self._read(deadline), deadline)
                if failed is not None:
                    raise refusal(failed)

            return runner.resume(max_pause_ms, refuse_unfit_attempt, deadline)

    def abort(
        self, parent: PhysicalPartition, reason: str, observer: Observer = ignore_steps
    ) -> Outcome | None:
        """Roll back the attempt under way; None if there is none.

        Raises:
            ConflictError: it is committed and can only go forward.
        """
        deadline = self._begin()
        self._read_about(parent, deadline)
        with self._runner(parent, observer) as runner:
            attempt = runner.peek(deadline).attempt
            return None if attempt is None else runner.abort(attempt.id, reason, deadline)

    def retire(
        self, parent: PhysicalPartition, *, observer: Observer = ignore_steps, force: bool = False
    ) -> list[str]:
        """Delete the sub-topics that are sealed and drained, or abandoned; return their names.

        Sub-topics that are kept are told to the observer, with the reason.

        Raises:
            CheckFailedError: there was something to retire and nothing could be; names the groups.
        """
        deadline = self._begin()
        self._read_about(parent, deadline)
        with self._runner(parent, observer) as runner:
            return Retirement(self._connection, self._admin, runner, observer).run(force, deadline)

    def plan_retire(
        self, parent: PhysicalPartition, *, observer: Observer = ignore_steps, force: bool = False
    ) -> Retirable:
        """Return what ``retire`` would delete now, and what it would keep; changes nothing."""
        deadline = self._begin()
        self._read_about(parent, deadline)
        with self._runner(parent, observer) as runner:
            return Retirement(self._connection, self._admin, runner, observer).plan(force, deadline)

    def view(self) -> ControlView:
        """Return the control topic's view, read to its present end."""
        return self._read(self._begin())

    def producers(self) -> Registrations:
        """Return the registrations, read to the producers topic's present end."""
        deadline = self._begin()
        self._read(deadline)
        return self._registrations().read(deadline)

    def status(self, topic: str | None = None, partition: int | None = None) -> list[PartitionStatus]:
        """Return the status of the enrolled partitions: all, a topic's, or one."""
        deadline = self._begin()
        view = self._read(deadline)
        registrations = self._registrations().read(deadline)
        return statuses(self._admin, view, registrations, topic, partition)

    def offsets(self, group: str, topic: str, partition: int | None = None) -> list[PartitionProgress]:
        """Return how far a group has come in a topic's partitions, or in one of them.

        Raises:
            UsageError: there is no such topic or partition, or the group never committed there.
        """
        deadline = self._begin()

        def view() -> ControlView:
            return self._read(deadline) if CONTROL_TOPIC in self._admin.topics() else ControlView()

        return group_progress(self._connection, self._admin, view, group, topic, partition, deadline)

    def plan_seek(
        self,
        group: str,
        parent: PhysicalPartition,
        range_: KeyRange,
        target: Target,
        *,
        new_group: bool = False,
    ) -> Seek:
        """Return what a seek of a group would do.

        Raises:
            UsageError: the topic is not enrolled; or, unless it is to be a ``new_group``, the group has
                neither commits nor members. ConflictError: the group has members on the topic.
        """
        deadline = self._begin()
        state = self._state(parent, deadline)
        seeker = Seeker(self._connection, self._admin)
        return seeker.plan(group, state, range_, target, deadline, new_group=new_group)

    def seek(self, seek: Seek) -> None:
        """Carry out a seek.

        Raises:
            ConflictError: the group has members on the topic now, or the partition was split or merged.
        """
        deadline = self._begin()
        if self._state(seek.state.parent, deadline).epoch != seek.state.epoch:
            raise ConflictError(f"{seek.state.parent} was split or merged meanwhile", hint="retry")
        Seeker(self._connection, self._admin).carry_out(seek, self._operator, deadline)

    def doctor(self) -> list[Check]:
        """Look at everything that kpsplit owns and return the checks, failed ones with a remedy."""
        return diagnose(self.findings())

    def findings(self) -> Findings:
        """Look at everything that kpsplit owns and return what the doctor judges."""
        return examine(self._connection, self._admin, self._begin())

    def forget_records(self, records: Iterable[SetAside]) -> None:
        """Remove records that ``findings`` has set aside.

        The caller vouches that no producer behind them runs: one that does would not be waited for any more.

        Raises:
            ConflictError: something else stands there now; nothing was removed.
        """
        wanted, there = set(records), set(self.findings().set_aside)
        if not wanted <= there:
            missing = min(wanted - there).name
            raise ConflictError(f"{missing} is not what it was any more", hint="run: kpsplit doctor")
        deadline, where = self._begin(), {(r.topic, r.partition) for r in wanted}
        for topic, partition in sorted(where):
            keys = {r.key for r in wanted if (r.topic, r.partition) == (topic, partition)}
            tombstones = [(key, None) for key in sorted(keys)]
            self._acknowledged().write_all(topic, tombstones, deadline, partition=partition)

    def plan_forget_group(self, group: str, topic: str) -> Forgettable:
        """Return what ``forget_group`` would remove.

        Raises:
            UsageError: the topic is not enrolled, or the group has committed nothing there.
            ConflictError: the group has members on it.
        """
        deadline = self._begin()
        first = self._state(PhysicalPartition(topic, 0), deadline)
        count = self._admin.topics()[topic]
        rest = [self._state(PhysicalPartition(topic, n), deadline) for n in range(1, count)]
        return Seeker(self._connection, self._admin).plan_forget(group, [first, *rest], deadline)

    def forget_group(self, found: Forgettable) -> None:
        """Remove what a group has committed on a topic: it is as if it had never read it.

        Raises:
            ConflictError: the group has members on the topic now.
        """
        Seeker(self._connection, self._admin).forget(found, self._begin())

    def _begin(self) -> Deadline:
        """Begin a call: brokers that cannot be reached are an error at once, not at its deadline."""
        self._admin.brokers(FIRST_CONTACT_SECONDS)
        return Deadline(self._timeout)

    def _tail(self) -> ControlTail:
        if self._control is None:
            if CONTROL_TOPIC not in self._admin.topics():
                raise UsageError(f"there is no topic {CONTROL_TOPIC}", hint="run: kpsplit init")
            self._control = ControlTail(self._connection)
        return self._control

    def _read(self, deadline: Deadline) -> ControlView:
        return self._tail().read_all(deadline)

    def _read_about(self, parent: PhysicalPartition, deadline: Deadline) -> None:
        """Read the control topic; refuse a topic that is not enrolled, and a partition that it does not have.

        Where the topic is gone, what is left of its partitions can still be dealt with.
        """
        view = self._read(deadline)
        if view.state(parent) is None:
            raise view.not_enrolled(parent.topic)
        count = self._admin.topics().get(parent.topic)
        if count is not None and parent.partition >= count and parent not in view.states:
            raise no_partition(parent, count)

    def _state(self, parent: PhysicalPartition, deadline: Deadline) -> PartitionState:
        """Return a partition's state; the topic has to have such a partition."""
        view = self._read(deadline)
        state = view.state(parent)
        count = self._admin.topics().get(parent.topic)
        if count is None:
            raise UsageError(f"there is no topic {parent.topic}", hint="check the name")
        if parent.partition >= count:
            raise no_partition(parent, count)
        if state is None:
            raise view.not_enrolled(parent.topic)
        return state

    def _registrations(self) -> ProducersLog:
        if self._writers is None:
            self._writers = ProducersLog(self._connection)
        return self._writers

    def _acknowledged(self) -> AcknowledgedWriter:
        if self._writer is None:
            self._writer = AcknowledgedWriter(self._connection, "operator")
        return self._writer

    def _enroller(self, observer: Observer) -> Enroller:
        slots_topics = SlotsTopics(self._connection, self._admin)
        return Enroller(self._tail(), self._acknowledged, slots_topics, observer)

    def _runner(self, parent: PhysicalPartition, observer: Observer) -> Runner:
        return Runner(self._connection, self._admin, self._registrations(), parent, self._operator, observer)


def _check_pause(max_pause_ms: int) -> None:
    if not 1 <= max_pause_ms <= LONGEST_PAUSE_MS:
        raise UsageError(
            f"a pause of {max_pause_ms} ms is out of bounds", hint=f"choose 1 to {LONGEST_PAUSE_MS} ms"
        )
