"""Everything that the command line does to a cluster, as one façade (design, sections 4 to 8)."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from kpsplit.kafka.connection import Connection
from kpsplit.kafka.plans import Check, HotKey, Plan
from kpsplit.kafka.status import PartitionStatus, Report
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.driver import Observer, StepDone
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Outcome
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.writers import Registrations

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


def ignore_steps(_step: StepDone) -> None:
    """Observe nothing."""


class Operations:
    """Operations on one cluster. A context manager; one thread.

    Args:
        connection: how to reach the cluster.
        timeout_seconds: for each call as a whole (enrolment and operations wait for leases within it).
    """

    def __init__(self, connection: Connection, timeout_seconds: float = 60.0) -> None:
        self._connection = connection
        self._timeout = timeout_seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all clients."""

    def initialise(self, lease_ms: int | None = None, offsets_partitions: int | None = None) -> list[str]:
        """Create kpsplit's topics; return the names of those that were created.

        None: what is set already, else 5000 ms and 16 partitions.

        Raises:
            CheckFailedError: one of them exists with another policy, partition count or replication factor;
                nothing was changed.
            ConflictError: another lease is set and topics are enrolled already.
        """
        raise NotImplementedError

    def enrol(self, topic: str, partitioner: Partitioner, observer: Observer = ignore_steps) -> Enrolment:
        """Enrol a topic: record it, wait one lease, record that it is settled. Idempotent.

        Raises:
            UsageError: unknown, kpsplit's own, or compacted topic; or a partitioner that real records of the
                topic contradict.
            ConflictError: enrolled otherwise already.
        """
        raise NotImplementedError

    def plan_split(
        self,
        parent: PhysicalPartition,
        ranges: int,
        *,
        of: KeyRange | None = None,
        even: bool = False,
        sample: int = 20_000,
    ) -> Plan:
        """Plan the split of an open segment; ``of`` names it by its range (None: the only one there is)."""
        raise NotImplementedError

    def plan_merge(self, parent: PhysicalPartition, range_: KeyRange | None = None) -> Plan:
        """Plan the merge of the open segments in a range; None: of all, back into the parent."""
        raise NotImplementedError

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
        raise NotImplementedError

    def resume(
        self,
        parent: PhysicalPartition,
        *,
        max_pause_ms: int | None = None,
        observer: Observer = ignore_steps,
        thaw: bool = False,
    ) -> Report | None:
        """Finish what a dead operator left; None if there is nothing. ``thaw``: end a freeze first."""
        raise NotImplementedError

    def abort(
        self, parent: PhysicalPartition, reason: str, observer: Observer = ignore_steps
    ) -> Outcome | None:
        """Roll back the attempt under way; None if there is none.

        Raises:
            ConflictError: it is committed and can only go forward.
        """
        raise NotImplementedError

    def retire(
        self, parent: PhysicalPartition, *, observer: Observer = ignore_steps, force: bool = False
    ) -> list[str]:
        """Delete the sub-topics that are sealed and drained, or abandoned; return their names.

        Sub-topics that are kept are told to the observer, with the reason.

        Raises:
            CheckFailedError: there was something to retire and nothing could be; names the groups.
        """
        raise NotImplementedError

    def view(self) -> ControlView:
        """Return the control topic's view, read to its present end."""
        raise NotImplementedError

    def producers(self) -> Registrations:
        """Return the registrations, read to the producers topic's present end."""
        raise NotImplementedError

    def status(self, topic: str | None = None, partition: int | None = None) -> list[PartitionStatus]:
        """Return the status of the enrolled partitions: all, a topic's, or one."""
        raise NotImplementedError

    def doctor(self) -> list[Check]:
        """Look at everything that kpsplit owns and return the checks, failed ones with a remedy."""
        raise NotImplementedError
