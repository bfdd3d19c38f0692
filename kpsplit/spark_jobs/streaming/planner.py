"""Plans micro-batches: asks the cluster (``ClusterSnapshot``), decides (``plan``), stores nothing itself."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from confluent_kafka import IsolationLevel

from kpsplit.clock import Deadline, monotonic
from kpsplit.control.seeking import SeekTarget, Whence, cursor_at
from kpsplit.errors import ConflictError, KpsplitError, UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.spark_jobs.gather import Gatherer, parents_of, wrong_topics
from kpsplit.spark_jobs.regions import Bound, Region, logical_offsets, timestamp_ms
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.streaming.plan import (
    Frontier,
    Query,
    SegmentStretch,
    StreamOffset,
    StreamPosition,
    StreamPositions,
    advance,
    between,
    plain_starts,
    readable_ends,
    tasks,
    without_lost,
)
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor, GapReason


def beginning(connection: Connection, query: Query) -> StreamPositions:
    """Return where each logical partition begins: on every key's path at or after the query's start.

    Records that are gone already count as read for ``earliest``; with a logical offset they are still to be
    read, so that their loss is noticed.
    """
    start, at = query.start, timestamp_ms(query.start)
    snapshot = Gatherer(connection, query.topic, query.partitions, query.patience).snapshot()
    named = logical_offsets(start, {s.parent.partition for s in snapshot.states})
    young = {} if at is None else ClusterAdmin(connection).offsets_at(snapshot.bounds, at)
    return {
        s.parent.partition: _position_of(
            snapshot, s, _target(start, at, named.get(s.parent.partition)), young
        )
        for s in snapshot.states
    }


def _target(start: Bound, at: int | None, offset: int | None) -> SeekTarget:
    if at is not None:
        return SeekTarget(Whence.TIMESTAMP, at)
    if offset is not None:
        return SeekTarget(Whence.OFFSET, offset)
    return SeekTarget(Whence.LATEST if start == "latest" else Whence.EARLIEST)


def _position_of(
    snapshot: Snapshot, state: PartitionState, target: SeekTarget, young: Mapping[PhysicalPartition, int]
) -> StreamPosition:
    starts = {source: bounds.low for source, bounds in snapshot.bounds.items()}
    if target.whence is Whence.OFFSET:
        starts = dict.fromkeys(state.lineage.sources(), 0)
    ends = {source: bounds.stable for source, bounds in snapshot.bounds.items()}
    return StreamPosition(state.epoch, cursor_at(state, WHOLE, target, starts, ends, young))


class ClusterSnapshot:
    """Looks at the control topic and the logs. Not thread safe; one thread owns it.

    Attributes:
        short_patience: seconds for which a log may be shorter than what was read of it.
    """

    def __init__(self, connection: Connection, query: Query) -> None:
        self._query = query
        self.short_patience = query.patience
        self._admin = ClusterAdmin(connection)
        self._tail = ControlTail(connection)
        self._seen: dict[int, PartitionState] = {}
        self._short_since: dict[PhysicalPartition, float] = {}

    def close(self) -> None:
        self._tail.close()

    def states(self, cursors: Mapping[int, Cursor] = MappingProxyType({})) -> dict[int, PartitionState]:
        """Return the states of the logical partitions as the control topic has them at this moment.

        ``cursors``: where the query stands; ConflictError says so where the topic is back with plain clients.
        """
        topic, view = self._query.topic, self._tail.view
        self._tail.read_to_end(Deadline(self._query.patience))
        parents = parents_of(self._admin, topic, self._query.partitions)
        if cursors and (left := view.left.get(topic)) is not None:
            known = (view.left_states.get(p) or PartitionState.unsplit(p, left.topic_id) for p in parents)
            raise _returned(topic, plain_starts(known, cursors))
        self._seen = {p.partition: view.enrolled_state(p) for p in parents}
        return self._seen

    def states_since(self, start: StreamPositions, last: StreamPositions) -> dict[int, PartitionState]:
        """Return states that are no older than a batch's positions, as far as there are any."""
        seen = self._seen
        if all(p in seen and seen[p].epoch >= s.epoch for those in (start, last) for p, s in those.items()):
            return seen
        return self.states({p: s.cursor for p, s in start.items()})

    def frontiers(self, cursors: Mapping[int, Cursor]) -> dict[int, tuple[PartitionState, Frontier]]:
        """Return how far each logical partition can be read now.

        The ends are asked for *before* the control topic is read: every marker before them was written by an
        attempt that this view knows. Only logs that are not read to the end yet (``cursors``) are asked.
        """
        stable: dict[PhysicalPartition, int] = {}
        asked: set[PhysicalPartition] = set()
        states = self._seen or self.states(cursors)
        while left := _in_use(states, cursors) - asked:
            ends = self._admin.end_offsets(left, IsolationLevel.READ_COMMITTED)
            stable |= {source: end.offset for source, end in ends.items()}
            asked |= left
            states = self.states(cursors)
        self._watch_short(states, cursors, stable, asked)
        return {p: (s, Frontier(s.lineage, readable_ends(s, stable))) for p, s in states.items()}

    def missing(
        self, state: PartitionState, stretches: Iterable[SegmentStretch]
    ) -> tuple[dict[PhysicalPartition, int], dict[PhysicalPartition, GapReason]]:
        """Return where logs begin, and which hold nothing of ours any more."""
        sources = {s.segment.source for s in stretches}
        gone = wrong_topics(self._admin, dict.fromkeys(sources, state), Deadline(self._query.patience))
        return self._admin.start_offsets(sources - gone.keys()), gone

    def _watch_short(
        self,
        states: Mapping[int, PartitionState],
        cursors: Mapping[int, Cursor],
        stable: Mapping[PhysicalPartition, int],
        asked: Collection[PhysicalPartition],
    ) -> None:
        """Refuse to wait for ever for a log that has lost what was read of it, or is to be, or is not there.

        A leader that has just taken over may know an older end for a moment.
        """
        short: dict[PhysicalPartition, tuple[PartitionState, int, int]] = {}
        for p, state in states.items():
            for number, at in cursors[p].readable(state.lineage).items() if p in cursors else ():
                s = state.lineage.get(number)
                if s.source in asked and stable.get(s.source, -1) < max(at, s.end or 0):
                    short[s.source] = state, at, s.end or 0
        self._short_since = {s: self._short_since.get(s, monotonic()) for s in short}
        for source, since in self._short_since.items():
            if monotonic() - since > self.short_patience:
                state, at, end = short[source]
                has_read = stable.get(source, -1) < at
                there = self._admin.end_offsets([source]).get(source)
                if not has_read and there is not None and there.offset >= end:
                    continue  # an open transaction holds up what is there
                gone = wrong_topics(self._admin, {source: state}, Deadline(self._query.patience))
                why = gone.get(source, GapReason.CUT_OFF)
                raise KpsplitError(
                    f"{source} does not hold what the query {'has' if has_read else 'has to'} read of it: "
                    f"{why.phrase}",
                    hint=f"look at: kpsplit status {state.parent}; start again with a new checkpoint",
                )


