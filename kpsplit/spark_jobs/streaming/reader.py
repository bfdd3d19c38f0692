"""Answers Spark's questions about a streaming query, in the driver's planning process and on executors.

How Spark 4.0 asks, which is not how it reads:

* ``latestOffset`` is not told where the query stands. The reader remembers what it answered last. After a
  restart Spark says it beforehand, by ``partitions(x, x)``.
* A new query asks ``latestOffset`` first and ``initialOffset`` later, and asks for the latter again if it
  died before its first batch was done. So ``initialOffset`` is a constant, and the end of the first batch
  carries where it began (``offset``).
* ``Trigger.AvailableNow`` asks ``latestOffset`` once and makes one batch of it. Where there is a checkpoint
  Spark 4.0.0 says beforehand where the query stands, as with every trigger. Should it ever not, the answer
  with a limit is that of a new query, and is refused by ``partitions`` if it was not one.
* ``partitions`` is asked several times for one batch, and again for a batch that was not finished.

Later versions hand the start to ``latestOffset``; it is then taken from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kpsplit.errors import ConflictError, UnreachableError, UsageError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.streaming.offset import StreamOffset
from kpsplit.spark_jobs.streaming.planner import Planner, TaskRows
from kpsplit.spark_jobs.streaming.query import Query

if TYPE_CHECKING:
    import pyarrow as pa


class Task(InputPartition):
    """What one task reads; travels to its executor."""

    def __init__(self, regions: TaskRows) -> None:
        self.regions = regions


class LogicalStreamReader(DataSourceStreamReader):
    """One streaming query's reader. Spark's planning process has one; each task has a copy of its own."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._connection = Connection(query.properties)
        self._planner: Planner | None = None
        self._offset: StreamOffset | None = None
        self._planned: tuple[StreamOffset, StreamOffset, list[Task]] | None = None
        self._trouble_since: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the place before the first batch."""
        return StreamOffset(self._query.settings.topic).as_json()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Return where the next batch ends; the same text as before if there is nothing new.

        Raises:
            KpsplitError: the cluster cannot be read; brokers that do not answer are waited for.
        """
        if start is not None:
            given = self._parsed(start)
            self._offset = given if given.at else None
        try:
            self._offset = self._plan().next(self._offset) if self._offset else self._plan().first()
        except UnreachableError:
            since = self._trouble_since = self._trouble_since or monotonic()
            if self._offset is None or monotonic() - since > self._query.settings.patience:
                raise
        else:
            self._trouble_since = None
        return self._offset.as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch; none if it is empty, which is how Spark says where a query stands.

        Raises:
            ConflictError: the offsets are of another topic or cluster, or go back.
            KpsplitError: records are gone that were still to be read; the cluster cannot be read.
        """
        first, last = self._parsed(start), self._parsed(end)
        if first == last:
            self._offset = last
            return []
        if self._planned is None or self._planned[:2] != (first, last):
            self._planned = (first, last, [Task(rows) for rows in self._plan().tasks(first, last)])
        return self._planned[2]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of one task; called on executors.

        Raises:
            KpsplitError: a broker cannot be reached, or records are gone.
        """
        from kpsplit.spark_jobs.streaming.fetch import fetch

        if not isinstance(partition, Task):
            raise UsageError("this task was not planned by kpsplit")
        query = self._query
        return fetch(self._connection, partition.regions, query.settings.patience, query.fail_on_data_loss)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's checkpoint is what remembers."""

    def stop(self) -> None:
        """End the clients."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _parsed(self, value: dict[str, Any]) -> StreamOffset:
        offset = StreamOffset.parse(value)
        if offset.topic != self._query.settings.topic:
            raise ConflictError(
                f"the checkpoint is of topic {offset.topic}, the query of {self._query.settings.topic}",
                hint="give the query a checkpoint of its own",
            )
        return offset

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._query, self._connection)
        return self._planner
