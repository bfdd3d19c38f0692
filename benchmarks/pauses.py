"""How long writers pause at a split and a merge, against the protocol's bare round trips on the same brokers.

Producers, a process each, write to all partitions of a topic; one partition is split and merged again and
again. Beside the pauses: the latency of the other partitions during operations, and in stretches without any.

    python -m benchmarks.pauses [--quick] [--only pause.10] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import SpawnContext
from statistics import median
from typing import Any

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
from benchmarks.page import quantile
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
SETTLE_SECONDS = 1.0
"""Between an operation and what is measured next: leaders, deletions and caches come to rest."""
START_SECONDS, ROUNDS_SECONDS = 60.0, 180.0
LEAST_POLL = 0.001
"""poll() counts in milliseconds."""

Latencies = dict[int, list[tuple[float, float]]]
"""By partition, of each record: when it was sent (monotonic), and the seconds up to its report."""


def write(bootstrap: str, topic: str, count: int, ready: Any, done: Any, found: Any) -> None:
    """Be one of so many producers; at the end hand over (partition, sent, seconds) of each record."""
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
        while (left := until - time.monotonic()) > 0:
            producer.poll(max(left, LEAST_POLL))
        if noted:
            ready.set()
    producer.close()
    found.put(noted.tobytes())


class Writers:
    """All producers; ``latencies`` has what they noted when they are done."""

    def __init__(self, bootstrap: str, topic: str, count: int) -> None:
        self.latencies: Latencies = {}
        self._count = count
        processes: SpawnContext = get_context("spawn")
        self._done, self._found = processes.Event(), processes.Queue()
        self._ready = [processes.Event() for _ in range(count)]
        self._processes = [
            processes.Process(target=write, args=(bootstrap, topic, count, ready, self._done, self._found))
            for ready in self._ready
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have them write meanwhile."""
        for process in self._processes:
            process.start()
        try:
            if not all(ready.wait(START_SECONDS) for ready in self._ready):
                raise SystemExit("the producers did not start")
            yield
        finally:
            self._done.set()
            for _ in self._processes:
                self._take(self._found.get(timeout=START_SECONDS))
            for process in self._processes:
                process.join()

    def _take(self, noted: bytes) -> None:
        values = array("d")
        values.frombytes(noted)
        for partition, sent, seconds in zip(values[::3], values[1::3], values[2::3], strict=True):
            self.latencies.setdefault(int(partition), []).append((sent, seconds))

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

    def __init__(self, bench: Bench, operations: Admin, topic: str, trips: BareTrips) -> None:
        self._operations = operations
        self._parent = PhysicalPartition(topic, PARENT)
        self._trips = trips
        self._rounds = bench.size(10, 1)
        self._splitting = True
        self._length = float(bench.size(3, 1))
        self.pauses: list[list[float]] = []
        """Of each operation, the milliseconds of each producer."""
        self.bare: list[float] = []
        self.windows: list[tuple[tuple[float, float], tuple[float, float]]] = []
        """Of each operation its own stretch, and the one without an operation."""

    def run(self) -> None:
        """Run all rounds."""
        self._operate()  # the first one finds cold connections and caches
        self._operate()
        self.pauses.clear()
        for window, (quiet, bare) in in_turn(self._operate, self._rest, 2 * self._rounds, ROUNDS_SECONDS):
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
    pauses = [ms for of_one in rounds.pauses for ms in of_one]
    middle = [(median(ms), bare) for ms, bare in zip(rounds.pauses, rounds.bare, strict=True) if ms]
    note = (
        f"{len(rounds.pauses)} operations; p50 of the pauses {median(pauses):.0f} ms, "
        f"of the bare round trips {median(rounds.bare):.0f} ms"
    )
    bench.note(f"pause.{count}.ratio", [ms / bare for ms, bare in middle], note=note)
    bench.note(f"pause.{count}.p99", pauses)
    p99s = [(writers.p99_of_others(a), writers.p99_of_others(b)) for a, b in rounds.windows]
    quiet = f"p99 without an operation {1000 * median(b for _, b in p99s):.0f} ms"
    bench.note(f"others.{count}", [a / b for a, b in p99s], note=quiet)


def counts(bench: Bench) -> Sequence[int]:
    """Return how many producers are wanted."""
    return [n for n in (1, 10) if bench.wants(f"pause.{n}.ratio", f"pause.{n}.p99", f"others.{n}")]


def measure(bench: Bench) -> None:
    """Measure all rows of pauses."""
    trips = BareTrips(bench.bootstrap)
    with Admin({"bootstrap.servers": bench.bootstrap}, 120.0) as operations:
        for count in counts(bench):
            topic = f"bench-pause-{count}-{time.time_ns()}"
            create_topics(bench.bootstrap, [topic])
            enrol(bench.bootstrap, [topic])
            writers = Writers(bench.bootstrap, topic, count)
            rounds = Rounds(bench, operations, topic, trips)
            with writers.running():
                rounds.run()
            note_rounds(bench, count, rounds, writers)


if __name__ == "__main__":
    run_script(__doc__, measure)
