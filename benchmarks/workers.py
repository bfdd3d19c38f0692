"""What run(workers=N) gains with handlers that wait, in threads and in coroutines.

All read the same records: run() with both kinds of handlers, and Confluent's Parallel Consumer (Java). The
ideal is as many bare threads, or tasks of an event loop, that call the handler and do nothing else. Of each
run only the time counts in which it has settled: joining the group is not the matter.

    python -m benchmarks.workers [--quick] [--only run.threads] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import kpsplit
from benchmarks.consumer import JOIN_SECONDS, config
from benchmarks.harness import Bench, Run, Stopwatch, create_topics, enrol, fill, run_script
from benchmarks.page import HANDLER_MS, IDEAL_WORKERS, WORKERS
from benchmarks.parallel_consumer import ParallelConsumer, parallel_consumer
from kpsplit.errors import KpsplitError

BARE_SECONDS = 1.0
PEER = "peer"
KINDS = ("threads", "coroutines")

Cell = dict[str, Run]
"""What a record takes, for each side: of run() by its kind, of what is bare by ``bare.`` and the kind."""


class Meter:
    """Counts calls of a handler, and measures them in a thread of its own once they have settled."""

    def __init__(self, settle: float, seconds: float, enough: Callable[[], None]) -> None:
        self._settle, self._seconds, self._enough = settle, seconds, enough
        self._done: list[None] = []
        self.note = self._done.append
        """Called after each record with None. It needs no lock."""
        self._run: Run | None = None
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()

    def _measure(self) -> None:
        end = time.monotonic() + JOIN_SECONDS
        while not self._done and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(self._settle)
        before, watch = len(self._done), Stopwatch()
        time.sleep(self._seconds)
        records, run = len(self._done) - before, watch.stop()
        if records:
            self._run = Run(run.wall / records, run.cpu / records)
        self._enough()

    def run(self, of: float = float("inf")) -> Run:
        """Return what a record took. ``of``: how many records there were."""
        self._thread.join()
        if self._run is None or len(self._done) >= of:
            raise SystemExit(f"{len(self._done)} records were processed, of {of}")
        return self._run


def handler(kind: str, meter: Meter, handler_ms: int) -> Callable[[object], Any]:
    """Return a handler that waits, and is counted."""
    seconds, note = handler_ms / 1000, meter.note

    def wait(_record: object) -> None:
        time.sleep(seconds)
        note(None)

    async def wait_async(_record: object) -> None:
        await asyncio.sleep(seconds)
        note(None)

    return wait if kind == "threads" else wait_async


def bare(kind: str, workers: int, handler_ms: int) -> Run:
    """Return what a record takes where nothing is done but to call the handler."""
    done = threading.Event()
    meter = Meter(BARE_SECONDS / 2, BARE_SECONDS, done.set)
    call = handler(kind, meter, handler_ms)

    def thread() -> None:
        while not done.is_set():
            call(None)

    async def task() -> None:
        while not done.is_set():
            await call(None)

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(workers)))

    if inspect.iscoroutinefunction(call):
        asyncio.run(tasks())
    else:
        threads = [threading.Thread(target=thread) for _ in range(workers)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    return meter.run()


class Grid:
    """Measures all sides with one number of workers and one handler after the other."""

    def __init__(self, bench: Bench, topic: str, peer: ParallelConsumer | None) -> None:
        self._bootstrap, self._topic, self._peer = bench.bootstrap, topic, peer
        self._records = bench.size(800_000, 60_000)
        self._settle, self._seconds = bench.size(3, 1), bench.size(3, 1)
        self._reversed = False
        self.cells: dict[tuple[int, int], Cell] = {}
        """By the handler's milliseconds, and by workers."""

    def prepare(self) -> None:
        """Write the records that every run reads anew, and let the peer compile its code."""
        fill(self._bootstrap, self._topic, self._records)
        if self._peer is not None:
            self._peers(self._peer, max(WORKERS), min(HANDLER_MS))

    def measure(self, handler_ms: int, workers: int) -> None:
        """Run all sides; which begins alternates."""
        sides: dict[str, Callable[[int, int], Run]] = {}
        for kind in KINDS:
            sides[f"bare.{kind}"] = partial(bare, kind)
            sides[kind] = partial(self._ours, kind)
        if self._peer is not None:
            sides[PEER] = partial(self._peers, self._peer)
        names = sorted(sides, reverse=self._reversed)
        self._reversed = not self._reversed
        self.cells[handler_ms, workers] = {name: sides[name](workers, handler_ms) for name in names}
        rates = ", ".join(f"{name} {rate(run)}" for name, run in self.cells[handler_ms, workers].items())
        print(f"handler {handler_ms} ms, {workers} workers, records/s: {rates}", flush=True)

    def _ours(self, kind: str, workers: int, handler_ms: int) -> Run:
        consumer = kpsplit.Consumer(config(self._bootstrap, f"bench-run-{time.time_ns()}"))
        consumer.subscribe([self._topic])
        meter = Meter(self._settle, self._seconds, consumer.stop)
        consumer.run(handler(kind, meter, handler_ms), workers=workers)
        consumer.close()
        return meter.run(self._records)

    def _peers(self, peer: ParallelConsumer, workers: int, handler_ms: int) -> Run:
        return peer.run(workers, handler_ms, self._settle, self._seconds, self._records)


