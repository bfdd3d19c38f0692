"""Records on their way to librdkafka, and its reports on their way back.

A record of an enrolled topic is stamped, one of another topic goes as it is.

``make_produce`` is written for speed. What makes it cheap, each measured: one function whose names are
closure cells instead of a method's attribute look-ups; a lock made for it (``QuickLock``); one dictionary for
the stamp, reused under the lock; arguments given to librdkafka by position; one report function, bound to a
record and its callback by being their method (so a report always knows its own record, in whatever order
reports come, and a callback per record costs no more than one for all).

A signal handler may raise after any call. So a record counts as sent *before* librdkafka gets it, and no
longer if librdkafka itself refuses it: ``is_refusal`` distinguishes the two.
"""

from __future__ import annotations

import signal
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from struct import Struct
from types import CodeType, FunctionType, MethodType, TracebackType
from typing import Any, cast
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException

from kpsplit import compiled
from kpsplit.clock import monotonic
from kpsplit.errors import KpsplitError
from kpsplit.kafka.logical_message import wrapped_one
from kpsplit.producer.finality import Answer, Outgoing
from kpsplit.producer.locks import Busy, holds_lock, is_locks_own, refuse_reentry
from kpsplit.producer.messages import CREATE_TIME, Callback, Headers, Pairs, PendingRecord, Send
from kpsplit.producer.send_state import PartitionSendState
from kpsplit.producer.state import ProducerState, ReportLease, RouteWriter, SendState
from kpsplit.splitter.key_range import MULTIPLIER, key_hash
from kpsplit.splitter.lineage import SegmentKind
from kpsplit.splitter.records.data import STAMP_HEADER

REFUSALS = (
    BufferError, KafkaException, TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError,
)  # fmt: skip
"""What librdkafka's produce() raises. Anything else is a signal handler's; of these, ask ``is_refusal``."""
complete_stamp = Struct(">21sQ").pack
"""Makes a stamp of its prefix and the sequence number."""
_NAME_IS_NO_TEXT = "expected header key to be unicode string"


def is_refusal(error: BaseException) -> bool:
    """Return whether librdkafka itself raised an error. Call it in the frame that called produce()."""
    # A handler's frame stands in the traceback below the call; librdkafka's C code leaves no frame there.
    return _is_librdkafkas(error.__traceback__ and error.__traceback__.tb_next)


def _is_librdkafkas(below: TracebackType | None) -> bool:
    if below is None:  # no Python between librdkafka's caller and what was raised
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


def take_back(
    error: BaseException, send_state: SendState, writer: RouteWriter, sequence: int, headers: Any
) -> None:
    """Count a record no longer that the compiled produce() counted, if librdkafka itself refused it.

    Raises:
        KeyboardInterrupt, KpsplitError: as ``raise_swallowed``.
    """
    # The compiled call has no frame of its own: the traceback begins with a handler's, if there is any.
    if isinstance(error, REFUSALS) and _is_librdkafkas(error.__traceback__):
        send_state.next_sequence = sequence
        writer.sent -= 1
        if not headers:
            raise_swallowed(error)


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    if callable(handler) and not isinstance(handler, FunctionType | MethodType):
        handler = type(handler).__call__
    return getattr(getattr(handler, "__func__", handler), "__code__", None)


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


Bound = tuple[SendState, RouteWriter, int, Callback | None, Pairs | None]
"""What a report knows of its record. Last the application's headers, which librdkafka does not report."""


