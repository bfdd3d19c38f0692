"""What a verification costs: in turn with a plain Spark job that only reads and counts the same topics.

For each number of records a partition of its own is written, in four equal parts: before a split in four,
after it, after a nested split, after the merge. Then pairs of runs, verification and plain count, in turn in
one session, with the same settings of the connector; kpsplit's small topics are read before them, and count
for neither. Printed: records per second of each, the ratio of speeds (verification / plain; aim: at least
0.5), the same by processor time, bytes shuffled per record, seconds per record against the smallest number
(aim: at most 1.1), peak memory of Spark's JVM. Only the ratios mean something on a shared machine.

    python benchmarks/spark_reconcile.py [--records N ...] [--pairs N] [--producers N]
        [--bootstrap-server ...]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

import kpsplit
from kpsplit import Admin, KeyRange, Partitioner, PhysicalPartition
from kpsplit.devcluster import DevCluster
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.spark_jobs.connector_options import kafka_options
from kpsplit.spark_jobs.session import local_session
from kpsplit.spark_jobs.snapshot import Snapshot
from kpsplit.spark_jobs.verification.job import judge_snapshot, least_tasks, take_snapshot

VALUE = b"v" * 100
KEYS = [b"user-%d" % i for i in range(10_000)]
MAX_PAUSE_MS = 20_000


@dataclass(frozen=True)
class Pair:
    """Seconds of one pair, by the clock and of the JVM's processors; the bytes that were shuffled."""

    plain: float
    verification: float
    plain_cpu: float
    verification_cpu: float
    shuffled: int


def write_history(operations: Admin, bootstrap: str, topic: str, records: int, producers: int) -> None:
    """Write a partition through a split, a nested split and a merge, a quarter of the records each."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(60)
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
        writers = [stack.enter_context(kpsplit.Producer(config)) for _ in range(producers)]
        for step in [*steps, lambda: None]:
            write(writers, topic, records // 4)
            step()


def run(operations: Admin, plan: object) -> None:
    """Run a plan; the benchmark's data need not be worth a split."""
    operations.run(plan, max_pause_ms=MAX_PAUSE_MS, force=True)  # type: ignore[arg-type]


def write(writers: list[kpsplit.Producer], topic: str, records: int) -> None:
    """Write records in turn with all producers."""
    for i in range(records):
        writer = writers[i % len(writers)]
        while True:
            try:
                writer.produce(topic, VALUE, KEYS[i * 7919 % len(KEYS)], 0)
                break
            except BufferError:
                writer.poll(0.05)
        if i % 1000 < len(writers):
            writer.poll(0)
    for writer in writers:
        if writer.flush(120):
            raise KpsplitError("the history could not be written")


def plain_count(spark: SparkSession, connection: Connection, snapshot: Snapshot) -> int:
    """Read the same stretches with the same settings of the connector, and count them."""
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
        .load()
        .count()
    )


def measure(spark: SparkSession, connection: Connection, topic: str, pairs: int) -> list[Pair]:
    """Run both in turn, after one of each that is not counted; of one snapshot, taken before."""
    snapshot = take_snapshot(connection, topic)
    found = []
    for number in range(pairs + 1):
        began, cpu = time.monotonic(), processor_seconds(spark)
        counted = plain_count(spark, connection, snapshot)
        plain, plain_cpu = time.monotonic() - began, processor_seconds(spark) - cpu
        before, began, cpu = shuffled(spark), time.monotonic(), processor_seconds(spark)
        verdict = judge_snapshot(spark, snapshot, connection)
        verification, verification_cpu = time.monotonic() - began, processor_seconds(spark) - cpu
        if not verdict.clean:
            raise KpsplitError(f"the history of {counted:,} records is not clean: {verdict.findings[:3]}")
        if number:
            more = shuffled(spark) - before
            found.append(Pair(plain, verification, plain_cpu, verification_cpu, more))
    return found


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


@contextmanager
def brokers(given: str | None) -> Iterator[str]:
    if given:
        yield given
        return
    with DevCluster(brokers=3) as running:
        yield running.bootstrap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--bootstrap-server")
    options = parser.parse_args()
    with brokers(options.bootstrap_server) as bootstrap:
        connection = Connection({"bootstrap.servers": bootstrap})
        with Admin(connection, 120.0) as operations:
            operations.initialise()
            topics = {n: f"reconcile-{n}-{int(time.time())}" for n in sorted(options.records)}
            for records, topic in topics.items():
                write_history(operations, bootstrap, topic, records, options.producers)
        spark = local_session(memory=options.memory)
        heads = (
            ("records", 12),
            ("plain/s", 10),
            ("verify/s", 10),
            ("ratio", 6),
            ("cpu ratio", 9),
            ("B shuffled", 10),
        )
        print(" ".join(f"{name:>{width}}" for name, width in (*heads, ("growth", 7), ("peak MiB", 9))))
        smallest = ratio = growth = 0.0
        for records, topic in topics.items():
            pairs = measure(spark, connection, topic, options.pairs)
            plain = statistics.median(p.plain for p in pairs)
            ours = statistics.median(p.verification for p in pairs)
            smallest = smallest or ours / records
            ratio = statistics.median(p.plain / p.verification for p in pairs)
            cpu_ratio = statistics.median(p.plain_cpu / p.verification_cpu for p in pairs)
            growth = ours / records / smallest
            print(
                f"{records:>12,} {records / plain:>10,.0f} {records / ours:>10,.0f} {ratio:>6.2f} "
                f"{cpu_ratio:>9.2f} {statistics.median(p.shuffled for p in pairs) / records:>10.1f} "
                f"{growth:>7.2f} {peak_megabytes(spark):>9,.0f}",
                flush=True,
            )
        spark.stop()
    print(
        f"verification of {max(topics):,} records: {ratio:.2f} of a plain count (aim >= 0.50), "
        f"{growth:.2f} of the seconds per record of {min(topics):,} (aim <= 1.10)"
    )


if __name__ == "__main__":
    main()
