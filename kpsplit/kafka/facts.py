"""Gathers the facts that preconditions are checked on."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime

from confluent_kafka import IsolationLevel

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline as RealDeadline
from kpsplit.kafka.cluster_admin import ClusterAdmin, TopicFacts
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.log_slice import read_slice
from kpsplit.kafka.markers import marker_of
from kpsplit.kafka.plans import Check, wall_ms
from kpsplit.kafka.preconditions import Facts, LogFacts
from kpsplit.kafka.transactions import describe_open_transaction
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import Attempt, OperationKind, PartitionState, SubTopicState
from kpsplit.splitter.ports import Deadline

TRANSACTION_SECONDS = 4.0
"""An open transaction that stays for longer is reported."""

_MARKER_SECONDS = 3.0
_PAUSE = 0.1


def under_way(state: PartitionState) -> str | None:
    """Return who does what since when, None if no operation is in progress."""
    attempt = state.attempt
    if attempt is None:
        return None
    since = datetime.fromtimestamp(attempt.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"{state.parent}: a {attempt.kind} by {attempt.operator} is in progress since {since} ({state.phase})"
    )


def attempt_age(attempt: Attempt | None) -> float | None:
    """Return the seconds since an attempt began, by wall clocks: for people only."""
    return None if attempt is None else max(0.0, (wall_ms() - attempt.started_ms) / 1000)


class FactsGatherer:
    """Asks the cluster. Not thread safe."""

    def __init__(self, connection: Connection, admin: ClusterAdmin) -> None:
        self._connection = connection
        self._admin = admin

    def gather(
        self,
        parent: PhysicalPartition,
        view: ControlView,
        attempt: Attempt | None,
        kind: OperationKind,
        deadline: Deadline,
        found: tuple[Check | None, Check | None] = (None, None),
    ) -> Facts:
        """Return the facts for an attempt (None: as far as they do not depend on one).

        Args:
            parent: the logical partition.
            view: the control topic's view, read to its end.
            attempt: what would be tried.
            kind: split or merge.
            deadline: of the whole call.
            found: what the sample says of the partitioner, and of the use of the split.
        """
        topic = self._admin.find(parent.topic)
        state = view.state(parent)
        facts = Facts(parent, kind, topic, view.enrolments.get(parent.topic), state)
        if topic is None or state is None or attempt is None or parent.partition >= len(topic.partitions):
            return facts
        closing = closing_segments(state, attempt)
        logs = self.logs(state, {s.source for s in state.lineage if s.is_open}, deadline)
        return replace(
            facts,
            closing=closing,
            opening=len(attempt.ranges),
            subtopic=attempt.subtopic,
            names=frozenset(self._admin.topics()),
            under_way=under_way(state),
            sources=self._layouts(closing, topic),
            logs=logs,
            hung_transaction=self._hung([s.source for s in closing], deadline),
            partitioner=found[0],
            useful=found[1],
        )

    def logs(
        self, state: PartitionState, looked_into: Collection[PhysicalPartition], deadline: Deadline
    ) -> dict[PhysicalPartition, LogFacts]:
        """Return the facts about every log of a lineage whose topic has not been retired.

        In those that are ``looked_into`` the newest marker is read as well.
        """
        dropped = {
            t.name for t in state.subtopics if t.state in (SubTopicState.RETIRED, SubTopicState.ABANDONED)
        }
        places = [p for p in state.lineage.sources() if p.topic not in dropped]
        ends, starts = self._admin.end_offsets(places), self._admin.start_offsets(places)
        found = {}
        for place in places:
            end, start = ends.get(place), starts.get(place)
            missing = None
            if end is not None and start is not None and place in looked_into:
                missing = self._marker_missing(state, place, start, end.offset, deadline)
            found[place] = LogFacts(start, None if end is None else end.offset, missing)
        return found

    def _marker_missing(
        self, state: PartitionState, place: PhysicalPartition, start: int, end: int, deadline: Deadline
    ) -> int | None:
        """Return the end of the newest closed segment of a log if a record other than its marker is there."""
        marks = [s.end for s in state.lineage if s.source == place and s.end is not None]
        newest = max(marks, default=None)
        if newest is None or not start <= newest < end:
            return None
        limit = RealDeadline(min(_MARKER_SECONDS, deadline.left()))
        for message in read_slice(
            self._connection, place, newest, newest + 1, limit, isolation="read_uncommitted"
        ):
            if message.offset() == newest and marker_of(message) is None:
                return newest
        return None

    def _layouts(self, closing: Iterable[Segment], topic: TopicFacts) -> tuple[TopicFacts, ...]:
        names = {s.source.topic for s in closing} - {topic.name}
        return tuple(t for t in map(self._admin.layout, sorted(names)) if t is not None)

    def _hung(self, places: list[PhysicalPartition], deadline: Deadline) -> str | None:
        """Watch the last stable offset for a while where a transaction is open."""
        before = self._admin.end_offsets(places)
        limit = RealDeadline(min(TRANSACTION_SECONDS, deadline.left()))
        while True:
            stable = self._admin.end_offsets(places, IsolationLevel.READ_COMMITTED)
            hung = [p for p in places if p in before and p in stable and stable[p].offset < before[p].offset]
            if not hung:
                return None
            if limit.left() <= 0:
                return self._describe_hung(hung[0])
            time.sleep(_PAUSE)

    def _describe_hung(self, place: PhysicalPartition) -> str:
        text = f"a transaction on {place} has been open for more than {TRANSACTION_SECONDS:.0f} s"
        try:
            who = describe_open_transaction(self._connection, place)
        except KpsplitError:
            who = None
        return f"{text} ({who})" if who else text


def closing_segments(state: PartitionState, attempt: Attempt) -> tuple[Segment, ...]:
    """Return the segments that an attempt would close; unknown ones are left out."""
    known = {s.id: s for s in state.lineage}
    if not all(i in known for i in attempt.sources):
        return ()
    ids = replace(state, attempt=attempt).closing_segments()
    return tuple(known[i] for i in ids)
