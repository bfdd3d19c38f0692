"""What producers cost that died without a word: the time of an operation beside their registrations.

For each number of dead registrations: a split, which finds them silent and removes them, and the merge after
it, which finds none. Each on a topic of its own, one after the other on the same brokers. ``transactional``:
each of them has a transactional id of its own. A lease (5 s) is in every split beside a dead producer.

Absolute numbers of a shared machine mean little; what counts is the ratio to ten dead producers.

    python -m benchmarks.dead_producers [--counts 0,10,10000] [--transactional N] [--bootstrap-server HOST]
"""

from __future__ import annotations

import argparse
import random
import time
from contextlib import ExitStack

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness import brokers
from kpsplit import Admin, Partitioner, PhysicalPartition
from kpsplit.clock import Deadline
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.records.keys import PRODUCERS_TOPIC
from kpsplit.splitter.records.producers import ProducerRegistration

PAUSE_MS = 30_000
WRITE_SECONDS = 300.0


def dead(topic: str, count: int, *, transactional: bool) -> list[ProducerRegistration]:
    """Return the registrations of producers that are gone."""
    return [
        ProducerRegistration(
            random.getrandbits(64), 1, "dead", f"dead-{topic}-{n}" if transactional else None, (topic,)
        )
        for n in range(count)
    ]


def measured(operations: Admin, parent: PhysicalPartition) -> tuple[float, float]:
    """Return the seconds of a split and of the merge behind it."""
    seconds = []
    for splitting in (True, False):
        plan = operations.plan_split(parent, 2, even=True) if splitting else operations.plan_merge(parent)
        started = time.monotonic()
        operations.run(plan, max_pause_ms=PAUSE_MS)
        seconds.append(time.monotonic() - started)
    return seconds[0], seconds[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--counts", default="0,10,10000")
    parser.add_argument("--transactional", type=int, default=300)
    parser.add_argument("--bootstrap-server")
    given = parser.parse_args()
    cases = [(int(count), False) for count in given.counts.split(",")]
    cases += [(given.transactional, True)] if given.transactional else []
    with ExitStack() as stack:
        bootstrap = stack.enter_context(brokers(given.bootstrap_server))
        connection = Connection({"bootstrap.servers": bootstrap})
        operations = stack.enter_context(Admin(connection))
        operations.initialise()
        writer = AcknowledgedWriter(connection, "benchmark")
        admin, base = AdminClient({"bootstrap.servers": bootstrap}), 0.0
        print(
            f"{'dead producers':>24}  {'split':>8}  {'merge after it':>14}  {'split, to that beside 10':>24}"
        )
        for number, (count, transactional) in enumerate(cases):
            topic = f"dead-{number}-{int(time.time())}"
            admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
            operations.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=2)
            records = dead(topic, count, transactional=transactional)
            entries = [(r.key, r.encode()) for r in records]
            writer.write_all(PRODUCERS_TOPIC, entries, Deadline(WRITE_SECONDS))
            first, second = measured(operations, PhysicalPartition(topic, 0))
            base = first if count == 10 and not transactional else base
            name = f"{count:,}{' transactional' if transactional else ''}"
            ratio = f"{first / base:.2f}" if base else ""
            print(f"{name:>24}  {first:6.1f} s  {second:12.1f} s  {ratio:>24}", flush=True)


if __name__ == "__main__":
    main()