def _returned(topic: str, starts: Mapping[int, int | None]) -> ConflictError:
    behind = next((partition for partition, offset in starts.items() if offset is None), None)
    text, again = f"topic {topic} was returned to plain clients", f"run: kpsplit enroll {topic}"
    if behind is not None:
        return ConflictError(
            f"{text} before this query had read {topic}/{behind} up to its latest merge",
            hint=f"{again}, and start this query again: it goes on, or names what is gone",
        )
    place = json.dumps({topic: {str(partition): offset for partition, offset in starts.items()}})
    return ConflictError(
        f"{text}: this query reads it no further; it stands at {place}",
        hint="go on from there with Spark's own Kafka source (startingOffsets), with a new checkpoint; or "
        f"{again}, and start this query again",
    )


def _in_use(states: Mapping[int, PartitionState], cursors: Mapping[int, Cursor]) -> set[PhysicalPartition]:
    """Return the logs of segments that are not read to the end yet."""
    found: set[PhysicalPartition] = set()
    for partition, state in states.items():
        left = cursors.get(partition, Cursor.at_start(WHOLE)).pending(state.lineage)
        found |= {s.source for s in state.lineage if s.id in left and not state.is_retired(s.source.topic)}
    return found


TaskRows = tuple[tuple[object, ...], ...]
"""What one task reads, in this order: rows of ``records.REGIONS``."""

