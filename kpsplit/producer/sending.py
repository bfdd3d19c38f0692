"""Records on their way to librdkafka, outside the fast path: stamped, or as they are for other topics.

A producer that learns of a topic's enrolment (docs/protocol.md, 6.10) answers no PREPARE before its unstamped
records there are resolved. It cannot tell them from others in librdkafka's queue, so it counts what came
later.

A signal handler may raise after librdkafka took a record: ``is_refusal`` distinguishes the two.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from confluent_kafka import KafkaException

from kpsplit.errors import KpsplitError
from kpsplit.producer.messages import (
    MAX_CACHED_REPORTS,
    Callback,
    Headers,
    PendingRecord,
    Report,
    Send,
    is_itself,
)
from kpsplit.producer.state import ProducerState, RouteWriter, SendState, complete_stamp, stamp_header

REFUSALS = (
    BufferError, KafkaException, TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError,
)  # fmt: skip
"""What librdkafka's produce() raises. Anything else is a signal handler's; of these, ask ``is_refusal``."""
_NAME_IS_NO_TEXT = "expected header key to be unicode string"


def is_refusal(error: BaseException) -> bool:
    """Return whether librdkafka itself raised an error. Call it in the frame that called produce()."""
    # A handler's frame stands in the traceback below the call; librdkafka's C code leaves no frame there.
    below = error.__traceback__ and error.__traceback__.tb_next
    if below is None:  # no Python between that frame and what was raised
        return True
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    while below is not None:
        if below.tb_frame.f_code in handlers:
            return False
        below = below.tb_next
    return True


def raise_swallowed(error: BaseException) -> None:
    """Raise what a signal handler raised while librdkafka's produce() looked at our own header's name.

    librdkafka's binding runs signal handlers there, and turns what they raise into "the header's name is not
    text". Our own name always is text, so without headers of the application that error can only mean a
    handler. The record was not taken.

    Raises:
        KeyboardInterrupt: it can only have been Ctrl-C. KpsplitError: there are other handlers.
    """
    if not isinstance(error, TypeError) or str(error) != _NAME_IS_NO_TEXT:
        return
    handlers = [h for n in signal.valid_signals() if callable(h := signal.getsignal(n))]
    if handlers == [signal.default_int_handler]:
        raise KeyboardInterrupt from None
    raise KpsplitError(
        "a signal handler raised in the middle of produce(), and the client library lost what it raised; "
        "the record was not accepted",
        hint="let the handler set a flag as well, and look at it",
    ) from error


def _code_of(handler: Any) -> CodeType | None:
    """Return the code that a signal handler runs first."""
    while isinstance(handler, partial):
        handler = handler.func
    if callable(handler) and not isinstance(handler, FunctionType | MethodType):
        handler = type(handler).__call__
    return getattr(getattr(handler, "__func__", handler), "__code__", None)


ReportFor = Callable[[SendState, RouteWriter, Callback | None], Report]


class StampedSender:
    """Gives stamped records to librdkafka. ``send`` is its produce(), by position."""

    def __init__(self, send: Send, report_for: ReportFor) -> None:
        self._send = send
        self._report_for = report_for

    def send(self, send_state: SendState, writer: RouteWriter, sequence: int, content: PendingRecord) -> None:
        """Give one record to librdkafka (``lock`` held).

        Raises:
            BufferError: its queue is full. KafkaException: it refused the record.
        """
        every = with_stamp(content.headers, complete_stamp(writer.stamp_prefix, sequence))
        report = self._report_for(send_state, writer, content.callback)
        bound = MethodType(report, (sequence, every) if content.headers else sequence)
        # Before the call: a handler may raise after librdkafka took the record, and it counts as sent then.
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

    def send_new(self, send_state: SendState, writer: RouteWriter, content: PendingRecord) -> None:
        """Give a record that never waited to librdkafka, with the next number (``lock`` held).

        Raises:
            BufferError: its queue is full. KafkaException: it refused the record.
        """
        sequence = send_state.next_sequence
        send_state.next_sequence = sequence + 1
        try:
            self.send(send_state, writer, sequence, content)
        except REFUSALS as error:
            if is_refusal(error):
                send_state.next_sequence = sequence
                if not content.headers:
                    raise_swallowed(error)
            raise


def with_stamp(headers: Headers, stamp: bytes) -> list[tuple[str, Any]]:
    """Return the application's headers, then the stamp."""
    if not headers:
        return [(stamp_header, stamp)]
    return [*(headers.items() if isinstance(headers, dict) else headers), (stamp_header, stamp)]


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

    def __init__(self, state: ProducerState) -> None:
        self._state = state
        self._send = state.rdkafka.send
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
            # The fast path must not pass what waits there.
            if self._state.accepting and topic not in self._state.unrouted:
                self._state.fast_plain.add(topic)
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
        """Count the records from now on (``lock`` held); the fast path, which does not count, sends none."""
        self._count = _Count()
        self._state.fast_plain.clear()

    def settled(self) -> bool:
        """Return whether everything sent before the last ``count`` is reported, and stop counting then.

        While a record from before the last ``count`` is on its way, librdkafka has more records than counted.
        """
        state = self._state
        with state.lock.first:
            inside = state.rdkafka.queued()  # first: the counts below can only fall meanwhile
            stamped = sum(w.in_flight for f in state.send_states() for w in f.all_writers())
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
        state = self._state
        only_errors = state.settings.only_errors

        def report(error: Any, message: Any) -> None:
            if error is None and only_errors:
                return
            if state.collecting:
                state.callbacks.put(callback, error, message)
            else:
                callback(error, message)

        return report
