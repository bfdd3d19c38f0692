"""What a verification costs, in turn with plain Spark jobs that read the same topic in the same session.

A partition is written in four equal parts: before a split in four, after it, after a nested split, after the
merge. Then three jobs run in turn, with the same settings of the connector: the verification, a plain count,
and a job that reads the stamps and hashes the keys. kpsplit's small topics are read before.

    python -m benchmarks.verification [--quick] [--only verify.hash] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import kpsplit
from benchmarks.harness import (
    FLUSH_SECONDS,
    KEYS,
    MAX_PAUSE_MS,
    Bench,
    Run,
    create_topics,
    run_script,
    send_patiently,
    within,
)
from kpsplit import Admin, KeyRange, Partitioner, PhysicalPartition
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.connector_options import kafka_options
from kpsplit.spark_jobs.session import local_session
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.verification.job import judge_snapshot, least_tasks, take_snapshot
from kpsplit.splitter.key_range import KEY_SPACE, MULTIPLIER
from kpsplit.splitter.records.data import STAMP_HEADER

PRODUCERS = 2
MEMORY = "2g"
JOBS_SECONDS = 150.0


def write_history(operations: Admin, bootstrap: str, topic: str, records: int) -> None:
    """Write a partition through a split, a nested split and a merge, a quarter of the records each."""
    create_topics(bootstrap, [topic], partitions=1)
    operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=2)
    parent = PhysicalPartition(topic, 0)
    nested = KeyRange(1 << 30, 2 << 30)
    steps: list[Callable[[], object]] = [
        lambda: run(operations, operations.plan_split(parent, 4, even=True)),
        lambda: run(operations, operations.plan_split(parent, 2, of=nested, even=True)),
        lambda: run(operations, operations.plan_merge(parent)),
    ]
    with ExitStack() as stack:
        config = {"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"}
        writers = [stack.enter_context(kpsplit.Producer(config)) for _ in range(PRODUCERS)]
        for step in [*steps, lambda: None]:
            write(writers, topic, records // 4)
            step()


def run(operations: Admin, plan: object) -> None:
    """Run a plan; the benchmark's data need not be worth a split."""
    operations.run(plan, max_pause_ms=MAX_PAUSE_MS, force=True)  # type: ignore[arg-type]


def write(writers: list[kpsplit.Producer], topic: str, records: int) -> None:
    """Write records in turn with all producers."""
    for i in range(records):
        send_patiently(writers[i % len(writers)], topic, KEYS[i * 7919 % len(KEYS)])
        if i % 1000 < len(writers):
            writers[i % len(writers)].poll(0)
    for writer in writers:
        if writer.flush(FLUSH_SECONDS):
            raise KpsplitError("the history could not be written")


def plain_read(spark: SparkSession, connection: Connection, snapshot: Snapshot, headers: bool) -> DataFrame:
    """Return the same stretches, read with the same settings of the connector."""
    topics: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for place, known in snapshot.bounds.items():
        topics.setdefault(place.topic, {})[str(place.partition)] = known.low
        ends.setdefault(place.topic, {})[str(place.partition)] = known.stable
    read = {place: (known.low, known.stable) for place, known in snapshot.bounds.items()}
    assigned = {name: sorted(map(int, offsets)) for name, offsets in topics.items()}
    return (
        spark.read.format("kafka")
        .options(**kafka_options(connection))
        .option("minPartitions", least_tasks(read, spark.sparkContext.defaultParallelism))
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(topics))
        .option("endingOffsets", json.dumps(ends))
        .option("includeHeaders", str(headers).lower())
        .load()
    )


def stamps_and_hashes(records: DataFrame) -> DataFrame:
    """Return one row that depends on the stamp and on the key hash of every record."""
    stamp = F.expr(f"get(filter(headers, h -> h.key = '{STAMP_HEADER}'), 0).value")
    hashed = F.pmod(F.crc32("key") * F.lit(MULTIPLIER), F.lit(KEY_SPACE))
    return records.select(F.crc32(stamp).alias("stamp"), hashed.alias("hash")).agg(
        F.sum("stamp"), F.sum("hash"), F.count("*")
    )


