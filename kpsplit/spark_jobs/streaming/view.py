"""The logical view of a topic as a stream: a streaming DataFrame of data only, in each key's order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.gather import PATIENCE
from kpsplit.spark_jobs.offsets import Bound
from kpsplit.spark_jobs.session import warn_of_plain_rpc
from kpsplit.spark_jobs.streaming.query import Query, Settings
from kpsplit.spark_jobs.streaming.source import FORMAT, LogicalStreamSource, options_of
from kpsplit.spark_jobs.transforms.logical import delivered


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
        Settings(topic, wanted, patience),
        starting_offsets,
        max_offsets_per_trigger,
        fail_on_data_loss,
    )
    options = options_of(query)
    warn_of_plain_rpc(spark, query.properties)
    spark.dataSource.register(LogicalStreamSource)
    placed = spark.readStream.format(FORMAT).options(**options).load()
    return delivered(placed, include_headers=include_headers)
