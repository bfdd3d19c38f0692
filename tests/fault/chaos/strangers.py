"""What others do to kpsplit's topics: other operators, programs that died, people who add partitions."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import NewPartitions
from kafka import KafkaProducer

from kpsplit.demo.records import partition_of, value_of
from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import (
    CONTROL_PARTITIONS,
    CONTROL_TOPIC,
    PRODUCERS_TOPIC,
    STATE_PARTITIONS,
    operator_transactional_id,
    partition_key,
)
from kpsplit.splitter.records.producers import ProducerRegistration
from kpsplit.splitter.records.stamp import Stamp, home_of
from kpsplit.testing import Send, SendOutcome
from tests.broker.raw_names import RawName
from tests.fault.chaos.side_topic import SideTopic

ANSWER_SECONDS = 60.0
TRANSACTION_MS = 60_000
"""Longer than any fault lasts: the stranger ends its transaction itself."""
STRANGER = PhysicalPartition("somebody-elses", 0)
FOREIGN = "foreign"
FOREIGN_KEYS = 50


class Strangers:
    """Does it. For one thread.

    Args:
        connection: past the proxies.
        topic: the topic that the run is about.
    """

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self.sends: list[Send] = []
        """What a program that knows nothing of kpsplit has written to the topic, all of it acknowledged."""

    @contextmanager
    def open_transaction(self) -> Iterator[None]:
        """Hold a transaction open on every partition of the control topic that has states."""
        operator = self._connection.open_producer(
            "stranger",
            transactional_id=operator_transactional_id(STRANGER),
            transaction_timeout_ms=TRANSACTION_MS,
            linger_ms=0,
        )
        operator.init_transactions(ANSWER_SECONDS)
        operator.begin_transaction()
        for partition in range(CONTROL_PARTITIONS - STATE_PARTITIONS, CONTROL_PARTITIONS):
            operator.produce(CONTROL_TOPIC, b"never committed", partition_key(STRANGER), partition)
        operator.flush(ANSWER_SECONDS)
        try:
            yield
        finally:
            operator.abort_transaction(ANSWER_SECONDS)

    def register_dead(self, number: int) -> None:
        """Write the registrations of so many producers of the topic that will never answer."""
        writer = self._connection.open_producer("dead", enable_idempotence=True)
        for _ in range(number):
            dead = ProducerRegistration(secrets.randbits(64), 1, "dead", topics=(self._topic,))
            writer.produce(PRODUCERS_TOPIC, dead.encode(), dead.key, 0)
            writer.poll(0)
        assert writer.flush(ANSWER_SECONDS) == 0

    def write_foreign(self, number: int, partitions: int) -> None:
        """Write records as another program does: with stamps copied from another log, or unreadable names.

        They go to the topic itself, so to parents and overflows.
        """
        home = home_of("AAAAAAAAAAAAAAAAAAAAAA", 0, "another", 0)
        copied = Stamp(epoch=0, instance=secrets.randbits(64), sequence=0, home=home).encode()
        producer = KafkaProducer(
            bootstrap_servers=self._connection.bootstrap.split(","), acks="all", retries=100
        )
        try:
            for _ in range(number):
                sequence = len(self.sends)
                key = b"foreign-%d" % (sequence % FOREIGN_KEYS)
                headers = [("kps", copied)] if sequence % 2 else [(RawName(b"\xff\xfe"), b"v")]
                place = PhysicalPartition(self._topic, partition_of(key, partitions))
                value = value_of(FOREIGN, sequence)
                future = producer.send(self._topic, value, key, headers, place.partition)
                at = future.get(ANSWER_SECONDS).offset
                self.sends.append(
                    Send(
                        FOREIGN, place, key, (FOREIGN, sequence), sequence, SendOutcome.OK, place=(place, at)
                    )
                )
        finally:
            producer.close()

    def side_topic(self, name: str) -> SideTopic:
        """Create another topic."""
        return SideTopic(self._connection, name)

    def add_partition(self, partitions: int) -> int:
        """Add a partition to the topic, which has so many; return how many it has then."""
        admin = self._connection.shared_admin()
        added = admin.create_partitions([NewPartitions(self._topic, partitions + 1)])
        added[self._topic].result(ANSWER_SECONDS)
        deadline = Deadline(ANSWER_SECONDS)
        while ClusterAdmin(self._connection).topics().get(self._topic) != partitions + 1:
            deadline.check(f"partition {partitions} of {self._topic}")
            deadline.pause(0.1)
        return partitions + 1
