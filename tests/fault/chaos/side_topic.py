"""A topic beside the one of the run: operators of it are killed inside `enroll` and `retire`."""

from __future__ import annotations

import signal

from confluent_kafka.admin import NewTopic

from kpsplit import Consumer, Producer
from kpsplit.admin import Admin
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Partitioner
from tests.broker.consuming import consumer, drain, values
from tests.broker.operating import merge, split
from tests.fault.operator_plays import operator

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
        admin.create_topics([NewTopic(name, 1, 3)])[name].result(SECONDS)

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
        """Kill an operator after a step of `retire`: the group must go on and commit. Raises: as above."""
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
            told, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, told
