"""One writer of the demo, a process of its own: ``python -m kpsplit.demo.worker``, orders on stdin.

It writes at a steady rate, keeps a journal, and tells its parent how it is doing. It never outlives its
parent, not even suspended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka

from kpsplit.demo.journal import JournalWriter
from kpsplit.demo.options import WriterCommand, WriterKind, WriterNews, WriterOrders, WriterStage
from kpsplit.demo.processes import die_with_parent
from kpsplit.demo.traffic import (
    Item,
    Keys,
    Pacer,
    line_items,
    read_lines,
    sequence_in,
    skewed_items,
)
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.producer.client import Producer

NEWS_SECONDS = 0.25
FLUSH_SECONDS = 60.0
ABANDON_SECONDS = 2.0
LINGER_MS = 10
BURST = 80
"""Records sent at once before the suspension, so that it hits a client with records in flight."""
REST_PER_SECOND = 20_000.0
"""How fast the rest of a file is sent when the operations are over."""


class DemoWriter:
    """Sends records and notes their fates."""

    def __init__(self, orders: WriterOrders, journal: JournalWriter) -> None:
        self._orders = orders
        self._journal = journal
        self.sent = self.ok = self.failed = 0
        self._client = _client(orders)

    def send(self, item: Item) -> None:
        """Send one record; wait while the client's queue is full."""
        named = item.partition if item.key is None else -1
        report = partial(self._reported, item.sequence) if item.headers else self._reported_by_value
        self._journal.sent(item.sequence, item.key, item.partition, monotonic())
        self.sent += 1
        while True:
            try:
                self._client.produce(
                    self._orders.topic, item.value, item.key, named, on_delivery=report, headers=item.headers
                )
                return
            except BufferError:
                self._client.poll(0.05)

    def poll_until(self, at: float) -> None:
        """Serve delivery reports until a point in time."""
        while (left := at - monotonic()) > 0:
            self._client.poll(left)

    def flush(self, seconds: float) -> int:
        """Wait for reports; return how many are missing."""
        return int(self._client.flush(seconds))

    def news(self, stage: WriterStage, error: str | None = None) -> WriterNews:
        """Return how things stand."""
        news = WriterNews(stage, self.sent, self.ok, self.failed, len(self._client), error=error)
        if not isinstance(self._client, Producer):
            return news
        stats = self._client.layout_stats()
        return WriterNews(
            stage, self.sent, self.ok, self.failed, len(self._client), stats.held, stats.strays,
            stats.pauses_ms, {name: p.held for name, p in stats.partitions.items()}, error,
        )  # fmt: skip

    def close(self) -> None:
        """End the client; a kpsplit producer leaves its certificate."""
        if isinstance(self._client, Producer):
            self._client.close(FLUSH_SECONDS)

    def _reported_by_value(self, error: Any, message: Any) -> None:
        self._reported(sequence_in(message.value()), error, message)

    def _reported(self, sequence: int, error: Any, message: Any) -> None:
        at = monotonic()
        if error is None:
            self.ok += 1
        else:
            self.failed += 1
        self._journal.reported(sequence, error is None, message.partition(), message.offset(), at)


class WriterLoop:
    """The loop of one writer."""

    def __init__(
        self, orders: WriterOrders, writer: DemoWriter, commands: deque[WriterCommand | None]
    ) -> None:
        self._items = _items(orders)
        self._writer = writer
        self._commands = commands
        self._pacer = Pacer(orders.rate, monotonic(), orders.stock)
        self._finite = orders.input is not None
        self._stage = WriterStage.WRITING
        self._news_at = 0.0
        self._exhausted = False
        self._hurrying = False
        self.abandoned = False

    def run(self) -> None:
        """Write until told to finish (a file: until it is at its end as well), then drain."""
        while self._stage is WriterStage.WRITING and not self.abandoned:
            now = monotonic()
            self._send(self._pacer.due(now))
            self._writer.poll_until(now + self._pacer.interval)
            self._obey()
            self._tell()
        self._drain()

    def abandon(self, *_: object) -> None:
        """Give up soon: SIGTERM."""
        self.abandoned = True

    def _send(self, number: int) -> None:
        for _ in range(number):
            item = next(self._items, None)
            if item is None:
                self._exhausted = True
                return
            self._writer.send(item)

    def _obey(self) -> None:
        if not self._commands:
            return
        command = self._commands[0]
        if command is None:
            self.abandoned = True
        elif command is WriterCommand.SUSPEND:
            self._commands.popleft()
            self._suspend()
        elif self._finite and not self._exhausted:
            self._hurry()
        else:
            self._stage = WriterStage.DRAINING

    def _hurry(self) -> None:
        """The operations are over: send the rest of the file."""
        if not self._hurrying:
            self._hurrying = True
            self._pacer = Pacer(REST_PER_SECOND, monotonic())

    def _suspend(self) -> None:
        """Stop the whole process with records given to the client and not sent."""
        self._tell(WriterStage.STOPPING)
        self._send(BURST)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _drain(self) -> None:
        end = monotonic() + (ABANDON_SECONDS if self.abandoned else FLUSH_SECONDS)
        self._stage = WriterStage.DRAINING
        while self._writer.flush(NEWS_SECONDS) and monotonic() < end:
            self._tell()

    def _tell(self, stage: WriterStage | None = None) -> None:
        now = monotonic()
        if stage is None and now < self._news_at:
            return
        self._news_at = now + NEWS_SECONDS
        tell(self._writer.news(stage or self._stage))


def tell(news: WriterNews) -> None:
    """Send news to the parent."""
    sys.stdout.write(news.encode())
    sys.stdout.flush()


def _items(orders: WriterOrders) -> Iterator[Item]:
    if orders.input is None:
        keys = Keys.skewed(orders.seed, orders.partitions)
        return skewed_items(orders.name, keys, orders.partitions, orders.seed)
    lines = read_lines(Path(orders.input), orders.expression or "")
    return line_items(orders.name, orders.writers, lines, orders.partitions)


def _client(orders: WriterOrders) -> Any:
    config = {
        **orders.properties,
        "client.id": f"kpsplit-demo-{orders.name}",
        "enable.idempotence": True,
        "linger.ms": LINGER_MS,
    }
    return Producer(config) if orders.kind is WriterKind.KPSPLIT else confluent_kafka.Producer(config)


def _listen(commands: deque[WriterCommand | None]) -> None:
    """Take commands from stdin; its end means that the parent is gone."""
    for line in sys.stdin:
        commands.append(WriterCommand(line.strip()))
    commands.clear()
    commands.append(None)


def main() -> int:
    """Work; return the exit code."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent decides
    orders = WriterOrders.decode(sys.stdin.readline())
    commands: deque[WriterCommand | None] = deque()
    with JournalWriter(Path(orders.journal)) as journal:
        writer = DemoWriter(orders, journal)
        work = WriterLoop(orders, writer, commands)
        signal.signal(signal.SIGTERM, work.abandon)
        threading.Thread(target=_listen, args=(commands,), daemon=True).start()
        try:
            work.run()
            news = writer.news(WriterStage.DONE)
            if not work.abandoned:
                writer.close()
        except (KpsplitError, confluent_kafka.KafkaException) as error:
            tell(writer.news(WriterStage.DONE, str(error)))
            return 1
    tell(news)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
