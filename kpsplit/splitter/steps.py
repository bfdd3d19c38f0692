"""What an operator does next, decided purely from the log and what this run has done (protocol, section 7.1).

The ports are what doing it needs from the world; ``kpsplit.kafka`` and ``kpsplit.control`` implement them,
tests and simulations as well.

``decide`` is the only place that knows the order of the steps. What a run has done (``AttemptProgress``)
belongs to one attempt id and is never carried over to another one; everything else comes from
the control topic, so a run can stop at any line and the next claim goes on from what the log says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from kpsplit.errors import FencedError, InvariantError
from kpsplit.splitter.control_plane import Registrations
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import (
    Abort,
    Attempt,
    Commit,
    Cut,
    EndedBy,
    Event,
    Fence,
    Finish,
    OperationKind,
    Outcome,
    PartitionState,
    Phase,
    Result,
    SubTopic,
    Target,
)
from kpsplit.splitter.records.data import Marker, MarkerKind
from kpsplit.splitter.records.keys import subtopic_name
from kpsplit.splitter.records.producers import ProducerRegistration

if TYPE_CHECKING:  # it is handed its deadlines and makes none: the core has no clock
    from kpsplit.clock import Deadline


@dataclass(frozen=True, slots=True)
class AttemptProgress:
    """What this run has done for one attempt. None or False: not yet."""

    attempt_id: str
    subtopic_id: str | None = None
    colocated: bool = False
    ready: bool = False
    acknowledged: bool = False
    cuts: tuple[Cut, ...] | None = None
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class RecordEvent:
    event: Event


@dataclass(frozen=True, slots=True)
class CreateSubTopic:
    """Create the sub-topic and wait until every broker serves it with leaders."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class CoLocateLeaders:
    """Move the leaders of the closing segments next to the parent's leader."""

    sources: tuple[PhysicalPartition, ...]


@dataclass(frozen=True, slots=True)
class AwaitReady:
    """Wait until every registered producer has answered, or stayed silent for a lease."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class AwaitAcknowledged:
    """Wait until every producer that answered holds its records, or its lease has run out."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class PlannedMarker:
    segment: int
    source: PhysicalPartition
    marker: Marker


@dataclass(frozen=True, slots=True)
class AppendMarkers:
    markers: tuple[PlannedMarker, ...]


@dataclass(frozen=True, slots=True)
class SealSubTopics:
    """Make the brokers reject every later write to these sub-topics."""

    subtopics: tuple[SubTopic, ...]


@dataclass(frozen=True, slots=True)
class Done:
    outcome: Outcome


Step = (
    RecordEvent
    | CreateSubTopic
    | CoLocateLeaders
    | AwaitReady
    | AwaitAcknowledged
    | AppendMarkers
    | SealSubTopics
    | Done
)


def decide(state: PartitionState, progress: AttemptProgress) -> Step:
    """Return the next step of an attempt.

    Raises:
        FencedError: another attempt is under way, or this one was ended by somebody else.
        InvariantError: the partition is frozen.
    """
    attempt = state.attempt
    if attempt is None:
        return _ended(state, progress)
    if attempt.id != progress.attempt_id:
        raise FencedError(f"{state.parent}: attempt {attempt.id} of {attempt.operator} is under way")
    match state.phase:
        case Phase.PREPARING:
            return _preparing(state, attempt, progress)
        case Phase.FENCED:
            return _fenced(state, attempt, progress)
        case Phase.COMMITTED:
            return _committed(state, attempt, progress)
        case Phase.STEADY | Phase.FROZEN:
            raise InvariantError(f"{state.parent} is {state.phase}: {state.frozen_reason or 'no operation'}")


def numbered(attempt: Attempt, state: PartitionState) -> Attempt:
    if attempt.subtopic is None:
        return attempt
    return replace(attempt, subtopic=subtopic_name(state.parent, state.next_split))


def settle(state: PartitionState, ended_by: EndedBy, reason: str) -> Abort | None:
    """Return the event that rolls back what a dead operator left, None where there is nothing."""
    if state.attempt is None or state.phase not in (Phase.PREPARING, Phase.FENCED):
        return None
    return Abort(state.attempt.id, ended_by, reason)


def taken_over(state: PartitionState, attempt_id: str, before: PartitionState | None) -> bool:
    """Return whether somebody else has ended an attempt, or was at work before it was put on record.

    ``before``: what stood there when its PREPARE was to be written; None: its PREPARE was read back.
    """
    if before is not None:
        return state != before and took_effect(state, attempt_id) is None
    if state.attempt is not None:
        return state.attempt.id != attempt_id
    last = state.last
    return last is None or last.attempt.id != attempt_id or last.ended_by is not EndedBy.OPERATOR


def had_successor(state: PartitionState, attempt_id: str) -> bool:
    """Return whether an operator that was fenced, and has rolled back what it could, had a successor.

    An operator that finds its attempt committed and finished had one: it was fenced before it could finish.
    """
    finished = state.attempt is None and took_effect(state, attempt_id) is True
    return finished or taken_over(state, attempt_id, None)


