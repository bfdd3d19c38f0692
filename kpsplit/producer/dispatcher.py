"""What a Producer knows about its topics and records, behind one lock.

Lock order: ``poll_lock`` before ``lock``. ``lock`` guards routes, fences and what is held; ``poll_lock``
makes one thread at a time take librdkafka's reports, so that a segment's ``done`` has a single writer.
Callbacks of the application run with ``lock`` released, and only in the application's poll() and flush().
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.producer.config import ProducerSettings
from kpsplit.producer.fence import Final, Outgoing
from kpsplit.producer.messages import (
    Callback,
    Content,
    Headers,
    failed_message,
    logical_message,
    timestamp_of,
)
from kpsplit.producer.routes import Fence, Reports, RouteWriter, TopicRoute, complete_stamp, stamp_header
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import PhysicalPartition, SegmentKind

Send = Callable[..., None]
MAX_CACHED_REPORTS = 64
RELEASED_AT_ONCE = 500
"""How many held records one turn sends with the lock taken, so that produce() never waits for long."""

_REJECTIONS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


class ProducerGone(Exception):  # noqa: N818 - no error: the application dropped its Producer
    """The Producer was dropped without close(); its thread ends."""


class PassThrough:
    """The route of a topic that is not enrolled."""


PASS_THROUGH = PassThrough()


@dataclass(slots=True)
class Unrouted:
    """A record of a topic that was not looked up yet, or whose lookup is stale: produce()'s arguments."""

    content: Content
    partition: int


@dataclass(slots=True)
class _PlainCount:
    """How many records of topics that are not enrolled were sent and reported since some moment."""

    sent: int = 0
    done: int = 0

    def report(self, report: Callback | None, error: Any, message: Any) -> None:
        self.done += 1
        if report is not None:
            report(error, message)


