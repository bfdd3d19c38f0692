"""Enrolment: a topic is recorded, one lease passes, and only then it is settled (design, section 6)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from kpsplit.errors import ConflictError, UsageError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.cluster_admin import ClusterAdmin, TopicFacts
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.kafka.plans import Check
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.kafka.sampling import Sample, partitioner_check, sample_partition
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.driver import Observer, StepDone
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.control import Enrolment, Partitioner, encode_enrolment
from kpsplit.splitter.records.keys import CONTROL_TOPIC, enrolment_key
from kpsplit.splitter.writers import LEASE_MARGIN

PARTITIONS_SAMPLED = 8
RECORDS_SAMPLED = 250
_OWN_PREFIX = "__"
_LIKE_SUBTOPIC = re.compile(r".+\.split-[0-9]+-[0-9]+")


def looks_like_subtopic(topic: str) -> bool:
    """Tell whether a name has the form of a sub-topic's."""
    return _LIKE_SUBTOPIC.fullmatch(topic) is not None


def refuse_unfit(topic: TopicFacts, view: ControlView) -> None:
    """Do nothing if a topic can be enrolled.

    Raises:
        UsageError: it is internal, a sub-topic, or compacted.
    """
    if topic.name.startswith(_OWN_PREFIX):
        raise UsageError(f"{topic.name} is an internal topic", hint="enroll topics of applications only")
    owner = next((s.parent for s in view.states.values() if s.subtopic(topic.name)), None)
    if owner is not None:
        raise UsageError(f"{topic.name} is a sub-topic of {owner}", hint=f"to split it again, split {owner}")
    if topic.compacted:
        raise UsageError(
            f"topic {topic.name} is compacted: key ranges of it cannot be moved to another topic",
            hint="kpsplit splits topics with cleanup.policy=delete only",
        )


def existing_enrolment(topic: TopicFacts, partitioner: Partitioner, view: ControlView) -> Enrolment | None:
    """Return the enrolment that a topic has already, None if it has none.

    Raises:
        ConflictError: it is enrolled with another partitioner, or the topic is not the one that was enrolled.
    """
    known = view.enrolments.get(topic.name)
    if known is None:
        return None
    if known.topic_id != topic.topic_id:
        touched = sorted(str(p) for p in view.states if p.topic == topic.name)
        if touched:
            raise ConflictError(
                f"topic {topic.name} was deleted and made again; {touched[0]} has a lineage of the old one",
                hint="make the topic under another name and enroll that",
            )
        return None
    if known.partitioner is not partitioner:
        raise ConflictError(
            f"topic {topic.name} is enrolled with partitioner {known.partitioner}, not {partitioner}",
            hint=f"give --partitioner {known.partitioner}",
        )
    return known


def check_records(
    connection: Connection,
    admin: ClusterAdmin,
    topic: TopicFacts,
    partitioner: Partitioner,
    deadline: Deadline,
) -> Check:
    """Compare a partitioner with records of some of the topic's partitions."""
    count = len(topic.partitions)
    step = max(1, count // PARTITIONS_SAMPLED)
    everything = Sample()
    if partitioner is not Partitioner.EXPLICIT and count > 1:
        for number in range(0, count, step):
            place = PhysicalPartition(topic.name, number)
            everything.merge(
                sample_partition(connection, admin, place, RECORDS_SAMPLED, (number, count), deadline)
            )
    return partitioner_check(everything, partitioner, count)


def wait_a_lease(tail: ControlTail, deadline: Deadline) -> None:
    """Let the lease pass that is in force now: what producers know from before is then not relied on."""
    until = monotonic() + tail.view.settings.lease_ms / 1000 * LEASE_MARGIN
    while (left := until - monotonic()) > 0:
        deadline.check("a lease to pass")
        tail.poll(min(left, deadline.left()))


class Enroller:
    """Writes enrolments. Not thread safe."""

    def __init__(
        self, tail: ControlTail, writer: Callable[[], AcknowledgedWriter], observer: Observer
    ) -> None:
        self._tail = tail
        self._writer = writer
        self._observe = observer

    def enrol(self, topic: TopicFacts, partitioner: Partitioner, deadline: Deadline) -> Enrolment:
        """Record an enrolment and settle it one lease later."""
        enrolment = Enrolment(topic.name, topic.topic_id, partitioner, settled=False)
        self._write(enrolment, deadline)
        return self.settle(enrolment, deadline)

    def settle(self, enrolment: Enrolment, deadline: Deadline) -> Enrolment:
        """Wait a whole lease, so that every producer knows of the enrolment, and record that.

        Raises:
            ConflictError: somebody enrolled the topic otherwise meanwhile.
        """
        if enrolment.settled:
            return enrolment
        started = monotonic()
        wait_a_lease(self._tail, deadline)
        known = self._tail.read_to_end(deadline).enrolments.get(enrolment.topic)
        if known is None or replace(known, settled=False) != replace(enrolment, settled=False):
            raise ConflictError(
                f"topic {enrolment.topic} was enrolled by somebody else at the same time",
                hint="look at: kpsplit status",
            )
        settled = replace(enrolment, settled=True)
        if not known.settled:
            self._write(settled, deadline)
        self._observe(StepDone("Settle", monotonic() - started, "one lease has passed"))
        return settled

    def _write(self, enrolment: Enrolment, deadline: Deadline) -> None:
        started = monotonic()
        offset = self._writer().write(
            CONTROL_TOPIC, enrolment_key(enrolment.topic), encode_enrolment(enrolment), deadline
        )
        self._tail.read_to(offset + 1, deadline)
        name = "Settled" if enrolment.settled else "Enrol"
        self._observe(StepDone(name, monotonic() - started, enrolment.topic))
