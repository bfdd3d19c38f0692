"""What the tests of ``Consumer.run()`` share: records, what handlers saw, and looks at the outcome."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import confluent_kafka

from kpsplit.clock import Deadline
from kpsplit.consumer.client import Consumer

PATIENCE = 240.0
KEYS = [b"key-%d" % i for i in range(40)]


def config(bootstrap: str, group: str, **extra: Any) -> dict[str, Any]:
    """A consumer that starts at the beginning and commits often; ``_`` in names stands for ``.``.

    A busy machine must not cost a member its slots: only where one is killed the session is short.
    """
    more = {name.replace("_", "."): value for name, value in extra.items()}
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 300,
        "session.timeout.ms": 60_000,
        "heartbeat.interval.ms": 500,
        **more,
    }


def write(bootstrap: str, topic: str, count: int, first: int = 0) -> list[bytes]:
    """Write ``count`` records round robin over the keys."""
    return send(bootstrap, topic, [KEYS[n % len(KEYS)] for n in range(first, first + count)], first)


def send(bootstrap: str, topic: str, keys: Sequence[bytes], first: int = 0) -> list[bytes]:
    """Write a record of each key; return the values, which name key and number."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    values = []
    for number, key in enumerate(keys, first):
        values.append(b"%s:%d" % (key, number))
        producer.produce(topic, values[-1], key)
    assert producer.flush(30) == 0
    return values


def number_of(value: bytes) -> int:
    """The number of a record of ``write``."""
    return int(value.split(b":")[1])


class Seen:
    """What handlers were called with; stops the run when they have seen enough."""

    def __init__(self, consumer: Consumer | None = None, wanted: int = -1) -> None:
        self.values: list[bytes] = []
        self._by_key: dict[bytes, list[int]] = defaultdict(list)
        self._lock = threading.Lock()
        self._consumer = consumer
        self._wanted = wanted

    def add(self, record: Any) -> None:
        """A handler was called."""
        with self._lock:
            self.values.append(record.value())
            self._by_key[record.key()].append(number_of(record.value()))
            if len(self.values) == self._wanted and self._consumer is not None:
                self._consumer.stop()

    def in_order(self) -> bool:
        """Tell whether each key's records came in their order, first deliveries only."""
        return all(list(dict.fromkeys(found)) == sorted(set(found)) for found in self._by_key.values())


def committed(bootstrap: str, group: str, topic: str) -> int:
    """The ordinary committed offset of partition 0."""
    plain = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        return plain.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=10)[0].offset
    finally:
        plain.close()


def read(bootstrap: str, topic: str, count: int) -> list[confluent_kafka.Message]:
    """Read partition 0 from its start, committed records only, to its end and at least ``count``."""
    plain = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True}
    )
    plain.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[confluent_kafka.Message] = []
    deadline, at_end = Deadline(PATIENCE), False
    while not at_end:
        assert deadline.left() > 0, f"{len(found)} of {count} records of {topic} in {PATIENCE} s"
        for message in plain.consume(1000, 0.2):
            if message.error() is None:
                found.append(message)
            at_end = message.error() is not None and len(found) >= count
    plain.close()
    return found
