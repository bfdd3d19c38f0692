"""What an operator that dies inside its transaction costs the pauses of other partitions.

    python -m benchmarks.open_transaction

One run on an embedded cluster of three brokers. A partition is split while a producer writes to it. After
FENCE another partition's operator opens a transaction in the control topic and dies. Three times, in turn:
nobody dies; the other partition is a neighbour, whose states stand in another partition of the control topic;
the other one's stand in the same partition, as everybody's would if the topic had only one.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from time import sleep

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness import brokers
from kpsplit import Admin, Partitioner, PhysicalPartition, Producer, StepDone, ignore_steps
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import TRANSACTION_TIMEOUT_MS
from kpsplit.splitter.records.keys import (
    CONTROL_TOPIC,
    STATE_PARTITIONS,
    control_partition,
    operator_transactional_id,
    partition_key,
)

TOPIC, ROUNDS, MAX_PAUSE_MS = "orders", 3, 60_000
CASES = {"nobody dies": None, "a neighbour's dies": 1, "one in the same log dies": STATE_PARTITIONS}


def dying(connection: Connection, other: PhysicalPartition) -> Callable[[StepDone], None]:
    """Return an observer: after FENCE the other operator begins a transaction and never ends it."""
    operator = connection.open_producer(
        "operator",
        transactional_id=operator_transactional_id(other),
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    operator.init_transactions(30)

    def observe(step: StepDone) -> None:
        if step.name == "Fence":
            operator.begin_transaction()
            operator.produce(CONTROL_TOPIC, b"never ended", partition_key(other), control_partition(other))
            operator.flush(30)

    return observe


def measure(bootstrap: str) -> dict[str, list[int]]:
    """Return the pauses in ms of each case."""
    connection = Connection({"bootstrap.servers": bootstrap})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 2 * STATE_PARTITIONS, 3)])[TOPIC].result(30)
    done = threading.Event()
    pauses: dict[str, list[int]] = {case: [] for case in CASES}
    with Admin(connection, 120.0) as operations, Producer({"bootstrap.servers": bootstrap}) as producer:
        operations.initialise()
        operations.enrol(TOPIC, Partitioner.EXPLICIT, slots=1)

        def write() -> None:
            number = 0
            while not done.is_set():
                for partition in range(ROUNDS * len(CASES)):
                    producer.produce(TOPIC, b"v", f"key-{number}", partition)
                number += 1
                producer.poll(0)
                sleep(0.01)

        writing = threading.Thread(target=write)
        writing.start()
        sleep(3)
        for number in range(ROUNDS * len(CASES)):
            case, distance = list(CASES.items())[number % len(CASES)]
            parent = PhysicalPartition(TOPIC, number)
            other = None if distance is None else PhysicalPartition(TOPIC, number + distance)
            observe = ignore_steps if other is None else dying(connection, other)
            plan = operations.plan_split(parent, 2, even=True)
            report = operations.run(plan, max_pause_ms=MAX_PAUSE_MS, observer=observe)
            pauses[case] += [p.pause_ms for p in report.pauses.values()]
            print(f"{parent}: {case}: {[p.pause_ms for p in report.pauses.values()]} ms", flush=True)
        done.set()
        writing.join()
        producer.flush(60)
    return pauses


def main() -> int:
    """Run on a cluster of its own."""
    argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0]).parse_args()
    with brokers() as bootstrap:
        for case, found in measure(bootstrap).items():
            print(f"{case}: pauses of {', '.join(map(str, sorted(found)))} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
