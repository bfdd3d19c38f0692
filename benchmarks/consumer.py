"""What kpsplit's Consumer costs, and what its workers gain.

1. Throughput against a plain confluent_kafka.Consumer on an unsplit topic, by poll() and by consume(): each
   pair reads the same topic one after the other (which one begins alternates), from the assignment to the
   last record. Printed: kpsplit / plain, by the wall and by the client's CPU time, the median of the pairs
   with the smallest and the greatest; 1.0 is equal. The plain one has kpsplit's fetch.queue.backoff.ms: with
   librdkafka's default it rests for a second whenever it has read ahead enough.
2. Speed-up of run(workers=N) with a handler that waits 5 ms: its records per second over those of N bare
   threads that call the same handler (1.0 is ideal).
3. Hand-over of slots to a member that joins: how long a key of a moved slot waits between the last record
   that the old owner worked on and the first of the new one.
4. Memory of a consumer whose application has stopped, with a backlog far beyond its buffer.

Absolute numbers of a shared machine mean little; only the ratios do.

    python benchmarks/consumer.py [--records N] [--pairs N] [--bootstrap-server HOST:PORT] [--only PART]
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from typing import Any

import confluent_kafka
import psutil
from confluent_kafka.admin import AdminClient, NewTopic

import kpsplit
from kpsplit import Admin, Partitioner
from kpsplit.consumer.config import QUEUE_BACKOFF_MS
from kpsplit.devcluster import DevCluster

PARTITIONS = 6
SLOTS = 16
VALUE = b"v" * 100
HANDLER_SECONDS = 0.005
WORKERS = (1, 2, 4, 8, 16, 32, 64)
SECONDS_A_STEP = 3.0
BUFFER_BYTES = 16 * 1024 * 1024
LARGE = b"x" * 50_000

Read = Callable[[Any, int], None]
Ratios = list[float]


def config(bootstrap: str, group: str, **more: Any) -> dict[str, Any]:
    ours = {k.replace("_", "."): v for k, v in more.items()}
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **ours,
    }


def read_by_poll(consumer: Any, records: int) -> None:
    poll, left, total = consumer.poll, records, 0
    while left:
        message = poll(1.0)
        if message is not None and message.error() is None:
            total += len(message.value())
            left -= 1


def read_by_consume(consumer: Any, records: int) -> None:
    left, total = records, 0
    while left > 0:
        for message in consumer.consume(1000, 1.0):
            if message.error() is None:
                total += len(message.value())
                left -= 1


@dataclass(frozen=True)
class Run:
    """One reading: seconds by the wall, and of the client's CPU."""

    wall: float
    cpu: float


def throughput(bootstrap: str, topic: str, read: Read, records: int, pairs: int) -> tuple[Ratios, Ratios]:
    """Return kpsplit / plain for every pair, by the wall and by CPU."""

    def once(make: Callable[[dict[str, Any]], Any], name: str, number: int) -> Run:
        group = f"bench-{name}-{number}-{time.time_ns()}"
        consumer = make(config(bootstrap, group, fetch_queue_backoff_ms=QUEUE_BACKOFF_MS))
        began: list[float] = []
        cpu = time.process_time()
        consumer.subscribe([topic], on_assign=lambda *_: began.append(time.perf_counter()))
        try:
            read(consumer, records)
            return Run(time.perf_counter() - began[0], time.process_time() - cpu)
        finally:
            consumer.close()

    wall, cpu = [], []
    once(confluent_kafka.Consumer, "warm", 0)
    for number in range(pairs):
        makers = [("plain", confluent_kafka.Consumer), ("kpsplit", kpsplit.Consumer)]
        runs = {name: once(make, name, number) for name, make in (makers if number % 2 else reversed(makers))}
        wall.append(runs["plain"].wall / runs["kpsplit"].wall)
        cpu.append(runs["plain"].cpu / runs["kpsplit"].cpu)
    return wall, cpu


