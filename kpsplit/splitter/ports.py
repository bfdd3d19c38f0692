"""What the driver needs from the world; ``kpsplit.kafka`` implements it, tests and simulations as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from kpsplit.splitter.control_plane import Registrations
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Attempt, Cut, Event, PartitionState, SubTopic
from kpsplit.splitter.records.producers import ProducerRegistration
from kpsplit.splitter.steps import PlannedMarker

if TYPE_CHECKING:  # it is handed its deadlines and makes none: the core has no clock
    from kpsplit.clock import Deadline


Fit = Callable[[PartitionState], bool]
"""Returns whether a state is to be claimed. Raises if it is not the one that a call was made for."""


class Clock(Protocol):
    """A monotonic clock; only its rate is trusted, and it is never compared between machines."""

    def now(self) -> float:
        """Return seconds since some point in the past, suspended time included."""
        ...

    def deadline(self, seconds: float) -> Deadline:
        """Return the deadline that many seconds from now."""
        ...


class ControlPort(Protocol):
    """The control topic, as the holder of one partition's operation sees it."""

    def peek(self, deadline: Deadline) -> PartitionState:
        """Read the log to its last stable offset, return the state; fences nobody."""
        ...

    def claim(self, deadline: Deadline, fit: Fit | None = None) -> PartitionState:
        """Wait for our turn, fence every earlier holder, read what they wrote, return the state.

        Also the way to go on after an unknown outcome. ``fit`` is given the state before anybody is fenced.
        Where it says no nobody is, and the state is returned as it is.
        """
        ...

    def record(self, before: PartitionState, event: Event, deadline: Deadline) -> PartitionState:
        """Apply and write an event in one transaction, read it back, return the new state.

        Raises:
            FencedError: a newer holder claimed the operation.
            UnknownOutcomeError: claim again and go on from what the log says.
        """
        ...

    def lease_seconds(self) -> float:
        """Return the length of the producers' lease."""
        ...


class WritersPort(Protocol):
    """The producers topic, as an operator sees it."""

    def read(self, deadline: Deadline) -> Registrations:
        """Read the topic to the end that it has now."""
        ...

    def await_change(self, seconds: float) -> None:
        """Return when a record arrived, or after that many seconds."""
        ...

    def remove(self, producers: Iterable[ProducerRegistration], deadline: Deadline) -> None:
        """Remove registrations that are over."""
        ...


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
