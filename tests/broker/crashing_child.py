"""A producer with transactions in a process of its own: it writes in one, says so, and waits to be killed."""

from __future__ import annotations

import signal
import sys

from kpsplit import Producer
from kpsplit.demo.endpoints import die_with_parent


def main(bootstrap: str, name: str, topic: str) -> None:
    """Leave a transaction open, with a record that is never committed."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"never committed", b"key")
    assert producer.flush(60) == 0
    print("written", flush=True)
    signal.pause()


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