def took_effect(state: PartitionState, attempt_id: str) -> bool | None:
    """Return whether the layout of an attempt came into force; None where the record says nothing of it."""
    if state.attempt is not None and state.attempt.id == attempt_id:
        return state.phase is Phase.COMMITTED
    if state.last is not None and state.last.attempt.id == attempt_id:
        return state.last.result is Result.COMMITTED
    return None


def _ended(state: PartitionState, progress: AttemptProgress) -> Done:
    last = state.last
    if last is None or last.attempt.id != progress.attempt_id:
        raise FencedError(f"{state.parent}: attempt {progress.attempt_id} is not under way")
    if last.result is Result.ROLLED_BACK:  # not by this run, which raises the error that made it do so
        raise FencedError(
            f"{state.parent}: attempt {last.attempt.id} was ended by another process"
            f" ({last.reason or last.ended_by})",
            hint=f"look at: kpsplit status {state.parent}",
        )
    return Done(last)


def _preparing(state: PartitionState, attempt: Attempt, progress: AttemptProgress) -> Step:
    if attempt.subtopic is not None and progress.subtopic_id is None:
        return CreateSubTopic(attempt)
    if attempt.kind is OperationKind.MERGE and not progress.colocated:
        return CoLocateLeaders(tuple(state.lineage.get(i).source for i in attempt.sources))
    if not progress.ready:
        return AwaitReady(attempt)
    return RecordEvent(Fence(attempt.id, progress.subtopic_id))


def _fenced(state: PartitionState, attempt: Attempt, progress: AttemptProgress) -> Step:
    if not progress.acknowledged:
        return AwaitAcknowledged(attempt)
    if progress.cuts is None:
        return AppendMarkers(planned_markers(state, attempt))
    return RecordEvent(Commit(attempt.id, progress.cuts))


def _committed(state: PartitionState, attempt: Attempt, progress: AttemptProgress) -> Step:
    emptied = state.to_seal()
    if emptied and not progress.sealed:
        return SealSubTopics(emptied)
    return RecordEvent(Finish(attempt.id))


def planned_markers(state: PartitionState, attempt: Attempt) -> tuple[PlannedMarker, ...]:
    """Return the markers of an attempt: one after every segment that it closes."""
    planned = []
    for segment_id in state.closing_segments():
        source = state.lineage.get(segment_id).source
        reopens = attempt.target is Target.PARENT and source == state.parent
        kind = MarkerKind.UNSEAL if reopens else MarkerKind.SEAL
        planned.append(PlannedMarker(segment_id, source, Marker(kind, state.parent, attempt.id)))
    return tuple(planned)


Fit = Callable[[PartitionState], bool]
"""Returns whether a state is to be claimed. Raises if it is not the one that a call was made for."""


class Clock(Protocol):
    """A monotonic clock; only its rate is trusted, and it is never compared between machines."""

    def now(self) -> float: ...

    def deadline(self, seconds: float) -> Deadline: ...


class ControlPort(Protocol):
    """The control topic, as the holder of one partition's operation sees it."""

    def peek(self, deadline: Deadline) -> PartitionState:
        """Read the log to its last stable offset, return the state; fences nobody."""
        ...

    def claim(self, deadline: Deadline, fit: Fit | None = None) -> PartitionState:
        """As ``ClaimedLog.claim``; also the way to go on after an unknown outcome."""
        ...

    def record(self, before: PartitionState, event: Event, deadline: Deadline) -> PartitionState:
        """As ``ClaimedLog.record``."""
        ...

    def lease_seconds(self) -> float: ...


class WritersPort(Protocol):
    """The producers topic, as an operator sees it."""

    def read(self, deadline: Deadline) -> Registrations: ...

    def await_change(self, seconds: float) -> None:
        """Return when a record arrived, or after that many seconds."""
        ...

    def remove(self, producers: Iterable[ProducerRegistration], deadline: Deadline) -> None: ...


class TopicsPort(Protocol):
    """Sub-topics, leaders and markers."""

    def create_subtopic(self, attempt: Attempt, parent: PhysicalPartition, deadline: Deadline) -> str:
        """Create the attempt's sub-topic beside the parent, wait until it is served; return its topic id."""
        ...

    def co_locate(
        self, parent: PhysicalPartition, sources: Iterable[PhysicalPartition], deadline: Deadline
    ) -> None:
        """Move the leaders of ``sources`` to the broker that leads the parent."""
        ...

    def keep_warm(self) -> None:
        """Stay ready to append markers; called now and then while answers are awaited."""
        ...

    def append_markers(self, markers: Iterable[PlannedMarker], deadline: Deadline) -> tuple[Cut, ...]:
        """Append the markers with acks=all and return where they stand; a marker already there is reused."""
        ...

    def seal(self, subtopics: Iterable[SubTopic], deadline: Deadline) -> None:
        """Make the brokers reject every later write to these sub-topics."""
        ...

    def delete_abandoned(self, name: str, deadline: Deadline) -> None:
        """Delete the sub-topic of an attempt that was rolled back; it may be missing."""
        ...


def closing_segments(state: PartitionState, attempt: Attempt) -> tuple[Segment, ...]:
    """Return the segments that an attempt would close; unknown ones are left out."""
    known = {s.id: s for s in state.lineage}
    if not all(i in known for i in attempt.sources):
        return ()
    ids = replace(state, attempt=attempt).closing_segments()
    return tuple(known[i] for i in ids)
