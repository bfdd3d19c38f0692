"""Gathers the facts that preconditions are checked on."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from confluent_kafka import IsolationLevel

from kpsplit.clock import Deadline
from kpsplit.control.plans import Check, under_way
from kpsplit.control.preconditions import Facts, LogFacts
from kpsplit.errors import KpsplitError, duration
from kpsplit.kafka.cluster_admin import ClusterAdmin, TopicFacts, allowed_on
from kpsplit.kafka.kafka_python import describe_open_transaction
from kpsplit.kafka.log_tail import read_at
from kpsplit.kafka.markers import marker_of
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import Attempt, OperationKind, PartitionState, SubTopicState
from kpsplit.splitter.records.keys import OWN_TOPICS
from kpsplit.splitter.rights import Right, lacking
from kpsplit.splitter.steps import closing_segments

TRANSACTION_SECONDS = 4.0
"""An open transaction that stays for longer is reported."""

_MARKER_SECONDS = 3.0
_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """One that has been open for TRANSACTION_SECONDS: where its first record stands, and whose it is."""

    place: PhysicalPartition
    offset: int
    text: str


class FactsGatherer:
    """Asks the cluster. Not thread safe."""

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin

    def gather(
        self,
        parent: PhysicalPartition,
        view: ControlView,
        attempt: Attempt | None,
        kind: OperationKind,
        deadline: Deadline,
        found: tuple[Check | None, Check | None, Check | None] = (None, None, None),
    ) -> Facts:
        """Return the facts for an attempt (None: as far as they do not depend on one).

        Args:
            parent: the logical partition.
            view: the control topic's view, read to its end.
            attempt: what would be tried.
            kind: split or merge.
            deadline: of the whole call.
            found: what the sample says of the partitioner, of other writers, and of the use of the split.
        """
        topic = self._admin.find(parent.topic)
        state = view.state(parent)
        facts = Facts(parent, kind, topic, view.enrolments.get(parent.topic), state)
        if topic is None or state is None or attempt is None or parent.partition >= len(topic.partitions):
            return facts
        closing = closing_segments(state, attempt)
        sources = [s.source for s in closing]
        logs = self.logs([(state, {s.source for s in state.lineage if s.is_open})], deadline)[state.parent]
        return replace(
            facts,
            closing=closing,
            opening=len(attempt.ranges),
            subtopic=attempt.subtopic,
            names=frozenset(self._admin.topics()),
            lacking=self._lacking(parent.topic, {s.source.topic for s in state.lineage if s.is_open}),
            under_way=under_way(state),
            sources=self._layouts(closing, topic),
            logs=logs,
            hung_transaction=hung.text if (hung := self.hung(sources, deadline)) else None,
            partitioner=found[0],
            strange_writers=found[1],
            useful=found[2],
        )

    def _lacking(self, topic: str, sources: Collection[str]) -> tuple[Right, ...]:
        """Return which rights on the topics of an operation are missing, of those that the brokers report."""
        return lacking(topic, allowed_on(self._admin, {topic, *sources, *OWN_TOPICS}))

    def logs(
        self,
        asked: Iterable[tuple[PartitionState, Collection[PhysicalPartition]]],
        deadline: Deadline,
    ) -> dict[PhysicalPartition, dict[PhysicalPartition, LogFacts]]:
        """Return, by parent, the facts about every log of its lineage whose topic has not been retired.

        In those logs that are given with a state the newest marker is read as well. One client reads the
        markers of all parents: each client takes a moment, and a cluster may have hundreds of parents.
        """
        found: dict[PhysicalPartition, dict[PhysicalPartition, LogFacts]] = {}
        marks: dict[PhysicalPartition, int] = {}
        for state, looked_into in asked:
            dropped = {
                t.name for t in state.subtopics if t.state in (SubTopicState.RETIRED, SubTopicState.ABANDONED)
            }
            places = [p for p in state.lineage.sources() if p.topic not in dropped]
            ends, starts = self._admin.end_offsets(places), self._admin.start_offsets(places)
            marks |= {
                place: mark
                for place in set(looked_into) & set(ends) & set(starts)
                if (mark := newest_mark(state, place)) is not None
                and starts[place] <= mark < ends[place].offset
            }
            found[state.parent] = {
                p: LogFacts(starts.get(p), ends[p].offset if p in ends else None) for p in places
            }
        # Half of what is left: the caller has more to look at, and a marker may be of a leader that is away.
        seconds = min(_MARKER_SECONDS * len(found), deadline.left() / 2)
        unmarked = self._unmarked(marks, Deadline(seconds))
        return {
            parent: {
                place: replace(log, marker_missing_at=unmarked.get(place)) for place, log in logs.items()
            }
            for parent, logs in found.items()
        }

    def _unmarked(
        self, marks: Mapping[PhysicalPartition, int], limit: Deadline
    ) -> dict[PhysicalPartition, int]:
        """Return those of the offsets at which another record is than a marker."""
        there = read_at(self._admin.connection, marks, limit)
        return {
            place: offset
            for place, offset in marks.items()
            if place in there and there[place].offset() == offset and marker_of(there[place]) is None
        }

    def _layouts(self, closing: Iterable[Segment], topic: TopicFacts) -> tuple[TopicFacts, ...]:
        names = {s.source.topic for s in closing} - {topic.name}
        return tuple(t for t in map(self._admin.layout, sorted(names)) if t is not None)

    def hung(self, places: Collection[PhysicalPartition], deadline: Deadline) -> OpenTransaction | None:
        """Watch the last stable offset for a while where one is open; return the first that stays."""
        before = self._admin.end_offsets(places)
        limit = Deadline(min(TRANSACTION_SECONDS, deadline.left()))
        while True:
            stable = self._admin.end_offsets(places, IsolationLevel.READ_COMMITTED)
            hung = [p for p in places if p in before and p in stable and stable[p].offset < before[p].offset]
            if not hung:
                return None
            if limit.left() <= 0:
                return OpenTransaction(hung[0], stable[hung[0]].offset, self._describe_hung(hung[0]))
            time.sleep(_PAUSE)

    def _describe_hung(self, place: PhysicalPartition) -> str:
        text = f"a transaction on {place} has been open for more than {duration(TRANSACTION_SECONDS)}"
        try:
            who = describe_open_transaction(self._admin.connection, place)
        except KpsplitError:
            who = None
        return f"{text} ({who})" if who else text


def newest_mark(state: PartitionState, place: PhysicalPartition) -> int | None:
    """Return where the newest marker of a physical partition stands, None if it has none."""
    return max((s.end for s in state.lineage if s.source == place and s.end is not None), default=None)
