"""The drop-in Producer: confluent_kafka's surface over the parts of this package.

A Producer that is still open at the interpreter's exit publishes that it closed, so that no operator waits
for it. That is all: it sends nothing, reports nothing and runs no callback, as a plain producer that is
dropped. The exit handler is registered when kpsplit is imported, so it runs after those that the application
registers later.

A child after ``fork`` has no librdkafka threads. Its sends would silently go nowhere, so they fail instead.
"""

from __future__ import annotations

import atexit
import os
import random
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ClusterMetadata

from kpsplit.clock import Deadline
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.producer.background import BackgroundThread, weakly
from kpsplit.producer.config import split_config
from kpsplit.producer.locks import holds_lock, refuse_reentry
from kpsplit.producer.lookup import partitions_known
from kpsplit.producer.messages import Callback, Headers, PlainProducer
from kpsplit.producer.pending import HeldRecords, kafka_error
from kpsplit.producer.polling import SLICE_SECONDS, Polling, Transactions, deadline_of
from kpsplit.producer.sending import PassThroughSender, StampedSender, make_produce
from kpsplit.producer.state import LayoutStats, ProducerState, certificates, layout_stats


def noting(raised: list[Exception], call: Callable[..., Any], *arguments: Any) -> Any:
    """Call what may run callbacks; what they raise is kept until everything is done."""
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001 - it goes back to the application at the end
        raised.append(error)
        return None


