"""What kpsplit's Consumer costs to read with, in turn with a plain confluent_kafka.Consumer.

Each pair reads topics with the same records one after the other. Joining the group and the first tenth of the
records do not count: ``benchmarks/start.py`` measures the start.

    python -m benchmarks.consumer [--quick] [--only read.poll] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import confluent_kafka

import kpsplit
from benchmarks.harness import Bench, Run, Stopwatch, create_topics, enrol, fill, run_script
from kpsplit.consumer.config import HEARTBEAT_MS, QUEUE_BACKOFF_MS

HALF = 0.45
"""Of all records the part that an owner of half reads: keys do not fall into halves of exactly one size."""
JOIN_SECONDS, CASE_SECONDS = 60.0, 60.0

Read = Callable[[Any, int], None]


def config(bootstrap: str, group: str, **more: Any) -> dict[str, Any]:
    """Return the configuration of a member. The plain one gets the settings that kpsplit makes."""
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS,
        "partition.assignment.strategy": "cooperative-sticky",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def maker(ours: bool) -> Callable[[dict[str, Any]], Any]:
    """Return the class of one side."""
    return kpsplit.Consumer if ours else confluent_kafka.Consumer


def await_first(consumer: Any) -> None:
    """Return when the first record has arrived."""
    end = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < end:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            return
    raise SystemExit("no record arrived")


def read_by_poll(consumer: Any, records: int) -> None:
    """Read so many records one by one."""
    poll, left, total = consumer.poll, records, 0
    while left:
        message = poll(1.0)
        if message is not None and message.error() is None:
            total += len(message.value())
            left -= 1


def read_by_consume(consumer: Any, records: int) -> None:
    """Read so many records in portions."""
    left, total = records, 0
    while left > 0:
        for message in consumer.consume(min(1000, left), 1.0):
            if message.error() is None:
                total += len(message.value())
                left -= 1


def reading(bootstrap: str, topic: str, records: int, ours: bool, read: Read, *, half: bool = False) -> Run:
    """Read with a new member of a new group; with ``half`` another member has the other half."""
    group = f"bench-{time.time_ns()}"
    with another_member(bootstrap, topic, group, ours) if half else alone():
        consumer = maker(ours)(config(bootstrap, group))
        consumer.subscribe([topic])
        try:
            await_first(consumer)
            wanted = int(records * HALF) if half else records
            read(consumer, wanted // 10)
            watch = Stopwatch()
            read(consumer, wanted - wanted // 10 - 1)
            return watch.stop()
        finally:
            consumer.close()


@contextmanager
def alone() -> Iterator[None]:
    """Have no other member."""
    yield


@contextmanager
def another_member(bootstrap: str, topic: str, group: str, ours: bool) -> Iterator[None]:
    """Have a member in a process of its own that reads nothing."""
    processes = get_context("spawn")
    ready, done = processes.Event(), processes.Event()
    process = processes.Process(target=stand_still, args=(bootstrap, topic, group, ours, ready, done))
    process.start()
    try:
        if not ready.wait(JOIN_SECONDS):
            raise SystemExit("the other member did not join")
        yield
    finally:
        done.set()
        process.join()


def stand_still(bootstrap: str, topic: str, group: str, ours: bool, ready: Any, done: Any) -> None:
    """Be a member that has paused all that it got."""
    consumer = maker(ours)(config(bootstrap, group))
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.pause(consumer.assignment())
    ready.set()
    while not done.is_set():
        consumer.poll(0.1)
    consumer.close()


def measure(bench: Bench) -> None:
    """Measure all rows of reading."""
    stamp = time.time_ns()
    whole, split = (f"bench-{kind}-{stamp}" for kind in ("whole", "split"))
    records, pairs = bench.size(1_500_000, 10_000), bench.size(7, 2)
    create_topics(bench.bootstrap, [whole, split])
    wants_split = bench.wants("read.poll.split", "read.consume.split")
    enrol(bench.bootstrap, [whole, split], [split] if wants_split else [])
    for topic in (whole, split) if wants_split else (whole,):
        fill(bench.bootstrap, topic, records)
    reading(bench.bootstrap, whole, records, False, read_by_poll)  # the brokers' caches
    for case, topic in (("unsplit", whole), ("split", split), ("half", whole)):
        for name, read in (("poll", read_by_poll), ("consume", read_by_consume)):
            side = partial(reading, bench.bootstrap, records=records, read=read, half=case == "half")
            ours, peer = partial(side, topic=topic, ours=True), partial(side, topic=whole, ours=False)
            bench.compare(f"read.{name}.{case}", ours, peer, pairs, CASE_SECONDS)


if __name__ == "__main__":
    run_script(__doc__, measure)
