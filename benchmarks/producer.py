"""What kpsplit's Producer costs: throughput and latency, in turn with a plain confluent_kafka.Producer.

Both do the same work with the same callbacks, against the same brokers, one after the other.

    python -m benchmarks.producer [--quick] [--only stamped.500] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import confluent_kafka

import kpsplit
from benchmarks.harness import (
    KEYS,
    VALUE,
    Bench,
    Run,
    Stopwatch,
    create_topics,
    enrol,
    in_turn,
    run_script,
)
from benchmarks.page import LOOPS, quantile
from kpsplit.splitter.records.data import STAMP_HEADER, STAMP_SIZES, STAMP_VERSION

HEADER: list[tuple[str, Any]] = [("x" * len(STAMP_HEADER), b"x" * STAMP_SIZES[STAMP_VERSION])]
"""As large as a stamp."""
TICK = 0.002
"""Seconds between two portions of a paced run."""
LATENCY_SECONDS = 100.0
LEAST_POLL = 0.001
"""poll() counts in milliseconds: less would make it a busy loop."""
LATE = 1.2
"""A run that takes so many times its planned time has not kept its rate: its latencies are a queue."""


@dataclass(frozen=True)
class Loop:
    """What an application does around produce(): a poll after ``every`` records, a lambda for each or not."""

    every: int
    own_callback: bool

    @classmethod
    def of(cls, name: str) -> Loop:
        """Return the loop of a name in ``LOOPS``."""
        every, _, callback = name.partition(".")
        return cls(int(every), callback == "lambda")


@dataclass(frozen=True)
class Paced:
    """Seconds from produce() to the report, in a run at a steady rate. ``late``: it has not kept the rate."""

    p50: float
    p99: float
    late: bool


class Reports:
    """Counts delivery reports."""

    def __init__(self) -> None:
        self.delivered = self.failed = 0

    def __call__(self, error: Any, _message: Any) -> None:
        """Be the callback."""
        if error is None:
            self.delivered += 1
        else:
            self.failed += 1


def send(producer: Any, topic: str, headers: list[tuple[str, Any]] | None, records: int, loop: Loop) -> Run:
    """Send records as fast as the client takes them, up to the last report."""
    report = Reports()
    more: dict[str, Any] = {} if headers is None else {"headers": headers}
    producer.produce(topic, VALUE, KEYS[0], on_delivery=report, **more)
    producer.flush(30)
    watch = Stopwatch()
    (_with_lambdas if loop.own_callback else _with_one_callback)(
        producer, topic, report, more, records, loop.every
    )
    left = producer.flush(120)
    run = watch.stop()
    if left or report.failed or report.delivered != records + 1:
        raise SystemExit(f"not a fair run: {report.delivered} delivered, {report.failed} failed, {left} left")
    return run


def _with_one_callback(
    producer: Any, topic: str, report: Reports, more: dict[str, Any], records: int, every: int
) -> None:
    produce, poll, many = producer.produce, producer.poll, len(KEYS)
    for i in range(records):
        while True:
            try:
                produce(topic, VALUE, KEYS[i % many], on_delivery=report, **more)
                break
            except BufferError:
                poll(0.05)
        if i % every == 0:
            poll(0)


def _with_lambdas(
    producer: Any, topic: str, report: Reports, more: dict[str, Any], records: int, every: int
) -> None:
    produce, poll, many = producer.produce, producer.poll, len(KEYS)
    for i in range(records):
        own = lambda error, message, _number=i: report(error, message)  # noqa: E731
        while True:
            try:
                produce(topic, VALUE, KEYS[i % many], on_delivery=own, **more)
                break
            except BufferError:
                poll(0.05)
        if i % every == 0:
            poll(0)


def paced(
    producer: Any, topic: str, headers: list[tuple[str, Any]] | None, rate: float, seconds: float
) -> Paced:
    """Send records at a steady rate, and measure the seconds from produce() to the report."""
    latencies: list[float] = []
    now = time.perf_counter

    def report(sent_at: float, error: Any, _message: Any) -> None:
        if error is not None:
            raise SystemExit(f"not a fair run: {error}")
        latencies.append(now() - sent_at)

    produce, poll, many = producer.produce, producer.poll, len(KEYS)
    more: dict[str, Any] = {} if headers is None else {"headers": headers}
    total, sent, began = int(rate * seconds), 0, now()
    while sent < total:
        due = min(total, int((now() - began + TICK) * rate) + 1)
        for number in range(sent, due):
            produce(topic, VALUE, KEYS[number % many], on_delivery=partial(report, now()), **more)
        sent = due
        ready = began + sent / rate
        poll(0)
        while (rest := ready - now()) >= LEAST_POLL:
            poll(rest)
        if rest > 0:
            time.sleep(rest)
    took = now() - began
    producer.flush(60)
    if len(latencies) != total:
        raise SystemExit(f"not a fair run: {len(latencies)} of {total} records were reported")
    return Paced(quantile(latencies, 0.5), quantile(latencies, 0.99), took > LATE * seconds)


def throughput(bench: Bench, topics: dict[str, str], plain: Any, ours: Any) -> None:
    """Measure the rows of produce()."""
    kinds = {
        "stamped": (topics["plain"], topics["enrolled"], HEADER, None),
        "header": (topics["plain"], topics["enrolled"], HEADER, HEADER),
        "untouched": (topics["plain"], topics["plain"], None, None),
    }
    records, pairs = bench.size(150_000, 10_000), bench.size(15, 2)
    for kind, (plain_topic, our_topic, plain_headers, our_headers) in kinds.items():
        for name in LOOPS:
            if not bench.wants(f"{kind}.{name}"):
                continue
            loop = Loop.of(name)
            run_plain = partial(send, plain, plain_topic, plain_headers, loop=loop)
            run_ours = partial(send, ours, our_topic, our_headers, loop=loop)
            run_plain(records=records // 10)
            run_ours(records=records // 10)
            bench.compare(
                f"{kind}.{name}",
                partial(run_ours, records=records),
                partial(run_plain, records=records),
                pairs,
            )


def latency(bench: Bench, topics: dict[str, str], plain: Any, ours: Any) -> None:
    """Measure p50 and p99 at half of the rate that the plain producer reaches."""
    if not bench.wants("latency.p50", "latency.p99"):
        return
    records = bench.size(200_000, 30_000)
    flat_out = [
        records / send(plain, topics["plain"], HEADER, records, Loop(500, False)).wall for _ in range(3)
    ]
    rate, seconds = median(flat_out) / 2, bench.size(6, 1)
    run_plain = partial(paced, plain, topics["plain"], HEADER, rate, seconds)
    run_ours = partial(paced, ours, topics["enrolled"], None, rate, seconds)
    run_plain()
    run_ours()
    found = list(in_turn(run_ours, run_plain, bench.size(7, 2), LATENCY_SECONDS))
    late = [sum(pair[side].late for pair in found) for side in (0, 1)]
    for name in ("p50", "p99"):
        pairs = [(getattr(a, name), getattr(b, name)) for a, b in found]
        note = f"{rate:,.0f} records/s; the peer's {name} is {1000 * median(b for _, b in pairs):.1f} ms"
        if any(late):
            note += f"; runs that did not keep the rate: {late[0]} of kpsplit, {late[1]} of the peer"
        bench.note(f"latency.{name}", [a / b for a, b in pairs], note=note)


def measure(bench: Bench) -> None:
    """Measure all rows of the producer."""
    stamp = time.time_ns()
    topics = {kind: f"bench-{kind}-{stamp}" for kind in ("plain", "enrolled")}
    create_topics(bench.bootstrap, topics.values())
    enrol(bench.bootstrap, [topics["enrolled"]])
    config = {"bootstrap.servers": bench.bootstrap, "enable.idempotence": True, "acks": "all"}
    with kpsplit.Producer(config) as ours:
        plain = confluent_kafka.Producer(config)
        throughput(bench, topics, plain, ours)
        latency(bench, topics, plain, ours)


if __name__ == "__main__":
    run_script(__doc__, measure)
