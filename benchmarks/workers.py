"""What run(workers=N) gains, and what a consumer holds whose application has stopped. Not part of the table.

1. Speed-up of run(workers=N) with a handler that waits 5 ms: its records per second over those of N bare
   threads that call the same handler (1.0 is ideal; the aim is at least 0.95).
2. Memory of a consumer whose application has stopped, with a backlog far beyond its buffer.

    python -m benchmarks.workers [--records N] [--bootstrap-server HOST:PORT] [--only workers|memory]
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psutil

import kpsplit
from benchmarks.consumer import config
from benchmarks.harness import brokers, create_topics, enrol, fill

HANDLER_SECONDS = 0.005
WORKERS = (1, 2, 4, 8, 16, 32, 64)
SECONDS_A_STEP = 3.0
BUFFER_BYTES = 16 * 1024 * 1024
LARGE = b"x" * 50_000


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--only", choices=["workers", "memory"])
    options = parser.parse_args()
    with brokers(options.bootstrap_server) as bootstrap:
        topics = [f"bench-{kind}-{time.time_ns()}" for kind in ("read", "large")]
        create_topics(bootstrap, topics)
        enrol(bootstrap, topics)
        if options.only != "memory":
            fill(bootstrap, topics[0], options.records)
            for workers in WORKERS:
                part = speed_up(bootstrap, topics[0], workers)
                print(f"run(workers={workers}): {part:.2f} of the ideal speed", flush=True)
        if options.only != "workers":
            grown, backlog = stalled_memory(bootstrap, topics[1])
            bound = BUFFER_BYTES / 1024 / 1024
            print(f"stalled: {grown:.1f} MiB grown; buffer {bound:.0f} MiB, backlog {backlog:.0f} MiB")


if __name__ == "__main__":
    main()
