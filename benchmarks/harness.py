"""What the benchmarks share: brokers, topics, pairs of runs in turn, and the values of the table's rows.

Each script of the table has a function ``measure(bench)`` and ends with ``run_script(doc, measure)``. It can
run alone, and prints its rows then; ``benchmarks/table.py`` runs all.

    python -m benchmarks.consumer [--quick] [--only NAME] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka.admin import AdminClient, NewTopic

import kpsplit
from benchmarks.page import Values, rows, spread, verdict
from kpsplit import Admin, Partitioner, PhysicalPartition
from kpsplit.devcluster import DevCluster

PARTITIONS = 6
SLOTS = 16
VALUE = b"v" * 100
KEYS = [b"user-%d" % number for number in range(10_000)]
MAX_PAUSE_MS = 20_000
CREATE_SECONDS, FLUSH_SECONDS = 60, 120

LEAST_PAIRS = 3
ROW_SECONDS = 40.0
"""For the pairs of a row, unless its script says otherwise. All rows together have 40 minutes."""

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Run:
    """What one side took: seconds by the wall, and of its process's processors (0: they say nothing)."""

    wall: float
    cpu: float = 0.0


class Stopwatch:
    """Measures one run from now on."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> Run:
        """Return what it took up to now."""
        return Run(time.perf_counter() - self._wall, time.process_time() - self._cpu)


class Bench:
    """One script at work: its sizes, its brokers, and what it has found.

    Args:
        bootstrap: the brokers.
        quick: sizes that only show that everything works.
        only: measure the rows whose names contain this.
    """

    def __init__(self, bootstrap: str, quick: bool, only: str) -> None:
        self.bootstrap = bootstrap
        self.found: dict[str, Values] = {}
        self._quick = quick
        self._only = only
        self._rows = {row.name: row for _, row in rows()}

    def wants(self, *names: str) -> bool:
        """Return whether one of these rows is to be measured."""
        return any(self._only in name for name in names)

    def size(self, full: int, quick: int) -> int:
        """Return a number of records, pairs or rounds."""
        return quick if self._quick else full

    def compare(
        self,
        name: str,
        ours: Callable[[], Run],
        peer: Callable[[], Run],
        pairs: int,
        seconds: float = ROW_SECONDS,
    ) -> None:
        """Run pairs as ``in_turn`` does, and note the ratios."""
        if self.wants(name):
            self.note_runs(name, in_turn(ours, peer, pairs, seconds))

    def note_runs(self, name: str, runs: Iterable[tuple[Run, Run]], note: str = "") -> None:
        """Note pairs of (kpsplit, peer): the ratio of speeds, or of times if the aim is a greatest."""
        pairs = list(runs)
        ratio = _time_ratio if self._rows[name].at_most else _speed_ratio
        has_cpu = all(a.cpu and b.cpu for a, b in pairs)
        cpu = [ratio(a.cpu, b.cpu) for a, b in pairs] if has_cpu else []
        self.note(name, [ratio(a.wall, b.wall) for a, b in pairs], cpu, note)

    def note(self, name: str, wall: Iterable[float], cpu: Iterable[float] = (), note: str = "") -> None:
        """Note the values of a row, and print them."""
        values = Values(tuple(round(v, 4) for v in wall), tuple(round(v, 4) for v in cpu), note)
        row = self._rows[name]
        self.found[name] = values
        figures = f"{name:20} {spread(row, values.wall):26} {spread(row, values.cpu):26}"
        print(figures, f"{row.goal():16}", verdict(row, values), note, flush=True)


def _speed_ratio(ours: float, peer: float) -> float:
    return peer / ours


def _time_ratio(ours: float, peer: float) -> float:
    return ours / peer


def within(pairs: int, seconds: float) -> Iterator[int]:
    """Count pairs; where the time is over, ``LEAST_PAIRS`` are enough: the table has a limit."""
    end = time.monotonic() + seconds
    for number in range(pairs):
        if number < LEAST_PAIRS or time.monotonic() < end:
            yield number


def in_turn(
    ours: Callable[[], T], peer: Callable[[], U], pairs: int, seconds: float = ROW_SECONDS
) -> Iterator[tuple[T, U]]:
    """Run both sides in turn and yield (ours, peer); the peer begins the first pair, ours the second.

    Pairs as of ``within``.
    """
    for number in within(pairs, seconds):
        if number % 2 == 0:
            second = peer()
            yield ours(), second
        else:
            first = ours()
            yield first, peer()


def create_topics(bootstrap: str, names: Iterable[str], partitions: int = PARTITIONS, **config: str) -> None:
    """Create topics with three replicas."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    wanted = [NewTopic(name, partitions, 3, config=settings) for name in names]
    for future in admin.create_topics(wanted).values():
        future.result(CREATE_SECONDS)


def enrol(bootstrap: str, names: Iterable[str], split: Iterable[str] = ()) -> None:
    """Enrol topics, and split every partition of some of them in four."""
    with Admin({"bootstrap.servers": bootstrap}, 120.0) as operations:
        operations.initialise()
        for name in names:
            operations.enrol(name, Partitioner.CONSISTENT_RANDOM, slots=SLOTS)
        for name in split:
            for partition in range(PARTITIONS):
                parent = PhysicalPartition(name, partition)
                operations.split(parent, 4, even=True, max_pause_ms=MAX_PAUSE_MS, force=True)


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Write records with kpsplit's producer."""
    with kpsplit.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20}) as producer:
        for number in range(records):
            send_patiently(producer, topic, KEYS[number * 7919 % len(KEYS)])
        if producer.flush(FLUSH_SECONDS):
            raise SystemExit(f"{topic} could not be filled")


def send_patiently(producer: Any, topic: str, key: bytes) -> None:
    """Produce a record, and wait while the client's queue is full."""
    while True:
        try:
            producer.produce(topic, VALUE, key)
            return
        except BufferError:
            producer.poll(0.05)


@contextmanager
def brokers(given: str | None = None) -> Iterator[str]:
    """Yield bootstrap servers: the given ones, or those of an embedded cluster of three brokers."""
    if given:
        yield given
        return
    with DevCluster(brokers=3) as cluster:
        yield cluster.bootstrap


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every script of the table."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows only that everything works")
    parser.add_argument("--only", default="", help="only the rows whose names contain this")
    return parser


def run_script(doc: str | None, measure: Callable[[Bench], None], own_brokers: bool = False) -> None:
    """Be a script: measure on the given brokers or on new ones; write the values to ``--record``.

    ``own_brokers``: the script starts its own where none are given; ``bench.bootstrap`` is empty then.
    """
    parser = parser_of(doc)
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    given = options.bootstrap_server
    with nullcontext(given or "") if own_brokers else brokers(given) as bootstrap:
        bench = Bench(bootstrap, options.quick, options.only)
        try:
            measure(bench)
        finally:
            if options.record:
                found = {name: asdict(values) for name, values in bench.found.items()}
                options.record.write_text(json.dumps(found), "utf-8")
