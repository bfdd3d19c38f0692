"""What a split gains where the partition is the limit: records/s of many producers, unsplit and split.

The topic has ``flush.messages=1``: its leader and its followers sync the log at every append, and a partition
takes the next one only then. In the brokers a small library replaces each sync by a wait (``SYNC_MS``), as if
each broker had a slow disk of its own. So the limit is one of a partition, and takes no processor time.

    python -m benchmarks.hot_partition [--quick] [--only hot.8] [--bootstrap-server HOST:PORT]

On given brokers the limit is that of their own disks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from typing import Any, Self

import psutil

from benchmarks.harness import KEYS, MAX_PAUSE_MS, VALUE, Bench, create_topics, enrol, run_script, within
from kpsplit import Admin, PhysicalPartition, Producer
from kpsplit.devcluster import DevCluster

SYNC_MS = 10
"""How long each sync of a broker waits. It writes nothing: the disk that the brokers share is no limit."""
PROCESSES, EACH = 4, 12
"""Producers, by process: a broker works on one request of a connection at a time."""
WINDOW = 3
"""Records of a producer in flight, each a request of its own.

With five or more of a partition in flight and more to send, librdkafka polls without a pause
(docs/architecture.md).
"""
PARTS = (4, 8)
SETTLE_SECONDS, STRETCH_SECONDS, START_SECONDS = 2.0, 5, 60.0
ROUNDS, ROUNDS_SECONDS = 3, 110.0
PROPERTIES = {"num.io.threads": "64", "num.replica.fetchers": "8"}
"""Of the brokers. A handler waits for the sync, and so does the thread that fetches for a follower."""

PRELOAD = "LD_PRELOAD"
"""Names the library to the dynamic linker of Linux."""

SLOW_SYNC = """
#include <stddef.h>
#include <time.h>

static int rest(void) {
    struct timespec time = {0, SYNC_MS * 1000000L};
    return nanosleep(&time, NULL), 0;
}

int fsync(int file) { return rest(); }
int fdatasync(int file) { return rest(); }
int msync(void *from, size_t size, int flags) { return rest(); }
"""


class NotSlowedError(Exception):
    """Why the brokers' syncs cannot be made slow here."""


