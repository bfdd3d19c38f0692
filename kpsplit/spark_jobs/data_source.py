"""``spark.read.format("kpsplit_lineage")``: the small tables of a topic as DataFrames.

    register(spark)
    spark.read.format("kpsplit_lineage").option("topic", "orders").option("table", "lineage")
        .option("bootstrap.servers", "…").load()

Options: ``topic``, ``table`` (``lineage``, ``commits``, ``certificates``), and librdkafka's properties. Spark
lower-cases the names of options; librdkafka's are lower-case already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kpsplit.errors import UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.gather import Gatherer
from kpsplit.spark_jobs.schemas import CERTIFICATES, COMMITS, LINEAGE
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.splitter.records.data import instance_name
from kpsplit.splitter.records.keys import parse_partition
from kpsplit.splitter.records.offsets import RangeCommit

Rows = Iterator[tuple[object, ...]]


def lineage_rows(snapshot: Snapshot) -> Rows:
    """Return one row per segment (``schemas.LINEAGE``)."""
    for state in snapshot.states:
        for s in state.lineage:
            yield (
                *(state.parent.topic, state.parent.partition, s.id, str(s.kind), s.range.lo, s.range.hi),
                *(s.source.topic, s.source.partition, s.start, s.end),
                *(s.progression.base, s.progression.stride, list(s.predecessors)),
                *(s.opened_epoch, s.closed_epoch),
            )


def commit_rows(snapshot: Snapshot) -> Rows:
    """Return one row per range commit and segment that it lists (``schemas.COMMITS``)."""
    for logged in snapshot.commits:
        commit = logged.commit
        if not isinstance(commit, RangeCommit):  # withdrawn, or of a newer version
            continue
        for segment, position in sorted(commit.positions.items()):
            yield (
                *(
                    commit.group,
                    commit.parent.topic,
                    commit.parent.partition,
                    commit.range.lo,
                    commit.range.hi,
                ),
                *(segment, position.next, position.leader_epoch, commit.member, commit.generation),
                *(str(commit.cause), logged.log_partition, logged.log_offset),
            )


def certificate_rows(snapshot: Snapshot) -> Rows:
    """Return one row per certificate and segment that it counts (``schemas.CERTIFICATES``)."""
    wanted = {str(state.parent) for state in snapshot.states}
    for record in snapshot.producers:
        for name, certificate in sorted(record.certificates.items()):
            if name not in wanted:
                continue
            place = parse_partition(name)
            head = (
                instance_name(record.instance),
                record.client_id,
                record.closed,
                place.topic,
                place.partition,
            )
            counted: list[tuple[int | None, int]] = [(int(s), n) for s, n in certificate.delivered.items()]
            for segment, delivered in counted or [(None, 0)]:
                yield (*head, certificate.next_sequence, segment, delivered, list(certificate.failed))


TABLES: dict[str, tuple[StructType, Callable[[Snapshot], Rows]]] = {
    "lineage": (LINEAGE, lineage_rows),
    "commits": (COMMITS, commit_rows),
    "certificates": (CERTIFICATES, certificate_rows),
}
"""The tables of the data source by name: schema and rows."""


FORMAT = "kpsplit_lineage"
_OURS = {"topic", "table", "path"}


def register(spark: SparkSession) -> None:
    """Make the format known to a session."""
    spark.dataSource.register(LineageSource)


class LineageSource(DataSource):
    """One of the small tables of one topic."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the shape of the table that was asked for."""
        return TABLES[self._table()][0]

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the table."""
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

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        """Take a snapshot of the cluster and return the rows.

        Raises:
            KpsplitError: as ``Gatherer.snapshot`` does.
        """
        with_groups = self._table != "lineage"
        snapshot = Gatherer(Connection(self._properties), self._topic).snapshot(with_groups=with_groups)
        rows: Rows = TABLES[self._table][1](snapshot)
        return rows
