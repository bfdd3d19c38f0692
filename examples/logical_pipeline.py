"""A Structured Streaming pipeline that runs on while its partition is split, split again and merged.

Starts an embedded cluster and Spark on this machine, and a producer that writes purchases to the single
partition of a topic. Two streaming queries read the topic's logical view: one archives the purchases as
Parquet, the other keeps a session per customer in Spark's state (a session ends after a gap in the
customer's own time) and writes all sessions as Parquet. Meanwhile: a split into 4; a split of one of the
phantoms while both queries are stopped, which then go on from their checkpoints; a merge of everything. At
the end both results are compared with those of a batch over the whole history, and the order of each
customer's rows across the micro-batches is checked.

    python examples/logical_pipeline.py [--bootstrap-server HOST:PORT] [--rate RECORDS_PER_SECOND]

The last line is the verdict; exit code 0 if all is well, 3 if not.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses
from pyspark.sql.streaming import StreamingQuery

from kpsplit import Admin, KeyRange, Partitioner, PhysicalPartition, Producer
from kpsplit.devcluster import DevCluster
from kpsplit.spark_jobs import local_session, read_logical, read_logical_stream

CUSTOMERS = 200
GAP = "15 seconds"
BEGINNING = 1_767_225_600
"""The customers' clock: 2026-01-01, in seconds since 1970; 20 purchases are one second of it."""

MAX_PAUSE_MS = 10_000
PORTION_SECONDS = 0.25
"""Between portions: given more, librdkafka polls without a pause until these are acknowledged."""
SPARK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Little data, a short run."""


# -- the pipeline: what an application would write ------------------------------------------------------


def purchases(view: DataFrame) -> DataFrame:
    """Records of the logical view → purchases. The same for a batch and for a stream."""
    parsed = F.from_json(F.col("value").cast("string"), "at DOUBLE, amount BIGINT")
    return view.select(
        F.col("key").cast("string").alias("customer"),
        F.timestamp_seconds(parsed["at"]).alias("at"),
        parsed["amount"].alias("amount"),
        "logical_offset",
        "epoch",
    )


def sessions(bought: DataFrame) -> DataFrame:
    """Purchases → sessions: a customer's purchases with no gap between them."""
    grouped = bought.groupBy("customer", F.session_window("at", GAP).alias("session"))
    return grouped.agg(F.count("*").alias("purchases"), F.sum("amount").alias("amount")).select(
        "customer", F.col("session.start").alias("begin"), "session.end", "purchases", "amount"
    )


