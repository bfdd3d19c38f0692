"""What memory a consumer takes whose application has stopped, with a backlog far beyond its buffer.

python -m benchmarks.stalled [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psutil

import kpsplit
from benchmarks.consumer import config
from benchmarks.harness import brokers, create_topics, enrol

BUFFER_BYTES = 16 * 1024 * 1024
LARGE = b"x" * 50_000


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
    parser.add_argument("--bootstrap-server")
    options = parser.parse_args()
    with brokers(options.bootstrap_server) as bootstrap:
        topic = f"bench-large-{time.time_ns()}"
        create_topics(bootstrap, [topic])
        enrol(bootstrap, [topic])
        grown, backlog = stalled_memory(bootstrap, topic)
        bound = BUFFER_BYTES / 1024 / 1024
        print(f"stalled: {grown:.1f} MiB grown; buffer {bound:.0f} MiB, backlog {backlog:.0f} MiB")


if __name__ == "__main__":
    main()
