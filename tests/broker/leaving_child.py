"""A producer in a process of its own that ends without closing it."""

from __future__ import annotations

import sys

from kpsplit import Producer
from kpsplit.demo.endpoints import die_with_parent


def main(bootstrap: str, topic: str) -> None:
    """Write a record, leave another one to the client, and end."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "left-open"})
    producer.produce(topic, b"v", b"key")
    assert producer.flush(60) == 0
    producer.produce(topic, b"w", b"key", on_delivery=lambda *_: print("told", flush=True))
    print("ends", flush=True)


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