_log = logging.getLogger(__name__)
_FROM_THE_START = Cursor.at_start(WHOLE)


class BatchPlanner:
    """Plans the batches of one query. Not thread safe; lives in Spark's planning process."""

    def __init__(self, query: Query, connection: Connection) -> None:
        self._query = query
        self._connection = connection
        self._cluster = ClusterSnapshot(connection, query)

    def close(self) -> None:
        self._cluster.close()

    def first(self) -> StreamOffset:
        """Return the end of a first batch. Without a limit it is that of any batch (``AvailableNow``)."""
        begun: StreamPositions = {}
        try:
            begun = beginning(self._connection, self._query)
        except UsageError:
            if self._query.most is not None:
                raise  # else only a query that is new needs its beginning, and that asks again
        anywhere = self._query.most is None and self._query.start != "latest"
        at = self._advanced({} if anywhere else begun, self._query.most)
        return StreamOffset(self._query.topic, at, begun)

    def next(self, before: StreamOffset) -> StreamOffset:
        """Return the end of the batch after another one; the same offset if there is nothing new."""
        at = self._advanced(before.at, self._query.most)
        if all(p in before.at and before.at[p].cursor == s.cursor for p, s in at.items()):
            return before
        return StreamOffset(before.topic, {**before.at, **at})

    def tasks(self, first: StreamOffset, last: StreamOffset) -> list[TaskRows]:
        """Return what the tasks of a batch read.

        Raises:
            ConflictError: the offsets go back, or are of another cluster.
            KpsplitError: records are gone that were still to be read; the cluster cannot be read.
        """
        start = first.at or last.begun or beginning(self._connection, self._query)
        states = self._cluster.states_since(start, last.at)
        found: list[TaskRows] = []
        for partition, end in sorted(last.at.items()):
            before, state = start.get(partition), states.get(partition)
            if state is not None and before != end:
                for position in (before, end):
                    _refuse_unknown(state, position)
                found += self._tasks_of(state, before.cursor if before else _FROM_THE_START, end.cursor)
        return found

    def _advanced(self, positions: StreamPositions, most: int | None) -> dict[int, StreamPosition]:
        cursors = {p: s.cursor for p, s in positions.items()}
        found = self._cluster.frontiers(cursors)
        for p, (state, _) in found.items():
            _refuse_unknown(state, positions.get(p))
        start = {p: cursors.get(p, _FROM_THE_START) for p in found}
        moved = advance(start, {p: frontier for p, (_, frontier) in found.items()}, most)
        return {p: StreamPosition(found[p][0].epoch, cursor) for p, cursor in moved.items()}

    def _tasks_of(self, state: PartitionState, start: Cursor, end: Cursor) -> list[TaskRows]:
        stretches = between(state.lineage, start, end)
        if stretches is None:
            raise ConflictError(
                f"{state.parent}: the batch would end before it begins",
                hint="nothing was read. To go on from the last batch that was done: delete the file with the "
                "greatest number in the checkpoint's folder offsets, if its folder commits has none of that "
                "number",
            )
        kept = self._there(state, stretches)
        return [
            tuple(Region(state, s.segment.source, s.first, s.behind, s.segment).row() for s in together)
            for together in tasks(state.lineage, kept)
        ]

    def _there(self, state: PartitionState, stretches: Sequence[SegmentStretch]) -> list[SegmentStretch]:
        kept, lost = without_lost(state, stretches, *self._cluster.missing(state, stretches))
        for one in lost:
            if self._query.fail_on_data_loss:
                raise KpsplitError(
                    f"{state.parent}: records that were not read yet are lost: {one}",
                    hint="go on without them with fail_on_data_loss=False, from the same checkpoint",
                )
            _log.warning("%s: passed over: %s", state.parent, one)
        return kept


def _refuse_unknown(state: PartitionState, position: StreamPosition | None) -> None:
    """Refuse to go on from, or to, a place that the control topic does not know."""
    if position is None:
        return
    if state.epoch < position.epoch or position.cursor.ahead_of(state.lineage):
        raise ConflictError(
            f"{state.parent} is at epoch {state.epoch}, the checkpoint at {position.epoch}",
            hint="the checkpoint belongs to another cluster, or the control topic was lost",
        )
