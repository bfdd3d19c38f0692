"""How long writers pause at a split and a merge, against the protocol's bare round trips on the same brokers.

Producers in processes of their own write to all partitions of a topic; one partition is split and merged
again and again. Beside the pauses: the latency of the other partitions during operations, and in stretches
without any.

    python -m benchmarks.pauses [--quick] [--only pause.10] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import SpawnContext
from statistics import median
from threading import Event
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import TopicPartition

from benchmarks.harness import (
    KEYS,
    MAX_PAUSE_MS,
    VALUE,
    Bench,
    create_topics,
    enrol,
    in_turn,
    run_script,
)
from benchmarks.page import PAUSING, quantile
from kpsplit import Admin, PhysicalPartition, Producer
from kpsplit.kafka.connection import FETCH_WAIT_MS

PARENT = 0
RATE = 1000
"""Records per second of all producers together."""
TICK = 0.025
"""Seconds between portions, times the number of producers: ten send brokers as many requests as one.

Portions, and a linger below them, keep librdkafka from polling without a pause (docs/architecture.md).
"""
LINGER_MS = 10
CHAINS = 5
OPERATIONS = 20
SETTLE_SECONDS = 1.0
"""Between an operation and what is measured next: leaders, deletions and caches come to rest."""
START_SECONDS, EACH_STARTS, ROUNDS_SECONDS = 60.0, 1.0, 180.0
PROCESSES = 10
"""At most; producers that share one have a thread each."""
WARM_UP = 2
"""Operations that do not count: they find cold connections and caches."""
LEAST_POLL = 0.001
"""poll() counts in milliseconds."""

Latencies = dict[int, list[tuple[float, float]]]
"""By partition, of each record: when it was sent (monotonic), and the seconds up to its report."""


class Written(NamedTuple):
    """What one producer noted: (partition, sent, seconds) of each record, and its pauses in milliseconds."""

    records: array[float]
    pauses: tuple[int, ...]


def write(bootstrap: str, topic: str, count: int, here: int, ready: Any, done: Any, found: Any) -> None:
    """Be some of so many producers; hand over at the end what they noted."""
    with ThreadPoolExecutor(here) as threads:
        # One after the other: clients that are made together wait for each other.
        started, written = [Event() for _ in range(here)], []
        for event in started:
            written.append(threads.submit(_write, bootstrap, topic, count, event, done))
            event.wait(START_SECONDS)
        if all(event.is_set() for event in started):
            ready.set()
        for one in written:
            found.put(one.result())


def _write(bootstrap: str, topic: str, count: int, started: Event, done: Any) -> Written:
    noted = array("d")

    def report(sent_at: float, error: Any, message: Any) -> None:
        if error is None:
            noted.extend((message.partition(), sent_at, time.monotonic() - sent_at))

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS})
    tick, number, until = TICK * count, 0, time.monotonic()
    portion = round(RATE / count * tick)
    while not done.is_set():
        at, until = time.monotonic(), max(until + tick, time.monotonic())
        for _ in range(portion):
            key = KEYS[number * 7919 % len(KEYS)]
            producer.produce(topic, VALUE, key, on_delivery=lambda e, m, at=at: report(at, e, m))
            number += 1
        while (left := until - time.monotonic()) > 0 and (started.is_set() or not noted):
            producer.poll(max(left, LEAST_POLL))
        if noted:
            started.set()
    pauses = producer.layout_stats().pauses_ms
    producer.close()
    return Written(noted, pauses)


class Writers:
    """All producers; ``latencies`` and ``pauses`` have what they noted when they are done."""

    def __init__(self, bootstrap: str, topic: str, count: int) -> None:
        self.latencies: Latencies = {}
        self.pauses: list[int] = []
        """Milliseconds, by the producers' own word: also those that the operator did not wait for."""
        self._count = count
        processes: SpawnContext = get_context("spawn")
        self._done, self._found = processes.Event(), processes.Queue()
        of_each = [len(range(n, count, PROCESSES)) for n in range(min(count, PROCESSES))]
        self._ready = [processes.Event() for _ in of_each]
        self._processes = [
            processes.Process(
                target=write, args=(bootstrap, topic, count, here, ready, self._done, self._found)
            )
            for here, ready in zip(of_each, self._ready, strict=True)
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have them write meanwhile."""
        for process in self._processes:
            process.start()
        try:
            end = time.monotonic() + START_SECONDS + EACH_STARTS * self._count
            if not all(ready.wait(max(end - time.monotonic(), 0)) for ready in self._ready):
                raise SystemExit("the producers did not start")
            yield
        finally:
            self._done.set()
            for _ in range(self._count):
                self._take(self._found.get(timeout=START_SECONDS))
            for process in self._processes:
                process.join()

    def _take(self, written: Written) -> None:
        values = written.records
        for partition, sent, seconds in zip(values[::3], values[1::3], values[2::3], strict=True):
            self.latencies.setdefault(int(partition), []).append((sent, seconds))
        self.pauses += written.pauses[WARM_UP:]

    def p99_of_others(self, window: tuple[float, float]) -> float:
        """Return p99 of the records that were sent within a window to partitions that were not split."""
        first, last = window
        others = [
            seconds
            for partition, records in self.latencies.items()
            if partition != PARENT
            for sent, seconds in records
            if first <= sent < last
        ]
        return quantile(others, 0.99)


class BareTrips:
    """The round trips of a pause, one after the other, by plain clients with open connections."""

    def __init__(self, bootstrap: str) -> None:
        stamp = time.time_ns()
        self._data, self._answers, self._control, self._offsets = (
            f"bench-trips-{kind}-{stamp}" for kind in ("data", "answers", "control", "offsets")
        )
        create_topics(bootstrap, [self._data], partitions=1)
        create_topics(
            bootstrap, [self._answers, self._control, self._offsets], partitions=1, cleanup_policy="compact"
        )
        common = {"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.sparse.connections": False}
        self._writer = confluent_kafka.Producer({**common, "enable.idempotence": True})
        self._operator = confluent_kafka.Producer({**common, "transactional.id": f"bench-{stamp}"})
        self._operator.init_transactions(30)
        self._answer_reader = self._reader(bootstrap, self._answers, "read_uncommitted")
        self._commit_reader = self._reader(bootstrap, self._control, "read_committed")
        for _ in range(CHAINS):
            self.chain()

    @staticmethod
    def _reader(bootstrap: str, topic: str, isolation: str) -> confluent_kafka.Consumer:
        reader = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-unused",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
            }
        )
        reader.assign([TopicPartition(topic, 0, 0)])
        return reader

    def seconds(self) -> float:
        """Return the median of some chains."""
        return median(self.chain() for _ in range(CHAINS))

    def chain(self) -> float:
        """Do what the protocol puts into a pause, and return the seconds."""
        began = time.monotonic()
        self._acknowledged(self._data)  # what is in flight
        self._writer.produce(self._answers, VALUE, b"answer")
        self._next(self._answer_reader)  # the operator has the answer
        self._acknowledged(self._data)  # the marker
        self._operator.begin_transaction()
        self._operator.produce(self._control, VALUE, b"state")
        self._operator.produce(self._offsets, VALUE, b"boundary")
        self._operator.commit_transaction(30)
        self._next(self._commit_reader)  # the producer has the new layout
        took = time.monotonic() - began
        self._writer.flush(30)
        return took

    def _acknowledged(self, topic: str) -> None:
        self._writer.produce(topic, VALUE)
        if self._writer.flush(30):
            raise SystemExit("a record was not acknowledged")

    @staticmethod
    def _next(reader: confluent_kafka.Consumer) -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            message = reader.poll(0.5)
            if message is not None and message.error() is None:
                return
        raise SystemExit("a record did not arrive")


class Rounds:
    """Splits and merges of one partition, each in turn with a stretch and with round trips without one."""

    def __init__(self, operations: Admin, topic: str, trips: BareTrips, wanted: int) -> None:
        self._operations = operations
        self._parent = PhysicalPartition(topic, PARENT)
        self._trips = trips
        self._wanted = wanted
        self._splitting = True
        self._length = 1.0
        self.pauses: list[list[float]] = []
        """Of each operation, the milliseconds of each producer that reported in time."""
        self.bare: list[float] = []
        self.windows: list[tuple[tuple[float, float], tuple[float, float]]] = []
        """Of each operation its own stretch, and the one without an operation."""

    def run(self, seconds: float) -> None:
        """Split and merge as often as is wanted, or for so long."""
        for _ in range(WARM_UP):
            self._operate()
        self.pauses.clear()
        for window, (quiet, bare) in in_turn(self._operate, self._rest, self._wanted, seconds):
            self.windows.append((window, quiet))
            self.bare.append(1000 * bare)

    def _operate(self) -> tuple[float, float]:
        split = self._splitting
        plan = (
            self._operations.plan_split(self._parent, 4, even=True)
            if split
            else self._operations.plan_merge(self._parent)
        )
        began = time.monotonic()
        report = self._operations.run(plan, max_pause_ms=MAX_PAUSE_MS, force=True)
        self._splitting = not split
        window = began, time.monotonic()
        self._length = window[1] - window[0]
        self.pauses.append([float(pause.pause_ms) for pause in report.pauses.values()])
        time.sleep(SETTLE_SECONDS)
        return window

    def _rest(self) -> tuple[tuple[float, float], float]:
        """Let a stretch as long as an operation pass; then measure the bare round trips."""
        began = time.monotonic()
        time.sleep(self._length)
        return (began, time.monotonic()), self._trips.seconds()


def note_rounds(bench: Bench, count: int, rounds: Rounds, writers: Writers) -> None:
    """Note the rows of so many producers."""
    operations, reported = len(rounds.pauses), [ms for of_one in rounds.pauses for ms in of_one]
    middle = [(median(ms), bare) for ms, bare in zip(rounds.pauses, rounds.bare, strict=True) if ms]
    note = (
        f"{operations} operations; p50 of the pauses {median(writers.pauses):.0f} ms, "
        f"of the bare round trips {median(rounds.bare):.0f} ms"
    )
    bench.note(f"pause.{count}.ratio", [ms / bare for ms, bare in middle], note=note)
    late = len(writers.pauses) - len(reported)
    reports = f"{len(writers.pauses)} pauses, of which {late} were reported after the operator's second"
    bench.note(f"pause.{count}.p99", [float(ms) for ms in writers.pauses], note=reports)
    p99s = [(writers.p99_of_others(a), writers.p99_of_others(b)) for a, b in rounds.windows]
    quiet = f"p99 without an operation {1000 * median(b for _, b in p99s):.0f} ms"
    bench.note(f"others.{count}", [a / b for a, b in p99s], note=quiet)


def counts(bench: Bench) -> Sequence[int]:
    """Return how many producers are wanted."""
    return [n for n in PAUSING if bench.wants(f"pause.{n}.ratio", f"pause.{n}.p99", f"others.{n}")]


def measure(bench: Bench, operations: int = OPERATIONS, seconds: float = ROUNDS_SECONDS) -> None:
    """Measure all rows of pauses; of each number of producers so many operations, or for so long."""
    trips = BareTrips(bench.bootstrap)
    with Admin({"bootstrap.servers": bench.bootstrap}, 120.0) as admin:
        for count in counts(bench):
            topic = f"bench-pause-{count}-{time.time_ns()}"
            create_topics(bench.bootstrap, [topic])
            enrol(bench.bootstrap, [topic])
            writers = Writers(bench.bootstrap, topic, count)
            rounds = Rounds(admin, topic, trips, bench.size(operations, 2))
            with writers.running():
                rounds.run(seconds)
            note_rounds(bench, count, rounds, writers)


if __name__ == "__main__":
    run_script(__doc__, measure)
