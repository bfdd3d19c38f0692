"""Answers Spark's questions about a streaming query, in the driver's planning process and on executors.

How Spark 4.0 asks, which is not how it reads:

* ``latestOffset`` does not get the place where the query stands. The reader remembers what it answered
  last. After a restart Spark says it beforehand, by ``partitions(x, x)``.
* A new query asks ``latestOffset`` first and ``initialOffset`` later, and asks for the latter again if it
  died before its first batch was done. So ``initialOffset`` is a constant, and the end of the first batch
  carries where it began (``plan``).
* ``Trigger.AvailableNow`` asks ``latestOffset`` once and makes one batch of it. Where there is a checkpoint
  Spark 4.0.0 says beforehand where the query stands, as with every trigger. Should it ever not, the answer
  with a limit is that of a new query, and is refused by ``partitions`` if it was not one.
* ``partitions`` is asked several times for one batch, and again for a batch that was not finished.

Later versions hand the start to ``latestOffset``; it is then taken from there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kpsplit.clock import monotonic
from kpsplit.errors import ConflictError, UnreachableError, UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.connector_options import portable
from kpsplit.spark_jobs.gather import PATIENCE
from kpsplit.spark_jobs.records import delivered
from kpsplit.spark_jobs.regions import Bound, timestamp_ms
from kpsplit.spark_jobs.schemas import PLACED
from kpsplit.spark_jobs.session import warn_of_plain_rpc
from kpsplit.spark_jobs.streaming.plan import Query, StreamOffset, StreamSettings
from kpsplit.spark_jobs.streaming.planner import BatchPlanner, TaskRows

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
        self._planner: BatchPlanner | None = None
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

    def _plan(self) -> BatchPlanner:
        if self._planner is None:
            self._planner = BatchPlanner(self._query, self._connection)
        return self._planner


FORMAT = "kpsplit_logical_stream"
_CONNECTION = "connection.secret"


class LogicalStreamSource(DataSource):
    """Records of a topic's logical partitions in micro-batches that follow the lineage."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the shape of the records."""
        return PLACED

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return what plans and reads micro-batches."""
        return LogicalStreamReader(query_of(self.options))


def options_of(query: Query) -> dict[str, str]:
    """Return a query as options of the source.

    Raises:
        ConfigurationError: the connection has something that cannot travel to other machines.
        UsageError: a number is out of bounds.
    """
    if query.most is not None and query.most < 1:
        raise UsageError("max_offsets_per_trigger must be at least 1")
    settings = query.settings
    return {
        "topic": settings.topic,
        "partitions": json.dumps(settings.partitions),
        "patience": str(settings.patience),
        "start": json.dumps(_start_as_json(query.start)),
        "most": json.dumps(query.most),
        "fail_on_data_loss": json.dumps(query.fail_on_data_loss),
        _CONNECTION: json.dumps(portable(query.properties)),
    }


def query_of(options: Mapping[str, str]) -> Query:
    """Return the query that options name.

    Raises:
        UsageError: they were not made by ``options_of``.
    """
    if _CONNECTION not in options:
        raise UsageError(f"the format {FORMAT} is internal", hint="call read_logical_stream")
    partitions = json.loads(options["partitions"])
    start = json.loads(options["start"])
    return Query(
        properties=json.loads(options[_CONNECTION]),
        settings=StreamSettings(
            options["topic"], None if partitions is None else tuple(partitions), float(options["patience"])
        ),
        start={int(p): o for p, o in start.items()} if isinstance(start, dict) else start,
        most=json.loads(options["most"]),
        fail_on_data_loss=json.loads(options["fail_on_data_loss"]),
    )


def _start_as_json(start: Bound) -> str | int | dict[str, int]:
    at = timestamp_ms(start)
    if at is not None:
        return at
    if isinstance(start, Mapping):
        return {str(partition): offset for partition, offset in start.items()}
    return "latest" if start == "latest" else "earliest"


def read_logical_stream(
    spark: SparkSession,
    topic: str,
    connection: Connection | Mapping[str, Any],
    *,
    partitions: Collection[int] | None = None,
    starting_offsets: Bound = "earliest",
    max_offsets_per_trigger: int | None = None,
    include_headers: bool = False,
    fail_on_data_loss: bool = True,
    patience: float = PATIENCE,
) -> DataFrame:
    """Return the records of an enrolled topic's logical partitions as a streaming DataFrame.

    The columns and the records are those of ``read_logical``. The query goes on through splits and merges,
    and from its checkpoint across them. Per key, a row never comes in an earlier micro-batch than a row with
    a smaller logical offset; inside a batch the rows of a key come out of one task in that order, and what a
    shuffle makes of it is sorted by ``logical_offset``. (What was written past kpsplit while a partition is
    split lies in an overflow, beside the phantoms: it has an order of its own.)

    Nothing is asked of the cluster before the query starts: what is wrong with the topic, or with the
    starting offsets, ends the query with one clear line.

    Args:
        spark: a session; executors need kpsplit and confluent-kafka. The Kafka connector is not used.
        topic: the enrolled topic.
        connection: how to reach the cluster, from the driver and from executors (librdkafka's properties).
            Certificates and keys that are files are handed over by content.
        partitions: logical partitions to read; all when not given, later ones included (from their start).
        starting_offsets: ``earliest``, ``latest``, a time, or ``{partition: logical offset}`` (a partition
            that is not named is read from its start). Looked at only when there is no checkpoint.
        max_offsets_per_trigger: how many offsets one micro-batch holds at most; no limit when not given.
        include_headers: add ``headers``, those of the application.
        fail_on_data_loss: end the query when records that it has not read are gone; else pass over them with
            a warning.
        patience: seconds for what the query waits for: brokers, an open transaction, an operation under way
            when it begins.

    Raises:
        UsageError: a number or an offset makes no sense.
        ConfigurationError: a property of the connection cannot travel to executors.
    """
    reach = connection if isinstance(connection, Connection) else Connection(connection)
    wanted = None if partitions is None else tuple(sorted(set(partitions)))
    query = Query(
        reach.properties,
        StreamSettings(topic, wanted, patience),
        starting_offsets,
        max_offsets_per_trigger,
        fail_on_data_loss,
    )
    options = options_of(query)
    warn_of_plain_rpc(spark, query.properties)
    spark.dataSource.register(LogicalStreamSource)
    placed = spark.readStream.format(FORMAT).options(**options).load()
    return delivered(placed, include_headers=include_headers)
