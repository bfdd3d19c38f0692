"""What a producer owes operators, decided from its view and its own record (design, section 6)."""

from __future__ import annotations

from collections.abc import Iterable

from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.producers import ProducerRegistration
from kpsplit.splitter.states import Phase


def to_answer(states: Iterable[PartitionState], own: ProducerRegistration) -> list[PartitionState]:
    """Return the partitions whose PREPARE is not answered yet."""
    return [
        s
        for s in states
        if s.phase is Phase.PREPARING and s.attempt and own.ready.get(str(s.parent)) != s.attempt.id
    ]


def to_acknowledge(quiescent: Iterable[PartitionState], own: ProducerRegistration) -> list[PartitionState]:
    """Return the fences to be acknowledged: those of attempts that we answered, with nothing in flight."""
    return [
        s
        for s in quiescent
        if s.phase is Phase.FENCED
        and s.attempt
        and own.ready.get(str(s.parent)) == s.attempt.id
        and own.acknowledged.get(str(s.parent)) != s.attempt.id
    ]
