"""What the cluster says now, for one micro-batch after the other. Lives in the driver's planning process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import IsolationLevel

from kpsplit.errors import KpsplitError, UsageError
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.spark_jobs.snapshot import LostReason, why_gone
from kpsplit.spark_jobs.streaming.offset import Standings
from kpsplit.spark_jobs.streaming.plan import Frontier, Stretch, readable_ends, retired
from kpsplit.spark_jobs.streaming.query import Settings
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState


class Lookout:
    """Looks at the control topic and the logs. Not thread safe; one thread owns it.

    Attributes:
        short_patience: seconds for which a log may be shorter than what was read of it.
    """

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self._settings = settings
        self.short_patience = settings.patience
        self._admin = ClusterAdmin(connection)
        self._tail = ControlTail(connection)
        self._seen: dict[int, PartitionState] = {}
        self._short_since: dict[PhysicalPartition, float] = {}

    def close(self) -> None:
        """End the clients."""
        self._tail.close()

    def states(self) -> dict[int, PartitionState]:
        """Return the states of the logical partitions as the control topic has them at this moment.

        Raises:
            UsageError: the topic is gone, or not enrolled. KpsplitError: the control topic cannot be read.
        """
        self._tail.read_to_end(Deadline(self._settings.patience))
        self._seen = {p.partition: self._state(p) for p in self._parents()}
        return self._seen

    def states_since(self, *standings: Standings) -> dict[int, PartitionState]:
        """Return states that are no older than some standings, as far as there are any.

        Raises:
            KpsplitError: as ``states`` does.
        """
        seen = self._seen
        if all(p in seen and seen[p].epoch >= s.epoch for those in standings for p, s in those.items()):
            return seen
        return self.states()

    def frontiers(self, cursors: Mapping[int, Cursor]) -> dict[int, tuple[PartitionState, Frontier]]:
        """Return how far each logical partition can be read now.

        The ends are asked for *before* the control topic is read: every marker before them was written by an
        attempt that this view knows.

        Args:
            cursors: where the query stands: only logs that it still reads are asked for their ends.

        Raises:
            KpsplitError: the cluster cannot be asked, or a log is shorter than what was read of it.
        """
        stable: dict[PhysicalPartition, int] = {}
        asked: set[PhysicalPartition] = set()
        states = self._seen or self.states()
        while left := _in_use(states, cursors) - asked:
            ends = self._admin.end_offsets(left, IsolationLevel.READ_COMMITTED)
            stable |= {source: end.offset for source, end in ends.items()}
            asked |= left
            states = self.states()
        self._watch_short(states, cursors, stable, asked)
        return {p: (s, Frontier(s.lineage, readable_ends(s, stable))) for p, s in states.items()}

    def missing(
        self, state: PartitionState, stretches: Iterable[Stretch]
    ) -> tuple[dict[PhysicalPartition, int], dict[PhysicalPartition, LostReason]]:
        """Return where logs begin, and which hold nothing of ours any more."""
        sources = {s.segment.source for s in stretches}
        ids = {topic: self._topic_id(topic) for topic in {s.topic for s in sources}}
        gone = {s: why for s in sources if (why := why_gone(state, s, ids[s.topic])) is not None}
        return self._admin.start_offsets(sources - gone.keys()), gone

    def _parents(self) -> list[PhysicalPartition]:
        topic, wanted = self._settings.topic, self._settings.partitions
        if wanted is None:
            found = self._admin.known(topic)
            if found is None:
                raise UsageError(
                    f"there is no topic {topic}", hint="check the name and the right to describe it"
                )
            wanted = tuple(range(len(found.partitions)))
        return [PhysicalPartition(topic, number) for number in wanted]

    def _state(self, parent: PhysicalPartition) -> PartitionState:
        state = self._tail.view.state(parent)
        if state is None:
            raise self._tail.view.not_enrolled(parent.topic)
        return state

    def _topic_id(self, topic: str) -> str | None:
        found = self._admin.known(topic)
        return None if found is None else found.topic_id

    def _watch_short(
        self,
        states: Mapping[int, PartitionState],
        cursors: Mapping[int, Cursor],
        stable: Mapping[PhysicalPartition, int],
        asked: Collection[PhysicalPartition],
    ) -> None:
        """Refuse to wait for ever for a log that has lost what was read of it, or is not there.

        A leader that has just taken over may know an older end for a moment.
        """
        short = {
            state.lineage.get(segment).source: state
            for p, state in states.items()
            if p in cursors
            for segment, at in cursors[p].readable(state.lineage).items()
            for source in [state.lineage.get(segment).source]
            if source in asked and stable.get(source, -1) < at
        }
        self._short_since = {s: self._short_since.get(s, monotonic()) for s in short}
        for source, since in self._short_since.items():
            if monotonic() - since > self.short_patience:
                why = why_gone(short[source], source, self._topic_id(source.topic)) or LostReason.CUT_OFF
                raise KpsplitError(
                    f"{source} does not hold what the query has read of it: {why}",
                    hint=f"look at: kpsplit status {short[source].parent}; begin anew with a new checkpoint",
                )


def _in_use(states: Mapping[int, PartitionState], cursors: Mapping[int, Cursor]) -> set[PhysicalPartition]:
    """Return the logs of segments that are not read to the end yet."""
    found: set[PhysicalPartition] = set()
    for partition, state in states.items():
        left = cursors.get(partition, Cursor.at_start(WHOLE)).pending(state.lineage)
        found |= {s.source for s in state.lineage if s.id in left and not retired(state, s.source)}
    return found
