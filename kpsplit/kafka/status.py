"""What operations report: values for people and programs."""

from __future__ import annotations

from dataclasses import dataclass

from kpsplit.errors import UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.facts import attempt_age
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Outcome, PartitionState
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.producers import PauseReport, ProducerRecord
from kpsplit.splitter.writers import Registrations


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
    missing. ``live`` and ``expired``: the topic's registered writers. ``attempt_age_seconds``: of the attempt
    under way, by the operator's wall clock, None if there is none.
    """

    state: PartitionState
    enrolment: Enrolment
    ends: dict[int, int | None]
    live: tuple[ProducerRecord, ...]
    expired: tuple[ProducerRecord, ...]
    attempt_age_seconds: float | None


def statuses(
    admin: ClusterAdmin,
    view: ControlView,
    registrations: Registrations,
    topic: str | None,
    partition: int | None,
) -> list[PartitionStatus]:
    """Return the status of partitions; as ``Operations.status``.

    Raises:
        UsageError: the topic is not enrolled, or has no such partition.
    """
    counts = admin.topics()
    if topic is not None and topic not in view.enrolments:
        if topic not in counts:
            raise UsageError(f"there is no topic {topic}", hint="check the name and the right to describe it")
        raise UsageError(f"topic {topic} is not enrolled", hint=f"run: kpsplit enroll {topic}")
    places = [
        PhysicalPartition(name, number)
        for name in sorted(view.enrolments)
        if topic in (None, name)
        for number in range(counts.get(name, 0))
        if partition in (None, number)
    ]
    if not places and partition is not None:
        raise UsageError(f"topic {topic} has no partition {partition}: it has {counts.get(topic or '', 0)}")
    found = [state for state in map(view.state, places) if state is not None]
    wanted = {s.source for state in found for s in state.lineage if s.is_open}
    ends = admin.end_offsets(p for p in wanted if p.partition < counts.get(p.topic, 0))
    return [_status(state, view, registrations, {p: e.offset for p, e in ends.items()}) for state in found]


def _status(
    state: PartitionState,
    view: ControlView,
    registrations: Registrations,
    ends: dict[PhysicalPartition, int],
) -> PartitionStatus:
    topic = state.parent.topic
    return PartitionStatus(
        state=state,
        enrolment=view.enrolments[topic],
        ends={s.id: ends.get(s.source) for s in state.lineage if s.is_open},
        live=registrations.live(topic),
        expired=tuple(
            r
            for r in registrations.all()
            if topic in r.topics and not r.closed and registrations.is_expired(r)
        ),
        attempt_age_seconds=attempt_age(state.attempt),
    )
