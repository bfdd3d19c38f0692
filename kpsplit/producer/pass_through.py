"""Records of topics that are not enrolled: given to librdkafka as they are, and counted while it matters.

A producer that learns of a topic's enrolment answers no PREPARE before its unstamped records there are
resolved. It cannot tell them from others in librdkafka's queue, so it counts what came later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from kpsplit.producer.callbacks import CallbackQueue
from kpsplit.producer.context import Context
from kpsplit.producer.messages import MAX_CACHED_REPORTS, Callback, Headers, Send, is_itself
from kpsplit.producer.refusals import REFUSALS, is_refusal


@dataclass(slots=True)
class _Count:
    """How many records of topics that are not enrolled were sent and reported since some moment."""

    sent: int = 0
    done: int = 0

    def report(self, report: Callback | None, error: Any, message: Any) -> None:
        self.done += 1
        if report is not None:
            report(error, message)


class PassThroughSender:
    """See the module. ``send`` is librdkafka's produce(), by position; ``reports``: by callback."""

    def __init__(self, context: Context, send: Send, callbacks: CallbackQueue) -> None:
        self._context = context
        self._send = send
        self._callbacks = callbacks
        self.reports: dict[Callback | None, Callback | None] = {None: None}
        self._count: _Count | None = None

    def send(
        self,
        topic: str,
        value: str | bytes | None,
        key: bytes | None,
        partition: int,
        callback: Callback | None,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Give a record of a topic that is not enrolled to librdkafka (``lock`` held).

        Raises:
            BufferError: its queue is full. KafkaException: it refused the record.
        """
        report = self.report_for(callback)
        count = self._count
        if count is None:
            self._send(topic, value, key, partition, report, None, timestamp, headers)
            # The hot path must not pass what waits there.
            if self._context.accepting and topic not in self._context.unrouted:
                self._context.fast_plain.add(topic)
        else:
            count.sent += 1
            try:
                bound = partial(count.report, report)
                self._send(topic, value, key, partition, bound, None, timestamp, headers)
            except REFUSALS as error:
                if is_refusal(error):
                    count.sent -= 1
                raise

    def count(self) -> None:
        """Count the records from now on (``lock`` held); the hot path, which does not count, sends none."""
        self._count = _Count()
        self._context.fast_plain.clear()

    def settled(self, queued: Callable[[], int]) -> bool:
        """Tell whether everything sent before the last ``count`` is reported, and stop counting then.

        What librdkafka has is more than what we know of as long as something older is among it. Its queue is
        looked at first: what we know of can only have become less when we look at it.
        """
        context = self._context
        with context.lock.first:
            inside = queued()
            stamped = sum(w.in_flight for f in context.fences() for w in f.all_writers())
            plain = self._count.sent - self._count.done if self._count else 0
            if inside > stamped + plain:
                return False
            self._count = None
            return True

    def report_for(self, callback: Callback | None) -> Callback | None:
        """Return the report function of one callback."""
        try:
            return self.reports[callback]
        except (KeyError, TypeError):
            return self.make(callback)

    def make(self, callback: Callback | None) -> Callback | None:
        """Return the report function of one callback, and remember it."""
        if callback is None:
            return None
        report = self._report(callback)
        if is_itself(callback):  # any other is wrapped per record
            if len(self.reports) >= MAX_CACHED_REPORTS:
                self.reports.clear()
                self.reports[None] = None
            with suppress(TypeError):  # not hashable
                self.reports[callback] = report
        return report

    def _report(self, callback: Callback) -> Callback:
        context, callbacks = self._context, self._callbacks
        only_errors = context.settings.only_errors

        def report(error: Any, message: Any) -> None:
            if error is None and only_errors:
                return
            if context.collecting:
                callbacks.put(callback, error, message)
            else:
                callback(error, message)

        return report
