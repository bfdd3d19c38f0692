"""Records of enrolled topics on their way to librdkafka, outside the hot path."""

from __future__ import annotations

from types import MethodType
from typing import Any

from kpsplit.producer.messages import Headers, PendingRecord, Send
from kpsplit.producer.refusals import REFUSALS, is_refusal, raise_swallowed
from kpsplit.producer.reports import Reporter
from kpsplit.producer.routes import Fence, RouteWriter, complete_stamp, stamp_header


class StampedSender:
    """Gives stamped records to librdkafka. ``send`` is its produce(), by position."""

    def __init__(self, send: Send, reporter: Reporter) -> None:
        self._send = send
        self._reporter = reporter

    def send(self, fence: Fence, writer: RouteWriter, sequence: int, content: PendingRecord) -> None:
        """Give one record to librdkafka (``lock`` held).

        Raises:
            BufferError: its queue is full. KafkaException: it refused the record.
        """
        every = with_stamp(content.headers, complete_stamp(writer.stamp_prefix, sequence))
        report = self._reporter.report_for(fence, writer, content.callback)
        bound = MethodType(report, (sequence, every) if content.headers else sequence)
        writer.sent += 1
        try:
            self._send(
                writer.topic, content.value, content.key, writer.partition, bound, None, content.timestamp,
                every,
            )  # fmt: skip
        except REFUSALS as error:
            if is_refusal(error):
                writer.sent -= 1
            raise

    def send_new(self, fence: Fence, writer: RouteWriter, content: PendingRecord) -> None:
        """Give a record that never waited to librdkafka, with the next number (``lock`` held).

        Raises:
            BufferError: its queue is full. KafkaException: it refused the record.
        """
        sequence = fence.next_sequence
        fence.next_sequence = sequence + 1
        try:
            self.send(fence, writer, sequence, content)
        except REFUSALS as error:
            if is_refusal(error):
                fence.next_sequence = sequence
                if not content.headers:
                    raise_swallowed(error)
            raise


def with_stamp(headers: Headers, stamp: bytes) -> list[tuple[str, Any]]:
    """Return the application's headers with the stamp behind them."""
    if not headers:
        return [(stamp_header, stamp)]
    return [*(headers.items() if isinstance(headers, dict) else headers), (stamp_header, stamp)]
