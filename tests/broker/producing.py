"""What the producer's tests share: a journal of what was sent and reported, and the check against the log."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import zip_longest
from typing import Any

from kpsplit import Producer
from kpsplit.admin import Admin
from kpsplit.consumer.fetch.gaps import LogBounds
from kpsplit.consumer.fetch.lineage_reader import LineageReader, LineageTally, LogicalRecord
from kpsplit.consumer.fetch.physical_reader import PhysicalReader
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.lineage import PhysicalPartition

REST_SECONDS = 0.05
REPORTED_SECONDS = 0.25
"""Between a writer's rounds, and how long it waits for a round's reports: idempotent clients of librdkafka
that are given more while several records are in flight poll without a pause until these are acknowledged, and
take the processor from the brokers that shall do so."""


def eventually(what: Callable[[], Any], why: str, seconds: float = 180.0) -> Any:
    """Wait until a condition holds; return its value."""
    end = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < end, f"waited {seconds} s for {why}"
        time.sleep(0.01)
    return value


def assert_same(found: Mapping[bytes, list[bytes]], expected: Mapping[bytes, list[bytes]]) -> None:
    """The same values by key, in the same order; otherwise the first difference of each key is told."""
    wrong = {
        key: next(
            (n, got, wanted)
            for n, (got, wanted) in enumerate(zip_longest(found.get(key, ()), expected.get(key, ())))
            if got != wanted
        )
        for key in found.keys() | expected.keys()
        if list(found.get(key, ())) != list(expected.get(key, ()))
    }
    assert not wrong


class Journal:
    """Everything one test sent through kpsplit, and what it was told about each record."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent: dict[tuple[str, bytes], list[bytes]] = defaultdict(list)
        self.reports: dict[bytes, list[tuple[Any, str, int, int]]] = defaultdict(list)

    def send(self, producer: Producer, topic: str, key: bytes, who: str = "p", **more: Any) -> bytes:
        """Send the next record of a key; polls while the queue is full."""
        mine = self.sent[who, key]
        value = b"%s:%s:%d" % (who.encode(), key, len(mine))
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=self._report, **more)
                break
            except BufferError:
                producer.poll(0.05)
        mine.append(value)
        return value

    def _report(self, error: Any, message: Any) -> None:
        told = (error, message.topic(), message.partition(), message.offset())
        with self._lock:
            self.reports[message.value()].append(told)

    @property
    def values(self) -> list[bytes]:
        """All values sent."""
        return [value for values in self.sent.values() for value in values]

    def check(self, operations: Admin, bootstrap: str, topic: str, partitions: int = 1) -> LineageTally:
        """Everything sent was reported once as delivered, and is in the lineage once, there, in order."""
        assert {v: len(r) for v, r in self.reports.items()} == dict.fromkeys(self.values, 1)
        assert [r[0][0] for r in self.reports.values() if r[0][0] is not None] == []
        together = LineageTally()
        places: dict[bytes, list[tuple[str, int, int]]] = defaultdict(list)
        order: dict[tuple[str, bytes], list[bytes]] = defaultdict(list)
        for partition in range(partitions):
            read, tally = records_of(operations, bootstrap, PhysicalPartition(topic, partition))
            together.skipped += tally.skipped
            together.foreign += tally.foreign
            for record in read:
                value, key = record.value or b"", record.key or b""
                places[value].append((topic, partition, record.logical_offset))
                order[value.split(b":")[0].decode(), key].append(value)
        assert {v: p for v, p in places.items() if v in self.reports} == {
            v: [(t, p, o)] for v, [(_, t, p, o)] in self.reports.items()
        }
        assert {k: order[k] for k in self.sent} == dict(self.sent)
        assert not together.foreign
        return together


def records_of(
    operations: Admin, bootstrap: str, parent: PhysicalPartition
) -> tuple[list[LogicalRecord], LineageTally]:
    """All records of a logical partition, along its lineage.

    A transaction is over for its writer before brokers have marked that in the logs: that is waited for.
    """
    state, connection = operations.view().state(parent), Connection({"bootstrap.servers": bootstrap})
    assert state is not None
    with closing(PhysicalReader(connection)) as logs:
        for source in state.lineage.sources():
            eventually(lambda at=source: decided(logs.bounds(at)), f"the transactions of {source} to be over")
    with LineageReader(connection, state) as reader:
        return list(reader.records()), reader.tally


def decided(bounds: LogBounds | None) -> bool:
    """Whether every transaction of a log is decided; of one that is gone as well."""
    return bounds is None or bounds.stable == bounds.high


class Writer(threading.Thread):
    """Sends records of several keys until it is told to stop; polls as applications do."""

    def __init__(self, producer: Producer, topic: str, journal: Journal, who: str, keys: int = 32) -> None:
        super().__init__(daemon=True)
        self.producer, self.topic, self.journal, self.who = producer, topic, journal, who
        self.keys = [b"key-%d" % i for i in range(keys)]
        self.count = 0
        self._over = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                for key in self.keys:
                    self.journal.send(self.producer, self.topic, key, self.who)
                    self.count += 1
                self.producer.poll(0)
                time.sleep(REST_SECONDS)
                late = time.monotonic() + REPORTED_SECONDS  # what a fence holds is not waited for
                while len(self.producer) and time.monotonic() < late:
                    self.producer.poll(REST_SECONDS)
        except Exception as error:  # noqa: BLE001 - told by stop()
            self.error = error

    def stop(self) -> None:
        """End the thread and tell what went wrong in it."""
        self._over.set()
        self.join(30)
        assert self.error is None, repr(self.error)
        assert not self.is_alive()
