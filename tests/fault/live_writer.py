"""A producer that writes to one partition while something breaks, and then judges what became of it."""

from __future__ import annotations

import threading
import time

from kpsplit import Producer
from kpsplit.clock import Deadline
from kpsplit.consumer.fetch.lineage_reader import LineageReader
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState

FLUSH_SECONDS = 120.0
KEYS = 16
REST_SECONDS = 0.1
"""Between portions of a record of each key; see ``tests.broker.producing.REST_SECONDS``."""


class LiveWriter(threading.Thread):
    """Writes numbered records of a few keys to one partition and remembers when each one was delivered."""

    def __init__(self, bootstrap: str, parent: PhysicalPartition) -> None:
        super().__init__(daemon=True)
        self._brokers = bootstrap
        self.producer = Producer({"bootstrap.servers": bootstrap, "client.id": "live-writer"})
        self.parent = parent
        self.sent = 0
        self.delivered: dict[int, float] = {}
        self.failed: list[int] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(REST_SECONDS):
            for _ in range(KEYS):
                self._send(self.sent)
                self.sent += 1
            self.producer.poll(0)
        self.producer.flush(FLUSH_SECONDS)

    def _send(self, number: int) -> None:
        def report(error: object, _message: object) -> None:
            if error is None:
                self.delivered[number] = time.monotonic()
            else:
                self.failed.append(number)

        self.producer.produce(
            self.parent.topic,
            str(number),
            f"key-{number % KEYS}",
            partition=self.parent.partition,
            on_delivery=report,
        )

    def await_delivery(self, number: int, seconds: float) -> None:
        """Wait until a record is reported as delivered."""
        deadline = Deadline(seconds)
        while number not in self.delivered:
            deadline.check(f"record {number} to be delivered")
            time.sleep(0.01)

    def await_every_key(self, seconds: float) -> float:
        """Wait for a record of each key that is sent from now on; return when the last one was delivered."""
        numbers = range(self.sent + 1, self.sent + 1 + KEYS)
        for number in numbers:
            self.await_delivery(number, seconds)
        return max(self.delivered[number] for number in numbers)

    def finish(self) -> None:
        """Let it end when all that it sent is reported."""
        self.stop.set()
        self.join(FLUSH_SECONDS + 10)
        self.producer.close()

    def assert_read_back(self, state: PartitionState) -> None:
        """Everything was delivered, and is read once, in order per key; nothing else is there."""
        numbers: dict[bytes, list[int]] = {}
        for record in LineageReader(Connection({"bootstrap.servers": self._brokers}), state).records():
            assert record.key is not None and record.value is not None
            numbers.setdefault(record.key, []).append(int(record.value))
        read = [n for values in numbers.values() for n in values]
        assert not self.failed
        assert sorted(read) == sorted(self.delivered) == list(range(self.sent))
        assert all(values == sorted(values) for values in numbers.values())
