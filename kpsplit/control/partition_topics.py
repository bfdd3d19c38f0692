"""The driver's TopicsPort: sub-topics, leaders and markers of one operation."""

from __future__ import annotations

import time
from collections.abc import Iterable

from kpsplit.control.subtopics import SubTopics
from kpsplit.errors import KpsplitError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.leaders import Leaders
from kpsplit.kafka.markers import Markers
from kpsplit.splitter.driver import Observer, StepDone
from kpsplit.splitter.events import Cut
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Attempt, SubTopic
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.steps import PlannedMarker


class PartitionTopics:
    """Implements the driver's TopicsPort. Not thread safe; made anew for each operation."""

    def __init__(self, connection: Connection, admin: ClusterAdmin, observer: Observer) -> None:
        self._observe = observer
        self._subtopics = SubTopics(connection, admin)
        self._leaders = Leaders(connection, admin)
        self._markers = Markers(connection, admin)

    def prepare_markers(self, places: Iterable[PhysicalPartition]) -> None:
        """Get ready, outside the fence, to append markers to these partitions."""
        self._markers.prepare(places)

    def keep_warm(self) -> None:
        """Stay ready to append markers while answers are waited for; to be called now and then."""
        self._markers.keep_warm()

    def create_subtopic(self, attempt: Attempt, parent: PhysicalPartition, deadline: Deadline) -> str:
        """Create the attempt's sub-topic beside the parent, wait until it is served; return its topic id."""
        return self._subtopics.create(attempt, parent, deadline)

    def co_locate(
        self, parent: PhysicalPartition, sources: Iterable[PhysicalPartition], deadline: Deadline
    ) -> None:
        """Move the leaders of ``sources`` to the broker that leads the parent, as far as possible."""
        started = time.monotonic()
        places = list(sources)
        self._leaders.co_locate(
            parent,
            places,
            deadline,
            lambda text: self._observe(StepDone("Leaders", time.monotonic() - started, text)),
        )
        self._markers.prepare([parent, *places])

    def append_markers(self, markers: Iterable[PlannedMarker], deadline: Deadline) -> tuple[Cut, ...]:
        """Append the markers with acks=all and return where they stand; a marker already there is reused."""
        return self._markers.append(markers, deadline)

    def seal(self, subtopics: Iterable[SubTopic], deadline: Deadline) -> None:
        """Make the brokers reject every later write to these sub-topics; a missing one takes none anyway."""
        for subtopic in subtopics:
            if not self._subtopics.seal(subtopic.name, deadline):
                self._observe(StepDone("Missing", 0.0, f"{subtopic.name} does not exist any more"))

    def delete_abandoned(self, name: str, deadline: Deadline) -> None:
        """Delete the sub-topic of an attempt that was rolled back; it may be missing."""
        self._subtopics.delete_empty(name, deadline)

    def close(self) -> None:
        """End the clients."""
        try:
            self._markers.close()
        except KpsplitError:
            return
