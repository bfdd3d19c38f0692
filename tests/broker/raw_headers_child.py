"""Reads a topic in one of several ways and prints the values; looks at all headers, twice, where it may."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from kpsplit import Consumer, DeadLetter, DeserializingConsumer, Stop
from tests.broker.consuming import FAST


def look(message: Any) -> None:
    """What a handler does with headers."""
    for _ in range(2):
        for name, value in message.headers() or ():
            assert isinstance(name, str) and (value is None or isinstance(value, bytes))


def handle(message: Any) -> None:
    """A handler."""
    look(message)
    os.write(1, message.value() + b"\n")  # at once: workers write at the same time


def fail(message: Any) -> None:
    """A handler that likes nothing."""
    handle(message)
    raise ValueError(message.value())


def main(bootstrap: str, how: str, topic: str, count: int) -> None:
    """Read."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": str(uuid.uuid4()), **FAST}
    if how == "logical":
        settings["kpsplit.messages"] = "logical"
    kind = DeserializingConsumer if how == "deserializing" else Consumer
    with kind(settings) as consumer:
        consumer.subscribe([topic])
        if how in ("run", "process", "dead-letter"):
            run(consumer, bootstrap, how, topic, count)
            return
        left = count
        while left:
            for message in consumer.consume(10, 0.5) if how == "consume" else [consumer.poll(0.5)]:
                if message is not None:
                    assert message.error() is None, message.error()
                    if how in ("logical", "deserializing"):
                        look(message)
                    os.write(1, (message.value() or b"") + b"\n")
                    left -= 1


def run(consumer: Any, bootstrap: str, how: str, topic: str, count: int) -> None:
    """Have workers do it; stop when all is processed."""

    def watch() -> None:
        while sum_of(consumer) < count:
            over.wait(0.1)
        consumer.stop()

    over = threading.Event()
    threading.Thread(target=watch, daemon=True).start()
    executor = "process" if how == "process" else "thread"
    if how == "dead-letter":
        dead = f"{topic}-dead"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(dead, 1, 3)])[dead].result(30)
        consumer.run(fail, on_error=DeadLetter(dead))
    else:
        consumer.run(handle, executor=executor, workers=2, on_error=Stop())


def sum_of(consumer: Any) -> int:
    """How many records were processed, or are dead letters."""
    stats = consumer.stats()["run"] or {}
    return int(stats.get("processed", 0)) + int(stats.get("dead_letters", 0))


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))  # type: ignore[call-arg]
