"""What a group costs: the hand-over of slots to a member that joins, and a commit, beside plain consumers.

python -m benchmarks.groups [--quick] [--only handover] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import confluent_kafka

import kpsplit
from benchmarks.consumer import config, maker
from benchmarks.harness import KEYS, VALUE, Bench, Run, Stopwatch, create_topics, enrol, fill, run_script
from kpsplit.kafka.commit_writer import RETRY_MS
from kpsplit.kafka.control_log import TRANSACTION_TIMEOUT_MS

MOVING_KEYS = KEYS[:200]
PORTION, REST = 20, 0.005
"""Records that the writer of a hand-over sends before it rests, and for how many seconds."""
MOVE_SECONDS = 30.0
SETTLE_SECONDS = 2.0
HAND_OVER_SECONDS = 110.0
PER_COMMIT = 500
COMMIT_SECONDS = 60.0


class Moving:
    """A group in which a second member joins while records are written; notes who works on each key when."""

    def __init__(self, bootstrap: str, topic: str, ours: bool) -> None:
        self._topic, self._ours = topic, ours
        group = f"bench-move-{time.time_ns()}"
        # What earlier runs have written is not the matter.
        self._config = config(bootstrap, group, enable_auto_commit=True, auto_offset_reset="latest")
        self._seen: dict[bytes, list[tuple[float, int]]] = {}
        self._moved: set[bytes] = set()
        self._done = threading.Event()

    def run(self) -> Run:
        """Have a member join; return the median of the seconds for which a key that moved had no owner."""
        threads = [threading.Thread(target=self._write), threading.Thread(target=self._belong, args=(0,))]
        for thread in threads:
            thread.start()
        try:
            self._await(lambda: len(self._seen) == len(MOVING_KEYS))
            threads.append(threading.Thread(target=self._belong, args=(1,)))
            threads[-1].start()
            self._await(lambda: len(self._moved) > len(MOVING_KEYS) // 4)
            self._await(self._has_settled)
        finally:
            self._done.set()
            for thread in threads:
                thread.join()
        gaps = [gap for moments in self._seen.values() if (gap := _first_gap(moments)) is not None]
        return Run(median(gaps))

    def _has_settled(self) -> bool:
        """Look for some time whether keys still move: the last ones count like the first."""
        before = len(self._moved)
        time.sleep(SETTLE_SECONDS)
        return len(self._moved) == before

    def _await(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + MOVE_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise SystemExit("the members did not get their records")
            time.sleep(0.05)

    def _belong(self, number: int) -> None:
        consumer = maker(self._ours)(self._config)
        consumer.subscribe([self._topic])
        while not self._done.is_set():
            for message in consumer.consume(1000, 0.02):
                if message.error() is None:
                    key = message.key() or b""
                    self._seen.setdefault(key, []).append((time.perf_counter(), number))
                    if number:
                        self._moved.add(key)
        consumer.close()

    def _write(self) -> None:
        servers = self._config["bootstrap.servers"]
        number = 0
        with kpsplit.Producer({"bootstrap.servers": servers, "linger.ms": 1}) as producer:
            while not self._done.is_set():
                for _ in range(PORTION):
                    producer.produce(self._topic, VALUE, MOVING_KEYS[number % len(MOVING_KEYS)])
                    number += 1
                producer.poll(REST)
                time.sleep(REST)


def _first_gap(moments: list[tuple[float, int]]) -> float | None:
    """Return the seconds between the last record at the old owner and the first at the new one."""
    for (before, old), (after, new) in pairwise(moments):
        if (old, new) == (0, 1):
            return after - before
    return None


def commits_of_ours(bootstrap: str, topic: str, count: int) -> Run:
    """Return the median of range commits, each after some records of all partitions."""
    consumer = kpsplit.Consumer(config(bootstrap, f"bench-commit-{time.time_ns()}"))
    consumer.subscribe([topic])
    runs = []
    for _ in range(count + 1):
        advance(consumer)
        watch = Stopwatch()
        consumer.commit(asynchronous=False)
        runs.append(watch.stop())
    consumer.close()
    return middle(runs[1:])


def transactions_with_offsets(bootstrap: str, topic: str, output: str, count: int) -> Run:
    """Return the median of plain transactions with one record and the positions of all partitions."""
    consumer = confluent_kafka.Consumer(config(bootstrap, f"bench-commit-{time.time_ns()}"))
    consumer.subscribe([topic])
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"bench-{time.time_ns()}",
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 0,
            "retry.backoff.ms": RETRY_MS,
            "enable.sparse.connections": False,
        }
    )
    producer.init_transactions(30)
    runs = []
    for _ in range(count + 1):
        advance(consumer)
        watch = Stopwatch()
        offsets = [place for place in consumer.position(consumer.assignment()) if place.offset >= 0]
        producer.begin_transaction()
        producer.produce(output, VALUE)
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
        producer.commit_transaction(30)
        runs.append(watch.stop())
    consumer.close()
    return middle(runs[1:])


def advance(consumer: Any) -> None:
    """Read some records, of all partitions."""
    left, end = PER_COMMIT, time.monotonic() + MOVE_SECONDS
    while left > 0:
        left -= sum(message.error() is None for message in consumer.consume(left, 0.5))
        if time.monotonic() > end:
            raise SystemExit("no records to commit")


def middle(runs: list[Run]) -> Run:
    """Return the medians."""
    return Run(median(run.wall for run in runs), median(run.cpu for run in runs))


def measure(bench: Bench) -> None:
    """Measure all rows of groups."""
    stamp = time.time_ns()
    moving, read, output = (f"bench-{kind}-{stamp}" for kind in ("move", "read", "output"))
    create_topics(bench.bootstrap, [moving, read, output])
    enrol(bench.bootstrap, [moving, read])
    if bench.wants("handover"):
        side = partial(Moving, bench.bootstrap, moving)
        pairs = bench.size(7, 1)
        bench.compare(
            "handover", lambda: side(True).run(), lambda: side(False).run(), pairs, HAND_OVER_SECONDS
        )
    if bench.wants("commit"):
        count = bench.size(10, 3)
        fill(bench.bootstrap, read, (count + 2) * PER_COMMIT)
        ours = partial(commits_of_ours, bench.bootstrap, read, count)
        peer = partial(transactions_with_offsets, bench.bootstrap, read, output, count)
        bench.compare("commit", ours, peer, bench.size(7, 2), COMMIT_SECONDS)


if __name__ == "__main__":
    run_script(__doc__, measure)