def rate(run: Run) -> str:
    """Return records per second as text."""
    return f"{1 / run.wall:,.0f}"


def listed(cells: Mapping[tuple[int, int], Cell], name: str) -> str:
    """Return the rates of one side as text."""
    return " / ".join(rate(cell[name]) for cell in cells.values())


def measure(bench: Bench) -> None:
    """Measure all rows of handlers that wait."""
    topic = f"bench-run-{time.time_ns()}"
    create_topics(bench.bootstrap, [topic])
    enrol(bench.bootstrap, [topic])
    missing = ""
    with ExitStack() as stack:
        try:
            peer = stack.enter_context(parallel_consumer(bench.bootstrap, topic))
        except KpsplitError as error:
            peer, missing = None, f"there is no peer here: {str(error).splitlines()[0]}"
        grid = Grid(bench, topic, peer)
        grid.prepare()
        for handler_ms in HANDLER_MS:
            for workers in WORKERS[: bench.size(len(WORKERS), 2)]:
                of_peer = [f"run.{kind}.{handler_ms}" for kind in KINDS]
                ideal = [f"run.{kind}.ideal.{workers}" for kind in KINDS if workers in IDEAL_WORKERS]
                if bench.wants(*of_peer, *ideal):
                    grid.measure(handler_ms, workers)
    for kind in KINDS:
        for handler_ms in HANDLER_MS:
            cells = {at: cell for at, cell in grid.cells.items() if at[0] == handler_ms}
            note_peer(bench, f"run.{kind}.{handler_ms}", kind, cells, missing)
        for workers in IDEAL_WORKERS:
            cells = {at: cell for at, cell in grid.cells.items() if at[1] == workers}
            note_ideal(bench, f"run.{kind}.ideal.{workers}", kind, cells)


def note_peer(
    bench: Bench, name: str, kind: str, cells: Mapping[tuple[int, int], Cell], missing: str
) -> None:
    """Note one handler's ratios to the peer, for each number of workers."""
    if not bench.wants(name):
        return
    if missing:
        bench.note(name, (), note=missing)
        return
    ratios = " / ".join(f"{cell[PEER].wall / cell[kind].wall:.2f}" for cell in cells.values())
    workers = " / ".join(str(count) for _, count in cells)
    note = (
        f"{ratios} with {workers} workers; records/s {listed(cells, kind)}, "
        f"of the peer {listed(cells, PEER)}, of what is bare {listed(cells, f'bare.{kind}')}"
    )
    bench.note_runs(name, [(cell[kind], cell[PEER]) for cell in cells.values()], note)


def note_ideal(bench: Bench, name: str, kind: str, cells: Mapping[tuple[int, int], Cell]) -> None:
    """Note the ratios to what is bare with one number of workers, for each handler."""
    if bench.wants(name) and cells:
        values = [cell[f"bare.{kind}"].wall / cell[kind].wall for cell in cells.values()]
        parts = " / ".join(f"{value:.2f}" for value in values)
        of_time = " / ".join(f"{ms / 1000 / n / cell[kind].wall:.2f}" for (ms, n), cell in cells.items())
        handlers = " / ".join(str(ms) for ms, _ in cells)
        note = f"{parts} with handlers of {handlers} ms; of workers divided by the handler's time {of_time}"
        bench.note(name, values, note=note)


if __name__ == "__main__":
    run_script(__doc__, measure)
