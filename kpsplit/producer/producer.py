"""The drop-in Producer (design, section 6)."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import get_ident
from types import TracebackType
from typing import Any, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.producer import fork_guard
from kpsplit.producer.config import split_config
from kpsplit.producer.coordinator import Coordinator
from kpsplit.producer.dispatcher import PASS_THROUGH, Dispatcher, ProducerGone
from kpsplit.producer.hot_path import make_produce
from kpsplit.producer.messages import Callback, Content, Headers
from kpsplit.producer.routes import TopicRoute
from kpsplit.producer.statistics import LayoutStats, PartitionStats
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.records.producers import Certificate
from kpsplit.splitter.records.stamp import instance_name

FOREVER = 10.0**9
SLICE_SECONDS = 0.1
CLOSE_SECONDS = 60.0


class Producer(confluent_kafka.Producer):
    """Drop-in for ``confluent_kafka.Producer``; changing the import is the whole migration.

    Records of topics that were enrolled with kpsplit follow every split and merge of their partition: they
    are held for the short time of a fence, delivered once, in order per key. Other topics pass through
    unchanged. Idempotence and ``acks=all`` are enforced. Settings of its own: ``kpsplit.takeover.enable``
    (default true): whether this producer rolls back an operation whose operator died.

    Topic, partition and offset in delivery reports are the logical ones. Thread safe, like librdkafka's.

    Raises:
        ConfigurationError: a setting contradicts what the protocol needs.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, *args: Any, **kwargs: Any) -> None:
        merged = {**(config or {}), **{k: v for k, v in kwargs.items() if k != "logger"}}
        rdkafka, settings = split_config(merged)
        # The library's thread knows the Producer by weak references only: one that is dropped is collected.
        send = _weakly(self, confluent_kafka.Producer.produce)
        dispatcher = Dispatcher(settings, random.SystemRandom().getrandbits(64), send)
        for name in ("error_cb", "throttle_cb", "stats_cb"):
            if callable(rdkafka.get(name)):
                rdkafka[name] = dispatcher.in_application(rdkafka[name])
        extra = {"logger": kwargs["logger"]} if "logger" in kwargs else {}
        super().__init__(rdkafka, *args, **extra)
        self._dispatcher = dispatcher
        self._settings = settings
        self._connection = Connection.of_application(rdkafka)
        self._coordinator: Coordinator | None = None
        self._in_callbacks: set[int] = set()
        self._closed = False
        self._send = super().produce
        self._produce = make_produce(dispatcher, self._send, settings.on_delivery, self._produce_general)
        if type(self).produce is Producer.produce:
            self.__dict__["produce"] = self._produce  # one call less per record
        fork_guard.guard(dispatcher)

    # -- producing ---------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: Callback | None = None,
        on_delivery: Callback | None = None,
        timestamp: int = 0,
        headers: Headers = None,
    ) -> None:
        """Send one record, as ``confluent_kafka.Producer.produce`` does. Never waits.

        Raises:
            BufferError: the queue is full (records held by a fence count); poll() and try again.
            KafkaException: librdkafka refused it. KpsplitError: kpsplit did; the message says why.
        """
        self._produce(topic, value, key, partition, callback, on_delivery, timestamp, headers)

    def _produce_general(
        self,
        topic: str,
        value: str | bytes | None,
        key: str | bytes | None,
        partition: int,
        callback: Callback | None,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Do what the hot path leaves: other partitioners, records without a key, held records."""
        if isinstance(key, str):
            key = key.encode()
        dispatcher = self._dispatcher
        with dispatcher.lock:
            route = dispatcher.routes.get(topic)
            if route is PASS_THROUGH:
                dispatcher.send_plain(topic, value, key, partition, callback, timestamp, headers)
            elif isinstance(route, TopicRoute):
                content = Content(value, key, timestamp, headers, callback, monotonic())
                self._produce_enrolled(route, partition, content)
            else:
                content = Content(value, key, timestamp, headers, callback, monotonic())
                self._produce_unrouted(topic, partition, content)

    def _produce_enrolled(self, route: TopicRoute, partition: int, content: Content) -> None:
        dispatcher = self._dispatcher
        fence = route.choose(content.key, partition)
        key_hash_ = None if content.key is None else key_hash(content.key)
        sequence = fence.next_sequence
        writer = fence.writer_for(key_hash_, sequence)
        if writer.open:
            dispatcher.send_now(fence, writer, sequence, content)
            fence.next_sequence = sequence + 1
        else:
            dispatcher.room(super().__len__())
            dispatcher.hold(fence, content)

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: Callback | None = None,
        on_delivery: Callback | None = None,
    ) -> int:
        """Send a list of records, as ``confluent_kafka.Producer.produce_batch`` does; headers are honoured.

        Returns how many were accepted; the others have an ``_error``.
        """
        if not isinstance(messages, list):
            raise TypeError("messages must be a list")
        accepted = 0
        default = on_delivery or callback
        for message in messages:
            if not isinstance(message, dict):
                raise TypeError("each message must be a dict")
            try:
                self.produce(
                    topic,
                    message.get("value"),
                    message.get("key"),
                    message.get("partition", partition),
                    message.get("callback", message.get("on_delivery", default)),
                    None,
                    message.get("timestamp", 0),
                    message.get("headers"),
                )
                accepted += 1
            except BufferError:
                message["_error"] = KafkaError(KafkaError._QUEUE_FULL)
            except KafkaException as exception:
                message["_error"] = exception.args[0]
        return accepted

    def _produce_unrouted(self, topic: str, partition: int, content: Content) -> None:
        """Keep a record until its topic was looked up (the dispatcher's lock is held)."""
        dispatcher = self._dispatcher
        if dispatcher.fatal is not None:
            raise dispatcher.fatal
        if self._closed:
            raise KpsplitError("the Producer is closed", hint="make a new one")
        refusal = dispatcher.refused.get(topic)
        if refusal is not None:
            raise refusal
        dispatcher.room(super().__len__())
        dispatcher.hold_unrouted(topic, content, partition)
        if self._coordinator is None:
            self._coordinator = Coordinator(
                self._connection,
                self._settings,
                dispatcher,
                _weakly(self, confluent_kafka.Producer.poll),
                _weakly(self, confluent_kafka.Producer.__len__),
            )
            self._coordinator.start()

    # -- polling -----------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> int:
        """Serve delivery reports and other events, as ``confluent_kafka.Producer.poll`` does.

        Raises:
            KpsplitError: called inside a callback. Exception: what a callback raised.
        """
        deadline = Deadline(FOREVER if timeout is None or timeout < 0 else timeout)
        while True:
            served = self._serve(super().poll, min(SLICE_SECONDS, deadline.left()))
            if served or deadline.left() <= 0:
                return served

    def flush(self, timeout: float = -1) -> int:
        """Wait until every record was reported, held ones included; return how many were not in time.

        Raises:
            KpsplitError: called inside a callback. Exception: what a callback raised first, after all ran.
        """
        self._check_entry()
        deadline = Deadline(FOREVER if timeout is None or timeout < 0 else timeout)
        raised: Exception | None = None
        left = 1
        while left:
            try:
                self._serve(super().flush, min(SLICE_SECONDS, deadline.left()))
            except Exception as error:  # noqa: BLE001 - a callback's; it goes back to the application below
                raised = raised or error
            left = len(self)
            if deadline.left() <= 0:
                break
            if left and not super().__len__():
                self._dispatcher.wake.wait(min(0.005, deadline.left()))
                self._dispatcher.wake.clear()
        if raised is not None:
            raise raised
        return left

    def _serve(self, call: Any, seconds: float) -> int:
        """Take reports for so long, unless another thread is at it; run queued callbacks before and after."""
        self._check_entry()
        dispatcher = self._dispatcher
        served = self._run_queued()
        if not dispatcher.poll_lock.acquire(blocking=seconds > 0, timeout=seconds if seconds > 0 else -1):
            return served + self._run_queued()
        try:
            served += int(self._guarded(call, seconds))
        finally:
            dispatcher.poll_lock.release()
        return served + self._run_queued()

    def _run_queued(self) -> int:
        """Run queued callbacks; the library's thread may go on taking reports meanwhile."""
        return int(self._guarded(self._dispatcher.run_callbacks)) if self._dispatcher.callbacks else 0

    def _guarded(self, call: Any, *arguments: Any) -> Any:
        """Call what may run callbacks of the application; calls back into it are refused meanwhile."""
        me = get_ident()
        self._in_callbacks.add(me)
        try:
            return call(*arguments)
        finally:
            self._in_callbacks.discard(me)

    def _check_entry(self) -> None:
        if self._dispatcher.forked and self._dispatcher.fatal is not None:
            raise self._dispatcher.fatal
        if get_ident() in self._in_callbacks:
            raise KpsplitError("poll() or flush() was called inside a callback", hint="return from it first")

    def __len__(self) -> int:
        """Return how many records and events wait to be reported, held ones included."""
        with self._dispatcher.lock:
            return super().__len__() + self._dispatcher.unresolved()

    def __bool__(self) -> bool:
        """Return True: an empty queue does not make a producer false."""
        return True

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Fail what is queued, held records included, as ``confluent_kafka.Producer.purge`` does."""
        if in_queue:
            with self._dispatcher.lock:
                self._dispatcher.purge()
        super().purge(in_queue, in_flight, blocking)

    # -- transactions ------------------------------------------------------------------------------

    def begin_transaction(self) -> None:
        """Begin a transaction, as ``confluent_kafka.Producer.begin_transaction`` does."""
        super().begin_transaction()
        with self._dispatcher.lock:
            self._dispatcher.transaction(True)
            self._strays_before = self._dispatcher.strays()

    def commit_transaction(self, timeout: float = -1) -> None:
        """Commit, after everything that a fence held was sent.

        Raises:
            KafkaException: with ``txn_requires_abort()`` if records of the transaction went astray: abort it
                and do it again.
        """
        deadline = Deadline(FOREVER if timeout is None or timeout < 0 else timeout)
        self._flush_held(deadline)
        with self._dispatcher.lock:
            astray = self._dispatcher.strays() - self._strays_before
        if astray:
            raise KafkaException(
                KafkaError(
                    KafkaError._STATE,
                    f"{astray} records of the transaction went astray; abort it and do it again",
                    retriable=True,
                    txn_requires_abort=True,
                )
            )
        left = -1 if timeout is None or timeout < 0 else deadline.left()
        self._guarded(super().commit_transaction, left)
        self._end_transaction()

    def abort_transaction(self, timeout: float = -1) -> None:
        """Abort the transaction; records of it that a fence held fail."""
        self._check_entry()
        with self._dispatcher.lock:
            if self._dispatcher.in_transaction:
                self._dispatcher.purge()
        self._guarded(super().abort_transaction, timeout)
        self._end_transaction(aborted=True)

    _strays_before = 0

    def _end_transaction(self, *, aborted: bool = False) -> None:
        with self._dispatcher.lock:
            self._dispatcher.transaction(False, aborted=aborted)

    def _flush_held(self, deadline: Deadline) -> None:
        while True:
            self._serve(super().flush, min(SLICE_SECONDS, deadline.left()))
            with self._dispatcher.lock:
                waiting = self._dispatcher.waiting()
            if not waiting and not super().__len__():
                return
            if deadline.left() <= 0:
                raise KafkaException(
                    KafkaError(KafkaError._TIMED_OUT, "records are still held by a fence", retriable=True)
                )
            self._dispatcher.wake.wait(0.005)

    # -- the end -----------------------------------------------------------------------------------

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Flush, publish the certificate of what was delivered, and end. True if nothing was left.

        ``timeout`` (seconds) bounds the flush.
        """
        if self._closed:
            return True
        if self._dispatcher.forked:
            return False
        try:
            left = self.flush(timeout)
        finally:
            if get_ident() not in self._in_callbacks:
                closed = self._end(timeout)
        return closed and not left

    def _end(self, timeout: float) -> bool:
        self._closed = True
        coordinator = self._coordinator
        if coordinator is not None:
            coordinator.stop(timeout)
            # The certificate is a help to verification, not a part of delivery.
            with suppress(KpsplitError, KafkaException):
                coordinator.certify(self._certificates(), Deadline(10.0))
        with self._dispatcher.lock:
            self._dispatcher.clear_routes()
        return bool(super().close())

    def __enter__(self) -> Self:
        """Return self; ``close`` is called at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _certificates(self) -> dict[str, Certificate]:
        with self._dispatcher.lock:
            return {
                str(f.state.parent): Certificate(
                    f.next_sequence,
                    {str(i): n for i, n in f.delivered().items()},
                    tuple(sorted(f.statistics.failed)),
                )
                for f in self._dispatcher.fences()
                if f.next_sequence
            }

    # -- statistics --------------------------------------------------------------------------------

    def layout_stats(self) -> LayoutStats:
        """Return what this producer knows about layouts, fences, held records and strays."""
        dispatcher = self._dispatcher
        coordinator = self._coordinator
        with dispatcher.lock:
            partitions = {
                str(f.state.parent): PartitionStats(
                    epoch=f.state.epoch,
                    segments=len(f.writers),
                    fences=f.statistics.fences,
                    next_sequence=f.next_sequence,
                    held=f.statistics.held,
                    waiting=f.waiting(),
                    pending=f.pending(),
                    strays=f.statistics.strays,
                    delivered=f.delivered(),
                    failed=len(f.statistics.failed),
                )
                for f in dispatcher.fences()
            }
            valid = dispatcher.lease_valid()
        pauses = tuple(coordinator.pauses_ms) if coordinator else ()
        error = coordinator.last_error if coordinator else None
        return LayoutStats(
            instance_name(dispatcher.instance), valid, partitions, pauses, str(error) if error else None
        )


def _weakly(producer: Producer, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a Producer that does not keep the Producer alive."""
    reference = weakref.ref(producer)

    def call(*arguments: Any) -> Any:
        alive = reference()
        if alive is None:
            raise ProducerGone
        return method(alive, *arguments)

    return call