class Dispatcher:
    """Routes, holds, reports. ``send`` is librdkafka's produce(), by position."""

    def __init__(self, settings: ProducerSettings, instance: int, send: Send) -> None:
        self.settings = settings
        self.instance = instance
        self.send = send
        self.lock = threading.Lock()
        self.poll_lock = threading.Lock()
        self.wake = threading.Event()
        self.routes: dict[str, TopicRoute | PassThrough] = {}
        self.fast_routes: dict[str, list[Fence]] = {}
        self.unrouted: dict[str, deque[Unrouted]] = {}
        self.refused: dict[str, KpsplitError] = {}
        self.lease_until = 0.0
        self.held_bytes = 0
        self.callbacks: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.collecting = False
        self.in_transaction = False
        self.fatal: KpsplitError | None = None
        self.forked = False
        self.plain_reports: dict[Callback, Callback] = {}
        self._plain: _PlainCount | None = None

    # -- the lease ---------------------------------------------------------------------------------

    def lease_valid(self) -> bool:
        """Tell whether the view of the control topic is still good."""
        return monotonic() < self.lease_until

    def renew(self, until: float) -> None:
        """Extend the lease (``lock`` held) and look at everything pending again."""
        self.lease_until = until
        for fence in self.fences():
            fence.suspend(False)
            self.queue_callbacks(fence, fence.resolve(lease_valid=self.lease_valid()))
            self.refresh(fence)

    def lapse(self) -> None:
        """Hold everything until the lease is renewed (``lock`` held)."""
        self.lease_until = 0.0
        for topic in [t for t, r in self.routes.items() if r is PASS_THROUGH]:
            del self.routes[topic]
        for fence in self.fences():
            fence.suspend(True)
            self.refresh(fence)

    def add_route(self, topic: str, route: TopicRoute) -> None:
        """Route an enrolled topic from now on (``lock`` held)."""
        self.routes[topic] = route
        if route.by_crc:
            self.fast_routes[topic] = route.fences

    def remove_route(self, topic: str) -> None:
        """Forget a topic's route (``lock`` held)."""
        self.routes.pop(topic, None)
        self.fast_routes.pop(topic, None)

    def clear_routes(self) -> None:
        """Forget all routes (``lock`` held)."""
        self.routes.clear()
        self.fast_routes.clear()

    def fences(self) -> list[Fence]:
        """Return the fences of all enrolled topics."""
        return [f for route in self.routes.values() if isinstance(route, TopicRoute) for f in route.fences]

    def refresh(self, fence: Fence) -> None:
        """Tell the hot path of a partition what its fence says (``lock`` held)."""
        for writer in fence.closing:
            writer.good_until = 0.0
        for writer in fence.writers:
            writer.good_until = 0.0 if writer.fenced else self.lease_until
            writer.use_epoch(fence.state.epoch, self.instance)

    # -- records that cannot be sent now -----------------------------------------------------------

    def room(self, queued: int) -> None:
        """Refuse a record when the queue limits are reached (``lock`` held).

        Raises:
            BufferError: as librdkafka's produce() does.
        """
        if (
            queued + self.waiting() >= self.settings.queue_messages
            or self.held_bytes > self.settings.queue_bytes
        ):
            raise BufferError("Local: Queue full")

    def waiting(self) -> int:
        """Return how many records wait to be sent."""
        fenced = sum(f.waiting() for f in self.fences())
        return fenced + sum(len(q) for q in self.unrouted.values())

    def unresolved(self) -> int:
        """Return how many records the application has no report for, apart from those inside librdkafka."""
        return self.waiting() + sum(f.pending() for f in self.fences()) + len(self.callbacks)

    def transaction(self, active: bool, *, aborted: bool = False) -> None:
        """Note the begin or end of the application's transaction (``lock`` held)."""
        self.in_transaction = active
        for fence in self.fences():
            fence.transaction(active, aborted=aborted)
            self.refresh(fence)

    def strays(self) -> int:
        """Return how many records went astray so far."""
        return sum(f.statistics.strays for f in self.fences())

    def hold(self, fence: Fence, content: Content) -> None:
        """Keep a record until its segment opens (``lock`` held).

        Raises:
            TypeError: as librdkafka's produce() does. KpsplitError: nothing will ever be sent again.
        """
        content.check()
        if self.fatal is not None:
            raise self.fatal
        fence.hold(None if content.key is None else key_hash(content.key), content)
        self.held_bytes += content.size()
        self.wake.set()

    def hold_unrouted(self, topic: str, content: Content, partition: int) -> None:
        """Keep a record until its topic is looked up (``lock`` held).

        Raises:
            TypeError: as librdkafka's produce() does.
        """
        content.check()
        if not isinstance(topic, str) or not isinstance(partition, int):
            raise TypeError("topic must be a str, partition an int")
        self.unrouted.setdefault(topic, deque()).append(Unrouted(content, partition))
        self.held_bytes += content.size()
        self.wake.set()

    def route_waiting(self, topic: str) -> None:
        """Give the records of a topic that was just looked up to its fences (``lock`` held)."""
        route = self.routes.get(topic)
        queue = self.unrouted.get(topic)
        if route is None or queue is None:
            return
        while queue:
            item = queue[0]
            try:
                self._route_one(topic, route, item)
            except BufferError:
                return
            except Exception as error:  # noqa: BLE001 - this record is refused; those behind it go on
                self._fail(
                    PhysicalPartition(topic, max(item.partition, 0)), item.content, _kafka_error(error)
                )
            queue.popleft()
        del self.unrouted[topic]

    def fail_unrouted(self, topic: str, error: Any) -> None:
        """Fail the waiting records of a topic whose lookup failed (``lock`` held)."""
        for item in self.unrouted.pop(topic, ()):
            self._fail(PhysicalPartition(topic, max(item.partition, 0)), item.content, error)

    def release(self) -> int:
        """Send what may be sent now, in order, but not very much at once (``lock`` held); return how many."""
        return sum(self._release_fence(f) for f in self.fences() if f.waiting())

    def expire(self, now: float) -> None:
        """Fail records that have waited longer than the message timeout (``lock`` held)."""
        oldest = now - self.settings.message_timeout
        error = KafkaError(KafkaError._MSG_TIMED_OUT)
        for fence in self.fences():
            if fence.waiting():
                for record in fence.drop_waiting(lambda r: r.payload.accepted_at > oldest):
                    self._fail(fence.state.parent, record.payload, error)
        for topic, queue in self.unrouted.items():
            while queue and queue[0].content.accepted_at <= oldest:
                item = queue.popleft()
                self._fail(PhysicalPartition(topic, max(item.partition, 0)), item.content, error)

    def purge(self) -> None:
        """Fail everything that waits (``lock`` held)."""
        error = KafkaError(KafkaError._PURGE_QUEUE)
        for fence in self.fences():
            for record in fence.drop_waiting():
                self._fail(fence.state.parent, record.payload, error)
        for topic in list(self.unrouted):
            self.fail_unrouted(topic, error)

    def fail_closed(self, error: KpsplitError) -> None:
        """Fail everything that is not final, and refuse everything from now on (``lock`` held)."""
        self.lapse()
        self.fatal = error
        refusal = _kafka_error(error)
        for topic in list(self.unrouted):
            self.fail_unrouted(topic, refusal)
        for fence in self.fences():
            for record in fence.drop_waiting():
                self._fail(fence.state.parent, record.payload, refusal)
            self.queue_callbacks(fence, fence.give_up_pending())

    # -- reports -----------------------------------------------------------------------------------

    def make_report(self, fence: Fence, writer: RouteWriter, callback: Callback | None) -> Reports:
        """Return the report functions of one callback, remembered by the writer."""
        clock = monotonic
        slow = self._slow_report
        quiet = callback is None or self.settings.only_errors
        parent = fence.state.parent
        segment = writer.segment

        def report_as_is(sequence: int, error: Any, message: Any) -> None:
            if error is None and clock() < writer.good_until:
                writer.done += 1
                callback(None, message)  # type: ignore[misc]
            else:
                slow(fence, writer, callback, None, sequence, error, message)

        def report(headers: Headers, sequence: int, error: Any, message: Any) -> None:
            if error is not None or clock() >= writer.good_until:
                slow(fence, writer, callback, headers, sequence, error, message)
                return
            writer.done += 1
            if not quiet:
                callback(None, logical_message(message, segment, parent))  # type: ignore[misc]

        plain = (
            report_as_is.__get__ if writer.identity and not quiet else partial(partial, partial(report, None))
        )
        reports = Reports(plain, partial(partial, report))
        if len(writer.reports) >= MAX_CACHED_REPORTS:
            writer.reports.clear()
        with suppress(TypeError):  # a callback that is not hashable is wrapped per record
            writer.reports[callback] = reports
        return reports

    def reports_for(self, fence: Fence, writer: RouteWriter, callback: Callback | None) -> Reports:
        """Return the report functions of one callback."""
        try:
            return writer.reports[callback]
        except (KeyError, TypeError):
            return self.make_report(fence, writer, callback)

    def _slow_report(
        self,
        fence: Fence,
        writer: RouteWriter,
        callback: Callback | None,
        headers: Headers,
        sequence: int,
        error: Any,
        message: Any,
    ) -> None:
        key = message.key()
        content = Content(
            message.value(), key, timestamp_of(message), headers, callback, monotonic(), message, error
        )
        record = Outgoing(None if key is None else key_hash(key), sequence, content)
        with self.lock:
            valid = self.lease_valid()
            if error is None:
                finals = fence.acknowledged(writer, record, message.offset(), lease_valid=valid)
            elif self._may_be_written(writer, error):
                finals = fence.rejected(writer, record, lease_valid=valid)
            else:
                finals = fence.failed(writer, record)
            if self.fatal is not None:
                finals += fence.give_up_pending()
            self.queue_callbacks(fence, finals)
            self.wake.set()

    def _may_be_written(self, writer: RouteWriter, error: Any) -> bool:
        """Tell whether a rejection may be a seal's, while an earlier try is in the log.

        Inside a transaction a rejected record makes the application abort, written or not.
        """
        sealable = writer.segment.kind is SegmentKind.PHANTOM and self.settings.transactional_id is None
        return sealable and error.code() in _REJECTIONS

    def run_callbacks(self) -> int:
        """Run queued callbacks in the application's thread; return how many.

        Raises:
            Exception: what a callback raised first, after all of them ran.
        """
        count = 0
        raised: Exception | None = None
        while True:
            try:
                callback, arguments = self.callbacks.popleft()
            except IndexError:  # the last one, or another thread was quicker
                break
            count += 1
            try:
                callback(*arguments)
            except Exception as error:  # noqa: BLE001 - whatever the application raises goes back to it
                raised = raised or error
        if raised is not None:
            raise raised
        return count

    def collect(self, poll: Callable[[float], int]) -> None:
        """Take librdkafka's reports in hand from the library's thread; callbacks are only queued.

        Does nothing while the application's thread polls: its reports are taken in hand there.
        """
        if not self.poll_lock.acquire(blocking=False):
            return
        try:
            with self.lock:
                self.collecting = True
                for fence in self.fences():
                    for writer in fence.all_writers():
                        writer.good_until = 0.0
            poll(0)
        finally:
            with self.lock:
                self.collecting = False
                for fence in self.fences():
                    self.refresh(fence)
            self.poll_lock.release()

    def in_application(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Return a callback that is queued when the library's thread happens to poll."""

        def guarded(*arguments: Any) -> None:
            if self.collecting:
                self.callbacks.append((callback, arguments))
            else:
                callback(*arguments)

        return guarded

    # -- inside ------------------------------------------------------------------------------------

    def queue_callbacks(self, fence: Fence, finals: list[Final[Content]]) -> None:
        """Queue the callbacks of records that became final (``lock`` held)."""
        for final in finals:
            content = final.record.payload
            callback = content.callback
            error = content.error if final.offset is None else None
            if final.offset is None and error is None:  # given up after the broker had acknowledged it
                error = KafkaError(KafkaError._PURGE_INFLIGHT)
            if callback is None or (self.settings.only_errors and error is None):
                continue
            message = logical_message(content.message, final.segment, fence.state.parent, final.offset)
            self.callbacks.append((callback, (error, message)))

    def _fail(self, parent: PhysicalPartition, content: Content, error: Any) -> None:
        if content.message is None:
            self.held_bytes -= content.size()
        if content.callback is not None:
            message = failed_message(parent, content, error)
            self.callbacks.append((content.callback, (error, message)))

    def _route_one(self, topic: str, route: TopicRoute | PassThrough, item: Unrouted) -> None:
        content = item.content
        if isinstance(route, TopicRoute):
            fence = route.choose(content.key, item.partition)
            fence.hold(None if content.key is None else key_hash(content.key), content)
            return
        self.send_plain(
            topic, content.value, content.key, item.partition, content.callback, content.timestamp,
            content.headers,
        )  # fmt: skip
        self.held_bytes -= content.size()

    def send_plain(
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
        report = self.plain_report(callback)
        count = self._plain
        if count is not None:
            report = partial(count.report, report)
        self.send(topic, value, key, partition, report, None, timestamp, headers)
        if count is not None:
            count.sent += 1

    def count_plain(self) -> None:
        """Count the records of topics that are not enrolled from now on (``lock`` held)."""
        self._plain = _PlainCount()

    def nothing_unstamped(self, queued: Callable[[], int]) -> bool:
        """Tell whether everything sent before the last ``count_plain`` is reported, and stop counting then.

        What librdkafka has is more than what we know of as long as something older is among it. Its queue is
        looked at first: what we know of can only have become less when we look at it.
        """
        with self.lock:
            inside = queued()
            stamped = sum(w.in_flight for f in self.fences() for w in f.all_writers())
            plain = self._plain.sent - self._plain.done if self._plain else 0
            if inside > stamped + plain:
                return False
            self._plain = None
            return True

    def plain_report(self, callback: Callback | None) -> Callback | None:
        """Return the report function for a topic that is not enrolled."""
        if callback is None:
            return None
        try:
            known = self.plain_reports.get(callback)
        except TypeError:
            known = None
        return known or self._make_plain_report(callback)

    def _make_plain_report(self, callback: Callback) -> Callback:
        only_errors = self.settings.only_errors

        def report(error: Any, message: Any) -> None:
            if error is None and only_errors:
                return
            if self.collecting:
                self.callbacks.append((callback, (error, message)))
            else:
                callback(error, message)

        if len(self.plain_reports) >= MAX_CACHED_REPORTS:
            self.plain_reports.clear()
        with suppress(TypeError):
            self.plain_reports[callback] = report
        return report

    def _release_fence(self, fence: Fence) -> int:
        gone: list[Outgoing[Content]] = []
        for writer, record in fence.sendable(RELEASED_AT_ONCE):
            content = record.payload
            try:
                self.send_now(fence, writer, record.sequence, content)
                if content.message is None:
                    self.held_bytes -= content.size()
            except BufferError:
                break
            except Exception as error:  # noqa: BLE001 - this record is refused; those behind it go on
                fence.refuse(record)
                self._fail(fence.state.parent, content, _kafka_error(error))
            gone.append(record)
        if gone:
            fence.sent(gone)
            self.refresh(fence)
        return len(gone)

    def send_now(self, fence: Fence, writer: RouteWriter, sequence: int, content: Content) -> None:
        """Give one stamped record to librdkafka (``lock`` held).

        Raises:
            BufferError: its queue is full. KafkaException: it refused the record.
        """
        stamp = complete_stamp(writer.stamp_prefix, sequence)
        reports = self.reports_for(fence, writer, content.callback)
        headers = content.headers
        report = reports.with_headers(headers, sequence) if headers else reports.plain(sequence)
        self.send(
            writer.topic, content.value, content.key, writer.partition, report, None,
            content.timestamp, with_stamp(content.headers, stamp),
        )  # fmt: skip
        writer.sent += 1


def with_stamp(headers: Headers, stamp: bytes) -> list[tuple[str, Any]]:
    """Return the application's headers with the stamp behind them."""
    if not headers:
        return [(stamp_header, stamp)]
    items = list(headers.items()) if isinstance(headers, dict) else list(headers)
    return [*items, (stamp_header, stamp)]


def _kafka_error(error: Exception) -> Any:
    if isinstance(error, KafkaException) and error.args:
        return error.args[0]
    return KafkaError(KafkaError._INVALID_ARG, str(error))
