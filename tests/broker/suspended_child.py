"""A process with a Producer that does what it is told on stdin, so that a test can suspend it.

``send N`` gives N records of each of four keys to the producer; ``flush`` waits for all reports and prints
them and the statistics as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from kpsplit import Producer
from kpsplit.demo.endpoints import die_with_parent

KEYS = [b"key-%d" % i for i in range(4)]


def main(bootstrap: str, topic: str, linger_ms: str) -> None:
    """Serve commands until stdin ends."""
    reports: list[Any] = []
    count = 0

    def report(error: Any, message: Any) -> None:
        told = None if error is None else str(error)
        reports.append(
            (message.value().decode(), told, message.topic(), message.partition(), message.offset())
        )

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": int(linger_ms), "on_delivery": report})
    for line in sys.stdin:
        command, _, number = line.strip().partition(" ")
        if command == "send":
            for n in range(count, count + int(number)):
                for key in KEYS:
                    value = b"child:%s:%d" % (key, n)
                    producer.produce(topic, value, key, headers=[("n", str(n))] if n % 2 else None)
            count += int(number)
            print("sent", flush=True)
        else:
            left = producer.flush(60)
            stats = producer.layout_stats()
            told = {"left": left, "reports": reports, "strays": stats.strays, "error": stats.last_error}
            print(json.dumps(told), flush=True)
            reports.clear()


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
