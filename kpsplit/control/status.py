"""What operations report: values for people and programs."""

from __future__ import annotations

from dataclasses import dataclass

from kpsplit.clock import Deadline
from kpsplit.control.facts import attempt_age
from kpsplit.kafka.cluster_admin import ClusterAdmin, no_partition
from kpsplit.splitter.control_plane import ControlView, Registrations
from kpsplit.splitter.key_range import without_slots
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Outcome, PartitionState
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.keys import slots_topic
from kpsplit.splitter.records.producers import PauseReport, ProducerRegistration


@dataclass(frozen=True, slots=True)
class Report:
    """How an operation ended. ``pauses``: per producer instance name, those that reported this attempt."""

    outcome: Outcome
    state: PartitionState
    pauses: dict[str, PauseReport]
    seconds: float


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One logical partition now.

    ``ends``: per open segment's id (overflows too) the log end of its physical partition, None where it is
    missing. ``writers``: the topic's producers that did not close. ``attempt_age_seconds``: of the
    attempt under way, by the operator's wall clock, None if there is none. ``unread``: it has no slots, so no
    group reads it.
    """

    state: PartitionState
    enrolment: Enrolment
    ends: dict[int, int | None]
    writers: tuple[ProducerRegistration, ...]
    attempt_age_seconds: float | None
    unread: bool = False


def statuses(
    admin: ClusterAdmin,
    view: ControlView,
    registrations: Registrations,
    topic: str | None,
    partition: int | None,
    deadline: Deadline,
) -> list[PartitionStatus]:
    """Return the status of partitions; as ``Admin.status``.

    Raises:
        UsageError: there is no such topic, it is not enrolled, or has no such partition.
    """
    counts = admin.topics()
    if topic is not None and topic not in counts:
        counts[topic] = admin.partition_count(topic, deadline)
    if topic is not None and topic not in view.enrolments:
        raise view.not_enrolled(topic)
    places = [
        PhysicalPartition(name, number)
        for name in sorted(view.enrolments)
        if topic in (None, name)
        for number in range(counts.get(name, 0))
        if partition in (None, number)
    ]
    if not places and partition is not None:
        raise no_partition(PhysicalPartition(topic or "", partition), counts.get(topic or "", 0))
    found = [state for state in map(view.state, places) if state is not None]
    wanted = {s.source for state in found for s in state.lineage if s.is_open}
    ends = admin.end_offsets(p for p in wanted if p.partition < counts.get(p.topic, 0))
    offsets = {p: e.offset for p, e in ends.items()}
    return [_status(state, view, registrations, offsets, counts) for state in found]


def _status(
    state: PartitionState,
    view: ControlView,
    registrations: Registrations,
    ends: dict[PhysicalPartition, int],
    counts: dict[str, int],
) -> PartitionStatus:
    topic, number = state.parent.topic, state.parent.partition
    enrolment = view.enrolments[topic]
    slots, has = enrolment.slots, counts.get(slots_topic(topic))  # None as well where we may not see it
    unread = slots is not None and has is not None and number in without_slots(counts[topic], slots, has)
    return PartitionStatus(
        state=state,
        enrolment=enrolment,
        ends={s.id: ends.get(s.source) for s in state.lineage if s.is_open},
        writers=registrations.open(topic),
        attempt_age_seconds=attempt_age(state.attempt),
        unread=unread,
    )
