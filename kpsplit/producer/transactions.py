"""The application's transactions: begun, committed and aborted together with what fences hold of them."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from kpsplit.kafka.clock import Deadline
from kpsplit.kafka.error_map import error_of
from kpsplit.producer.dispatcher import Dispatcher
from kpsplit.producer.polling import SLICE_SECONDS, Polling
from kpsplit.producer.reentry import holds_lock

LOOK_SECONDS = 0.005
"""How often a commit looks whether a fence has let go of what it held."""


class Transactions:
    """Around librdkafka's calls. ``flush`` and ``queued`` are its flush() and len(), without what is held."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        polling: Polling,
        flush: Callable[[float], int],
        queued: Callable[[], int],
    ) -> None:
        self._dispatcher = dispatcher
        self._polling = polling
        self._flush = flush
        self._queued = queued
        self._lost_before = 0

    @holds_lock
    def begun(self) -> None:
        """Note that a transaction began."""
        with self._dispatcher.lock:
            self._dispatcher.transaction(True)
            self._lost_before = self._lost()

    def before_commit(self, deadline: Deadline) -> None:
        """Wait until everything that a fence held is sent and reported.

        Raises:
            KafkaException: ``retriable()`` if there was not enough time; ``txn_requires_abort()`` if records
                of the transaction went astray or failed.
        """
        self._flush_held(deadline)
        lost = self._lost_since()
        if lost:
            raise KafkaException(
                KafkaError(
                    KafkaError._STATE,
                    f"{lost} records of the transaction went astray or failed; abort it and do it again",
                    retriable=True,
                    txn_requires_abort=True,
                )
            )

    def before_abort(self) -> None:
        """Fail what a fence holds of the transaction.

        Raises:
            KpsplitError: called inside a callback.
        """
        self._polling.check_entry()
        self._purge_held()

    @holds_lock
    def _purge_held(self) -> None:
        with self._dispatcher.lock:
            if self._dispatcher.in_transaction:
                self._dispatcher.purge()

    def end(self, call: Callable[[float], object], timeout: float, *, aborted: bool = False) -> None:
        """Commit or abort by librdkafka's ``call``.

        Raises:
            KafkaException: librdkafka's. Behind a fatal one no fence waits for the transaction any more.
        """
        try:
            self._polling.guarded(call, timeout)
        except KafkaException as exception:
            error = error_of(exception)
            if error is not None and error.fatal():
                self.ended(aborted=True)
            raise
        self.ended(aborted=aborted)

    @holds_lock
    def ended(self, *, aborted: bool = False) -> None:
        """Note that the transaction ended: a fence that waited for it may be acknowledged."""
        with self._dispatcher.lock:
            self._dispatcher.transaction(False, aborted=aborted)

    @holds_lock
    def _lost_since(self) -> int:
        with self._dispatcher.lock:
            return self._lost() - self._lost_before

    @holds_lock
    def _waiting(self) -> int:
        with self._dispatcher.lock:
            return self._dispatcher.held.waiting() + self._dispatcher.pending()

    def _lost(self) -> int:
        """Return how many records so far a transaction must not be committed with."""
        return self._dispatcher.strays() + self._dispatcher.failures

    def _flush_held(self, deadline: Deadline) -> None:
        while True:
            self._polling.serve(self._flush, min(SLICE_SECONDS, deadline.left()))
            if not self._waiting() and not self._queued():
                return
            if deadline.left() <= 0:
                raise KafkaException(
                    KafkaError(KafkaError._TIMED_OUT, "records wait for a fence still", retriable=True)
                )
            self._dispatcher.wake.wait(min(LOOK_SECONDS, deadline.left()))
            self._dispatcher.wake.clear()
