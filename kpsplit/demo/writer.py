"""One writer of a scenario, a process: ``python -m kpsplit.demo.writer``.

It writes at a steady rate, keeps a journal, and reports how it is doing. It never outlives its parent, not
even suspended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import confluent_kafka

from kpsplit.clock import monotonic
from kpsplit.demo.endpoints import SUSPEND, WriterNews, WriterOrders, WriterStage, first_line, listen, report
from kpsplit.demo.records import (
    PORTION,
    Item,
    JournalWriter,
    Keys,
    Pacer,
    line_items,
    read_lines,
    sequence_in,
    skewed_items,
)
from kpsplit.errors import KpsplitError
from kpsplit.producer.client import Producer

NEWS_SECONDS = 0.25
ABANDON_SECONDS = 2.0
LINGER_MS = 10
BURST = 80
"""Records sent at once before the suspension, so that it hits a client with records in flight."""
MOST_BURSTS = 20
REST_PER_SECOND = 20_000.0
"""How fast the rest of a file is sent when the operations are over."""
_QUEUE_FULL_SECONDS = 0.05


class Writer:
    """Sends records and notes what becomes of each."""

    def __init__(self, orders: WriterOrders, journal: JournalWriter) -> None:
        self.journal = journal
        self.sent = self.ok = self.failed = 0
        self._topic = orders.topic
        config = {"client.id": orders.name, "enable.idempotence": True, "linger.ms": LINGER_MS}
        make = confluent_kafka.Producer if orders.plain else Producer
        self.client: Any = make({**config, **orders.properties})

    def send(self, items: Sequence[Item]) -> None:
        """Send records. All are noted first, so that a kill leaves no record that is in no journal."""
        now = monotonic()
        for item in items:
            self.journal.sent(item.sequence, item.key, item.partition, now)
        self.journal.flush()
        for item in items:
            self._produce(item)

    def poll_until(self, at: float) -> None:
        while (left := at - monotonic()) > 0:
            self.client.poll(left)
        self.journal.flush()

    def news(self, stage: WriterStage, error: str | None = None) -> WriterNews:
        counts = self.sent, self.ok, self.failed, len(self.client)
        if not isinstance(self.client, Producer):
            return WriterNews(stage, *counts, error=error)
        stats = self.client.layout_stats()
        held_in = {name: partition.held for name, partition in stats.partitions.items()}
        return WriterNews(stage, *counts, stats.held, stats.strays, stats.pauses_ms, held_in, error)

    def noted(self, sequence: int, ok: bool, partition: int | None, offset: int | None) -> None:
        self.ok += ok
        self.failed += not ok
        self.journal.reported(sequence, ok, partition, offset, monotonic())

    def reported(self, sequence: int, error: Any, message: Any) -> None:
        self.noted(sequence, error is None, message.partition(), message.offset())

    def _produce(self, item: Item) -> None:
        named = item.partition if item.key is None else -1
        to = partial(self.reported, item.sequence) if item.headers else self._reported_by_value
        self.sent += 1
        while True:
            try:
                self.client.produce(
                    self._topic, item.value, item.key, named, on_delivery=to, headers=item.headers
                )
                return
            except BufferError:
                self.client.poll(_QUEUE_FULL_SECONDS)

    def _reported_by_value(self, error: Any, message: Any) -> None:
        self.reported(sequence_in(message.value()), error, message)


class WriterLoop:
    """The loop of one writer."""

    def __init__(self, orders: WriterOrders, writer: Writer) -> None:
        self.abandoned = False
        self._writer = writer
        self._items = _items(orders)
        self._commands: deque[str] = deque()
        self._pacer = Pacer(orders.rate, monotonic(), orders.stock)
        self._flush_seconds = orders.flush_seconds
        self._left = orders.input is not None
        """Whether a file has lines that are not sent yet."""
        self._hurrying = False
        self._news_at = 0.0

    def run(self) -> None:
        """Write until asked to finish (a file: until its end as well), then wait for the last reports."""
        while not self.abandoned and not self._is_finished():
            now = monotonic()
            self._send(self._pacer.due(now))
            self._writer.poll_until(now + self._pacer.interval)
            self._report(WriterStage.WRITING)
        end = monotonic() + (ABANDON_SECONDS if self.abandoned else self._flush_seconds)
        while self._writer.client.flush(NEWS_SECONDS) and monotonic() < end:
            self._report(WriterStage.DRAINING)

    def obey(self, command: str) -> None:
        """Take a command; from another thread."""
        self._commands.append(command)

    def abandon(self, *_: object) -> None:
        """Give up soon: SIGTERM, or the parent is gone."""
        self.abandoned = True

    def _is_finished(self) -> bool:
        """Obey the next command; return whether it ends the writing."""
        if not self._commands:
            return False
        if self._commands[0] == SUSPEND:
            self._commands.popleft()
            self._suspend()
            return False
        if self._left and not self._hurrying:
            self._hurrying = True
            self._pacer = Pacer(REST_PER_SECOND, monotonic())
        return not self._left

    def _send(self, number: int) -> None:
        """Send in portions: latencies begin when a portion is noted."""
        while number > 0:
            portion = min(number, PORTION)
            items = list(islice(self._items, portion))
            self._writer.send(items)
            if len(items) < portion:
                self._left = False
                return
            number -= portion

    def _suspend(self) -> None:
        """Stop the whole process with records given to the client and not sent.

        On a busy machine they may be sent while they are given to it: then others are.
        """
        report(self._writer.news(WriterStage.WRITING))
        for _ in range(MOST_BURSTS):
            self._writer.client.flush(NEWS_SECONDS)
            began = monotonic()
            self._send(BURST)
            if monotonic() - began < LINGER_MS / 1000:
                break
        os.kill(os.getpid(), signal.SIGSTOP)

    def _report(self, stage: WriterStage) -> None:
        now = monotonic()
        if now >= self._news_at:
            self._news_at = now + NEWS_SECONDS
            report(self._writer.news(stage))


def _items(orders: WriterOrders) -> Iterator[Item]:
    if orders.input is None:
        keys = Keys.skewed(orders.seed, orders.partitions)
        return skewed_items(orders.name, keys, orders.partitions, orders.seed)
    lines = read_lines(Path(orders.input), orders.expression or "")
    return line_items(orders.name, orders.writers, lines, orders.partitions)


def run_writer(make: Callable[[WriterOrders, JournalWriter], Writer] = Writer) -> int:
    orders = WriterOrders.decode(first_line())
    with JournalWriter(Path(orders.journal)) as journal:
        writer = make(orders, journal)
        loop = WriterLoop(orders, writer)
        signal.signal(signal.SIGTERM, loop.abandon)
        listen(loop.obey, loop.abandon)
        try:
            loop.run()
            news = writer.news(WriterStage.DONE)
            if not (loop.abandoned or orders.plain or news.waiting):
                writer.client.close()  # a kpsplit producer leaves its certificate
        except (KpsplitError, confluent_kafka.KafkaException) as error:
            report(writer.news(WriterStage.DONE, str(error)))
            return 1
    report(news)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(run_writer())
