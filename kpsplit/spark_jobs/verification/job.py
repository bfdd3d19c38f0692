"""``verify``: the whole verification of a topic on a cluster, as a library function."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kpsplit.errors import ConfigurationError, KpsplitError, UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.connector_options import kafka_options
from kpsplit.spark_jobs.gather import PATIENCE, Gatherer
from kpsplit.spark_jobs.logical_view import scan
from kpsplit.spark_jobs.schemas import FINDINGS
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.verification.findings import Verdict
from kpsplit.spark_jobs.verification.judge import Judge
from kpsplit.splitter.lineage import PhysicalPartition

ISOLATION, COMMITTED = "kafka.isolation.level", "read_committed"


def verify(
    spark: SparkSession,
    topic: str,
    connection: Connection | Mapping[str, Any],
    *,
    partitions: Collection[int] | None = None,
    groups: Collection[str] | None = None,
    options: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
) -> Verdict:
    """Prove or refute that nothing of a topic was lost, repeated or put out of order by splits and merges.

    Reads every physical partition once, committed records only; a second time, and with the records of
    aborted transactions, only if numbers are missing. Changes nothing. Blocks until Spark is done.

    Args:
        spark: a session that has the Kafka connector.
        topic: the enrolled topic.
        connection: how the driver reaches the cluster (librdkafka's properties); executors get them
            translated.
        partitions: logical partitions; all when not given.
        groups: consumer groups whose range commits are checked; all that have any when not given.
        options: more options of the connector (``kafka.…``, ``minPartitions``).
        patience: seconds for reading the small topics and for an operation under way.

    Raises:
        UsageError: wrong topic or partition, not enrolled, an unknown group.
        ConfigurationError: the options ask for uncommitted reading.
        KpsplitError: it could not be judged: no brokers, a newer kpsplit, the data went away meanwhile.
    """
    reach = connection if isinstance(connection, Connection) else Connection(connection)
    snapshot = take_snapshot(reach, topic, partitions, groups, patience)
    return judge_snapshot(spark, snapshot, reach, groups, options)


def take_snapshot(
    connection: Connection,
    topic: str,
    partitions: Collection[int] | None = None,
    groups: Collection[str] | None = None,
    patience: float = PATIENCE,
) -> Snapshot:
    """Return what is to be judged: the first half of ``verify``, which needs no Spark; errors as there."""
    snapshot = Gatherer(connection, topic, partitions, patience).snapshot(with_groups=True)
    known = {logged.group for logged in snapshot.commits}
    for group in sorted(set(groups or ()) - known):
        raise UsageError(
            f"group {group} has no range commit for topic {topic}",
            hint=f"groups that have one: {', '.join(sorted(known))}" if known else "no group has one",
        )
    return snapshot


def judge_snapshot(
    spark: SparkSession,
    snapshot: Snapshot,
    connection: Connection,
    groups: Collection[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> Verdict:
    """Judge a snapshot by the records: the second half of ``verify``; errors as there."""
    if (options or {}).get(ISOLATION, COMMITTED) != COMMITTED:
        raise ConfigurationError(f"{ISOLATION} must be {COMMITTED}: aborted records are no data")
    wanted = kafka_options(connection, options)
    ranges = _ranges(snapshot)

    def uncommitted() -> DataFrame:
        return scan(spark, wanted | {ISOLATION: "read_uncommitted"}, ranges)

    try:
        return Judge(spark, snapshot, scan(spark, wanted, ranges), uncommitted, groups).verdict()
    except (PySparkException, Py4JJavaError) as error:
        raise _explained(error) from error


def findings_frame(spark: SparkSession, verdict: Verdict) -> DataFrame:
    """Return the findings as a DataFrame (``schemas.FINDINGS``)."""
    return spark.createDataFrame([f.row() for f in verdict.findings], FINDINGS)


def _ranges(snapshot: Snapshot) -> dict[PhysicalPartition, tuple[int, int]]:
    """Return everything that the logs hold and that is decided."""
    return {
        place: (bounds.low, bounds.stable)
        for place, bounds in snapshot.bounds.items()
        if place not in snapshot.gone and bounds.low < bounds.stable
    }


def _explained(error: Exception) -> KpsplitError:
    """Return one clear line for what Spark reports with a page of Java."""
    text = str(error)
    if "OffsetOutOfRange" in text or "data may have been lost" in text.lower() or "KAFKA_DATA_LOSS" in text:
        return KpsplitError(
            "records went away while they were read (retention, or a deleted topic)", hint="run it again"
        )
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return KpsplitError(f"Spark failed: {first[:300]}", hint="see Spark's log")
