"""What the command line does to a cluster, for programs.

    from kpsplit import Admin, Partitioner, PhysicalPartition

    with Admin({"bootstrap.servers": "localhost:9092"}) as admin:
        admin.initialise()
        admin.enrol("orders", Partitioner.CONSISTENT_RANDOM)
        report = admin.split(PhysicalPartition("orders", 3), 4)
        print(report.seconds, admin.lineage(PhysicalPartition("orders", 3)).open_segments())

Every method can raise a ``kpsplit.errors.KpsplitError``: ``message`` says what is wrong, ``hint`` what to do,
``changed`` whether something was changed before. ``UnreachableError``, ``AuthorizationError`` and
``DeadlineExceededError`` can come from each of them; the docstrings name the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from kpsplit.control import doctor, enrolment, examination
from kpsplit.control.doctor import Findings, SetAside
from kpsplit.control.operations import PartitionOperations, await_drained
from kpsplit.control.plans import Check, HotKey, Plan
from kpsplit.control.seeking import Forgettable, Seek, Seeker, SeekTarget, Whence
from kpsplit.control.session import ClusterSession, ignore_steps
from kpsplit.control.status import (
    GroupDrain,
    PartitionProgress,
    PartitionStatus,
    Report,
    Retirable,
    group_drains,
    group_progress,
    progress_of_groups,
    statuses,
)
from kpsplit.kafka.connection import Connection, read_properties
from kpsplit.splitter.control_plane import ControlView, Registrations
from kpsplit.splitter.driver import Observer, StepDone
from kpsplit.splitter.key_range import KeyRange, Sizing
from kpsplit.splitter.lineage import Lineage, PhysicalPartition, Segment
from kpsplit.splitter.partition_state import Outcome
from kpsplit.splitter.records.control import Enrolment, Partitioner

__all__ = [
    "Admin",
    "PhysicalPartition",
    "KeyRange",
    "Partitioner",
    "Enrolment",
    "Lineage",
    "Segment",
    "Plan",
    "Check",
    "HotKey",
    "Report",
    "Outcome",
    "PartitionStatus",
    "PartitionProgress",
    "GroupDrain",
    "Seek",
    "SeekTarget",
    "Whence",
    "Retirable",
    "Forgettable",
    "Findings",
    "SetAside",
    "Observer",
    "StepDone",
    "ignore_steps",
    "Connection",
    "read_properties",
]
"""The names of programs that operate; ``kpsplit`` has them all."""

MAX_PAUSE_MS = 10_000
"""Milliseconds for which an operation may hold up producers, unless another limit is given."""


class Admin:
    """Sets up, splits, merges and looks at one cluster. A context manager.

    Not thread safe: one thread at a time. Use one per thread; several may work on one cluster. Nothing runs
    between calls. Every call reads the cluster's present state first.

    Args:
        config: librdkafka's properties of the connection (``bootstrap.servers``, ``security.protocol`` …).
        timeout_seconds: for each call as a whole; enrolment and operations wait for leases within it.

    Raises:
        ConfigurationError: a property is not one.
    """

    def __init__(self, config: Mapping[str, Any] | Connection, timeout_seconds: float = 60.0) -> None:
        connection = config if isinstance(config, Connection) else Connection(config)
        self._session = ClusterSession(connection, timeout_seconds)
        self._seeker = Seeker(self._session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all clients."""
        self._session.close()

    # -- setting up ----------------------------------------------------------------------------------

    def initialise(self, lease_ms: int | None = None, offsets_partitions: int | None = None) -> list[str]:
        """Create kpsplit's topics; return the names of those that were created. Idempotent.

        Args:
            lease_ms: the lease of producers, in milliseconds. None: what is set already, else 5000.
            offsets_partitions: of the offset log. None: what it has already, else 16.

        Raises:
            CheckFailedError: one of them exists with another policy, partition count or replication factor;
                nothing was changed.
            ConflictError: another lease is set and topics are enrolled already.
        """
        return enrolment.initialise(self._session, lease_ms, offsets_partitions)

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
        With another number of slots than the topic has, groups go over to it while they run; this waits until
        no group has a member on the former ones.

        Args:
            topic: of an application, not compacted.
            partitioner: the one that its producers use; it is compared with real records.
            observer: called with each step that is done, in this thread.
            slots: how many per partition. None: what the topic has, else the default; a change that was
                broken off is finished.

        Raises:
            UsageError: unknown, kpsplit's own, or compacted topic; or a partitioner that real records of the
                topic contradict; or a number of slots out of bounds.
            ConflictError: enrolled otherwise already, or another change of the slots is not finished.
            CheckFailedError: a topic that is no slots topic stands in its place; or the slots cannot be
                changed, because a group keeps state by them.
            AuthorizationError: the slots cannot be changed, because groups may be hidden from us.
        """
        return enrolment.enrol(self._session, topic, partitioner, observer, slots)

    def plan_unenrol(self, topic: str) -> list[Check]:
        """Return what forbids leading a topic back to plain clients now: failed checks. Changes nothing.

        Raises:
            UsageError: the topic is not enrolled and never was. AuthorizationError: groups may be hidden.
        """
        return enrolment.plan_unenrol(self._session, topic)

    def unenrol(
        self, topic: str, observer: Observer = ignore_steps, *, wait_seconds: float = 0.0
    ) -> Enrolment:
        """Lead a topic back to plain clients; return its last record. Where a run broke off it goes on.

        Waits for two leases, and until each group stands at one ordinary offset in each partition.

        Args:
            topic: enrolled, and neither split nor with sub-topics that are not retired.
            observer: called with each step that is done, in this thread, and with groups that are waited for.
            wait_seconds: how long groups are waited for before anything is recorded.

        Raises:
            UsageError: the topic is not enrolled and never was.
            CheckFailedError: something forbids it; the hint is the command that helps.
            DeadlineExceededError: a group did not come so far in time; if ``changed``, the topic is on its
                way.
            ConflictError: somebody enrolled the topic otherwise meanwhile.
        """
        return enrolment.unenrol(self._session, topic, observer, wait_seconds)

    # -- split and merge -----------------------------------------------------------------------------

    def split(
        self,
        parent: PhysicalPartition,
        ranges: int,
        *,
        of: KeyRange | None = None,
        even: bool = False,
        max_pause_ms: int = MAX_PAUSE_MS,
        observer: Observer = ignore_steps,
        force: bool = False,
    ) -> Report:
        """Plan a split and run it: ``plan_split`` and ``run``."""
        plan = self.plan_split(parent, ranges, of=of, even=even)
        return self.run(plan, max_pause_ms=max_pause_ms, observer=observer, force=force)

    def merge(
        self,
        parent: PhysicalPartition,
        range_: KeyRange | None = None,
        *,
        max_pause_ms: int = MAX_PAUSE_MS,
        observer: Observer = ignore_steps,
        force: bool = False,
    ) -> Report:
        """Plan a merge and run it: ``plan_merge`` and ``run``."""
        plan = self.plan_merge(parent, range_)
        return self.run(plan, max_pause_ms=max_pause_ms, observer=observer, force=force)

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
        """Plan the split of an open segment; changes nothing.

        Args:
            parent: the partition as applications know it.
            ranges: into how many key ranges, 2 to 64.
            of: the range of the segment to split. None: the only one there is.
            even: ranges of one width, not of one load.
            sample: so many of the newest records are looked at.
            sizing: boundaries that were found otherwise; the sample then checks the partitioner only.

        Raises:
            UsageError: no such partition or range, not enrolled, or ``ranges`` is out of bounds.
        """
        return self._on(parent).planner.split(parent, ranges, of, even, sample, sizing)

    def plan_merge(self, parent: PhysicalPartition, range_: KeyRange | None = None) -> Plan:
        """Plan the merge of the open segments in a range (None: of all, back into the parent).

        Changes nothing.

        Raises:
            UsageError: the partition is not split or not enrolled, or open ranges do not add up to the range.
        """
        return self._on(parent).planner.merge(parent, range_)

    def run(
        self,
        plan: Plan,
        *,
        max_pause_ms: int,
        observer: Observer = ignore_steps,
        force: bool = False,
    ) -> Report:
        """Run a plan.

        Args:
            plan: as ``plan_split`` or ``plan_merge`` made it; it may have been saved meanwhile.
            max_pause_ms: roll back if producers would be held up for longer, 1 to 600,000 milliseconds.
            observer: called with each step that is done, in this thread.
            force: pass over failed checks that allow it.

        Raises:
            ConflictError: an operation is in progress (the message says whose and since when), the partition
                is not at the plan's epoch any more, or another process ended what was begun.
            CheckFailedError: a check of the plan fails now; ``force`` passes over forceable ones.
            DeadlineExceededError: rolled back, see ``changed``.
        """
        with self._on(plan.parent, observer) as operations:
            return operations.run(plan, max_pause_ms, force)

    def resume(
        self,
        parent: PhysicalPartition,
        *,
        max_pause_ms: int | None = None,
        observer: Observer = ignore_steps,
        thaw: bool = False,
    ) -> Report | None:
        """Finish what a dead operator left; None if there is nothing.

        Args:
            parent: the partition.
            max_pause_ms: as in ``run``. None: what the dead operator had given.
            observer: called with each step that is done, in this thread.
            thaw: end a freeze, and nothing else.

        Raises:
            KpsplitError: what was begun anew may not be done any more (a check of ``plan`` fails that
                ``force`` does not pass over), or as ``run``.
        """
        with self._on(parent, observer) as operations:
            if thaw:
                operations.thaw()
                return None
            return operations.resume(max_pause_ms)

    def abort(
        self, parent: PhysicalPartition, reason: str, observer: Observer = ignore_steps
    ) -> Outcome | None:
        """Roll back the attempt under way; None if there is none. ``reason`` is recorded.

        Raises:
            ConflictError: it is committed and can only go forward.
        """
        with self._on(parent, observer) as operations:
            return operations.abort(reason)

    def retire(
        self,
        parent: PhysicalPartition,
        *,
        observer: Observer = ignore_steps,
        force: bool = False,
        wait_seconds: float = 0.0,
    ) -> list[str]:
        """Delete the sub-topics that are sealed and drained, or abandoned; return their names.

        The observer hears of sub-topics that are kept, with the reason. ``force``: delete those too that a
        group has not drained; what it has not read is lost to it. ``wait_seconds``: wait so long first until
        groups have drained them; the observer hears of whom it waits for.

        Raises:
            CheckFailedError: there was something to retire and nothing could be; names the groups.
        """
        if not force:
            await_drained(lambda: self.plan_retire(parent), wait_seconds, observer)
        with self._on(parent, observer) as operations:
            return operations.retire(force)

    def plan_retire(
        self, parent: PhysicalPartition, *, observer: Observer = ignore_steps, force: bool = False
    ) -> Retirable:
        """Return what ``retire`` would delete now, and what it would keep; changes nothing."""
        with self._on(parent, observer) as operations:
            return operations.plan_retire(force)

    def begun(self, parent: PhysicalPartition) -> str | None:
        """Return the id of the attempt that this object began last on a partition, None if there is none."""
        return self._session.begun.get(parent)

    # -- looking -------------------------------------------------------------------------------------

    def lineage(self, parent: PhysicalPartition) -> Lineage:
        """Return the segments of a partition; ``open_segments()`` of it are those that take records.

        Raises:
            UsageError: there is no such partition, or its topic is not enrolled.
        """
        return self._session.state(parent, self._session.begin()).lineage

    def status(self, topic: str | None = None, partition: int | None = None) -> list[PartitionStatus]:
        """Return the status of the enrolled partitions: all, a topic's, or one.

        Raises:
            UsageError: the topic is not enrolled, or has no such partition.
        """
        deadline = self._session.begin()
        view = self._session.read(deadline)
        registrations = self._session.registrations().read(deadline)
        return statuses(self._session.admin, view, registrations, topic, partition, deadline)

    def offsets(self, group: str, topic: str, partition: int | None = None) -> list[PartitionProgress]:
        """Return how far a group has come in a topic's partitions, or in one of them.

        Raises:
            UsageError: there is no such topic or partition, or the group never committed there.
        """
        session, deadline = self._session, self._session.begin()
        return group_progress(
            session.admin, lambda: session.view_if_any(deadline), group, topic, partition, deadline
        )

    def offsets_of_groups(
        self, topic: str, partition: int | None = None
    ) -> dict[str, list[PartitionProgress]]:
        """Return how far each group has come that has commits or members in a topic, by the group's name.

        Raises:
            UsageError: there is no such topic or partition. AuthorizationError: groups may be hidden from us.
        """
        session, deadline = self._session, self._session.begin()
        return progress_of_groups(
            session.admin, lambda: session.view_if_any(deadline), topic, partition, deadline
        )

    def drains(self, parent: PhysicalPartition) -> list[GroupDrain]:
        """Return what each group that has committed there has still to read of closed segments, by segment.

        Looks twice, up to 6 s apart, for an estimate of the time.

        Raises:
            UsageError: there is no such partition. AuthorizationError: groups may be hidden from us.
        """
        session, deadline = self._session, self._session.begin()
        return group_drains(
            lambda: progress_of_groups(
                session.admin,
                lambda: session.view_if_any(deadline),
                parent.topic,
                parent.partition,
                deadline,
            ),
            deadline,
        )

    def doctor(self) -> list[Check]:
        """Look at everything that kpsplit owns and return the checks, failed ones with a remedy."""
        return doctor.diagnose(self.findings())

    def findings(self) -> Findings:
        """Look at everything that kpsplit owns and return what ``doctor`` judges."""
        return examination.examine(self._session.admin, self._session.begin())

    def view(self) -> ControlView:
        """Return the control topic's view, read to its present end."""
        return self._session.read(self._session.begin())

    def producers(self) -> Registrations:
        """Return the registrations, read to the producers topic's present end."""
        deadline = self._session.begin()
        self._session.read(deadline)
        return self._session.registrations().read(deadline)

    # -- groups --------------------------------------------------------------------------------------

    def plan_seek(
        self,
        group: str,
        parent: PhysicalPartition,
        range_: KeyRange,
        target: SeekTarget,
        *,
        new_group: bool = False,
    ) -> Seek:
        """Return what a seek of a group would do; changes nothing.

        Raises:
            UsageError: the topic is not enrolled; or, unless it is to be a ``new_group``, the group has
                neither commits nor members. ConflictError: the group has members on the topic.
        """
        return self._seeker.plan(group, parent, range_, target, new_group)

    def seek(self, seek: Seek) -> None:
        """Carry out a seek.

        Raises:
            ConflictError: the group has members on the topic now, or the partition was split or merged.
        """
        self._seeker.carry_out(seek)

    def plan_forget_group(self, group: str, topic: str) -> Forgettable:
        """Return what ``forget_group`` would remove.

        Raises:
            UsageError: the topic is not enrolled, or the group has committed nothing there.
            ConflictError: the group has members on it.
        """
        return self._seeker.plan_forget(group, topic)

    def plan_forget_expired(self, topic: str) -> list[Forgettable]:
        """Return what ``forget_group`` would remove of each group that brokers know nothing of any more.

        Such a group has had no members for as long as brokers keep offsets (``offsets.retention.minutes``),
        or was deleted. A plain group would begin anew by then; one with range commits would not.

        Raises:
            UsageError: the topic is not enrolled. AuthorizationError: groups may be hidden from us.
        """
        return self._seeker.plan_forget_expired(topic)

    def forget_group(self, found: Forgettable) -> None:
        """Remove what a group has committed on a topic: it is as if it had never read it.

        Raises:
            ConflictError: the group has members on the topic now, or has committed something since.
        """
        self._seeker.forget(found)

    def forget_records(self, records: Iterable[SetAside]) -> None:
        """Remove records that ``findings`` has set aside.

        The caller vouches that no producer of theirs runs: one that does would not be waited for any more.

        Raises:
            ConflictError: something else stands there now; nothing was removed.
        """
        examination.forget(self._session, records)

    def _on(self, parent: PhysicalPartition, observer: Observer = ignore_steps) -> PartitionOperations:
        return PartitionOperations(self._session, parent, observer)
