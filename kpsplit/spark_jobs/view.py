"""The logical view of a topic in batch: a DataFrame like that of Kafka's source, of data only."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.connector_options import kafka_options
from kpsplit.spark_jobs.gather import PATIENCE, Gatherer
from kpsplit.spark_jobs.records import logical_records
from kpsplit.spark_jobs.regions import (
    Bound,
    Limit,
    Region,
    check_batch_bounds,
    limit,
    ranges_to_scan,
    stretches,
    timestamp_ms,
    wanted,
)
from kpsplit.spark_jobs.schemas import KAFKA, REGIONS, small_frame
from kpsplit.spark_jobs.session import SPARK_ERRORS, explained, warn_of_plain_rpc
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.splitter.lineage import PhysicalPartition

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
    regions = regions_of(snapshot, start, _limit(reach, snapshot, ending_offsets))
    raw = scan(spark, kafka_options(reach, options), ranges_to_scan(regions))
    return logical_records(raw, regions_frame(spark, regions), include_headers=include_headers)


def regions_of(snapshot: Snapshot, start: Limit, end: Limit) -> list[Region]:
    """Return the stretches between two limits that can be read."""
    return [r for state, bounds in wanted(snapshot, start, end) for r in stretches(state, bounds)]


def regions_frame(spark: SparkSession, regions: list[Region]) -> DataFrame:
    """Return regions as a small DataFrame."""
    return small_frame(spark, [r.row() for r in regions], REGIONS)


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
    warn_of_plain_rpc(spark, options)
    reader = spark.read.format("kafka").options(**options).option("includeHeaders", "true")
    if not assigned:
        return _nothing(spark)
    bounded = (
        reader.option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(offsets[0]))
        .option("endingOffsets", json.dumps(offsets[1]))
        .option("failOnDataLoss", "true")
    )
    try:
        return bounded.load()
    except SPARK_ERRORS as error:
        raise explained(error) from error


def _nothing(spark: SparkSession) -> DataFrame:
    """Return no records, in the shape of Kafka's source."""
    return small_frame(spark, [], KAFKA)


def _limit(connection: Connection, snapshot: Snapshot, bound: Bound) -> Limit:
    at = timestamp_ms(bound)
    found = None if at is None else ClusterAdmin(connection).offsets_at(snapshot.bounds, at)
    return limit(bound, found, {state.parent.partition for state in snapshot.states})
