"""The path of one record through produce(), written for speed; everything else is in ``Producer``.

What makes it cheap, each measured: one function whose names are closure cells instead of a method's attribute
look-ups; the lock taken by hand (a ``with`` costs twice as much); one dictionary for the stamp, reused under
the lock; arguments given to librdkafka by position; one report function per callback, bound to the sequence
number per record (so a report always knows its own record, in whatever order reports come).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any
from zlib import crc32

from kpsplit.producer.dispatcher import Dispatcher, Send, with_stamp
from kpsplit.producer.messages import Callback, Headers
from kpsplit.producer.routes import complete_stamp, stamp_header
from kpsplit.splitter.key_range import MULTIPLIER

Produce = Callable[..., None]


def make_produce(
    dispatcher: Dispatcher, send: Send, default_callback: Callback | None, general: Produce
) -> Produce:
    """Return produce() for the common case: an enrolled topic whose partition the key chooses by CRC-32.

    Everything else goes to ``general``, which takes the same arguments by position.
    """
    fast_routes = dispatcher.fast_routes
    acquire, release = dispatcher.lock.acquire, dispatcher.lock.release
    make_report = dispatcher.make_report
    stamped: dict[str, Any] = {}
    header, pack, crc, bisect = stamp_header, complete_stamp, crc32, bisect_right
    multiplier = MULTIPLIER

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
        if not key or partition >= 0 or topic not in fast_routes:
            general(topic, value, key, partition, callback, timestamp, headers)
            return
        if key.__class__ is str:
            key = key.encode()
        elif key.__class__ is not bytes:
            general(topic, value, key, partition, callback, timestamp, headers)
            return
        hashed = crc(key)
        acquire()
        try:
            fences = fast_routes[topic]
            fence = fences[hashed % len(fences)]
            bounds = fence.bounds
            writer = fence.writers[bisect(bounds, hashed * multiplier & 0xFFFFFFFF) if bounds else 0]
            if writer.open:
                sequence = fence.next_sequence
                stamped[header] = stamp = pack(writer.stamp_prefix, sequence)
                try:
                    reports = writer.reports[callback]
                except (KeyError, TypeError):
                    reports = make_report(fence, writer, callback)
                if headers:
                    report = reports.with_headers(headers, sequence)
                    every = with_stamp(headers, stamp)
                    send(writer.topic, value, key, writer.partition, report, None, timestamp, every)
                else:
                    report = reports.plain(sequence)
                    send(writer.topic, value, key, writer.partition, report, None, timestamp, stamped)
                fence.next_sequence = sequence + 1
                writer.sent += 1
                return
        except KeyError:
            pass  # the route went away between the look and the lock
        finally:
            release()
        general(topic, value, key, partition, callback, timestamp, headers)

    return produce
