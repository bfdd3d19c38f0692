"""What all use cases share: one cluster, the clients to it, and the deadline of each call.

Clients are made when they are first needed. One thread.
"""

from __future__ import annotations

import getpass
import os
import random
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import ConflictError, FencedError, UnknownOutcomeError, UsageError, after_a_change
from kpsplit.kafka.cluster_admin import ClusterAdmin, no_partition
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail, EnrolmentLog
from kpsplit.kafka.producers_log import AcknowledgedWriter, ProducersLog
from kpsplit.splitter.control_plane import LEASE_MARGIN, ControlView
from kpsplit.splitter.driver import Observer, StepDone
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.keys import CONTROL_TOPIC

FIRST_CONTACT_SECONDS = 6.0
LOOK_AGAIN_SECONDS = 0.5
"""How soon it is looked again whether others have come so far."""


def ignore_steps(_step: StepDone) -> None:
    """Observe nothing."""


def operator_name() -> str:
    """Return how an operator is called in the control topic: ``user@host pid N``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "somebody"
    return f"{user}@{socket.gethostname()} pid {os.getpid()}"


def wait_a_lease(tail: ControlTail, deadline: Deadline) -> None:
    """Let the lease pass that is in force now: what producers know from before is then not relied on."""
    until = monotonic() + lease_seconds(tail)
    while (left := until - monotonic()) > 0:
        deadline.check("a lease to pass")
        tail.poll(min(left, deadline.left()))


def lease_seconds(tail: ControlTail) -> float:
    return tail.view.settings.lease_ms / 1000 * LEASE_MARGIN


class ClusterSession:
    """One cluster and the clients to it. ``operator``: the name of this process in the control topic.

    ``begun``: the attempt that was begun last by this session on each partition, by its id.
    """

    def __init__(self, connection: Connection, timeout_seconds: float) -> None:
        self.connection = connection
        self.admin = ClusterAdmin(connection)
        self.operator = operator_name()
        self.begun: dict[PhysicalPartition, str] = {}
        self._timeout = timeout_seconds
        self._control: ControlTail | None = None
        self._registrations: ProducersLog | None = None
        self._writer: AcknowledgedWriter | None = None

    def close(self) -> None:
        """End all clients; a call after that makes new ones."""
        for log in (self._control, self._registrations):
            if log is not None:
                log.close()
        self._control = self._registrations = self._writer = None
        self.admin.close()

    def begin(self) -> Deadline:
        """Begin a call: brokers that cannot be reached are an error at once, not at its deadline."""
        self.admin.brokers(FIRST_CONTACT_SECONDS)
        return Deadline(self._timeout)

    def has_control_topic(self, deadline: Deadline) -> bool:
        known = self._control is not None
        return known or self.admin.certain([CONTROL_TOPIC], deadline)[CONTROL_TOPIC] is not None

    def view_if_any(self, deadline: Deadline) -> ControlView:
        """Return the control topic's view, read to its present end; empty if there is no such topic."""
        return self.read(deadline) if self.has_control_topic(deadline) else ControlView()

    def tail(self, deadline: Deadline) -> ControlTail:
        """Return the reader of the control topic.

        Raises:
            UsageError: there is no such topic.
        """
        if not self.has_control_topic(deadline):
            raise UsageError(f"there is no topic {CONTROL_TOPIC}", hint="run: kpsplit init")
        self._control = self._control or ControlTail(self.connection)
        return self._control

    def read(self, deadline: Deadline) -> ControlView:
        return self.tail(deadline).read_all(deadline)

    def read_about(self, parent: PhysicalPartition, deadline: Deadline) -> None:
        """Read the control topic; refuse a topic that is not enrolled, and a partition that it does not have.

        Where the topic is gone, what is left of its partitions can still be dealt with.
        """
        view = self.read(deadline)
        view.enrolled_state(parent)
        topic = self.admin.certain([parent.topic], deadline)[parent.topic]
        if topic and parent.partition >= len(topic.partitions) and parent not in view.states:
            raise no_partition(parent, len(topic.partitions))

    def state(self, parent: PhysicalPartition, deadline: Deadline) -> PartitionState:
        """Return a partition's state; the topic has to have such a partition."""
        view, count = self.read(deadline), self.admin.partition_count(parent.topic, deadline)
        if parent.partition >= count:
            raise no_partition(parent, count)
        return view.enrolled_state(parent)

    def recorded(self, topic: str, deadline: Deadline) -> Enrolment:
        """Return the latest enrolment of a topic, be it left; UsageError if it was never enrolled."""
        view = self.read(deadline)
        recorded = view.recorded(topic)
        if recorded is None:
            raise view.not_enrolled(topic)
        return recorded

    def states(self, topic: str, deadline: Deadline) -> list[PartitionState]:
        """Return the state of each partition of an enrolled topic."""
        view, count = self.read(deadline), self.admin.partition_count(topic, deadline)
        return [view.enrolled_state(PhysicalPartition(topic, number)) for number in range(count)]

    def registrations(self) -> ProducersLog:
        self._registrations = self._registrations or ProducersLog(self.connection)
        return self._registrations

    def enrolments(self, topic: str, deadline: Deadline) -> EnrolmentLog:
        """Return the way to write a topic's enrolment."""
        return EnrolmentLog(self.connection, topic, self.tail(deadline), self.writer())

    def writer(self) -> AcknowledgedWriter:
        """Return the writer for records that are no part of an operation."""
        self._writer = self._writer or AcknowledgedWriter(self.connection, "operator")
        return self._writer


