"""A member in a process of its own that hands out only what it is told to, so that a test can suspend it
with records in its buffer.

Commands on stdin: ``take N`` polls for N records, ``stats`` tells the statistics, ``commit`` commits and
tells how that came out, ``go`` takes all that comes until SIGTERM. With ``run`` the handlers of two workers
wait for ``go`` behind their first records. Prints a line of JSON per record, before the next is asked for,
and per event.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any

from confluent_kafka import KafkaException

from kpsplit import Consumer
from kpsplit.demo.endpoints import die_with_parent
from tests.broker.running import config

_lock = threading.Lock()


def tell(**what: Any) -> None:
    """Print a line; workers must not print into each other's."""
    with _lock:
        print(json.dumps(what), flush=True)


def told(consumer: Consumer) -> None:
    """Print the statistics."""
    stats = consumer.stats()
    tell(stats={name: stats.get(name) for name in ("waiting_bytes", "held", "held_after_sleep", "trouble")})


def hand_out(message: Any) -> bool:
    """Print a record."""
    if message is None or message.error() is not None:
        return False
    tell(value=(message.value() or b"").decode())
    return True


def commit(consumer: Consumer) -> None:
    """Commit what was handed out; print ``done`` or the error's name."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        tell(commit=error.args[0].name())
    else:
        tell(commit="done")


def poll(consumer: Consumer) -> None:
    """Poll as the commands say."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    for line in sys.stdin:
        command, _, number = line.strip().partition(" ")
        left = int(number or 0)
        while left:
            left -= hand_out(consumer.poll(0.1))
        if command == "stats":
            told(consumer)
        if command == "commit":
            commit(consumer)
        while command == "go" and not stopping:
            hand_out(consumer.poll(0.1))
        if stopping:
            return


def run(consumer: Consumer) -> None:
    """Run two workers until SIGTERM."""
    go = threading.Event()

    def work(record: Any) -> None:
        hand_out(record)
        go.wait()

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "stats":
                told(consumer)
            else:
                go.set()

    threading.Thread(target=listen, daemon=True).start()
    consumer.run(work, workers=2)


def main(bootstrap: str, group: str, topic: str, how: str, more: str) -> None:
    """Be a member until SIGTERM, then close."""
    settings = {"auto_commit_interval_ms": 3_600_000, **json.loads(more)}
    with Consumer(
        {k: v for k, v in config(bootstrap, group, **settings).items() if v is not None}
    ) as consumer:
        consumer.subscribe([topic], on_lost=lambda *_: tell(event="lost"))
        {"poll": poll, "run": run}[how](consumer)
        told(consumer)


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
