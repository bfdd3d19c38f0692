"""From librdkafka's reports to the application's callbacks, for records of enrolled topics."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError

from kpsplit.clock import monotonic
from kpsplit.kafka.logical_message import wrapped_one
from kpsplit.producer.finality import Answer, Outgoing
from kpsplit.producer.locks import holds_lock
from kpsplit.producer.messages import (
    MAX_CACHED_REPORTS,
    Bound,
    Callback,
    PendingRecord,
    Report,
    is_itself,
    timestamp_of,
)
from kpsplit.producer.state import ProducerState, RouteWriter, SendState
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import SegmentKind

_ANSWERS = {
    KafkaError.MSG_SIZE_TOO_LARGE: Answer.SEALED,
    KafkaError.UNKNOWN_TOPIC_OR_PART: Answer.GONE,
    KafkaError.UNKNOWN_TOPIC_ID: Answer.GONE,
    KafkaError.INCONSISTENT_TOPIC_ID: Answer.GONE,
    KafkaError._UNKNOWN_TOPIC: Answer.GONE,
    KafkaError._UNKNOWN_PARTITION: Answer.GONE,
    KafkaError._DESTROY: Answer.GONE,
    KafkaError._DESTROY_BROKER: Answer.GONE,
}
"""What the hard seal and the deletion of a sub-topic make of records that are on their way to it.

``_DESTROY``: what was in flight when librdkafka (2.16) let go of a partition that is not in its metadata any
more. Every other code fails the record at once, as with the original: no operation of kpsplit causes it.
"""


class Reporter:
    """Makes the functions that librdkafka calls, and reports to the application what is final.

    A report under a valid lease, of a segment that is open and not fenced, goes straight to the application's
    callback (the fast path, rule (a)); every other one goes to the send state under ``lock``.
    """

    def __init__(self, state: ProducerState) -> None:
        self._state = state

    def report_for(self, send_state: SendState, writer: RouteWriter, callback: Callback | None) -> Report:
        """Return the report function of one callback."""
        try:
            return writer.reports[callback]
        except (KeyError, TypeError):
            return self.make(send_state, writer, callback)

    def make(self, send_state: SendState, writer: RouteWriter, callback: Callback | None) -> Report:
        """Return the report function of one callback, remembered by the writer."""
        report = self._report(send_state, writer, callback)
        if is_itself(callback):  # any other is wrapped per record
            if len(writer.reports) >= MAX_CACHED_REPORTS:
                writer.reports.clear()
            with suppress(TypeError):  # not hashable
                writer.reports[callback] = report
        return report

    def _report(self, send_state: SendState, writer: RouteWriter, callback: Callback | None) -> Report:
        clock = monotonic
        slow = self._slowly
        parent, segment = send_state.state.parent, writer.segment

        def as_is(record: Bound, error: Any, message: Any) -> None:
            if error is None and clock() < writer.good_until:
                writer.done += 1
                writer.last_number = record
                writer.last_offset = message.offset()
                callback(None, message)  # type: ignore[misc]
            else:
                slow(send_state, writer, callback, record, error, message)

        def in_logical_terms(record: Bound, error: Any, message: Any) -> None:
            if error is None and clock() < writer.good_until:
                writer.done += 1
                writer.last_number = record
                writer.last_offset = message.offset()
                callback(None, wrapped_one(message, segment, parent))  # type: ignore[misc]
            else:
                slow(send_state, writer, callback, record, error, message)

        def quietly(record: Bound, error: Any, message: Any) -> None:
            if error is None and clock() < writer.good_until:
                writer.done += 1
                writer.last_number = record
                writer.last_offset = message.offset()
            else:
                slow(send_state, writer, callback, record, error, message)

        if callback is None or self._state.settings.only_errors:
            return quietly
        return as_is if writer.identity else in_logical_terms

    @holds_lock
    def _slowly(
        self,
        send_state: SendState,
        writer: RouteWriter,
        callback: Callback | None,
        bound: Bound,
        error: Any,
        message: Any,
    ) -> None:
        sequence, every = bound if isinstance(bound, tuple) else (bound, None)
        headers = every and every[:-1]  # without the stamp
        key = message.key()
        content = PendingRecord(
            message.value(), key, timestamp_of(message), headers, callback, monotonic(), message, error
        )
        record = Outgoing(None if key is None else key_hash(key), sequence, content)
        state = self._state
        with state.lock:
            valid = state.lease_valid()
            answer = self._answer(writer, error, message)
            if answer is not None:
                finals = send_state.unplaced(writer, record, answer, lease_valid=valid)
            elif error is None:
                finals = send_state.acknowledged(writer, record, message.offset(), lease_valid=valid)
            else:
                finals = send_state.failed(writer, record)
            if state.fatal is not None:
                finals += send_state.give_up()
            state.report(send_state, finals)
            state.wake.set()

    def _answer(self, writer: RouteWriter, error: Any, message: Any) -> Answer | None:
        """Return what to look a record up for, None if its report says all.

        Inside a transaction a rejected record makes the application abort, written or not.
        """
        if error is None:
            return Answer.WRITTEN if message.offset() is None else None
        sealable = (
            writer.segment.kind is SegmentKind.PHANTOM and self._state.settings.transactional_id is None
        )
        return _ANSWERS.get(error.code()) if sealable else None
