"""What others do beside the run: other operators, programs that died, people who add partitions.

A side topic is a topic of its own, whose operators are killed inside ``enroll`` and ``retire``.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import NewPartitions, NewTopic
from kafka import KafkaProducer

from kpsplit import Consumer, Producer
from kpsplit.admin import Admin
from kpsplit.clock import Deadline
from kpsplit.demo.records import partition_of, value_of
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import home_of
from kpsplit.splitter.records.control import Partitioner
from kpsplit.splitter.records.data import Stamp
from kpsplit.splitter.records.keys import (
    CONTROL_PARTITIONS,
    CONTROL_TOPIC,
    PRODUCERS_TOPIC,
    STATE_PARTITIONS,
    operator_transactional_id,
    partition_key,
)
from kpsplit.splitter.records.producers import ProducerRegistration
from kpsplit.testing import Send, SendOutcome
from tests.broker.consuming import consumer, drain, values
from tests.broker.operating import merge, split
from tests.broker.raw_names import RawName
from tests.fault.operator_cases import operator

KEYS = 20
SECONDS = 240.0
ENROLMENT = ("Slots", "Enrol", "Settled")
RETIREMENT = ("Retire", "Delete")


class SideTopic:
    """One such topic, for one fault. For one thread."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._bootstrap = connection.bootstrap
        self._parent = PhysicalPartition(name, 0)
        self._sent = 0
        admin = connection.shared_admin()  # it ends with its last user
        admin.create_topics([NewTopic(name, 1, 3)], request_timeout=SECONDS)[name].result(SECONDS)

    def kill_enrolment(self, step: str) -> None:
        """Kill an operator after a step of `enroll`: the group must read on although nobody helps.

        Raises:
            AssertionError: it did not, or not everything once and in order.
        """
        with self._writing() as producer, self._reading() as member:
            self._round(producer, member)
            self._kill("enroll", step)
            self._round(producer, member)
            with Admin(self._connection, SECONDS) as operations:
                operations.enrol(self._parent.topic, Partitioner.CONSISTENT_RANDOM, slots=4)
            self._round(producer, member)

    def kill_retirement(self, step: str) -> None:
        """Kill an operator after a step of `retire`: the group must go on and commit.

        Raises:
            AssertionError: as above.
        """
        with Admin(self._connection, SECONDS) as operations:
            operations.enrol(self._parent.topic, Partitioner.CONSISTENT_RANDOM, slots=4)
            with self._writing() as producer, self._reading() as member:
                self._round(producer, member)
                split(operations, self._parent, 2)
                self._round(producer, member)
                merge(operations, self._parent)
                self._round(producer, member)
                self._kill("retire", step)
                self._round(producer, member)
                operations.retire(self._parent)
                self._round(producer, member)

    def _writing(self) -> Producer:
        return Producer({"bootstrap.servers": self._bootstrap})

    def _reading(self) -> Consumer:
        member = consumer(self._bootstrap, f"g-{self._parent.topic}")
        member.subscribe([self._parent.topic])
        return member

    def _round(self, producer: Producer, member: Consumer) -> None:
        """Write a record of every key, read all of them, once and in order, and commit."""
        sent = [b"%d" % (self._sent + n) for n in range(2 * KEYS)]
        for n, value in enumerate(sent):
            producer.produce(self._parent.topic, value, b"user-%d" % (n % KEYS))
        assert producer.flush(SECONDS) == 0
        self._sent += len(sent)
        found = values(drain(member, len(sent), SECONDS))
        assert sorted(found) == sorted(sent), "a record is missing, or came twice"
        for key in range(KEYS):
            mine = [value for value in found if int(value) % KEYS == key]
            assert mine == sorted(mine, key=int), f"user-{key} came out of order"
        member.commit(asynchronous=False)

    def _kill(self, verb: str, step: str) -> None:
        with operator(self._bootstrap, self._parent, verb, step, signal.SIGKILL) as process:
            output, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, output


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