class StampedSender:
    """Gives stamped records to librdkafka, and takes its reports of them.

    A report under a valid lease, of a segment that is open and not fenced, goes straight to the application's
    callback (the fast path, rule (a)); every other one goes to the send state under ``lock``.
    """

    def __init__(self, state: ProducerState) -> None:
        self._state = state
        self._send = state.rdkafka.send
        self.report = self._make_report()
        self.bind = self._make_bind()

    def send(self, send_state: SendState, writer: RouteWriter, sequence: int, content: PendingRecord) -> None:
        """Give one record to librdkafka (``lock`` held); raises what its produce() does."""
        pairs = pairs_of(content.headers)
        every = with_stamp(pairs, complete_stamp(writer.stamp_prefix, sequence))
        record = (send_state, writer, sequence, content.callback, pairs)
        # Before the call: a handler may raise after librdkafka took the record, and it counts as sent then.
        writer.note_sent(sequence)
        bound = self.bind(record)
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
        """Give it a record that never waited, with the next number (``lock`` held)."""
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

    def _make_report(self) -> Callable[[Bound, Any, Any], None]:
        slow, only_errors = self._slowly, self._state.settings.only_errors

        def report(record: Bound, error: Any, message: Any) -> None:
            _, writer, sequence, callback, _ = record
            # By its name, not bound before: a simulation shows the clock of whichever process runs.
            if error is None and monotonic() < writer.lease.until:
                writer.done += 1
                writer.last_number = sequence
                writer.last_offset = message.offset()
                if callback is None or only_errors:
                    return
                if not writer.identity:
                    message = wrapped_one(message, writer.segment, writer.parent)
                callback(None, message)
            else:
                slow(record, error, message)

        return report

    def _make_bind(self) -> Callable[[Bound], Callable[[Any, Any], None]]:
        """Return what binds the report to a record."""
        if compiled.fast is None:
            return partial(MethodType, self.report)
        compiled.fast.learn(
            RouteWriter, PartitionSendState, ProducerState, ReportLease, globals(), wrapped_one,
            compiled.SYSTEM_CLOCK,
        )  # fmt: skip
        return partial(compiled.fast.report, self.report, self._state.settings.only_errors)

    @holds_lock
    def _slowly(self, bound: Bound, error: Any, message: Any) -> None:
        send_state, writer, sequence, callback, pairs = bound
        headers = None if pairs is None else list(pairs)
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


def timestamp_of(message: Any) -> int:
    """Return the record's own time for sending it again, 0 for none."""
    kind, milliseconds = message.timestamp()
    return int(milliseconds) if kind == CREATE_TIME else 0


def pairs_of(headers: Headers) -> Pairs | None:
    """Return an application's headers as they are now, None if there are none.

    As a tuple: the garbage collector looks at it once, not again and again while the record is on its way.
    """
    if not headers:
        return None
    return tuple(headers.items() if isinstance(headers, dict) else headers)


def with_stamp(pairs: Pairs | None, stamp: bytes) -> list[tuple[str, Any]]:
    return [*(pairs or ()), (STAMP_HEADER, stamp)]


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
    """Gives librdkafka records as they are."""

    def __init__(self, state: ProducerState) -> None:
        self._state = state
        self._send = state.rdkafka.send
        self.report = self._make_report()
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
        """Give it a record of a topic that is not enrolled (``lock`` held)."""
        report = None if callback is None else MethodType(self.report, callback)
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

    def _make_report(self) -> Callable[[Callback, Any, Any], None]:
        state = self._state
        only_errors = state.settings.only_errors

        def report(callback: Callback, error: Any, message: Any) -> None:
            if error is None and only_errors:
                return
            if state.collecting:
                state.callbacks.put(callback, error, message)
            else:
                callback(error, message)

        return report


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
    report, plain_report, default_callback = stamped.report, plain.report, state.settings.on_delivery
    only_stamp: dict[str, Any] = {}
    header, pack, crc, bisect, method = STAMP_HEADER, complete_stamp, crc32, bisect_right, MethodType
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
                    # That it is not enrolled is known under the lease only; the library's thread may be late.
                    if topic in plain_topics and monotonic() < state.lease_until:
                        bound = None if callback is None else method(plain_report, callback)
                        send(topic, value, key, partition, bound, None, timestamp, headers)
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
                        pairs: Pairs | None = None
                        if headers:
                            pairs = pairs_of(headers)
                            every: Any = with_stamp(pairs, stamp)
                        else:
                            every = only_stamp
                            only_stamp[header] = stamp
                        bound = method(report, (send_state, writer, sequence, callback, pairs))
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
        except Busy as error:
            if not is_locks_own(error):  # a signal handler's, and librdkafka may have the record
                raise
        general(topic, value, key, partition, callback, timestamp, headers)

    if compiled.fast is None:
        return produce
    made = compiled.fast.produce(
        produce, state, lock.__enter__, lock.__exit__, send, report, state.settings.only_errors, plain_report,
        state.fast_routes, plain_topics, wanted, header, default_callback, take_back, crc32,
    )  # fmt: skip
    return cast(Produce, made)
