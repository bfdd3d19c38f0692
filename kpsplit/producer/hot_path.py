"""The path of one record through produce(), written for speed; everything else is in ``GeneralPath``.

What makes it cheap, each measured: one function whose names are closure cells instead of a method's attribute
look-ups; a lock made for it (``QuickLock``); one dictionary for the stamp, reused under the lock; arguments
given to librdkafka by position; one report function per callback, bound to the record by being its method (so
a report always knows its own record, in whatever order reports come).

A signal handler may raise behind any call. So a record counts as sent *before* librdkafka gets it, and no
more if librdkafka itself refuses it (``refusals``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from types import MethodType
from typing import Any
from zlib import crc32

from kpsplit.producer.dispatcher import Dispatcher
from kpsplit.producer.messages import Callback, Headers, Send
from kpsplit.producer.quick_lock import Busy
from kpsplit.producer.reentry import holds_lock, refuse_reentry
from kpsplit.producer.refusals import REFUSALS, is_refusal, raise_swallowed
from kpsplit.producer.routes import complete_stamp, stamp_header
from kpsplit.producer.stamped import with_stamp
from kpsplit.splitter.key_range import MULTIPLIER

Produce = Callable[..., None]


def make_produce(
    dispatcher: Dispatcher, send: Send, default_callback: Callback | None, general: Produce
) -> Produce:
    """Return produce() for the two common cases.

    An enrolled topic whose partition the key chooses by CRC-32, and a topic that is not enrolled. Everything
    else goes to ``general``, which takes the same arguments by position.
    """
    fences_of, plain_topics = dispatcher.fast_routes.get, dispatcher.fast_plain
    whole_lock = dispatcher.lock
    lock, wanted, let_pass = whole_lock.at_once, whole_lock.wanted, whole_lock.let_pass
    make_report = dispatcher.reporter.make
    plain_reports, make_plain_report = dispatcher.plain.reports, dispatcher.plain.make
    stamped: dict[str, Any] = {}
    header, pack, crc, bisect, method = stamp_header, complete_stamp, crc32, bisect_right, MethodType
    multiplier, refusals = MULTIPLIER, REFUSALS

    @holds_lock
    def produce(
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
            refuse_reentry(whole_lock)  # first: who is wanted may wait for what this thread holds
            let_pass()
        try:
            fences = fences_of(topic)
            if fences is None:
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
                    fence = fences[hashed % len(fences)]
                    bounds = fence.bounds
                    writer = fence.writers[bisect(bounds, hashed * multiplier & 0xFFFFFFFF) if bounds else 0]
                    if writer.open:
                        sequence = fence.next_sequence
                        stamp = pack(writer.stamp_prefix, sequence)
                        try:
                            report = writer.reports[callback]
                        except (KeyError, TypeError):
                            report = make_report(fence, writer, callback)
                        if headers:
                            every: Any = with_stamp(headers, stamp)
                            bound = method(report, (sequence, every))
                        else:
                            every = stamped
                            stamped[header] = stamp
                            bound = method(report, sequence)
                        fence.next_sequence = sequence + 1
                        writer.sent += 1
                        try:
                            send(writer.topic, value, key, writer.partition, bound, None, timestamp, every)
                        except refusals as error:
                            if is_refusal(error):
                                fence.next_sequence = sequence
                                writer.sent -= 1
                                if not headers:
                                    raise_swallowed(error)
                            raise
                        return
        except Busy:
            pass  # waiting is done there
        general(topic, value, key, partition, callback, timestamp, headers)

    return produce
