"""Three consumers of one group share one hot partition while it is split, split again and merged.

    python examples/shared_partition.py [--bootstrap-server HOST:PORT]

Without brokers an embedded cluster is started. The last line begins with PASS if every record was worked on
once and in the order of its key; the exit code is 3 if not. `kpsplit demo` does the same with processes of
which one is killed and one is suspended.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack

from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Admin, Consumer, Partitioner, PhysicalPartition, Producer
from kpsplit.devcluster import DevCluster

KEYS = 200
ROUND_SECONDS = 0.2
"""Between two rounds of the writer; in each it writes one record of every key."""
STRETCH_SECONDS = 3.0
SECONDS = 120.0


def write(bootstrap: str, topic: str, rounds: list[int], stop: threading.Event) -> None:
    """Write numbered records of every key at a steady rate."""
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        while not stop.wait(ROUND_SECONDS):
            for key in range(KEYS):
                producer.produce(topic, b"%d" % len(rounds), b"customer-%d" % key)
            rounds.append(len(rounds))
            producer.poll(0)


def work(bootstrap: str, topic: str, worked: list[tuple[bytes, int]], stop: threading.Event) -> None:
    """Note each record's key and number, where an application would do more."""
    config = {"bootstrap.servers": bootstrap, "group.id": f"{topic}-workers", "auto.offset.reset": "earliest"}
    with Consumer(config) as consumer:
        consumer.subscribe([topic])
        while not stop.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                worked.append((message.key(), int(message.value())))


def operate(admin: Admin, partition: PhysicalPartition) -> None:
    """Split into four, split one range again, merge all."""
    time.sleep(STRETCH_SECONDS)
    admin.split(partition, 4, force=True)
    time.sleep(STRETCH_SECONDS)
    admin.split(partition, 2, of=admin.lineage(partition).open_segments()[1].range, force=True)
    time.sleep(STRETCH_SECONDS)
    admin.merge(partition, force=True)
    time.sleep(STRETCH_SECONDS)


def run(bootstrap: str) -> bool:
    """Run it; return whether all went well."""
    topic = f"hot-{time.time_ns()}"
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([NewTopic(topic, 1)])[topic].result()
    rounds: list[int] = []
    worked: list[tuple[bytes, int]] = []
    written, read = threading.Event(), threading.Event()
    writer = threading.Thread(target=write, args=(bootstrap, topic, rounds, written))
    members = [threading.Thread(target=work, args=(bootstrap, topic, worked, read)) for _ in range(3)]
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.initialise()
        admin.enrol(topic, Partitioner.CONSISTENT_RANDOM, slots=16)
        for thread in (writer, *members):
            thread.start()
        try:
            operate(admin, PhysicalPartition(topic, 0))
        finally:
            written.set()
            writer.join()
            end = time.monotonic() + SECONDS
            while len(worked) < len(rounds) * KEYS and time.monotonic() < end:
                time.sleep(0.1)
            read.set()
            for member in members:
                member.join()
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for key, number in worked:
        numbers[key].append(number)
    print(f"{len(worked)} of {len(rounds) * KEYS} records worked on", file=sys.stderr)
    return len(numbers) == KEYS and all(found == rounds for found in numbers.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server")
    options = parser.parse_args()
    with ExitStack() as stack:
        good = run(options.bootstrap_server or stack.enter_context(DevCluster(brokers=3)).bootstrap)
    print("PASS: every record once, in the order of its key" if good else "FAIL")
    return 0 if good else 3


if __name__ == "__main__":
    sys.exit(main())
