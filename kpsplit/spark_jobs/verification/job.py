"""``verify``: the whole verification of a topic on a cluster, as a library function."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kpsplit.clock import Deadline, wall_ms
from kpsplit.errors import AuthorizationError, KpsplitError, NotJudgedError, UsageError
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.connector_options import kafka_options
from kpsplit.spark_jobs.gather import PATIENCE, Gatherer
from kpsplit.spark_jobs.records import schema, small_frame
from kpsplit.spark_jobs.regions import timestamp_ms
from kpsplit.spark_jobs.session import SPARK_ERRORS, explained, reason
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.verification.bitmaps import CHUNK_BITS
from kpsplit.spark_jobs.verification.findings import Verdict
from kpsplit.spark_jobs.verification.start import NEAR_MS, Since, Stretches, doubtful
from kpsplit.spark_jobs.verification.verifier import Observer, Verifier
from kpsplit.spark_jobs.view import scan

UNDER_WAY_SECONDS = 10.0
"""So long are numbers looked for that may have been under way when the logs were asked for their ends."""
_LOOK_AGAIN = 2.0

ISOLATION, COMMITTED = "isolation.level", "read_committed"


def verify(
    spark: SparkSession | Callable[[], SparkSession],
    topic: str,
    connection: Connection | Mapping[str, Any],
    *,
    partitions: Collection[int] | None = None,
    groups: Collection[str] | None = None,
    options: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
    since: datetime | int | None = None,
    require_certificates: bool = False,
    observer: Observer = lambda _: None,
) -> Verdict:
    """Prove or refute that nothing of a topic was lost, repeated or put out of order by splits and merges.

    Reads every physical partition once, committed records only; a second time, and with the records of
    aborted transactions, only if numbers are missing. Changes nothing. Blocks until Spark is done.

    Args:
        spark: a session that has the Kafka connector, or what starts one: called once it is known that there
            is something to judge.
        topic: the enrolled topic.
        connection: how the driver reaches the cluster (librdkafka's properties); executors get them
            translated.
        partitions: logical partitions; all when not given.
        groups: consumer groups whose range commits are checked; all that have any when not given.
        options: more options of the connector (``kafka.…``, ``minPartitions``).
        patience: seconds for reading the small topics and for an operation under way.
        since: judge only what was written since a time (a datetime, or ms since 1970, as the records'
            timestamps say); what lies before is taken as given.
        require_certificates: where a producer left no certificate, nobody knows what was reported to it as
            delivered after its last record that is there. True: that cannot be judged
            (``Verdict.exit_code`` 1); False: a note.
        observer: is called at the end of each step that takes time, with its name.

    Raises:
        UsageError: wrong topic or partition, not enrolled, an unknown group, or the time lies in the future.
        KpsplitError: it could not be judged: no brokers, a newer kpsplit, the data went away meanwhile, or
            uncommitted reading is asked for.
    """
    reach = connection if isinstance(connection, Connection) else Connection(connection)
    snapshot = take_snapshot(reach, topic, partitions, groups, patience)
    at = None if since is None else _since(snapshot, reach, since)
    observer("Snapshot")
    session = spark() if callable(spark) else spark
    observer("Spark")
    return judge_snapshot(
        *(session, snapshot, reach, groups, options, at),
        patience=patience,
        require_certificates=require_certificates,
        observer=observer,
    )


def _since(snapshot: Snapshot, connection: Connection, time_: datetime | int) -> Since:
    """Return where a time is in the logs of a snapshot."""
    at = timestamp_ms(time_)
    if at is None or at > wall_ms():
        raise UsageError("the time from which on is judged lies in the future", hint="give an earlier one")
    logs = {commit.log for commit in snapshot.commits}
    places = [*(place for place in snapshot.bounds if place not in snapshot.gone), *sorted(logs)]
    admin = ClusterAdmin(connection)
    found = Since(at, admin.offsets_at(places, at), admin.offsets_at(places, at - NEAR_MS))
    age = wall_ms() - at + NEAR_MS  # clocks differ
    unknown = doubtful(snapshot, found)
    kept = {topic for topic in {place.topic for place in unknown} if _keeps_for(admin, topic, age)}
    return replace(found, kept=frozenset(place for place in unknown if place.topic in kept))


def _keeps_for(admin: ClusterAdmin, topic: str, ms: int) -> bool:
    """Return whether a topic is known to keep its records for so long; not without the right to ask."""
    try:
        facts = admin.find(topic)
    except AuthorizationError:
        return False
    return facts is not None and facts.keeps_for(ms)


def take_snapshot(
    connection: Connection,
    topic: str,
    partitions: Collection[int] | None = None,
    groups: Collection[str] | None = None,
    patience: float = PATIENCE,
) -> Snapshot:
    """Return what is to be judged: the first half of ``verify``, which needs no Spark; errors as there."""
    _check_isolation(connection.get(ISOLATION))
    snapshot = Gatherer(connection, topic, partitions, patience).snapshot(with_groups=True)
    known = snapshot.groups()
    where, there = f"for topic {topic}", ""
    if partitions is not None:
        where, there = f"in {', '.join(f'{topic}/{n}' for n in sorted(set(partitions)))}", " there"
    for group in sorted(set(groups or ()).difference(known)):
        raise UsageError(
            f"group {group} has no range commit {where}",
            hint=f"groups that have one{there}: {', '.join(known)}" if known else f"no group has one{there}",
        )
    return snapshot


def judge_snapshot(
    spark: SparkSession,
    snapshot: Snapshot,
    connection: Connection,
    groups: Collection[str] | None = None,
    options: Mapping[str, str] | None = None,
    since: Since | None = None,
    *,
    patience: float = PATIENCE,
    require_certificates: bool = False,
    observer: Observer = lambda _: None,
) -> Verdict:
    """Judge a snapshot by the records: the second half of ``verify``; errors as there.

    ``since``: from where on is judged, as ``_since`` gives it; ``observer``: as for ``Verifier``;
    ``patience``: seconds for each later look at the cluster.
    """
    _check_isolation((options or {}).get(f"kafka.{ISOLATION}"))
    given = kafka_options(connection, options)

    def read(stretches: Stretches, aborted: bool) -> DataFrame:
        tasks = {"minPartitions": str(least_tasks(stretches, spark.sparkContext.defaultParallelism))}
        isolation = {f"kafka.{ISOLATION}": "read_uncommitted"} if aborted else {}
        return scan(spark, tasks | given | isolation, stretches)

    try:
        return Verifier(
            *(spark, snapshot, read, groups, since),
            later=_later(connection, snapshot, patience),
            require_certificates=require_certificates,
            observer=observer,
        ).verdict()
    except SPARK_ERRORS as error:
        raise explained(error) from error


def least_tasks(stretches: Stretches, cores: int) -> int:
    """Return by how many tasks logs are read at least. Spark's connector reads each log by one.

    So one hot log keeps all cores busy, and many connections are not opened for a small one.
    """
    offsets = sum(behind - first for first, behind in stretches.values())
    return max(1, min(2 * cores, offsets >> CHUNK_BITS))


def _later(connection: Connection, snapshot: Snapshot, patience: float) -> Iterator[Snapshot]:
    """Yield newer and newer snapshots for some time.

    Ends where one cannot be taken: what is missing then stays unproven.
    """
    limit = Deadline(UNDER_WAY_SECONDS)
    partitions = [state.parent.partition for state in snapshot.states]
    while True:
        try:
            later = Gatherer(connection, snapshot.topic, partitions, patience).snapshot()
        except KpsplitError:
            return
        yield later
        if limit.left() <= 0:
            return
        time.sleep(_LOOK_AGAIN)


def _check_isolation(level: object) -> None:
    """Raise unless ``isolation.level`` is unset or ``read_committed``: aborted records are no data."""
    if level not in (None, COMMITTED):
        raise NotJudgedError(
            f"verify needs {ISOLATION}={COMMITTED}, got {level}", hint=f"leave it out, or give {COMMITTED}"
        )


def write_findings(spark: SparkSession, verdict: Verdict, folder: Path) -> None:
    """Write the findings as Parquet into a folder that does not exist yet.

    Raises:
        KpsplitError: they could not be written; nothing is left there.
    """
    folder = folder.absolute()
    half = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    try:
        findings_frame(spark, verdict).coalesce(1).write.parquet(str(half))
        half.rename(folder)
    except (*SPARK_ERRORS, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else reason(str(error))
        raise KpsplitError(f"cannot write {folder}: {why}", hint="choose another --parquet") from error
    finally:  # also when somebody presses Ctrl-C; once it has its name, there is nothing
        shutil.rmtree(half, ignore_errors=True)


_FINDINGS = schema(
    """check string, severity string, topic string, partition int, segment bigint, producer string,
    group string, key_hash bigint, first bigint, last bigint, count bigint, message string"""
)


def findings_frame(spark: SparkSession, verdict: Verdict) -> DataFrame:
    """Return one row per finding; what ``first`` and ``last`` count is said by the check."""
    return small_frame(spark, [f.row() for f in verdict.findings], _FINDINGS)