EXIT_SECONDS = 3.0
"""How long the exit may wait for the brokers, for all Producers together."""
CLOSE_SECONDS = 60.0
ABANDON_SECONDS = 1.0
CERTIFY_SECONDS = 10.0
TIME_OUTS_SECONDS = 5.0
"""How much later than its time librdkafka may tell that a record timed out (it looks once a second)."""
LOOK_SECONDS = 0.005
"""How often flush() looks whether a fence has let go of what it held."""


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
        plain = PlainProducer(
            weakly(self, confluent_kafka.Producer.produce),
            weakly(self, confluent_kafka.Producer.poll),
            weakly(self, confluent_kafka.Producer.__len__),
            weakly(self, partitions_known),
        )
        state = ProducerState(settings, random.SystemRandom().getrandbits(64), plain)
        for name in ("error_cb", "throttle_cb", "stats_cb"):
            if callable(rdkafka.get(name)):
                rdkafka[name] = state.callbacks.guarded(rdkafka[name])
        extra = {"logger": kwargs["logger"]} if "logger" in kwargs else {}
        super().__init__(rdkafka, *args, **extra)
        self._state = state
        self._connection = Connection.of_application(rdkafka)
        self._background: BackgroundThread | None = None
        stamped = StampedSender(state)
        self._plain = PassThroughSender(state)
        self._held = HeldRecords(state, stamped, self._plain, weakly(self, Producer._start))
        self._polling = Polling(state)
        self._transactions = Transactions(state, self._polling, self._held, super().flush)
        self._produce = make_produce(state, super().produce, stamped, self._plain, self._held.produce)
        if type(self).produce is Producer.produce:
            self.__dict__["produce"] = self._produce  # one call less per record
        if type(self).poll is Producer.poll:
            self.__dict__["poll"] = self._polling.at_once(super().poll, self.poll)
        _producers.add(self)

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

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: Callback | None = None,
        on_delivery: Callback | None = None,
    ) -> int:
        """Send a list of records, as ``confluent_kafka.Producer.produce_batch`` does; headers are honoured.

        Returns how many were accepted; the others have an ``_error``. As there, no serialiser is called.
        """
        callback = on_delivery or callback
        if not isinstance(messages, list):
            raise TypeError("messages must be a list")
        accepted = 0
        for message in messages:
            if not isinstance(message, dict):
                raise TypeError("each message must be a dict")
            try:
                self._produce(
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

    def _start(self) -> None:
        if self._background is None:
            self._background = BackgroundThread(self._connection, self._state, self._held, self._plain)
        if self._background.ident is None:  # also after a start that was interrupted, or failed
            self._background.start()

    # -- polling -----------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> int:
        """Serve delivery reports and other events, as ``confluent_kafka.Producer.poll`` does.

        Raises:
            KpsplitError: called inside a callback. Exception: what a callback raised.
        """
        deadline = deadline_of(timeout)
        while True:
            served = self._polling.serve(super().poll, min(SLICE_SECONDS, deadline.left()))
            if served or deadline.left() <= 0:
                return served

    def flush(self, timeout: float = -1) -> int:
        """Wait until every record was reported, held ones included; return how many were not in time.

        Raises:
            KpsplitError: called inside a callback. Exception: what a callback raised first, after all ran.
        """
        self._polling.check_entry()
        deadline = deadline_of(timeout)
        raised: Exception | None = None
        left = 1
        while left:
            try:
                self._polling.serve(super().flush, min(SLICE_SECONDS, deadline.left()))
            except Exception as error:  # noqa: BLE001 - a callback's; it goes back to the application below
                raised = raised or error
            left = len(self)
            if deadline.left() <= 0:
                break
            if left and not super().__len__():
                self._state.wake.wait(min(LOOK_SECONDS, deadline.left()))
                self._state.wake.clear()
        if raised is not None:
            raise raised
        return left

    @holds_lock
    def __len__(self) -> int:
        """Return how many records and events wait to be reported, held ones included."""
        refuse_reentry(self._state.lock)
        with self._state.lock:
            return super().__len__() + self._state.unresolved()

    def __bool__(self) -> bool:
        return True

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Fail what is queued, held records included, as ``confluent_kafka.Producer.purge`` does."""
        self._polling.check_free()
        if in_queue:
            self._state.locked(self._held.purge)
        super().purge(in_queue, in_flight, blocking)

    def list_topics(self, *args: Any, **kwargs: Any) -> ClusterMetadata:
        """Return metadata of the cluster, as ``confluent_kafka.Producer.list_topics`` does."""
        self._polling.check_process()
        found: ClusterMetadata = super().list_topics(*args, **kwargs)
        return found

    # -- transactions ------------------------------------------------------------------------------

    def init_transactions(self, timeout: float = -1) -> None:
        """Take the transactional id, as ``confluent_kafka.Producer.init_transactions`` does."""
        self._polling.check_free()
        super().init_transactions(timeout)

    def begin_transaction(self) -> None:
        """Begin a transaction, as ``confluent_kafka.Producer.begin_transaction`` does."""
        self._polling.check_free()
        super().begin_transaction()
        self._transactions.begun()

    def send_offsets_to_transaction(self, *args: Any, **kwargs: Any) -> None:
        """Add a group's offsets, as ``confluent_kafka.Producer.send_offsets_to_transaction`` does."""
        self._polling.check_process()
        super().send_offsets_to_transaction(*args, **kwargs)

    def commit_transaction(self, timeout: float = -1) -> None:
        """Commit, after everything that a fence held was sent.

        Raises:
            KafkaException: with ``txn_requires_abort()`` if records of the transaction went astray or failed:
                abort it and do it again.
        """
        deadline = deadline_of(timeout)
        self._transactions.before_commit(deadline)
        left = -1 if timeout is None or timeout < 0 else deadline.left()
        self._transactions.end(super().commit_transaction, left)

    def abort_transaction(self, timeout: float = -1) -> None:
        """Abort the transaction; records of it that a fence held fail."""
        self._transactions.before_abort()
        self._transactions.end(super().abort_transaction, timeout, aborted=True)

    # -- the cluster -------------------------------------------------------------------------------

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in with these from now on, with every client of this producer; connections that are open stay.

        The producer has more clients than one (they follow the control topic, register, roll back), and makes
        others when it needs them.

        Raises:
            TypeError, ValueError: they are not text that can be sent; nothing is changed.
            RuntimeError: it is closed.
        """
        self._polling.check_process()
        if not self._state.accepting:
            raise RuntimeError("Producer closed")
        self._connection.set_sasl_credentials(username, password)
        super().set_sasl_credentials(username, password)

    # -- the end -----------------------------------------------------------------------------------

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Flush, publish the certificate of what was delivered, and end. True if nothing was left.

        ``timeout`` (seconds) bounds the flush. Every record is reported before this returns: what waits for a
        fence then fails; what is inside librdkafka is waited for, up to its ``message.timeout.ms``.

        Raises:
            KpsplitError: called inside a callback, or by a handler in the middle of another call; nothing
                was done. Exception: what a callback raised, after all is done.
        """
        if not self._state.accepting:
            return True
        if self._state.forked:
            return False
        self._polling.check_entry()
        try:
            left = self.flush(timeout)
        finally:
            closed = self._end(timeout)
        return closed and not left

    def abandon(self) -> None:
        """Let go without waiting for records or brokers, as if the process had died; from any thread.

        For a producer whose call into the client library does not return: it answers no fence any more, so
        that operators go on without it once its lease is over.

        Raises:
            KpsplitError: called by a signal handler in the middle of another call; nothing was done.
        """
        refuse_reentry(self._state.lock)
        self._state.locked(self._state.accept_no_more)
        self._retire(ABANDON_SECONDS)
        self._state.locked(self._state.clear_routes)

    def _leave(self, deadline: Deadline) -> None:
        if not self._state.accepting or self._state.forked or self._background is None:
            return
        self._state.locked(self._state.accept_no_more)
        background = self._retire(min(ABANDON_SECONDS, deadline.left()))
        self._certify(background, deadline)

    def _certify(self, background: BackgroundThread | None, deadline: Deadline) -> None:
        """Publish what was delivered, and that there is nobody to wait for any more.

        Not while the library's thread is in a write: that would open the registration again. Its lease ends.
        """
        if background is not None and not background.is_alive():
            # The certificate is a help to verification, not a part of delivery.
            with suppress(KpsplitError, KafkaException):
                background.registration.certify(certificates(self._state), deadline)

    def _retire(self, timeout: float | None) -> BackgroundThread | None:
        background = self._background
        if background is not None:
            background.stop(timeout)
        self._state.locked(self._state.end)
        return background

    def _end(self, timeout: float) -> bool:
        state, raised = self._state, list[Exception]()
        state.locked(state.accept_no_more)
        last = Deadline(state.settings.message_timeout + TIME_OUTS_SECONDS)
        try:
            # With the lease still on, so that what is acknowledged now is delivered.
            while super().__len__() and last.left() > 0:
                noting(raised, self._polling.serve, super().flush, SLICE_SECONDS)
        finally:
            background = self._retire(None if timeout is None else max(timeout, ABANDON_SECONDS))
        state.locked(self._held.fail_rest)
        closed = noting(raised, self._polling.guarded, super().close)
        state.locked(self._held.fail_rest)  # what was reported meanwhile
        noting(raised, self._polling.guarded, state.callbacks.run)
        self._certify(background, Deadline(CERTIFY_SECONDS))
        state.locked(state.clear_routes)
        if raised:
            raise raised[0]
        return bool(closed)

    def __enter__(self) -> Self:
        """Return self; ``close`` is called at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def layout_stats(self) -> LayoutStats:
        """Return what this producer knows about layouts, fences, held records and strays."""
        background = self._background
        if background is None:
            return layout_stats(self._state)
        return layout_stats(self._state, background.pauses_ms, background.last_error)


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _leave_all() -> None:
    deadline = Deadline(EXIT_SECONDS)
    for producer in list(_producers):
        with suppress(Exception):  # nothing may keep the process from its end
            producer._leave(deadline)


def _after_fork_in_child() -> None:
    for producer in list(_producers):
        producer._state.refuse_in_child()


atexit.register(_leave_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


K = TypeVar("K")
V = TypeVar("V")


class SerializingProducer(  # type: ignore[misc]
    confluent_kafka.SerializingProducer, Producer, Generic[K, V]
):
    """Drop-in for ``confluent_kafka.SerializingProducer``, with the same ``key.serializer`` and the like."""

    def produce(  # type: ignore[override]
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        partition: int = -1,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Serialise key and value, then send, as ``confluent_kafka.SerializingProducer.produce`` does."""
        super().produce(
            topic,
            key=key,
            value=value,
            partition=partition,
            on_delivery=on_delivery,
            timestamp=timestamp,
            headers=headers,
        )

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Close as ``Producer.close`` does, then the serialisers that were built here."""
        closed = Producer.close(self, timeout)
        super().close()  # finds the Producer closed already
        return closed
