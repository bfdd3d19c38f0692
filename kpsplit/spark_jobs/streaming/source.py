"""Answers Spark's questions about a streaming query, and reads on executors what was planned, as Arrow.

How Spark 4.0 asks, which is not how it reads:

* ``latestOffset`` does not get the place where the query stands. The reader remembers what it answered
  last. After a restart Spark says it beforehand, by ``partitions(x, x)``.
* A new query asks ``latestOffset`` first and ``initialOffset`` later, and asks for the latter again if it
  died before its first batch was done. So ``initialOffset`` is a constant, and the end of the first batch
  carries where it began (``plan``).
* ``Trigger.AvailableNow`` asks ``latestOffset`` once and makes one batch of it. An offset that is repeated
  ends the query as if everything were read, so none is repeated before brokers have answered for the first
  time. No call says which trigger it is. Where there is a checkpoint Spark 4.0.0 says beforehand where the
  query stands, as with every trigger. Should it ever not, the answer with a limit is that of a new query, and
  is refused by ``partitions`` if it was not one.
* ``partitions`` is asked several times for one batch, and again for a batch that was not finished.

Later versions hand the start to ``latestOffset``; it is then taken from there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kpsplit.clock import Deadline, monotonic
from kpsplit.consumer.fetch.physical_reader import AHEAD, LostStartError, PhysicalReader
from kpsplit.errors import ConflictError, KpsplitError, UnreachableError, UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.logical_message import headers_of
from kpsplit.spark_jobs.connector_options import portable
from kpsplit.spark_jobs.gather import PATIENCE
from kpsplit.spark_jobs.records import PLACED, REGIONS, delivered
from kpsplit.spark_jobs.regions import Bound, timestamp_ms
from kpsplit.spark_jobs.session import warn_of_plain_rpc
from kpsplit.spark_jobs.streaming.plan import Query, StreamOffset
from kpsplit.spark_jobs.streaming.planner import BatchPlanner, TaskRows
from kpsplit.splitter.lineage import PhysicalPartition

_log = logging.getLogger(__name__)
_SCHEMA = to_arrow_schema(PLACED)

ROWS = 2000
BYTES = 8 << 20
"""So many records, or bytes of values, are one Arrow batch: bounds what a task holds at a time."""

_LOOK_AGAIN = 0.5

_LEAST = 1_000
_SPARE = 8
"""A reader is taken for a task if it fetches at most so many times as many records ahead as that reads."""

_kept: dict[str, PhysicalReader] = {}
"""The reader that the last task of this process left, if it was done; at most one."""

_FIRST, _BEHIND = REGIONS.fieldNames().index("first"), REGIONS.fieldNames().index("behind")


def fetch(
    connection: Connection, regions: Sequence[tuple[Any, ...]], patience: float, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the committed records of regions (rows of ``records.REGIONS``), one region after the other."""
    most = max((region[_BEHIND] - region[_FIRST] for region in regions), default=0)
    with _reader(connection, patience, most) as reader:
        for region in regions:
            for block in _blocks(_records(reader, region, fail_on_data_loss)):
                yield _arrow(block, region)


@contextmanager
def _reader(connection: Connection, patience: float, most: int) -> Iterator[PhysicalReader]:
    """Yield a reader: the one that the task before left in this process, if it fits, else a new one.

    Spark keeps its Python processes for the tasks of later batches. A client that is connected already reads
    at once; between two tasks it fetches nothing. After an error, and where a task is not read to its end, it
    is closed.
    """
    name = json.dumps([portable(connection.properties), patience], sort_keys=True)
    least = max(min(most, AHEAD), _LEAST)
    kept = _kept.pop(name, None)
    while _kept:  # of another query
        _kept.popitem()[1].close()
    if kept is not None and not least <= kept.ahead <= _SPARE * least:
        kept.close()
        kept = None
    reader = kept or PhysicalReader(connection, patience, least)
    try:
        yield reader
        reader.rest()
    except BaseException:
        reader.close()
        raise
    _kept[name] = reader


def _blocks(records: Iterator[Message]) -> Iterator[list[Message]]:
    block: list[Message] = []
    size = 0
    for record in records:
        block.append(record)
        size += len(record)
        if len(block) >= ROWS or size >= BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _records(reader: PhysicalReader, region: tuple[Any, ...], fail_on_data_loss: bool) -> Iterator[Message]:
    source = PhysicalPartition(region[0], region[1])
    first, behind = region[_FIRST], region[_BEHIND]
    while True:
        try:
            yield from reader.records(source, first, behind)
            break
        except LostStartError as lost:
            bounds = reader.bounds(source)
            low = behind if bounds is None else min(max(bounds.low, lost.position), behind)
            extent = f"offsets {lost.position} to {low - 1} of {source} are gone"
            if fail_on_data_loss or low <= lost.position:
                raise KpsplitError(
                    f"records that were not read yet are lost: {extent}",
                    hint="go on without them with fail_on_data_loss=False, from the same checkpoint",
                ) from None
            _log.warning("passed over: %s", extent)
            first = low
    if first < behind and reader.position < behind:
        raise KpsplitError(
            f"{source} ends at {reader.position}, although it was read committed to {behind}",
            hint="the log was cut off; look at: kpsplit status",
        )


