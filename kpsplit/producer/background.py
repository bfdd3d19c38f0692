"""The library's own thread in a Producer: it follows the control topic and does its tasks in turn.

It is the only writer of the registration and the only one that applies control states to partitions. It never
runs a callback of the application, and never waits for the application. Its tasks: ``lease``, ``topic_task``,
``fence_task``. It knows the Producer by weak references only: one that is dropped is collected, thread and
all.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException

from kpsplit.clock import monotonic
from kpsplit.errors import AuthorizationError, FutureVersionError, KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.producer.fence_task import FenceTask, only_holds
from kpsplit.producer.lease import ControlFeed, LeaseTask
from kpsplit.producer.lookup import control_topic_exists
from kpsplit.producer.pending import HeldRecords
from kpsplit.producer.sending import PassThroughSender
from kpsplit.producer.state import ProducerState
from kpsplit.producer.topic_task import TopicTask, not_allowed
from kpsplit.splitter.records.control import LOOK_LEASE_MS


class ProducerGone(Exception):  # noqa: N818 - no error: the application dropped its Producer
    """The Producer was dropped without close(); its thread ends."""


def weakly(producer: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a Producer by a weak reference; it raises ProducerGone when that is gone."""
    reference = weakref.ref(producer)

    def call(*arguments: Any) -> Any:
        alive = reference()
        if alive is None:
            raise ProducerGone
        return method(alive, *arguments)

    return call


log = logging.getLogger(__name__)

IDLE_SECONDS = 0.1
BUSY_SECONDS = 0.002
HOLDING_SECONDS = 0.02
"""While records are only held, only the control topic can end that, and it wakes the thread at once."""
ERROR_PAUSE_SECONDS = 0.25