Withdraw = Callable[[Sequence[tuple[int, bytes]], Deadline], None]
"""Withdraws range commits by a claim: (partition of the offset log, key) each."""


class EnrolmentRecords:
    """Writes enrolments, each where the record stands that it follows. Not thread safe.

    ``log``: the way to write a topic's. ``observer``: called with each that is written.
    """

    def __init__(self, log: Callable[[str, Deadline], EnrolmentLog], observer: Observer) -> None:
        self._log = log
        self._observe = observer

    def expect(self, enrolment: Enrolment, deadline: Deadline) -> None:
        """Raises ConflictError if another one is recorded now."""
        topic = enrolment.topic
        _expected(self._log(topic, deadline).look(deadline), (enrolment,), topic)

    def write(
        self,
        name: str,
        before: Enrolment | None,
        enrolment: Enrolment,
        deadline: Deadline,
        hint: str,
        first: Callable[[Withdraw], bool] | None = None,
    ) -> None:
        """Write an enrolment where ``before`` stands, and read it back; ``name``: of this step.

        ``hint``: the next step where it is written and cannot be read back. ``first``: withdraws range
        commits by the same claim before; returns whether there were any. Where another operator has written
        the record already nothing is done.
        """
        started = monotonic()

        def record(log: EnrolmentLog) -> None:
            with after_a_change(done=first is not None and first(log.withdraw)):
                log.record(enrolment, deadline, hint)

        there = (enrolment, replace(enrolment, settled=True))
        if self.by_claim(enrolment.topic, before, there, record, deadline):
            self._observe(StepDone(name, monotonic() - started, enrolment.topic))

    def by_claim(
        self,
        topic: str,
        before: Enrolment | None,
        there: Sequence[Enrolment],
        act: Callable[[EnrolmentLog], None],
        deadline: Deadline,
    ) -> bool:
        """Do something by a claim of a topic's enrolment if ``before`` is recorded; return whether it was.

        The look that decides comes after the claim: a later claim of the topic has the act refused. A look
        before it spares the others a claim that leads to nothing. Nothing is done where one of ``there`` is
        recorded; any other record raises ConflictError. Whether an act of unknown outcome took effect is
        known after the next claim, which ends what it left open; brokers may answer so to an operator that
        another one fences while it commits.
        """
        log = self._log(topic, deadline)
        changed: bool | None = False
        while True:
            began = monotonic()
            with after_a_change(done=changed):
                for look in (log.look, log.claim):
                    if _expected(look(deadline), (before, *there), topic) in there:
                        return changed is None
                try:
                    act(log)
                    return True
                except UnknownOutcomeError:
                    if deadline.expired():
                        raise
                    changed = changed or None
                except FencedError as error:
                    changed = error.changed or changed
                    if log.look(deadline) not in (before, *there):
                        raise
                    deadline.check(f"another operator to enrol topic {topic}")
            # The operator that claimed it since may write the same, and has the time to do so. Not the same
            # pause for all: where a try takes longer they would fence each other to the end.
            pause = LOOK_AGAIN_SECONDS + random.uniform(0, 2 * (monotonic() - began))
            time.sleep(min(pause, deadline.left()))


def _expected(found: Enrolment | None, expected: Sequence[Enrolment | None], topic: str) -> Enrolment | None:
    """Return what is recorded; raises ConflictError if it is none of these."""
    if found not in expected:
        raise ConflictError(
            f"topic {topic} was enrolled by another process at the same time",
            hint="look at: kpsplit status",
        )
    return found
