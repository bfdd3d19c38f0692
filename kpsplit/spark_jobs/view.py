"""The logical view of a topic in batch, and kpsplit's small tables of it, as DataFrames.

    register(spark)
    spark.read.format("kpsplit_lineage").option("topic", "orders").option("table", "lineage")
        .option("bootstrap.servers", "…").load()

Options: ``topic``, ``table`` (``lineage``, ``commits``, ``certificates``), and librdkafka's properties. Spark
lower-cases the names of options; librdkafka's are lower-case already.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kpsplit.errors import UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.connector_options import kafka_options
from kpsplit.spark_jobs.gather import PATIENCE, Gatherer
from kpsplit.spark_jobs.records import KAFKA, REGIONS, delivered, placed, schema, small_frame
from kpsplit.spark_jobs.regions import (
    Bound,
    Limit,
    check_batch_bounds,
    limit,
    ranges_to_scan,
    timestamp_ms,
    wanted,
)
from kpsplit.spark_jobs.session import SPARK_ERRORS, explained, warn_of_plain_rpc
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.data import instance_name
from kpsplit.splitter.records.keys import parse_partition
from kpsplit.splitter.records.offsets import RangeCommit

_log = logging.getLogger(__name__)


def read_logical(
    spark: SparkSession,
    topic: str,
    connection: Connection | Mapping[str, Any],
    *,
    partitions: Collection[int] | None = None,
    starting_offsets: Bound = "earliest",
    ending_offsets: Bound = "latest",
    include_headers: bool = False,
    options: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
) -> DataFrame:
    """Return the records of an enrolled topic's logical partitions.

    Columns: those of Kafka's source (``topic``, ``partition`` and ``offset`` are the logical ones), then
        ``logical_offset``, ``epoch`` (that opened the segment), ``segment``, ``key_hash``,
        ``source_topic``, ``source_partition``, ``source_offset``, and of the stamp ``stamp_epoch``,
        ``producer`` (16 hexadecimal digits)
    and ``sequence``, null where there is none. Rows of one key are in order by ``logical_offset``.

    One scan of Kafka, read committed, from and to exact offsets: what arrives later is not in it, however
    often the DataFrame is evaluated. Records that retention or a retired sub-topic took away are missing
    from ``earliest`` (logged as warnings of this module).

    Args:
        spark: a session that has the Kafka connector.
        topic: the enrolled topic.
        connection: how the driver reaches the cluster (librdkafka's properties); executors get them
            translated.
        partitions: logical partitions to read; all when not given.
        starting_offsets: ``earliest``, a time, or ``{partition: logical offset}`` (a partition that is not
            named is read from its start).
        ending_offsets: ``latest``, a time, or ``{partition: logical offset}``, not included.
        include_headers: add ``headers``, those of the application.
        options: more options of the connector (``kafka.…``, ``minPartitions``).
        patience: seconds for reading the small topics and for an operation under way.

    Raises:
        UsageError: wrong topic, partition or offset, or records that were asked for are gone.
        KpsplitError: the brokers cannot be reached; a newer kpsplit wrote the control topic.
    """
    reach = connection if isinstance(connection, Connection) else Connection(connection)
    check_batch_bounds(starting_offsets, ending_offsets)
    snapshot = Gatherer(reach, topic, partitions, patience).snapshot()
    for lost in snapshot.lost():
        _log.warning("%s: %s", lost.state.parent, lost)
    start = _limit(reach, snapshot, starting_offsets)
    regions = wanted(snapshot, start, _limit(reach, snapshot, ending_offsets))
    raw = scan(spark, kafka_options(reach, options), ranges_to_scan(regions))
    table = small_frame(spark, [r.row() for r in regions], REGIONS)
    return delivered(placed(raw, table), include_headers=include_headers)


def scan(
    spark: SparkSession, options: Mapping[str, str], ranges: Mapping[PhysicalPartition, tuple[int, int]]
) -> DataFrame:
    """Return the records of stretches [first, behind) of physical partitions, with headers, in one scan."""
    assigned: dict[str, list[int]] = {}
    offsets: tuple[dict[str, dict[str, int]], ...] = ({}, {})
    for place, stretch in ranges.items():
        assigned.setdefault(place.topic, []).append(place.partition)
        for side, offset in zip(offsets, stretch, strict=True):
            side.setdefault(place.topic, {})[str(place.partition)] = offset
    if not assigned:
        return small_frame(spark, [], KAFKA)
    warn_of_plain_rpc(spark, options)
    bounded = {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(offsets[0]),
        "endingOffsets": json.dumps(offsets[1]),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    try:
        return spark.read.format("kafka").options(**options, **bounded).load()
    except SPARK_ERRORS as error:
        raise explained(error) from error


def _limit(connection: Connection, snapshot: Snapshot, bound: Bound) -> Limit:
    at = timestamp_ms(bound)
    found = None if at is None else ClusterAdmin(connection).offsets_at(snapshot.bounds, at)
    return limit(bound, found, {state.parent.partition for state in snapshot.states})


_LINEAGE = schema(
    """topic string, partition int, segment bigint, kind string, lo bigint, hi bigint, source_topic string,
    source_partition int, start bigint, end bigint, base bigint, stride bigint, predecessors bigints,
    opened_epoch bigint, closed_epoch bigint"""
)
_COMMITS = schema(
    """group string, topic string, partition int, lo bigint, hi bigint, segment bigint, next bigint,
    leader_epoch bigint, member string, generation bigint, cause string, log_partition int,
    log_offset bigint"""
)
_CERTIFICATES = schema(
    """producer string, client_id string, closed boolean, topic string, partition int, next_sequence bigint,
    segment bigint, delivered bigint, failed bigints"""
)

Rows = Iterator[tuple[object, ...]]


def lineage_rows(snapshot: Snapshot) -> Rows:
    """Return one row per segment, as the control topic says."""
    for state in snapshot.states:
        for s in state.lineage:
            yield (
                *(state.parent.topic, state.parent.partition, s.id, str(s.kind), s.range.lo, s.range.hi),
                *(s.source.topic, s.source.partition, s.start, s.end),
                *(s.progression.base, s.progression.stride, list(s.predecessors)),
                *(s.opened_epoch, s.closed_epoch),
            )


def commit_rows(snapshot: Snapshot) -> Rows:
    """Return one row per range commit and segment that it lists, in the order of the log."""
    for logged in snapshot.commits:
        commit = logged.commit
        if not isinstance(commit, RangeCommit):  # withdrawn, or of a newer version
            continue
        for segment, position in sorted(commit.positions.items()):
            parent, range_ = commit.parent, commit.range
            yield (
                *(commit.group, parent.topic, parent.partition, range_.lo, range_.hi),
                *(segment, position.next, position.leader_epoch, commit.member, commit.generation),
                *(str(commit.cause), logged.log.partition, logged.log_offset),
            )


def certificate_rows(snapshot: Snapshot) -> Rows:
    """Return one row per certificate and segment that it counts; segment None: it counts none."""
    parents = {str(state.parent) for state in snapshot.states}
    for record in snapshot.producers:
        for name, certificate in sorted(record.certificates.items()):
            if name not in parents:
                continue
            place, producer = parse_partition(name), instance_name(record.instance)
            head = producer, record.client_id, record.closed, place.topic, place.partition
            counted: list[tuple[int | None, int]] = [(int(s), n) for s, n in certificate.delivered.items()]
            for segment, count in counted or [(None, 0)]:
                yield (*head, certificate.next_sequence, segment, count, list(certificate.failed))


TABLES: dict[str, tuple[StructType, Callable[[Snapshot], Rows]]] = {
    "lineage": (_LINEAGE, lineage_rows),
    "commits": (_COMMITS, commit_rows),
    "certificates": (_CERTIFICATES, certificate_rows),
}

FORMAT = "kpsplit_lineage"
_OURS = {"topic", "table", "path"}


def register(spark: SparkSession) -> None:
    """Make the format known to a session."""
    spark.dataSource.register(LineageSource)


class LineageSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return TABLES[self._table()][0]

    def reader(self, schema: StructType) -> DataSourceReader:
        return LineageTable(dict(self.options), self._table())

    def _table(self) -> str:
        table = self.options.get("table", "lineage")
        if table not in TABLES:
            raise UsageError(f"there is no table {table}", hint=f"the tables are {', '.join(TABLES)}")
        return table


class LineageTable(DataSourceReader):
    """Reads one table in one task. Travels to a worker: it holds plain values only."""

    def __init__(self, options: dict[str, str], table: str) -> None:
        if "topic" not in options:
            raise UsageError("the option topic is missing", hint='add .option("topic", "orders")')
        self._topic, self._table = options["topic"], table
        self._properties = {name: value for name, value in options.items() if name not in _OURS}

    def read(self, partition: InputPartition) -> Rows:
        with_groups = self._table != "lineage"
        snapshot = Gatherer(Connection(self._properties), self._topic).snapshot(with_groups=with_groups)
        return TABLES[self._table][1](snapshot)
