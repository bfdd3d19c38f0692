"""One writer of a run, a process: ``python -m tests.fault.chaos.writer``, orders on stdin.

It writes at a steady rate through kpsplit's producer, keeps a journal that survives a SIGKILL, and tells how
it is doing. "finish" on stdin: it waits for all reports, closes its producer and ends.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from kpsplit import Producer
from kpsplit.demo.processes import die_with_parent
from kpsplit.demo.traffic import Item, Keys, Pacer, sequence_in, skewed_items
from kpsplit.kafka.clock import Deadline, monotonic
from tests.fault.chaos.journal import KillableJournal

TICK_SECONDS = 0.05
TRANSACTION_MS = 600_000
"""Longer than any fault lasts: who is fenced was fenced by kpsplit."""
CALL_SECONDS = 30.0
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
    transactional_id: str | None = None

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
        self._in_transaction: list[tuple[int, int | None, int | None]] = []
        """What was reported inside the transaction: number, partition, offset. None: not transactional."""
        config = {**orders.properties, "client.id": orders.name, "linger.ms": 5}
        self._transactional = orders.transactional_id is not None
        if self._transactional:
            config |= {"transactional.id": orders.transactional_id, "transaction.timeout.ms": TRANSACTION_MS}
        self._producer = Producer(config)
        if self._transactional:
            self._surely(lambda: self._producer.init_transactions(CALL_SECONDS))

    def send(self, items: list[Item]) -> None:
        """Note records, then send them."""
        for item in items:
            self._journal.sent(item.sequence, item.key, item.partition, monotonic())
        self._journal.flush()
        if self._transactional and items:
            self._producer.begin_transaction()
        for item in items:
            self._send(item)
        if self._transactional and items:
            self._commit()

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

    def _commit(self) -> None:
        """Commit what was sent, or abort it where the library asks for that; note what became of it."""
        committed = self._surely(lambda: self._producer.commit_transaction(CALL_SECONDS))
        if not committed:
            self._surely(lambda: self._producer.abort_transaction(CALL_SECONDS))
        reported, self._in_transaction = self._in_transaction, []
        for number, partition, offset in reported:
            self._note(number, committed, partition, offset)

    @staticmethod
    def _surely(call: Callable[[], None]) -> bool:
        """Call until it comes through; False: the transaction has to be aborted.

        Raises:
            KafkaException: the producer was fenced, or is of no use for another reason.
        """
        while True:
            try:
                call()
            except KafkaException as exception:
                error = exception.args[0]
                if error.txn_requires_abort():
                    return False
                if not error.retriable():
                    raise
            else:
                return True

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
        number = sequence_in(message.value())
        if error is None and self._transactional:
            self._in_transaction.append((number, message.partition(), message.offset()))
        else:
            self._note(number, error is None, message.partition(), message.offset())

    def _note(self, number: int, ok: bool, partition: int | None, offset: int | None) -> None:
        self._ok += ok
        self._failed += not ok
        self._journal.reported(number, ok, partition, offset, monotonic())


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
