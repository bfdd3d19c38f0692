"""What a Producer knows about its topics and records: the parts together, and what concerns all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import KafkaError

from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.producer.config import ProducerSettings
from kpsplit.producer.locks import Busy
from kpsplit.producer.messages import Send
from kpsplit.producer.pending import HeldRecords, kafka_error
from kpsplit.producer.reports import Reporter
from kpsplit.producer.sending import PassThroughSender, StampedSender
from kpsplit.producer.state import PASS_THROUGH, CallbackQueue, Context

log = logging.getLogger(__name__)

_NOT_FINAL_IN_TIME = KafkaError(
    KafkaError._MSG_TIMED_OUT,
    "not known to be final within the message timeout: it may have been written, and is not sent again",
)
_NOT_FINAL_AT_THE_END = KafkaError(
    KafkaError._PURGE_INFLIGHT,
    "not known to be final when the producer was closed: it may have been written",
)


class Dispatcher(Context):
    """Routes, holds, reports. ``send`` is librdkafka's produce(), by position."""

    def __init__(self, settings: ProducerSettings, instance: int, send: Send) -> None:
        super().__init__(settings, instance)
        self.callbacks = CallbackQueue(self)
        self.reporter = Reporter(self, self.callbacks)
        self.plain = PassThroughSender(self, send, self.callbacks)
        self.stamped = StampedSender(send, self.reporter)
        self.held = HeldRecords(self, self.stamped, self.plain, self.callbacks)

    # -- the lease and the transaction -------------------------------------------------------------

    def renew(self, until: float) -> None:
        """Extend the lease (``lock`` held) and look at everything pending again.

        Not to a time that is over: the process slept since the end of the control topic was asked for.
        """
        if self.ended or until <= monotonic():  # the library's thread was not quick enough to see that
            return
        self.lease_until = until
        for fence in self.fences():
            fence.suspend(False)
            self.reporter.tell(fence, fence.resolve(lease_valid=self.lease_valid()))
            self.refresh(fence)

    def lapse(self) -> None:
        """Hold everything until the lease is renewed (``lock`` held)."""
        self.lease_until = 0.0
        for topic in [t for t, r in self.routes.items() if r is PASS_THROUGH]:
            self.remove_route(topic)
        for fence in self.fences():
            fence.suspend(True)
            self.refresh(fence)

    def end(self) -> None:
        """Give up the lease for good (``lock`` held): nobody asks or waits for a producer that is closed."""
        self.ended = True
        self.lapse()

    def transaction(self, active: bool, *, aborted: bool = False) -> None:
        """Note the begin or end of the application's transaction (``lock`` held)."""
        self.in_transaction = active
        for fence in self.fences():
            fence.transaction(active, aborted=aborted)
            self.refresh(fence)

    # -- reports -----------------------------------------------------------------------------------

    def collect(self, poll: Callable[[float], int]) -> None:
        """Take librdkafka's reports in hand from the library's thread; callbacks are only queued.

        Does nothing while the application's thread polls: its reports are taken in hand there.
        """
        with suppress(Busy), self.poll_lock.within(0):
            try:
                self._collecting(True)
                poll(0)
            finally:
                self._collecting(False)

    def forget_unreported(self, queued: Callable[[], int]) -> None:
        """Wait for no report any more where librdkafka has no record: something was raised at its begin.

        ``queued``: librdkafka's len(); it counts a record until its report has returned.
        """
        with self.lock.first:
            lost = 0 if queued() else sum(f.unreported() for f in self.fences())
        if lost:
            log.warning("kpsplit: %d reports were cut short by an exception from outside", lost)

    def _collecting(self, collecting: bool) -> None:
        with self.lock.first:
            self.collecting = collecting
            for fence in self.fences():
                self.refresh(fence)

    # -- counts and ends ---------------------------------------------------------------------------

    def strays(self) -> int:
        """Return how many records went astray so far."""
        return sum(f.statistics.strays for f in self.fences())

    def pending(self) -> int:
        """Return how many records the broker acknowledged that are not final yet."""
        return sum(f.pending() for f in self.fences())

    def unresolved(self) -> int:
        """Return how many records the application has no report for, apart from those inside librdkafka."""
        return self.held.waiting() + self.pending() + len(self.callbacks)

    def expire(self, now: float) -> None:
        """Fail records that have waited longer than the message timeout (``lock`` held).

        Those that wait to be sent, and those that the broker acknowledged and that are not final since: they
        may have been written, and are never sent again.
        """
        self.held.expire(now)
        oldest = now - self.settings.message_timeout
        for fence in self.fences():
            if fence.pending():
                late = fence.give_up_pending(lambda record: record.payload.accepted_at > oldest)
                self.reporter.tell(fence, late, _NOT_FINAL_IN_TIME)

    def purge(self) -> None:
        """Fail everything that waits (``lock`` held)."""
        self.held.fail_all(KafkaError(KafkaError._PURGE_QUEUE))

    def fail_rest(self) -> None:
        """Fail everything that waits or is not final (``lock`` held): the producer is closed."""
        self.purge()
        for fence in self.fences():
            self.reporter.tell(fence, fence.give_up_pending(), _NOT_FINAL_AT_THE_END)

    def fail_closed(self, error: KpsplitError) -> None:
        """Fail everything that is not final, and refuse everything from now on (``lock`` held)."""
        self.lapse()
        self.fatal = error
        self.held.fail_all(kafka_error(error))
        for fence in self.fences():
            self.reporter.tell(fence, fence.give_up_pending())