class Handler:
    """Waits 5 ms for each record, and notes when; ``enough`` is called with the last one that is wanted."""

    def __init__(self, workers: int, enough: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._wanted = int(workers * SECONDS_A_STEP / HANDLER_SECONDS)
        self._times: list[float] = []
        self._enough = enough

    def __call__(self, _record: object) -> None:
        """Work on one record."""
        time.sleep(HANDLER_SECONDS)
        with self._lock:
            self._times.append(time.perf_counter())
            if len(self._times) == self._wanted:
                self._enough()

    def rate(self) -> float:
        """Return records per second, without the beginning: joining the group is not the matter."""
        settled = self._times[self._wanted // 5 : self._wanted]
        return (len(settled) - 1) / (settled[-1] - settled[0])


def bare_threads(workers: int) -> float:
    """Return the rate of threads that only call the handler."""
    done = threading.Event()
    handler = Handler(workers, done.set)

    def work() -> None:
        while not done.is_set():
            handler(None)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return handler.rate()


def speed_up(bootstrap: str, topic: str, workers: int) -> float:
    """Return the part of the ideal speed that this number of workers reaches."""
    bare = bare_threads(workers)
    consumer = kpsplit.Consumer(config(bootstrap, f"bench-run-{workers}-{time.time_ns()}"))
    consumer.subscribe([topic])
    handler = Handler(workers, consumer.stop)
    consumer.run(handler, workers=workers)
    consumer.close()
    return handler.rate() / bare


def hand_over(bootstrap: str, topic: str) -> list[float]:
    """Return, for every key whose slot moved, the seconds between the two owners' records of it."""
    group = f"bench-move-{time.time_ns()}"
    seen: dict[bytes, list[tuple[float, int]]] = {}
    done = threading.Event()

    def member(number: int) -> None:
        consumer = kpsplit.Consumer(config(bootstrap, group, enable_auto_commit=True))
        consumer.subscribe([topic])
        while not done.is_set():
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    seen.setdefault(message.key() or b"", []).append((time.perf_counter(), number))
        consumer.close()

    def write() -> None:
        producer = kpsplit.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        number = 0
        while not done.is_set():
            for _ in range(20):
                producer.produce(topic, VALUE, b"key-%d" % (number % 500))
                number += 1
            producer.poll(0.01)
        producer.close()

    threads = [threading.Thread(target=write), threading.Thread(target=member, args=(0,))]
    for thread in threads:
        thread.start()
    while len(seen) < 500:
        time.sleep(0.1)
    threads.append(threading.Thread(target=member, args=(1,)))
    threads[-1].start()
    time.sleep(10)
    done.set()
    for thread in threads:
        thread.join()
    gaps = []
    for moments in seen.values():
        for (before, old), (after, new) in pairwise(moments):
            if (old, new) == (0, 1):
                gaps.append(after - before)
    return gaps


def stalled_memory(bootstrap: str, topic: str) -> tuple[float, float]:
    """Return the MiB by which a process grows whose application stops, and what its backlog holds.

    Who writes the backlog and the consumer have processes of their own: nothing else grows or shrinks there.
    """
    records = 300 * 1024 * 1024 // len(LARGE)
    with ProcessPoolExecutor(1, get_context("spawn")) as writing:
        writing.submit(fill_large, bootstrap, topic, records).result()
    with ProcessPoolExecutor(1, get_context("spawn")) as stalling:
        grown = stalling.submit(stall, bootstrap, topic).result()
    return grown / 1024 / 1024, records * len(LARGE) / 1024 / 1024


def fill_large(bootstrap: str, topic: str, records: int) -> None:
    with kpsplit.Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(records):
            while True:
                try:
                    producer.produce(topic, LARGE, b"key-%d" % number)
                    break
                except BufferError:
                    producer.poll(0.1)


def stall(bootstrap: str, topic: str) -> int:
    """Return the bytes by which this process has grown at most while the application does not poll."""
    more = {"kpsplit_fetch_buffer_bytes": BUFFER_BYTES}
    consumer = kpsplit.Consumer(config(bootstrap, f"bench-stalled-{time.time_ns()}", **more))
    before = most = psutil.Process().memory_info().rss
    consumer.subscribe([topic])
    while consumer.poll(0.5) is None:
        pass
    for _ in range(100):
        time.sleep(0.1)
        most = max(most, psutil.Process().memory_info().rss)
    consumer.close()
    return most - before


def fill(bootstrap: str, topic: str, records: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(records):
        while True:
            try:
                producer.produce(topic, VALUE, b"user-%d" % (number % 10_000))
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def prepare(bootstrap: str, names: list[str]) -> None:
    """Create the topics and enrol them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(n, PARTITIONS, 3) for n in names]).values():
        future.result()
    with Admin({"bootstrap.servers": bootstrap}) as operations:
        operations.initialise()
        for name in names:
            operations.enrol(name, Partitioner.CONSISTENT_RANDOM, slots=SLOTS)


@contextmanager
def brokers(bootstrap: str | None) -> Iterator[str]:
    if bootstrap:
        yield bootstrap
        return
    with DevCluster(brokers=3) as cluster:
        yield cluster.bootstrap


def show(name: str, values: list[float]) -> float:
    median = statistics.median(values)
    print(f"{name:44} {median:8.2f}   {min(values):6.2f} .. {max(values):.2f}", flush=True)
    return median


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--only", choices=["throughput", "workers", "hand-over", "memory"])
    options = parser.parse_args(argv)
    summary = []
    with brokers(options.bootstrap_server) as bootstrap:
        stamp = time.time_ns()
        topic, moving, large = (f"bench-{kind}-{stamp}" for kind in ("read", "move", "large"))
        prepare(bootstrap, [topic, moving, large])
        fill(bootstrap, topic, options.records)
        print(f"{'':44} {'median':>8}   {'range':>14}")
        if options.only in (None, "throughput"):
            for name, read in (("poll()", read_by_poll), ("consume(1000)", read_by_consume)):
                wall, cpu = throughput(bootstrap, topic, read, options.records, options.pairs)
                summary.append(f"{name} {show(f'{name}, kpsplit / plain, wall', wall):.2f}")
                show(f"{name}, kpsplit / plain, client CPU", cpu)
        if options.only in (None, "workers"):
            parts = [speed_up(bootstrap, topic, n) for n in WORKERS]
            for n, part in zip(WORKERS, parts, strict=True):
                show(f"run(workers={n}), part of the ideal speed", [part])
            summary.append(f"run(workers) {min(parts):.2f} of ideal")
        if options.only in (None, "hand-over"):
            gaps = hand_over(bootstrap, moving)
            summary.append(f"hand-over {show('hand-over of a slot, seconds', gaps):.2f} s")
        if options.only in (None, "memory"):
            grown, backlog = stalled_memory(bootstrap, large)
            bound = BUFFER_BYTES / 1024 / 1024
            told = f"buffer {bound:.0f} MiB, backlog {backlog:.0f} MiB"
            print(f"{'stalled application, MiB grown':44} {grown:8.1f}   {told}")
            summary.append(f"stalled +{grown:.0f} MiB of {backlog:.0f}")
    print(f"consumer: {', '.join(summary)} (aims: >= 0.90, >= 0.90, >= 0.95)")


if __name__ == "__main__":
    main()
