"""The streaming data source, and how a query's settings travel to it.

Options of a data source are text, and may be shown wherever a plan is. So everything about the connection is
one option whose name every default of ``spark.redaction.regex`` hides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from kpsplit.errors import UsageError
from kpsplit.spark_jobs.connector_options import portable
from kpsplit.spark_jobs.offsets import Bound, timestamp_ms
from kpsplit.spark_jobs.streaming.query import Query, Settings
from kpsplit.spark_jobs.streaming.reader import LogicalStreamReader
from kpsplit.spark_jobs.streaming.schema import PLACED

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
        raise UsageError(f"the format {FORMAT} is not used by hand", hint="call read_logical_stream")
    partitions = json.loads(options["partitions"])
    start = json.loads(options["start"])
    return Query(
        properties=json.loads(options[_CONNECTION]),
        settings=Settings(
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
