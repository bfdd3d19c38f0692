"""A history on real brokers: one partition, split, split again and merged, with all kinds of writers."""

from __future__ import annotations

from confluent_kafka import Producer as PlainProducer

from kpsplit import Producer
from kpsplit.admin import Admin
from kpsplit.consumer.fetch.lineage_reader import LineageReader, LogicalRecord
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.key_range import KeyRange
from tests.broker.operating import PAUSE_MS, enrolled, merge, split, state_of

PATIENCE = 120.0


class History:
    """One partition that went through a split, a nested split and a merge, with all kinds of writers."""

    def __init__(self, operations: Admin, bootstrap: str, topic: str) -> None:
        self.operations, self.bootstrap, self.topic = operations, bootstrap, topic
        self.parent = enrolled(operations, topic)
        self._numbers = iter(range(1_000_000))

    def write(self, producer: PlainProducer | Producer, count: int = 60) -> None:
        """Write records of several keys, every tenth without one, some with headers of their own."""
        for i in range(count):
            key = None if i % 10 == 0 else b"key-%d" % (i % 7)
            headers = [("mine", b"1")] if i % 3 == 0 else None
            producer.produce(self.topic, b"v%d" % next(self._numbers), key, headers=headers)
        assert producer.flush(PATIENCE) == 0

    def transactions(self, producer: PlainProducer | Producer) -> None:
        """Transactions, every other one aborted."""
        for number in range(4):
            producer.begin_transaction()
            self.write(producer, 5)
            producer.abort_transaction(PATIENCE) if number % 2 else producer.commit_transaction(PATIENCE)

    def live(self) -> None:
        """Write in every layout, with kpsplit and past it."""
        plain = PlainProducer({"bootstrap.servers": self.bootstrap})
        foreign = PlainProducer({"bootstrap.servers": self.bootstrap, "transactional.id": self.topic})
        foreign.init_transactions(PATIENCE)
        ours = {"bootstrap.servers": self.bootstrap, "transactional.id": f"ours-{self.topic}"}
        with Producer({"bootstrap.servers": self.bootstrap}) as producer, Producer(ours) as transactional:
            transactional.init_transactions(PATIENCE)
            for change in (self.split, self.nested, self.merge, None):
                self.write(producer)
                self.write(plain, 20)
                self.transactions(foreign)
                self.transactions(transactional)
                if change:
                    change()

    def split(self) -> None:
        split(self.operations, self.parent)

    def nested(self) -> None:
        plan = self.operations.plan_split(self.parent, 2, of=KeyRange(1 << 30, 2 << 30), even=True)
        self.operations.run(plan, max_pause_ms=PAUSE_MS, force=True)

    def merge(self) -> None:
        merge(self.operations, self.parent)

    def read(self, first: int = 0) -> list[LogicalRecord]:
        """What the lineage reader delivers."""
        state = state_of(self.operations, self.parent)
        with LineageReader(Connection({"bootstrap.servers": self.bootstrap}), state) as reader:
            return list(reader.records(first))
