"""One writer of a run, a process: ``python -m tests.fault.chaos.writer``, orders on stdin.

It writes at a steady rate through kpsplit's producer, keeps a journal that survives a SIGKILL, and tells how
it is doing. "finish" on stdin: it waits for all reports, closes its producer and ends.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kpsplit import Producer
from kpsplit.demo.pacing import Pacer
from kpsplit.demo.parent import die_with_parent
from kpsplit.demo.traffic import Item, Keys, sequence_in, skewed_items
from kpsplit.kafka.clock import Deadline, monotonic
from tests.fault.chaos.journal import KillableJournal

TICK_SECONDS = 0.05
FLUSH_SECONDS = 400.0
"""Longer than a message may take, so that every report comes."""
PROGRESS_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class WriterOrders:
    """What one writer is to do."""

    name: str
    properties: dict[str, Any]
    topic: str
    partitions: int
    rate: float
    seed: int
    journal: str

    def encode(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True, slots=True)
class WriterNews:
    """How a writer is doing."""

    sent: int = 0
    ok: int = 0
    failed: int = 0
    strays: int = 0
    done: bool = False


class Writer:
    """Sends records and notes their fates."""

    def __init__(self, orders: WriterOrders, journal: KillableJournal) -> None:
        self._topic = orders.topic
        self._journal = journal
        self._sent = self._ok = self._failed = 0
        self._producer = Producer({**orders.properties, "client.id": orders.name, "linger.ms": 5})

    def send(self, items: list[Item]) -> None:
        """Note records, then send them."""
        for item in items:
            self._journal.sent(item.sequence, item.key, item.partition, monotonic())
        self._journal.flush()
        for item in items:
            self._send(item)

    def serve(self, until: float) -> None:
        """Take delivery reports until a point in time."""
        while (left := until - monotonic()) > 0:
            self._producer.poll(left)
        self._journal.flush()

    def finish(self) -> None:
        """Wait for all reports, and close."""
        deadline = Deadline(FLUSH_SECONDS)
        while self._producer.flush(PROGRESS_SECONDS) and not deadline.expired():
            self.tell()
        self._journal.flush()
        if not deadline.expired():
            self._producer.close()

    def tell(self, done: bool = False) -> None:
        """Tell the parent."""
        strays = self._producer.layout_stats().strays
        news = WriterNews(self._sent, self._ok, self._failed, strays, done)
        sys.stdout.write(json.dumps(asdict(news)) + "\n")
        sys.stdout.flush()

    def _send(self, item: Item) -> None:
        while True:
            try:
                self._producer.produce(self._topic, item.value, item.key, on_delivery=self._reported)
            except BufferError:
                self._producer.poll(TICK_SECONDS)
            else:
                self._sent += 1
                return

    def _reported(self, error: Any, message: Any) -> None:
        self._ok += error is None
        self._failed += error is not None
        self._journal.reported(
            sequence_in(message.value()), error is None, message.partition(), message.offset(), monotonic()
        )


def work(orders: WriterOrders, writer: Writer, told_to_finish: threading.Event) -> None:
    """Write until told to finish."""
    keys = Keys.skewed(orders.seed, orders.partitions)
    items = skewed_items(orders.name, keys, orders.partitions, orders.seed)
    pacer = Pacer(orders.rate, monotonic())
    while not told_to_finish.is_set():
        now = monotonic()
        writer.send([next(items) for _ in range(pacer.due(now))])
        writer.serve(now + pacer.interval)
        writer.tell()
    writer.finish()
    writer.tell(done=True)


def _listen(told_to_finish: threading.Event) -> None:
    sys.stdin.readline()
    told_to_finish.set()


def main() -> None:
    """Work."""
    die_with_parent()
    orders = WriterOrders(**json.loads(sys.stdin.readline()))
    told_to_finish = threading.Event()
    threading.Thread(target=_listen, args=(told_to_finish,), daemon=True).start()
    with KillableJournal(Path(orders.journal)) as journal:
        work(orders, Writer(orders, journal), told_to_finish)


if __name__ == "__main__":
    main()