def _arrow(records: list[Message], region: tuple[Any, ...]) -> pa.RecordBatch:
    times = [m.timestamp() for m in records]
    count = len(records)
    read: dict[str, list[Any]] = {
        "key": [m.key() for m in records],
        "value": [m.value() for m in records],
        "offset": [m.offset() for m in records],
        "timestamp": [at * 1000 for _, at in times],
        "timestampType": [kind - 1 for kind, _ in times],
        "headers": [headers_of(m) or None for m in records],
    }
    same = dict(zip(REGIONS.fieldNames(), region, strict=True))
    columns = [
        pa.array(read[f.name], f.type)
        if f.name in read
        else pa.repeat(pa.scalar(same[f.name], f.type), count)
        for f in _SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


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
        self._answered = False
        self._trouble_since: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return StreamOffset(self._query.topic).as_json()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Return where the next batch ends; the same text as before if there is nothing new.

        Brokers that do not answer are waited for, but not by a query that has not begun. One that goes on
        from its checkpoint waits here for their first answer.

        Raises:
            UnreachableError: no answer for as long as the query's patience.
        """
        if start is not None:
            given = self._parsed(start)
            self._offset = given if given.at else None
        try:
            self._offset = self._next(self._offset)
        except UnreachableError:
            since = self._trouble_since = self._trouble_since or monotonic()
            over = monotonic() - since > self._query.patience
            if self._offset is None or not self._answered or over:
                raise
        else:
            self._answered, self._trouble_since = True, None
        return self._offset.as_json()

    def _next(self, before: StreamOffset | None) -> StreamOffset:
        if before is None:
            return self._plan().first()
        limit = Deadline(self._query.patience)
        while True:
            try:
                return self._plan().next(before)
            except UnreachableError as error:
                if self._answered:
                    raise
                if limit.expired():
                    raise UnreachableError(
                        f"nothing was read, and the checkpoint is as it was: {error.message}",
                        hint="start the query again when brokers answer: it goes on from its checkpoint",
                    ) from error
                limit.pause(_LOOK_AGAIN)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch; none if it is empty, which is how Spark says where a query stands."""
        first, last = self._parsed(start), self._parsed(end)
        if first == last:
            self._offset = last
            return []
        if self._planned is None or self._planned[:2] != (first, last):
            self._planned = (first, last, [Task(rows) for rows in self._plan().tasks(first, last)])
        return self._planned[2]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of one task; called on executors."""
        if not isinstance(partition, Task):
            raise UsageError("this task was not planned by kpsplit")
        query = self._query
        return fetch(self._connection, partition.regions, query.patience, query.fail_on_data_loss)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's checkpoint is what remembers."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _parsed(self, value: dict[str, Any]) -> StreamOffset:
        offset = StreamOffset.parse(value)
        if offset.topic != self._query.topic:
            raise ConflictError(
                f"the checkpoint is of topic {offset.topic}, the query of {self._query.topic}",
                hint="give the query a checkpoint of its own",
            )
        return offset

    def _plan(self) -> BatchPlanner:
        if self._planner is None:
            self._planner = BatchPlanner(self._query, self._connection)
        return self._planner


FORMAT = "kpsplit_logical_stream"
# Options appear in plans: the connection is one of its own, with a name that Spark redacts.
_QUERY, _CONNECTION = "query", "connection.secret"
_ASKED = [f.name for f in fields(Query) if f.name != "properties"]


class LogicalStreamSource(DataSource):
    """Records of a topic's logical partitions in micro-batches that follow the lineage."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return PLACED

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return LogicalStreamReader(query_of(self.options))


def options_of(query: Query) -> dict[str, str]:
    """Return a query as options of the source, which travel to other machines."""
    if query.most is not None and query.most < 1:
        raise UsageError("max_offsets_per_trigger must be at least 1")
    start, at = query.start, timestamp_ms(query.start)
    asked = {name: getattr(query, name) for name in _ASKED}
    asked["start"] = at if at is not None else dict(start) if isinstance(start, Mapping) else start
    return {_QUERY: json.dumps(asked), _CONNECTION: json.dumps(portable(query.properties))}


def query_of(options: Mapping[str, str]) -> Query:
    """Return the query that options of ``options_of`` name."""
    if _CONNECTION not in options:
        raise UsageError(f"the format {FORMAT} is internal", hint="call read_logical_stream")
    asked = json.loads(options[_QUERY])
    if isinstance(asked["start"], dict):
        asked["start"] = {int(partition): offset for partition, offset in asked["start"].items()}
    if asked["partitions"] is not None:
        asked["partitions"] = tuple(asked["partitions"])
    return Query(json.loads(options[_CONNECTION]), **asked)


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
        topic,
        wanted,
        patience,
        starting_offsets,
        max_offsets_per_trigger,
        fail_on_data_loss,
    )
    options = options_of(query)
    warn_of_plain_rpc(spark, query.properties)
    spark.dataSource.register(LogicalStreamSource)
    placed = spark.readStream.format(FORMAT).options(**options).load()
    return delivered(placed, include_headers=include_headers)
