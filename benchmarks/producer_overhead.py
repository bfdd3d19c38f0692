"""What kpsplit's Producer costs: in turn with a plain confluent_kafka.Producer doing the same work.

Each pair runs both producers one after the other (which one begins alternates) against the same brokers, with
the same records and the same callback. Printed: the ratio of throughputs (kpsplit / plain; 1.0 is equal), by
the wall and by the client's CPU time, as the median of the pairs with the smallest and the greatest. Absolute
numbers of a shared machine mean little; only the ratios do.

    python benchmarks/producer_overhead.py [--records N] [--pairs N] [--case TEXT] [--bootstrap-server ...]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

import kpsplit
from kpsplit import Admin, Partitioner, PhysicalPartition
from kpsplit.devcluster import DevCluster

PARTITIONS = 6
VALUE = b"v" * 100
KEYS = [f"user-{i}".encode() for i in range(10_000)]
HEADER: list[tuple[str, Any]] = [("trace", b"0123456789abcdef01234")]
"""As large as a stamp."""
AIM = "enrolled vs plain with one header"
"""The case that says what kpsplit costs beyond what it writes."""


@dataclass(frozen=True)
class Run:
    """One run: seconds by the wall, and of the client's CPU."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Case:
    """One comparison: what plain does, what kpsplit does, on which topics."""

    name: str
    plain_topic: str
    our_topic: str
    plain_headers: list[tuple[str, Any]] | None
    our_headers: list[tuple[str, Any]] | None


def send(producer: Any, topic: str, headers: list[tuple[str, Any]] | None, records: int) -> Run:
    delivered = failed = 0

    def report(error: Any, _message: Any) -> None:
        nonlocal delivered, failed
        if error is None:
            delivered += 1
        else:
            failed += 1

    produce, poll, keys = producer.produce, producer.poll, KEYS
    many = len(keys)
    producer.produce(topic, VALUE, keys[0], on_delivery=report)
    producer.flush(30)
    wall, cpu = time.perf_counter(), time.process_time()
    for i in range(records):
        try:
            if headers is None:
                produce(topic, VALUE, keys[i % many], on_delivery=report)
            else:
                produce(topic, VALUE, keys[i % many], on_delivery=report, headers=headers)
        except BufferError:
            poll(0.05)
            produce(topic, VALUE, keys[i % many], on_delivery=report, headers=headers)
        if i % 500 == 0:
            poll(0)
    left = producer.flush(120)
    run = Run(time.perf_counter() - wall, time.process_time() - cpu)
    if left or failed or delivered != records + 1:
        raise SystemExit(f"not a fair run: {delivered} delivered, {failed} failed, {left} left")
    return run


def measure(case: Case, bootstrap: str, records: int, pairs: int) -> tuple[list[float], list[float]]:
    """Return the ratios of all pairs, by the wall and by CPU."""
    config = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"}
    plain, ours = confluent_kafka.Producer(config), kpsplit.Producer(config)

    def run_plain() -> Run:
        return send(plain, case.plain_topic, case.plain_headers, records)

    def run_ours() -> Run:
        return send(ours, case.our_topic, case.our_headers, records)

    send(plain, case.plain_topic, case.plain_headers, records // 10)
    send(ours, case.our_topic, case.our_headers, records // 10)
    wall, cpu = [], []
    for i in range(pairs):
        first, second = (run_plain, run_ours) if i % 2 == 0 else (run_ours, run_plain)
        a, b = first(), second()
        p, o = (a, b) if i % 2 == 0 else (b, a)
        wall.append(p.wall / o.wall)
        cpu.append(p.cpu / o.cpu)
    ours.close()
    return wall, cpu


@contextmanager
def brokers(bootstrap: str | None) -> Iterator[str]:
    if bootstrap:
        yield bootstrap
        return
    with DevCluster(brokers=3) as cluster:
        yield cluster.bootstrap


def prepare(bootstrap: str) -> dict[str, str]:
    """Create the topics: a plain one, an enrolled one, and one with a partition split into four."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    stamp = f"{time.time_ns()}"
    names = {kind: f"bench-{kind}-{stamp}" for kind in ("plain", "unsplit", "split")}
    for future in admin.create_topics([NewTopic(n, PARTITIONS, 3) for n in names.values()]).values():
        future.result()
    with Admin({"bootstrap.servers": bootstrap}) as operations:
        operations.initialise()
        for kind in ("unsplit", "split"):
            operations.enrol(names[kind], Partitioner.CONSISTENT_RANDOM, slots=2)
        for partition in range(PARTITIONS):
            plan = operations.plan_split(PhysicalPartition(names["split"], partition), 4, even=True)
            operations.run(plan, max_pause_ms=10_000, observer=lambda _: None, force=True)
    return names


def row(name: str, ratios: list[float]) -> str:
    return f"{name:44} {statistics.median(ratios):6.2f}   {min(ratios):5.2f} .. {max(ratios):5.2f}"


def main(argv: list[str] | None = None, prepare: Callable[[str], dict[str, str]] = prepare) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=150_000)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--case", default="", help="only the cases whose names contain this")
    parser.add_argument("--bootstrap-server")
    options = parser.parse_args(argv)
    with brokers(options.bootstrap_server) as bootstrap:
        names = prepare(bootstrap)
        plain, unsplit, split = names["plain"], names["unsplit"], names["split"]
        cases = [
            Case(AIM, plain, unsplit, HEADER, None),
            Case("enrolled vs plain without header", plain, unsplit, None, None),
            Case("enrolled vs plain, both one header of the app", plain, unsplit, HEADER, HEADER),
            Case("split into 4 vs plain with one header", plain, split, HEADER, None),
            Case("not enrolled vs plain without header", plain, plain, None, None),
        ]
        print(f"{options.records} records of 100 bytes, {options.pairs} pairs: throughput kpsplit / plain")
        print(f"{'':44} {'median':>6}   {'range':>14}")
        summary = {}
        for case in cases:
            if options.case not in case.name:
                continue
            wall, cpu = measure(case, bootstrap, options.records, options.pairs)
            print(row(f"{case.name}, wall", wall))
            print(row(f"{case.name}, client CPU", cpu), flush=True)
            summary[case.name] = statistics.median(wall)
    told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in summary.items())
    print(f"producer overhead, medians by the wall: {told or 'no case'} (aim of the first: >= 0.90)")


if __name__ == "__main__":
    main()
