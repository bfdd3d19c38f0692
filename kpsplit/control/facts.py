"""Gathers the facts that preconditions are checked on."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from confluent_kafka import IsolationLevel

from kpsplit.clock import Deadline
from kpsplit.control.preconditions import Facts, LogFacts
from kpsplit.errors import KpsplitError, duration
from kpsplit.kafka.cluster_admin import ClusterAdmin, allowed_on
from kpsplit.kafka.kafka_python import describe_open_transaction
from kpsplit.kafka.log_tail import read_at
from kpsplit.kafka.markers import marker_of
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Attempt, OperationKind, PartitionState, SubTopicState
from kpsplit.splitter.records.keys import OWN_TOPICS
from kpsplit.splitter.rights import lacking
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
    ) -> Facts:
        """Return the facts for an attempt (None: as far as they do not depend on one)."""
        topic = self._admin.find(parent.topic)
        state = view.state(parent)
        facts = Facts(parent, kind, topic, view.enrolments.get(parent.topic), state)
        if topic is None or state is None or attempt is None or parent.partition >= len(topic.partitions):
            return facts
        closing = closing_segments(state, attempt)
        sources, open_ = [s.source for s in closing], {s.source for s in state.lineage if s.is_open}
        topics = {parent.topic, *(place.topic for place in open_)}
        others = {place.topic for place in sources} - {topic.name}
        logs = self.logs([(state, open_)], deadline)[state.parent]
        return replace(
            facts,
            closing=closing,
            subtopic=attempt.subtopic,
            names=frozenset(self._admin.topics()),
            lacking=lacking(parent.topic, allowed_on(self._admin, {*topics, *OWN_TOPICS})),
            sources=tuple(t for t in map(self._admin.layout, sorted(others)) if t is not None),
            logs=logs,
            hung_transaction=hung.text if (hung := self.hung(sources, deadline)) else None,
        )

    def logs(
        self,
        asked: Iterable[tuple[PartitionState, Collection[PhysicalPartition]]],
        deadline: Deadline,
    ) -> dict[PhysicalPartition, dict[PhysicalPartition, LogFacts]]:
        """Return, by parent, the facts about every log of its lineage whose topic has not been retired.

        In those logs that are given with a state the newest marker is read as well. All parents are looked
        at together: each client takes a moment, and a cluster may have hundreds of parents.
        """
        asked = list(asked)
        gone = (SubTopicState.RETIRED, SubTopicState.ABANDONED)
        dropped = {t.name for state, _ in asked for t in state.subtopics if t.state in gone}
        places = {p for state, _ in asked for p in state.lineage.sources() if p.topic not in dropped}
        ends, starts = self._admin.end_offsets(places), self._admin.start_offsets(places)
        marks = {
            place: mark
            for state, looked_into in asked
            for place in set(looked_into) & set(ends) & set(starts)
            if (mark := newest_mark(state, place)) is not None and starts[place] <= mark < ends[place].offset
        }
        # Half of what is left: the caller has more to look at, and a marker may be of a leader that is away.
        seconds = min(_MARKER_SECONDS * len(asked), deadline.left() / 2)
        unmarked = self._unmarked(marks, Deadline(seconds))
        logs = {
            p: LogFacts(starts.get(p), ends[p].offset, unmarked.get(p), ends[p].leader_epoch)
            if p in ends
            else LogFacts(starts.get(p), None)
            for p in places
        }
        return {
            state.parent: {p: logs[p] for p in state.lineage.sources() if p in logs} for state, _ in asked
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
        who = None
        with suppress(KpsplitError):
            who = describe_open_transaction(self._admin.connection, place)
        return f"{text} ({who})" if who else text


def newest_mark(state: PartitionState, place: PhysicalPartition) -> int | None:
    return max((s.end for s in state.lineage if s.source == place and s.end is not None), default=None)
