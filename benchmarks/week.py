"""Starts on logs as a week of many groups and producers leaves them: of a new owner, and of an operator.

Compaction leaves the newest segment of a log as it is, and one more until it is cleaned: so much is read by
whoever starts. Written here: commits of all groups for all slots of a topic (``--commits`` for each of its
partitions: a segment has about 10,000), registrations of all producers (``--registrations``), and
``--operations`` splits and merges. Then in turn, and three times each: a consumer of one of the groups, up to
its first record, and one of a new group; and an operator up to the plan of a split.

The aim is 2 s for each. Without commits (``--commits 0``) it is the start itself.

    python -m benchmarks.week [--commits 14000] [--registrations 10000] [--bootstrap-server HOST:PORT]
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median

from confluent_kafka import Producer as PlainProducer

from benchmarks.consumer import await_first, config
from benchmarks.harness import MAX_PAUSE_MS, PARTITIONS, SLOTS, brokers, create_topics, enrol, fill
from kpsplit import Admin, Consumer, PhysicalPartition
from kpsplit.clock import Deadline
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.producers_log import AcknowledgedWriter
from kpsplit.splitter.key_range import slot_range
from kpsplit.splitter.records.keys import OFFSETS_TOPIC, PRODUCERS_TOPIC, offsets_partition
from kpsplit.splitter.records.offsets import Cause, Position, RangeCommit
from kpsplit.splitter.records.producers import ProducerRegistration

GROUPS, PRODUCERS, OFFSETS_PARTITIONS = 20, 100, 16
RECORDS, ROUNDS, WRITE_SECONDS = 1000, 3, 300.0


def write_commits(bootstrap: str, topic: str, count: int) -> None:
    """Write so many commits for each partition, in transactions of one group with all its slots."""
    producer = PlainProducer({"bootstrap.servers": bootstrap, "transactional.id": "week", "linger.ms": 0})
    producer.init_transactions(60)
    parents = [PhysicalPartition(topic, number) for number in range(PARTITIONS)]
    for number in range(count // SLOTS):
        producer.begin_transaction()
        for parent in parents:
            for index in range(SLOTS):
                commit = RangeCommit(
                    f"week-{number % GROUPS}",
                    parent,
                    slot_range(index, SLOTS),
                    {0: Position(number * 10 % RECORDS // PARTITIONS)},
                    "kpsplit-consumer-01234567-89ab-cdef",
                    1,
                    Cause.PROGRESS,
                )
                place = offsets_partition(parent, OFFSETS_PARTITIONS)
                producer.produce(OFFSETS_TOPIC, commit.encode(), commit.key, place)
        producer.commit_transaction(60)


def write_registrations(connection: Connection, count: int) -> None:
    """Write so many records of producers that are closed by now."""
    numbers = [random.getrandbits(64) for _ in range(PRODUCERS)]
    records = [
        ProducerRegistration(
            numbers[n % PRODUCERS], 1 + n // PRODUCERS, "week", None, ("other",), closed=True
        )
        for n in range(count)
    ]
    writer = AcknowledgedWriter(connection, "benchmark")
    entries = [(record.key, record.encode()) for record in records]
    writer.write_all(PRODUCERS_TOPIC, entries, Deadline(WRITE_SECONDS))


def owner(bootstrap: str, topic: str, group: str) -> float:
    """Return the seconds from a consumer's constructor to its first record."""
    began = time.monotonic()
    consumer = Consumer({**config(bootstrap, group), "enable.auto.commit": False})
    consumer.subscribe([topic])
    await_first(consumer)
    seconds = time.monotonic() - began
    consumer.close()
    return seconds


def operator(bootstrap: str, topic: str) -> float:
    """Return the seconds that a new operator needs to plan a split."""
    began = time.monotonic()
    with Admin({"bootstrap.servers": bootstrap}, 120.0) as operations:
        operations.plan_split(PhysicalPartition(topic, 1), 4, even=True)
        return time.monotonic() - began


def main() -> None:
    """Write, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--commits", type=int, default=14_000)
    parser.add_argument("--registrations", type=int, default=10_000)
    parser.add_argument("--operations", type=int, default=4)
    parser.add_argument("--bootstrap-server")
    given = parser.parse_args()
    with brokers(given.bootstrap_server) as bootstrap:
        topic = f"week-{time.time_ns()}"
        create_topics(bootstrap, [topic])
        enrol(bootstrap, [topic])
        fill(bootstrap, topic, RECORDS)
        with Admin({"bootstrap.servers": bootstrap}, 120.0) as operations:
            for _ in range(given.operations // 2):
                parent = PhysicalPartition(topic, 0)
                operations.split(parent, 4, even=True, max_pause_ms=MAX_PAUSE_MS, force=True)
                operations.merge(parent, max_pause_ms=MAX_PAUSE_MS, force=True)
        write_commits(bootstrap, topic, given.commits)
        write_registrations(Connection({"bootstrap.servers": bootstrap}), given.registrations)
        measured = {
            "a new owner, of one of the groups": lambda n: owner(bootstrap, topic, f"week-{n}"),
            "a new owner, of a new group": lambda _: owner(bootstrap, topic, f"new-{time.time_ns()}"),
            "an operator, up to a plan": lambda _: operator(bootstrap, topic),
        }
        for name, start in measured.items():
            seconds = sorted(start(number) for number in range(ROUNDS))
            print(f"{name:36} {median(seconds):5.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f})", flush=True)


if __name__ == "__main__":
    main()
