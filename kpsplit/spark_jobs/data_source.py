"""``spark.read.format("kpsplit_lineage")``: the small tables of a topic as DataFrames.

    register(spark)
    spark.read.format("kpsplit_lineage").option("topic", "orders").option("table", "lineage")
        .option("bootstrap.servers", "…").load()

Options: ``topic``, ``table`` (``lineage``, ``commits``, ``certificates``), and librdkafka's properties. Spark
lower-cases the names of options; librdkafka's are lower-case already.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kpsplit.errors import UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.gather import Gatherer
from kpsplit.spark_jobs.lineage_frames import TABLES, Rows

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
            raise UsageError("no topic is named", hint='add .option("topic", "orders")')
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