def build(folder: Path) -> Path:
    """Compile the library that makes syncs slow.

    Raises:
        NotSlowedError: this is no Linux, or there is no C compiler, or it fails.
    """
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        raise NotSlowedError("it needs Linux and a C compiler (cc)")
    source, library = folder / "slow_sync.c", folder / "slow_sync.so"
    source.write_text(SLOW_SYNC, "utf-8")
    command = [compiler, "-shared", "-fPIC", f"-DSYNC_MS={SYNC_MS}", "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotSlowedError(f"the C compiler failed: {(done.stderr.splitlines() or ['no message'])[0]}")
    return library


@contextmanager
def slow_brokers() -> Iterator[str]:
    """Yield the bootstrap servers of an embedded cluster whose syncs are slow.

    Raises:
        NotSlowedError: they cannot be slowed here.
    """
    with tempfile.TemporaryDirectory(prefix="kpsplit-bench-") as folder, ExitStack() as stack:
        library = build(Path(folder))
        cluster = DevCluster(brokers=3, extra_properties=PROPERTIES)
        stack.callback(cluster.stop)
        os.environ[PRELOAD] = str(library)
        try:
            cluster.start()  # the brokers inherit it
        finally:
            del os.environ[PRELOAD]
        yield cluster.bootstrap


def write(bootstrap: str, topic: str, first: int, done: Any, broken: Any, reported: Any) -> None:
    """Be one process of producers; ``reported`` counts the records of each that are delivered up to now."""
    threads = [
        threading.Thread(target=_produce, args=(bootstrap, topic, first, place, done, broken, reported))
        for place in range(EACH)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _produce(
    bootstrap: str, topic: str, first: int, place: int, done: Any, broken: Any, reported: Any
) -> None:
    """Send the next record whenever one is reported: as fast as the brokers take them."""

    def report(error: Any, _message: Any) -> None:
        if error is None:
            reported[place] += 1
        else:
            broken.set()

    config = {"bootstrap.servers": bootstrap, "batch.num.messages": 1}
    sent, number = 0, first + place
    try:
        with Producer(config) as producer:
            while not done.is_set():
                while sent - reported[place] < WINDOW:
                    producer.produce(topic, VALUE, KEYS[number * 7919 % len(KEYS)], on_delivery=report)
                    sent, number = sent + 1, number + PROCESSES * EACH
                producer.poll(0.1)
    except BaseException:
        broken.set()
        raise


@dataclass(frozen=True)
class Stretch:
    """Records per second, and what part of the machine's processors was busy, in percent."""

    rate: float
    busy: float


class Writers:
    """All producers; a context manager in which they write."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        processes = get_context("spawn")
        self._done, self._broken = processes.Event(), processes.Event()
        self._reported = [processes.Array("q", EACH, lock=False) for _ in range(PROCESSES)]
        self._processes = [
            processes.Process(
                target=write,
                args=(bootstrap, topic, number * EACH, self._done, self._broken, reported),
                daemon=True,
            )
            for number, reported in enumerate(self._reported)
        ]

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        end = time.monotonic() + START_SECONDS
        while not all(all(reported) for reported in self._reported):
            if time.monotonic() > end:
                raise SystemExit("the producers did not start")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for process in self._processes:
            process.join()

    def stretch(self, seconds: float) -> Stretch:
        """Let the producers settle, and measure them for some seconds."""
        time.sleep(SETTLE_SECONDS)
        began, before = time.monotonic(), self._count()
        busy = psutil.cpu_percent(seconds)
        records, took = self._count() - before, time.monotonic() - began
        if self._broken.is_set() or not all(process.is_alive() for process in self._processes):
            raise SystemExit("not a fair run: a producer has failed")
        return Stretch(records / took, busy)

    def _count(self) -> int:
        return sum(sum(reported) for reported in self._reported)


@dataclass(frozen=True)
class Gain:
    """One split between two stretches without it; the milliseconds that each producer held records for."""

    before: Stretch
    split: Stretch
    after: Stretch
    pauses: list[float]

    def ratio(self) -> float:
        """Return how many times as much passed while it was split."""
        return self.split.rate / mean((self.before.rate, self.after.rate))


class Rounds:
    """Splits and merges of one partition, each between stretches without a split."""

    def __init__(self, bench: Bench, operations: Admin, topic: str, writers: Writers) -> None:
        self.gains: dict[int, list[Gain]] = {}
        self._seconds = float(bench.size(STRETCH_SECONDS, 1))
        self._operations = operations
        self._parent = PhysicalPartition(topic, 0)
        self._writers = writers
        self._unsplit = self._measured()

    def run(self, parts: int) -> None:
        """Split, measure, merge, and measure again."""
        report = self._operations.split(self._parent, parts, even=True, max_pause_ms=MAX_PAUSE_MS, force=True)
        split, before = self._measured(), self._unsplit
        self._operations.merge(self._parent, max_pause_ms=MAX_PAUSE_MS, force=True)
        self._unsplit = self._measured()
        pauses = [float(pause.pause_ms) for pause in report.pauses.values()]
        gain = Gain(before, split, self._unsplit, pauses)
        self.gains.setdefault(parts, []).append(gain)
        rates = ", ".join(f"{stretch.rate:.0f}" for stretch in (before, split, self._unsplit))
        print(
            f"split in {parts} within {report.seconds:.1f} s: {gain.ratio():.2f} ({rates} records/s)",
            flush=True,
        )

    def _measured(self) -> Stretch:
        return self._writers.stretch(self._seconds)


def note_gains(bench: Bench, parts: int, gains: Sequence[Gain]) -> None:
    """Note the row of a split in so many parts."""
    unsplit = [stretch for gain in gains for stretch in (gain.before, gain.after)]
    split = [gain.split for gain in gains]
    pauses = [ms for gain in gains for ms in gain.pauses]
    note = (
        f"{_rate(unsplit)} records/s not split, {_rate(split)} split; "
        f"of the processors {_busy(unsplit)} % and {_busy(split)} % were busy; "
        f"median of the producers' pauses {median(pauses):,.0f} ms"
    )
    bench.note(f"hot.{parts}", [gain.ratio() for gain in gains], note=note)


def _rate(stretches: Sequence[Stretch]) -> str:
    return f"{median(stretch.rate for stretch in stretches):,.0f}"


def _busy(stretches: Sequence[Stretch]) -> str:
    return f"{median(stretch.busy for stretch in stretches):.0f}"


def measure(bench: Bench) -> None:
    """Measure all rows of a hot partition."""
    wanted = [parts for parts in PARTS if bench.wants(f"hot.{parts}")]
    with ExitStack() as stack:
        try:
            bootstrap = bench.bootstrap or stack.enter_context(slow_brokers())
        except NotSlowedError as error:
            for parts in wanted:
                bench.note(f"hot.{parts}", (), note=f"the brokers' disk cannot be slowed here: {error}")
            return
        topic = f"bench-hot-{time.time_ns()}"
        create_topics(bootstrap, [topic], partitions=1, flush_messages="1")
        enrol(bootstrap, [topic])
        operations = stack.enter_context(Admin({"bootstrap.servers": bootstrap}, 120.0))
        rounds = Rounds(bench, operations, topic, stack.enter_context(Writers(bootstrap, topic)))
        for _ in within(bench.size(ROUNDS, 1), ROUNDS_SECONDS):
            for parts in wanted:
                rounds.run(parts)
    for parts, gains in rounds.gains.items():
        note_gains(bench, parts, gains)


if __name__ == "__main__":
    run_script(__doc__, measure, own_brokers=True)