class Jobs:
    """The three jobs on one topic."""

    def __init__(self, spark: SparkSession, connection: Connection, topic: str) -> None:
        self._spark, self._connection = spark, connection
        self._snapshot = take_snapshot(connection, topic)

    def verify(self) -> Run:
        """Run the verification."""
        return self._timed(self._verify)

    def count(self) -> Run:
        """Run the plain count."""
        return self._timed(lambda: self._read(headers=False).count())

    def hash(self) -> Run:
        """Run the job that reads stamps and hashes keys."""
        return self._timed(lambda: stamps_and_hashes(self._read(headers=True)).collect())

    def _read(self, *, headers: bool) -> DataFrame:
        return plain_read(self._spark, self._connection, self._snapshot, headers)

    def _verify(self) -> None:
        verdict = judge_snapshot(self._spark, self._snapshot, self._connection)
        if not verdict.clean:
            raise KpsplitError(f"the history is not clean: {verdict.findings[:3]}")

    def _timed(self, job: Callable[[], object]) -> Run:
        began, cpu = time.perf_counter(), processor_seconds(self._spark)
        job()
        return Run(time.perf_counter() - began, processor_seconds(self._spark) - cpu)


def measure(bench: Bench) -> None:
    """Measure all rows of the verification."""
    large, small = bench.size(5_000_000, 8_000), bench.size(1_000_000, 4_000)
    connection = Connection({"bootstrap.servers": bench.bootstrap})
    topics = {records: f"bench-verify-{records}-{time.time_ns()}" for records in (large, small)}
    with Admin(connection, 120.0) as operations:
        operations.initialise()
        for records, topic in topics.items():
            write_history(operations, bench.bootstrap, topic, records)
    spark = local_session(memory=MEMORY)
    jobs, fewer = (Jobs(spark, connection, topics[records]) for records in (large, small))
    for job in (jobs.count, jobs.hash, jobs.verify, fewer.verify):
        job()  # what is compiled and cached then counts for none
    sides = {"verify": jobs.verify, "count": jobs.count, "hash": jobs.hash, "fewer": fewer.verify}
    before = shuffled(spark)
    found = []
    for number in within(bench.size(5, 1), JOBS_SECONDS):
        names = list(sides) if number % 2 else list(reversed(sides))
        found.append({name: sides[name]() for name in names})
    bytes_a_record = (shuffled(spark) - before) / len(found) / large
    seconds = median(runs["verify"].wall for runs in found)
    note = (
        f"{large:,} records in {seconds:.1f} s; {bytes_a_record:.0f} bytes shuffled per record by all jobs; "
        f"peak of the JVM {peak_megabytes(spark):,.0f} MiB"
    )
    bench.note_runs("verify.count", [(runs["verify"], runs["count"]) for runs in found], note)
    bench.note_runs("verify.hash", [(runs["verify"], runs["hash"]) for runs in found])
    growth = [
        [getattr(runs["verify"], kind) / large * small / getattr(runs["fewer"], kind) for runs in found]
        for kind in ("wall", "cpu")
    ]
    bench.note("verify.growth", *growth)
    spark.stop()


def shuffled(spark: SparkSession) -> int:
    """Return how many bytes the session has shuffled so far."""
    executors = spark._jsc.sc().statusStore().executorList(True)
    return sum(executors.apply(i).totalShuffleWrite() for i in range(executors.size()))


def processor_seconds(spark: SparkSession) -> float:
    """Return the processor time of Spark's JVM: it is the same beside other programs."""
    _, _, rest = Path(f"/proc/{jvm(spark)}/stat").read_text().rpartition(")")
    user, system = rest.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def jvm(spark: SparkSession) -> int:
    """Return the id of Spark's JVM."""
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def peak_megabytes(spark: SparkSession) -> float:
    """Return the greatest resident memory of Spark's JVM."""
    status = Path(f"/proc/{jvm(spark)}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


if __name__ == "__main__":
    run_script(__doc__, measure)
