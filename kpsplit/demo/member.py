"""One member of a scenario's group, a process: ``python -m kpsplit.demo.member``."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from confluent_kafka import KafkaException

from kpsplit.clock import monotonic
from kpsplit.consumer.client import Consumer
from kpsplit.demo.endpoints import MemberNews, MemberOrders, first_line, listen, report
from kpsplit.demo.records import pack
from kpsplit.errors import KpsplitError

NEWS_SECONDS = 0.25
BATCH = 500
POLL_SECONDS = 0.1
COMMIT_MS = 1000
HEARTBEAT_MS = 1500
"""By its answers a member learns that it has to join again."""


class MemberLoop:
    """Works on records until asked to leave: it writes each one down, where an application would do more."""

    def __init__(self, orders: MemberOrders, journal: BinaryIO) -> None:
        self._orders = orders
        self._journal = journal
        self._ended = threading.Event()
        self._news_at = 0.0
        self._worked_on = 0
        self._lost_at: float | None = None

    def end(self, *_: object) -> None:
        """Make it leave the group soon; from any thread or signal handler."""
        self._ended.set()

    def run(self) -> MemberNews:
        consumer: Any = Consumer(_config(self._orders))
        try:
            consumer.subscribe([self._orders.topic], on_lost=self._lost)
            while not self._ended.is_set():
                self._work_on(consumer.consume(BATCH, POLL_SECONDS))
                self._report(consumer)
        finally:
            consumer.close()
        return MemberNews(self._worked_on, lost_at=self._lost_at, done=True)

    def _lost(self, *_: object) -> None:
        self._lost_at = self._lost_at or monotonic()

    def _work_on(self, messages: list[Any]) -> None:
        """Work on records; what came with an error as well, because the end of the loop commits it."""
        records = [message for message in messages if message.error() is None]
        now = monotonic()
        packed = (pack(now, m.key(), m.offset(), m.partition(), m.segment) for m in records)
        self._journal.write(b"".join(packed))
        self._worked_on += len(records)
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())

    def _report(self, consumer: Any) -> None:
        now = monotonic()
        if now >= self._news_at:
            self._news_at = now + NEWS_SECONDS
            report(MemberNews(self._worked_on, len(consumer.stats()["slots"]), self._lost_at))


def _config(orders: MemberOrders) -> dict[str, Any]:
    return {
        **orders.properties,
        "client.id": orders.name,
        "group.id": orders.group,
        "auto.offset.reset": "earliest",
        "kpsplit.messages": "logical",
        "auto.commit.interval.ms": COMMIT_MS,
        "session.timeout.ms": orders.session_ms,
        "heartbeat.interval.ms": min(orders.session_ms // 6, HEARTBEAT_MS),
    }


def run_member(make: Callable[[MemberOrders, BinaryIO], MemberLoop] = MemberLoop) -> int:
    orders = MemberOrders.decode(first_line())
    with Path(orders.journal).open("ab", buffering=0) as journal:
        member = make(orders, journal)
        signal.signal(signal.SIGTERM, member.end)
        listen(member.end, member.end)
        try:
            report(member.run())
        except (KpsplitError, KafkaException) as error:
            report(MemberNews(error=str(error)))
            return 1
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(run_member())
