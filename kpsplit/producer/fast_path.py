"""The path of one record through produce(), written for speed, and ``GeneralPath`` for what it leaves.

What makes it cheap, each measured: one function whose names are closure cells instead of a method's attribute
look-ups; a lock made for it (``QuickLock``); one dictionary for the stamp, reused under the lock; arguments
given to librdkafka by position; one report function per callback, bound to the record by being its method (so
a report always knows its own record, in whatever order reports come).

A signal handler may raise after any call. So a record counts as sent *before* librdkafka gets it, and no
longer if librdkafka itself refuses it (``sending.is_refusal``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import index
from types import MethodType
from typing import Any
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import monotonic
from kpsplit.errors import KpsplitError
from kpsplit.producer.locks import Busy, holds_lock, refuse_reentry
from kpsplit.producer.messages import Callback, Headers, PendingRecord, Send
from kpsplit.producer.pending import HeldRecords, kafka_error
from kpsplit.producer.sending import (
    REFUSALS,
    PassThroughSender,
    StampedSender,
    is_refusal,
    raise_swallowed,
    with_stamp,
)
from kpsplit.producer.state import PASS_THROUGH, ProducerState, TopicRoute, complete_stamp, stamp_header
from kpsplit.splitter.key_range import MULTIPLIER, key_hash

Produce = Callable[..., None]


def make_produce(  # noqa: C901 - a call per record and case is what a split-up version costs
    state: ProducerState, send: Send, stamped: StampedSender, plain: PassThroughSender, general: Produce
) -> Produce:
    """Return produce() for the two common cases.

    An enrolled topic whose partition the key chooses by CRC-32, and a topic that is not enrolled. Everything
    else goes to ``general``, which takes the same arguments by position.
    """
    # Local names: a global or an attribute costs a look-up for each record.
    send_states_of, plain_topics = state.fast_routes.get, state.fast_plain
    whole_lock = state.lock
    lock, wanted, let_pass = whole_lock.at_once, whole_lock.wanted, whole_lock.let_pass
    make_report, default_callback = stamped.make_report, state.settings.on_delivery
    plain_reports, make_plain_report = plain.reports, plain.make_report
    only_stamp: dict[str, Any] = {}
    header, pack, crc, bisect, method = stamp_header, complete_stamp, crc32, bisect_right, MethodType
    multiplier, refusals = MULTIPLIER, REFUSALS

    @holds_lock
    def produce(  # noqa: C901
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: Callback | None = None,
        on_delivery: Callback | None = None,
        timestamp: int = 0,
        headers: Headers = None,
    ) -> None:
        if on_delivery is not None:
            callback = on_delivery
        elif callback is None:
            callback = default_callback
        if wanted:
            refuse_reentry(whole_lock)  # first: the thread that wants it may wait for what this one holds
            let_pass()
        try:
            send_states = send_states_of(topic)
            if send_states is None:
                with lock:
                    if topic in plain_topics:
                        try:
                            plain_report = plain_reports[callback]
                        except (KeyError, TypeError):
                            plain_report = make_plain_report(callback)
                        send(topic, value, key, partition, plain_report, None, timestamp, headers)
                        return
            elif key and partition < 0:
                if key.__class__ is not bytes:
                    if key.__class__ is not str:
                        general(topic, value, key, partition, callback, timestamp, headers)
                        return
                    key = key.encode()
                hashed = crc(key)
                with lock:
                    send_state = send_states[hashed % len(send_states)]
                    bounds = send_state.bounds
                    writer = send_state.writers[
                        bisect(bounds, hashed * multiplier & 0xFFFFFFFF) if bounds else 0
                    ]
                    if writer.open:
                        sequence = send_state.next_sequence
                        stamp = pack(writer.stamp_prefix, sequence)
                        try:
                            report = writer.reports[callback]
                        except (KeyError, TypeError):
                            report = make_report(send_state, writer, callback)
                        if headers:
                            every: Any = with_stamp(headers, stamp)
                            bound = method(report, (sequence, every))
                        else:
                            every = only_stamp
                            only_stamp[header] = stamp
                            bound = method(report, sequence)
                        # Counted before librdkafka gets it: a signal handler may raise after send() took it.
                        send_state.next_sequence = sequence + 1
                        writer.sent += 1
                        try:
                            send(writer.topic, value, key, writer.partition, bound, None, timestamp, every)
                        except refusals as error:
                            if is_refusal(error):
                                send_state.next_sequence = sequence
                                writer.sent -= 1
                                if not headers:
                                    raise_swallowed(error)
                            raise
                        return
        except Busy:
            pass  # waiting is done there
        general(topic, value, key, partition, callback, timestamp, headers)

    return produce


class GeneralPath:
    """See the module. ``start`` starts the library's thread if need be."""

    def __init__(
        self,
        state: ProducerState,
        stamped: StampedSender,
        plain: PassThroughSender,
        held: HeldRecords,
        start: Callable[[], None],
    ) -> None:
        self._state = state
        self._stamped = stamped
        self._plain = plain
        self._held = held
        self._start = start

    @holds_lock
    def produce(
        self,
        topic: str,
        value: str | bytes | None,
        key: str | bytes | None,
        partition: int,
        callback: Callback | None,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Send or hold one record.

        Raises:
            BufferError, KafkaException, KpsplitError, TypeError: as ``Producer.produce`` does.
        """
        if isinstance(key, str):
            key = key.encode()
        state = self._state
        refuse_reentry(state.lock, 2)  # this frame, and the fast path's
        if state.lock.wanted:
            state.lock.let_pass()
        with state.lock:
            if not state.accepting and state.fatal is None:
                raise KpsplitError("the Producer is closed", hint="make a new one")
            route = state.routes.get(topic)
            if topic in state.unrouted:
                route = None  # after what waits there already
            if route is PASS_THROUGH:
                self._plain.send(topic, value, key, partition, callback, timestamp, headers)
                return
            self._check_transaction()
            content = PendingRecord(value, key, timestamp, headers, callback, monotonic())
            if isinstance(route, TopicRoute):
                self._enrolled(route, partition, content)
            else:
                self._unrouted(topic, partition, content)

    def _check_transaction(self) -> None:
        """Refuse as librdkafka does. A producer takes its transactional id before it registers."""
        state = self._state
        if state.fatal is None and state.settings.transactional_id and not state.in_transaction:
            outside = "a transactional producer sends inside a transaction: begin one"
            raise KafkaException(KafkaError(KafkaError._STATE, outside))

    def _enrolled(self, route: TopicRoute, partition: int, content: PendingRecord) -> None:
        send_state = route.choose(content.key, index(partition))
        hashed = None if content.key is None else key_hash(content.key)
        writer = send_state.writer_for(hashed, send_state.next_sequence)
        if writer.open:
            self._stamped.send_new(send_state, writer, content)
        else:
            self._held.room()
            self._held.hold(send_state, content)

    def _unrouted(self, topic: str, partition: int, content: PendingRecord) -> None:
        """Keep a record until its topic was looked up."""
        state = self._state
        if state.fatal is not None:
            raise state.fatal
        refusal = state.refused.get(topic)
        if refusal is not None:
            raise refusal
        self._held.room()
        self._start()  # first: if that fails, nothing is held
        self._held.hold_unrouted(topic, content, partition)


def send_batch(
    produce: Callable[..., None],
    topic: str,
    messages: list[dict[str, Any]],
    partition: int,
    callback: Callback | None,
) -> int:
    """Give each record to ``produce``; return how many were accepted, the others get an ``_error``.

    Raises:
        TypeError: no list of dictionaries.
    """
    if not isinstance(messages, list):
        raise TypeError("messages must be a list")
    accepted = 0
    for message in messages:
        if not isinstance(message, dict):
            raise TypeError("each message must be a dict")
        try:
            produce(
                topic,
                message.get("value"),
                message.get("key"),
                message.get("partition", partition),
                message.get("callback", message.get("on_delivery", callback)),
                None,
                message.get("timestamp", 0),
                message.get("headers"),
            )
            accepted += 1
        except BufferError:
            message["_error"] = KafkaError(KafkaError._QUEUE_FULL)
        except KafkaException as exception:
            message["_error"] = exception.args[0]
        except KpsplitError as error:
            message["_error"] = kafka_error(error)
    return accepted