class Pipeline:
    """The two queries, with their checkpoints and results in one folder."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._topic = topic
        self._folder = folder
        self._queries: list[StreamingQuery] = []
        self.archived: dict[int, int] = {}
        self.in_sessions = 0

    def start(self) -> None:
        """Begin, or go on from the checkpoints."""
        self._queries = [
            self._query("archive", purchases(self._stream()), "append", self._archive),
            self._query("sessions", sessions(purchases(self._stream())), "complete", self._keep_sessions),
        ]

    def stop(self) -> None:
        for query in self._queries:
            query.stop()

    def read(self) -> int:
        """How many purchases both queries have read."""
        for query in self._queries:
            if (failure := query.exception()) is not None:
                raise SystemExit(f"FAIL {failure}")
        return min(sum(self.archived.values()), self.in_sessions)

    def archive(self) -> DataFrame:
        return self._spark.read.parquet(str(self._folder / "archive"))

    def sessions(self) -> DataFrame:
        return self._spark.read.parquet(str(self._folder / "sessions"))

    def _stream(self) -> DataFrame:
        return read_logical_stream(
            self._spark,
            self._topic,
            {"bootstrap.servers": self._bootstrap},
            max_offsets_per_trigger=5000,
        )

    def _query(
        self, name: str, rows: DataFrame, mode: str, write: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        checkpoint = str(self._folder / f"checkpoint-{name}")
        writer = rows.writeStream.queryName(name).option("checkpointLocation", checkpoint)
        return writer.outputMode(mode).foreachBatch(write).start()

    def _archive(self, rows: DataFrame, batch: int) -> None:
        """Write a batch under its number: one that is run again replaces itself."""
        target = str(self._folder / "archive" / f"batch={batch}")
        rows.write.mode("overwrite").parquet(target)
        self.archived[batch] = self._spark.read.parquet(target).count()

    def _keep_sessions(self, rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(str(self._folder / "sessions"))
        self.in_sessions = self.sessions().agg(F.sum("purchases")).first()[0] or 0


# -- the judge ------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """What became of the purchases; ``differ`` counts sessions that the batch has otherwise."""

    sent: int
    archived: int
    missing: int
    doubled: int
    out_of_order: int
    sessions: int
    differ: int
    epochs: int
    batches: int

    @property
    def good(self) -> bool:
        wrong = self.missing or self.doubled or self.out_of_order or self.differ
        return not wrong and self.archived == self.sent and self.epochs > 1

    def __str__(self) -> str:
        figures = " ".join(f"{name}={value}" for name, value in vars(self).items())
        return f"{'PASS' if self.good else 'FAIL'} {figures}"


def judge(pipeline: Pipeline, view: DataFrame, sent: int) -> Verdict:
    """Compare what the queries wrote with a batch over the whole history."""
    archive, history = pipeline.archive(), purchases(view).persist()
    columns = ["customer", "at", "amount", "logical_offset", "epoch"]
    before = (
        Window.partitionBy("customer").orderBy("logical_offset").rowsBetween(Window.unboundedPreceding, -1)
    )
    late = archive.withColumn("latest", F.max("batch").over(before)).where("batch < latest")
    streamed, whole = pipeline.sessions(), sessions(history)
    return Verdict(
        sent=sent,
        archived=archive.count(),
        missing=history.select(columns).exceptAll(archive.select(columns)).count(),
        doubled=archive.select(columns).exceptAll(history.select(columns)).count(),
        out_of_order=late.count(),
        sessions=streamed.count(),
        differ=whole.exceptAll(streamed).count() + streamed.exceptAll(whole).count(),
        epochs=archive.select("epoch").distinct().count(),
        batches=len(pipeline.archived),
    )


# -- the play -------------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Writes purchases of many customers at a steady rate."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        super().__init__(name="writer")
        self.sent = 0
        self._config = {"bootstrap.servers": bootstrap, "linger.ms": 5}
        self._topic = topic
        self._rate = rate
        self._ended = threading.Event()

    def run(self) -> None:
        numbers, dice = count(), random.Random(7)
        with Producer(self._config) as producer:
            while not self._ended.wait(PORTION_SECONDS):
                for number in islice(numbers, max(1, int(self._rate * PORTION_SECONDS))):
                    at, amount = BEGINNING + number / 20, dice.randrange(1, 100)
                    value = b'{"at":%.2f,"amount":%d}' % (at, amount)
                    producer.produce(self._topic, value, b"customer-%d" % dice.randrange(CUSTOMERS))
                    self.sent = number + 1
                producer.poll(0)

    def end(self) -> None:
        self._ended.set()
        self.join()


class Play:
    """What happens to the partition, in order, while the pipeline runs."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path, rate: int) -> None:
        self.topic = f"purchases-{time.time_ns()}"
        self.partition = PhysicalPartition(self.topic, 0)
        self._spark = spark
        self._bootstrap = bootstrap
        self._admin = Admin({"bootstrap.servers": bootstrap})
        self._pipeline = Pipeline(spark, bootstrap, self.topic, folder)
        self._writer = Writer(bootstrap, self.topic, rate)

    def run(self) -> Verdict:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        admin.create_topics([NewTopic(self.topic, 1, 3)])[self.topic].result()
        self._admin.initialise()
        self._admin.enrol(self.topic, Partitioner.CONSISTENT_RANDOM, slots=2)
        self._writer.start()
        self._pipeline.start()
        self._until_read("two queries read the partition")
        self._split(4)
        self._until_read("it is split into 4")
        self._pipeline.stop()
        self._split(2, self._layout()[1].range)
        self._pipeline.start()
        self._until_read("a phantom was split again while the queries were stopped; they go on")
        self._merge()
        self._until_read("everything is merged")
        self._writer.end()
        self._until_read("the producer ends")
        self._pipeline.stop()
        view = read_logical(self._spark, self.topic, {"bootstrap.servers": self._bootstrap})
        return judge(self._pipeline, view, self._writer.sent)

    def close(self) -> None:
        """End what is still running, whatever happened."""
        if self._writer.is_alive():
            self._writer.end()
        self._pipeline.stop()
        self._admin.close()

    def _layout(self):
        return self._admin.lineage(self.partition).open_segments()

    def _split(self, ranges: int, of: KeyRange | None = None) -> None:
        self._admin.split(self.partition, ranges, of=of, max_pause_ms=MAX_PAUSE_MS, force=True)

    def _merge(self) -> None:
        self._admin.merge(self.partition, max_pause_ms=MAX_PAUSE_MS, force=True)

    def _until_read(self, what: str, seconds: float = 180.0) -> None:
        """Wait until both queries have read everything that is sent by now."""
        sent, until = self._writer.sent, time.monotonic() + seconds
        while (read := self._pipeline.read()) < max(sent, 1):
            if time.monotonic() > until:
                raise SystemExit(f"FAIL waited {seconds:.0f} s until {what}: {read:,} of {sent:,}")
            time.sleep(0.1)
        say(f"{what}: {read:,} purchases read")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


@contextmanager
def brokers(bootstrap: str | None) -> Iterator[str]:
    if bootstrap:
        yield bootstrap
        return
    say("starting three brokers")
    with DevCluster(brokers=3) as cluster:
        yield cluster.bootstrap


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--rate", type=int, default=500)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kpsplit-example-")))
        bootstrap = stack.enter_context(brokers(options.bootstrap_server))
        say("starting Spark")
        spark = local_session(cores=2, name="logical-pipeline", more=SPARK)
        stack.callback(spark.stop)
        play = Play(spark, bootstrap, folder, options.rate)
        stack.callback(play.close)
        verdict = play.run()
    print(verdict)
    return 0 if verdict.good else 3


if __name__ == "__main__":
    sys.exit(main())
