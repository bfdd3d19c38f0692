"""What operations report: values for people and programs, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from kpsplit.splitter.partition_state import Outcome, PartitionState
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.producers import PauseReport, ProducerRecord


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
