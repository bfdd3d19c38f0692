"""A member of a group in a process of its own, so that a test can kill or suspend it.

Prints one line of JSON per record that it was handed out, *before* it asks for the next one, and per event.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from kpsplit import Consumer
from kpsplit.demo.endpoints import die_with_parent


def main(bootstrap: str, group: str, topic: str, more: str) -> None:
    """Poll until SIGTERM, then close."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))

    def tell(**what: Any) -> None:
        print(json.dumps(what), flush=True)

    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "session.timeout.ms": 10_000,  # killed or suspended
        "heartbeat.interval.ms": 500,
        **json.loads(more),
    }
    consumer = Consumer({k: v for k, v in config.items() if v is not None})
    consumer.subscribe(
        [topic],
        on_assign=lambda _, parts: tell(event="assign", partitions=[p.partition for p in parts]),
        on_revoke=lambda _, parts: tell(event="revoke", partitions=[p.partition for p in parts]),
        on_lost=lambda _, parts: tell(event="lost", partitions=[p.partition for p in parts]),
    )
    while not stopping:
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error() is not None:
            tell(event="error", text=str(message.error()))
            continue
        key, value = message.key() or b"", message.value() or b""
        tell(key=key.decode(), value=value.decode())
    stats = dict(consumer.stats())
    consumer.close()
    tell(event="closed", stats=stats)


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