class BackgroundThread(threading.Thread):
    """See the module."""

    def __init__(
        self, connection: Connection, producer: ProducerState, held: HeldRecords, plain: PassThroughSender
    ) -> None:
        super().__init__(name="kpsplit-background", daemon=True)
        self._producer = producer
        self._held = held
        self._stopping = threading.Event()
        self._feed = ControlFeed(connection, producer)
        self.registration = self._feed.registration
        """Others may write it after ``stop``."""
        self._lease = LeaseTask(self._feed, held)
        self._fences = FenceTask(self._feed, held, self._stopping.is_set)
        self._topics = TopicTask(self._feed, held, plain, self._fences.watch)
        self._failures: dict[str, float] = {}
        self.pauses_ms = self._fences.pauses_ms
        self.last_error: str | None = None
        """Its text, here and in the log: the error itself would keep the frames that it passed."""

    # -- the thread --------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until stopped; errors are logged and waited out, a newer format is not."""
        try:
            while not self._stopping.is_set():
                try:
                    self._turn()
                except (FutureVersionError, ProducerGone):
                    raise
                except Exception:
                    if not self._stopping.is_set():  # else the client was closed under it
                        log.exception("kpsplit: internal error")
                    self._stopping.wait(ERROR_PAUSE_SECONDS)
        except FutureVersionError as error:
            self._fail_closed(error)
        except ProducerGone:
            log.debug("kpsplit: a Producer was dropped without close()")
        self._feed.close()

    def stop(self, timeout: float | None) -> None:
        """End the thread; wait that long for it."""
        self._stopping.set()
        self._producer.wake.set()
        if self.is_alive():
            self.join(timeout)

    def _turn(self) -> None:
        self._producer.rdkafka.queued()  # ends the thread when the Producer is gone
        if not self._attempt(self._follow):
            self._stopping.wait(BUSY_SECONDS if self._busy() else IDLE_SECONDS)
        lease, topics, fences = self._lease, self._topics, self._fences
        # First: what follows must not act on a lease that ran out while the thread slept.
        self._attempt(lease.watch_time)
        if self._feed.tail is not None:
            self._attempt(topics.answer)
            self._attempt(lease.renew)
            self._attempt(topics.route_new_topics, by_topic=True)
            self._attempt(topics.refresh_partition_counts, by_topic=True)
        self._attempt(fences.take_reports)
        self._attempt(fences.acknowledge)
        self._attempt(fences.release)
        self._attempt(fences.report_pauses)
        self._attempt(fences.look_up)
        if not self._failures:
            self.last_error = None

    # -- errors ------------------------------------------------------------------------------------

    def _attempt(self, task: Callable[[], None], *, by_topic: bool = False) -> bool:
        """Do one task; return whether it was done.

        One that failed is logged, and rests for a moment; the others are done all the same.
        ``by_topic``: a missing right concerns one topic only, and the task itself fails that topic's records.
        """
        name = task.__name__
        if monotonic() < self._failures.get(name, 0.0):
            return False
        try:
            task()
        except (FutureVersionError, ProducerGone):
            raise
        except KpsplitError as error:
            if isinstance(error, AuthorizationError) and not by_topic:
                self._refuse_new_topics(error)
            return self._note(name, error)
        except KafkaException as exception:
            translated = translate(error_of(exception), "follow the control topic")
            if isinstance(translated, AuthorizationError) and not by_topic:
                self._refuse_new_topics(translated)
            return self._note(name, translated)
        except Exception as error:
            if not self._stopping.is_set():  # else the client was closed under it
                log.exception("kpsplit: internal error in %s", name)
            return self._note(name, KpsplitError(f"internal error: {type(error).__name__}: {error}"))
        self._failures.pop(name, None)
        return True

    def _note(self, task: str, error: KpsplitError) -> bool:
        self._failures[task] = monotonic() + ERROR_PAUSE_SECONDS
        text = str(error)
        if self.last_error != text:
            log.warning("kpsplit: %s", text)
        self.last_error = text
        return False

    def _refuse_new_topics(self, error: AuthorizationError) -> None:
        """Fail the records of all topics that wait to be looked up: without that right none will be."""
        with self._producer.lock.first:
            for topic in list(self._producer.unrouted):
                self._held.fail_unrouted(topic, not_allowed(error))

    def _fail_closed(self, error: FutureVersionError) -> None:
        """A newer kpsplit writes the control topic: nothing may be sent by what is known here."""
        log.error("kpsplit: %s", error)
        self.last_error = str(error)
        with self._producer.lock.first:
            self._held.fail_closed(error)

    # -- the control topic -------------------------------------------------------------------------

    def _follow(self) -> None:
        """Read what is new in the control topic, and apply it."""
        if self._feed.tail is None and not self._find_control_topic():
            return
        tail = self._feed.following()
        try:
            tail.poll(self._patience())
        finally:  # also after an error: what was read before it is in the view, and holds
            self._adopt(tail)

    def _adopt(self, tail: ControlTail) -> None:
        """Apply what is new; without that no lease is renewed."""
        progress = tail.progress()
        if progress != self._lease.adopted:
            with self._producer.lock.first:
                self._fences.adopt(tail.view)
                self._topics.adopt(tail.view)
            self._lease.adopted = progress

    def _find_control_topic(self) -> bool:
        """Look for the control topic; while there is none, nothing is enrolled and the look is the lease."""
        asked = monotonic()
        if control_topic_exists(self._feed.admin()):
            self._feed.tail = ControlTail(self._feed.connection)
            return True
        lease = LOOK_LEASE_MS / 1000
        with self._producer.lock.first:
            self._producer.renew(asked + lease)
            self._topics.none_enrolled()
        self._wait_for_work(lease / 3)
        return False

    def _wait_for_work(self, seconds: float) -> None:
        end = monotonic() + seconds
        while monotonic() < end and not self._stopping.is_set() and not self._producer.unrouted:
            self._producer.wake.wait(IDLE_SECONDS)
            self._producer.wake.clear()

    # -- how long to wait --------------------------------------------------------------------------

    def _busy(self) -> bool:
        producer = self._producer
        waiting = bool(producer.unrouted) or bool(self._topics.transitions)
        return waiting or not producer.lease_valid() or bool(self._fences.busy())

    def _patience(self) -> float:
        """Return how long the control topic may be waited for before the next look at everything else."""
        if not self._busy():
            return IDLE_SECONDS
        busy = self._fences.busy()
        holding = self._producer.lease_valid() and bool(busy) and all(only_holds(f) for f in busy)
        return HOLDING_SECONDS if holding and not self._producer.unrouted else BUSY_SECONDS
