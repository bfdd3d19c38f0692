"""Plans micro-batches: asks the cluster (``lookout``), decides (``plan``), remembers nothing of the query."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kpsplit.errors import ConflictError, KpsplitError, UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.regions import Region
from kpsplit.spark_jobs.streaming.beginning import beginning
from kpsplit.spark_jobs.streaming.lookout import Lookout
from kpsplit.spark_jobs.streaming.offset import Standing, Standings, StreamOffset
from kpsplit.spark_jobs.streaming.plan import Stretch, advance, between, tasks, without_lost
from kpsplit.spark_jobs.streaming.query import Query
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.partition_state import PartitionState

TaskRows = tuple[tuple[object, ...], ...]
"""What one task reads, in this order: rows of ``schemas.REGIONS``."""

_log = logging.getLogger(__name__)
_FROM_THE_START = Cursor.at_start(WHOLE)


class Planner:
    """Plans the batches of one query. Not thread safe; lives in Spark's planning process.

    Args:
        query: what is asked.
        connection: how to reach the cluster.
    """

    def __init__(self, query: Query, connection: Connection) -> None:
        self._query = query
        self._connection = connection
        self._lookout = Lookout(connection, query.settings)

    def close(self) -> None:
        """End the clients."""
        self._lookout.close()

    def first(self) -> StreamOffset:
        """Return the end of a first batch. Without a limit it is that of any batch (``AvailableNow``).

        Raises:
            UsageError: the topic or the start is wrong. KpsplitError: the cluster cannot be read.
        """
        begun: Standings = {}
        try:
            begun = self._beginning()
        except UsageError:
            if self._query.most is not None:
                raise  # else only a query that is new needs its beginning, and that asks again
        anywhere = self._query.most is None and self._query.start != "latest"
        at = self._advanced({} if anywhere else begun, self._query.most)
        return StreamOffset(self._query.settings.topic, at, begun)

    def next(self, before: StreamOffset) -> StreamOffset:
        """Return the end of the batch behind another one; the same offset if there is nothing new.

        Raises:
            ConflictError: the control topic does not know the epoch or the segments where the query stands.
            KpsplitError: the cluster cannot be read, or a log is shorter than what was read of it.
        """
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
        start = first.at or last.begun or self._beginning()
        states = self._lookout.states_since(start, last.at)
        found: list[TaskRows] = []
        for partition, end in sorted(last.at.items()):
            before, state = start.get(partition), states.get(partition)
            if state is not None and before != end:
                for standing in (before, end):
                    _refuse_unknown(state, standing)
                found += self._tasks_of(state, before.cursor if before else _FROM_THE_START, end.cursor)
        return found

    def _beginning(self) -> Standings:
        return beginning(self._connection, self._query.settings, self._query.start)

    def _advanced(self, standings: Standings, most: int | None) -> dict[int, Standing]:
        cursors = {p: s.cursor for p, s in standings.items()}
        found = self._lookout.frontiers(cursors)
        for p, (state, _) in found.items():
            _refuse_unknown(state, standings.get(p))
        start = {p: cursors.get(p, _FROM_THE_START) for p in found}
        moved = advance(start, {p: frontier for p, (_, frontier) in found.items()}, most)
        return {p: Standing(found[p][0].epoch, cursor) for p, cursor in moved.items()}

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

    def _there(self, state: PartitionState, stretches: Sequence[Stretch]) -> list[Stretch]:
        kept, lost = without_lost(stretches, *self._lookout.missing(state, stretches))
        for one in lost:
            if self._query.fail_on_data_loss:
                raise KpsplitError(
                    f"{state.parent}: records that were not read yet are lost: {one}",
                    hint="go on without them with fail_on_data_loss=False, from the same checkpoint",
                )
            _log.warning("%s: passed over: %s", state.parent, one)
        return kept


def _refuse_unknown(state: PartitionState, standing: Standing | None) -> None:
    """Refuse to go on from, or to, a place that the control topic does not know."""
    if standing is None:
        return
    if state.epoch < standing.epoch or standing.cursor.ahead_of(state.lineage):
        raise ConflictError(
            f"{state.parent} is at epoch {state.epoch}, the checkpoint at {standing.epoch}",
            hint="the checkpoint belongs to another cluster, or the control topic was lost",
        )
