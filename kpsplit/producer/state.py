"""What the parts of one Producer share: routes, callbacks that wait, and the locks that guard everything.

Lock order: ``poll_lock`` before ``lock``. ``lock`` guards routes, send states and what is held; ``poll_lock``
makes one thread at a time take librdkafka's reports, so that a segment's ``done`` has a single writer.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from confluent_kafka import KafkaError, murmur2

from kpsplit.clock import monotonic
from kpsplit.errors import ConfigurationError, KpsplitError, UsageError
from kpsplit.kafka.logical_message import is_identity
from kpsplit.producer.config import ProducerSettings
from kpsplit.producer.finality import Final, SegmentWriter
from kpsplit.producer.locks import Busy, QuickLock
from kpsplit.producer.messages import (
    Callback,
    PendingRecord,
    Report,
    Send,
    Unrouted,
    logical_message,
    lost_message,
)
from kpsplit.producer.send_state import PartitionSendState, Tally
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.data import STAMP_HEADER, prefix

log = logging.getLogger(__name__)

_GIVEN_UP = KafkaError(KafkaError._PURGE_INFLIGHT)
"""The error of a record that was acknowledged, and that the producer gave up before it was final."""
STICKY_SECONDS = 0.01
"""Records without a key stay on one partition for so long, so that they share batches."""

_PREFIX_AND_NUMBER = Struct(">21sQ").pack
stamp_header = STAMP_HEADER
complete_stamp = _PREFIX_AND_NUMBER


class RouteWriter(SegmentWriter[PendingRecord]):
    """A segment's writer with what the fast path needs at hand.

    ``good_until`` (monotonic seconds): acknowledgements taken in hand before it are final at once; set by the
    library's thread, 0 while the segment is fenced or closed. ``reports`` maps the application's
    callbacks to the functions that, bound to a record, librdkafka calls for them.
    """

    __slots__ = ("_stamped", "good_until", "identity", "partition", "reports", "stamp_prefix", "topic")

    def __init__(self, segment: Segment, parent: PhysicalPartition) -> None:
        super().__init__(segment)
        self.topic = segment.source.topic
        self.partition = segment.source.partition
        self.identity = is_identity(segment, parent)
        self.stamp_prefix = b""
        self._stamped: tuple[int, int] | None = None
        self.good_until = 0.0
        self.reports: dict[Callback | None, Report] = {}

    def stamp_as(self, state: PartitionState, instance: int) -> None:
        """Stamp later records with the epoch of a view, and with its name for this physical partition."""
        stamped = (state.epoch, state.home(self.segment.source))
        if stamped != self._stamped:
            self._stamped, self.stamp_prefix = stamped, prefix(stamped[0], instance, stamped[1])


SendState = PartitionSendState[PendingRecord, RouteWriter]


class PassThrough:
    """The route of a topic that is not enrolled."""


PASS_THROUGH = PassThrough()


class TopicRoute:
    """An enrolled topic: one fence per logical partition, and how a key chooses among them."""

    def __init__(self, enrolment: Enrolment, send_states: list[SendState]) -> None:
        self.enrolment = enrolment
        self.send_states = send_states
        self.count = len(send_states)
        self.by_crc = enrolment.partitioner is Partitioner.CONSISTENT_RANDOM
        self._sticky = 0
        self._sticky_until = 0.0

    def extend(self, send_states: list[SendState]) -> None:
        """Take partitions that were added to the topic."""
        self.send_states.extend(send_states)
        self.count = len(self.send_states)

    def choose(self, key: bytes | None, partition: int) -> SendState:
        """Return the send state of a record's logical partition, as the application's own partitioner would.

        Raises:
            UsageError: the partition does not exist, or must be named and was not.
        """
        if partition >= 0:
            if partition >= self.count:
                raise UsageError(
                    f"{self.enrolment.topic} has {self.count} partitions, no partition {partition}"
                )
            return self.send_states[partition]
        kind = self.enrolment.partitioner
        if kind is Partitioner.EXPLICIT:
            raise UsageError(
                f"{self.enrolment.topic} is enrolled as explicit: name the partition of each record"
            )
        if kind is Partitioner.CONSISTENT_RANDOM and key:
            return self.send_states[crc32(key) % self.count]
        if kind is Partitioner.MURMUR2_RANDOM and key is not None:
            return self.send_states[murmur2(key, self.count)]
        return self.send_states[self._any_partition()]

    def _any_partition(self) -> int:
        now = monotonic()
        if now >= self._sticky_until:
            self._sticky = random.randrange(self.count)
            self._sticky_until = now + STICKY_SECONDS
        return self._sticky


def check_partitioner(enrolment: Enrolment, configured: str) -> None:
    """Refuse a producer that would choose partitions otherwise than the topic's other writers.

    Raises:
        ConfigurationError: the two differ; the message names both.
    """
    if enrolment.partitioner in (Partitioner.EXPLICIT, configured):
        return
    raise ConfigurationError(
        f"topic {enrolment.topic} is enrolled with partitioner={enrolment.partitioner}, "
        f"this producer has partitioner={configured}",
        hint=f"set partitioner={enrolment.partitioner}",
    )


class CallbackQueue:
    """Callbacks run only in the application's poll() and flush(), with ``lock`` released."""

    def __init__(self, state: ProducerState) -> None:
        self._state = state
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def __len__(self) -> int:
        """Return how many callbacks wait."""
        return len(self._queue)

    def put(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Keep a callback until ``run``."""
        self._queue.append((callback, arguments))

    def clear(self) -> None:
        """Forget all callbacks."""
        self._queue.clear()

    def guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Return a callback that is kept when the library's thread happens to poll."""

        def call(*arguments: Any) -> None:
            if self._state.collecting:
                self.put(callback, *arguments)
            else:
                callback(*arguments)

        return call

    def run(self) -> int:
        """Run what is kept, in the application's thread; return how many.

        Raises:
            Exception: what a callback raised first, after all of them ran.
        """
        count = 0
        raised: Exception | None = None
        try:
            for callback, arguments in iter(self._queue.popleft, None):  # no signal handler comes in between
                count += 1
                try:
                    callback(*arguments)
                except Exception as error:  # noqa: BLE001 - whatever the application raises goes back to it
                    raised = raised or error
        except IndexError:  # that was the last one, or another thread was quicker
            pass
        if raised is not None:
            raise raised
        return count


class PlainProducer(NamedTuple):
    """Calls of the application's plain producer, by a weak reference: ``send`` is its produce(), by position.

    ``queued`` is its len(). ``learn`` has it look at a topic; it returns how many partitions it knows then.
    """

    send: Send
    poll: Callable[[float], int]
    queued: Callable[[], int]
    learn: Callable[[str], int]


class ProducerState:
    """See the module.

    ``instance``: the number in this producer's stamps; ``rdkafka``: the application's plain producer.
    ``wake``: set when the library's thread has work. ``routes``: how each topic is treated; ``fast_routes``:
    the send states of those that the fast path knows, and ``fast_plain``: the topics that it gives to
    librdkafka as they are; ``refused``: topics that are not written to, and why. ``unrouted``: records of
    topics that are not looked up yet; ``tally``: how many records wait there and in the send states;
    ``failures``: how many failed, save those of aborted transactions. ``collecting``: the library's thread
    takes reports in hand now. ``fatal``: why nothing will ever be sent again; ``forked``: that is because
    this is a child process. ``ended``: there will be no lease any more. ``accepting``: records are taken; not
    once the producer is being closed.
    """

    def __init__(self, settings: ProducerSettings, instance: int, rdkafka: PlainProducer) -> None:
        self.settings = settings
        self.instance = instance
        self.rdkafka = rdkafka
        self.callbacks = CallbackQueue(self)
        self.lock = QuickLock()
        self.poll_lock = QuickLock()
        self.wake = threading.Event()
        self.routes: dict[str, TopicRoute | PassThrough] = {}
        self.fast_routes: dict[str, list[SendState]] = {}
        self.fast_plain: set[str] = set()
        self.unrouted: dict[str, deque[Unrouted]] = {}
        self.tally = Tally()
        self.failures = 0
        self.refused: dict[str, KpsplitError] = {}
        self.lease_until = 0.0
        self.ended = False
        self.accepting = True
        self.in_transaction = False
        self.collecting = False
        self.fatal: KpsplitError | None = None
        self.forked = False

    def lease_valid(self) -> bool:
        """Return whether the view of the control topic is still good."""
        return monotonic() < self.lease_until

    def add_route(self, topic: str, route: TopicRoute) -> None:
        """Route an enrolled topic from now on (``lock`` held)."""
        self.routes[topic] = route
        if route.by_crc and self.accepting:
            self.fast_routes[topic] = route.send_states

    def accept_no_more(self) -> None:
        """Refuse every record from now on: the producer is closed (``lock`` held)."""
        self.accepting = False
        self.fast_routes.clear()
        self.fast_plain.clear()

    def remove_route(self, topic: str) -> None:
        """Forget a topic's route (``lock`` held)."""
        route = self.routes.pop(topic, None)
        self.fast_routes.pop(topic, None)
        self.fast_plain.discard(topic)
        if isinstance(route, TopicRoute):
            for send_state in route.send_states:
                send_state.suspend(True)  # the fast path may have found it a moment ago
                send_state.backlog.leave()

    def clear_routes(self) -> None:
        """Forget all routes (``lock`` held)."""
        for topic in list(self.routes):
            self.remove_route(topic)

    def send_states(self) -> list[SendState]:
        """Return the fences of all enrolled topics."""
        return [
            f for route in self.routes.values() if isinstance(route, TopicRoute) for f in route.send_states
        ]

    def refresh(self, send_state: SendState) -> None:
        """Tell the fast path of a partition what its fence says (``lock`` held)."""
        for writer in send_state.closing:
            writer.good_until = 0.0
        for writer in send_state.writers:
            # 0 while this thread collects: callbacks may run in the application's thread only.
            writer.good_until = 0.0 if writer.fenced or self.collecting else self.lease_until
            writer.stamp_as(send_state.state, self.instance)

    # -- the lease and the transaction -------------------------------------------------------------

    def renew(self, until: float) -> None:
        """Extend the lease (``lock`` held) and look at everything pending again.

        Not to a time that is over: the process slept since the end of the control topic was asked for.
        """
        if self.ended or until <= monotonic():  # the library's thread was not quick enough to see that
            return
        self.lease_until = until
        for send_state in self.send_states():
            send_state.suspend(False)
            self.report(send_state, send_state.resolve(lease_valid=self.lease_valid()))
            self.refresh(send_state)

    def lapse(self) -> None:
        """Hold everything until the lease is renewed (``lock`` held)."""
        self.lease_until = 0.0
        # Without a lease the view may be old: a topic that passed through may be enrolled by now.
        for topic in [t for t, r in self.routes.items() if r is PASS_THROUGH]:
            self.remove_route(topic)
        for send_state in self.send_states():
            send_state.suspend(True)
            self.refresh(send_state)

    def end(self) -> None:
        """Give up the lease for good (``lock`` held): operators do not wait for a closed producer."""
        self.ended = True
        self.lapse()

    def transaction(self, active: bool, *, aborted: bool = False) -> None:
        """Note the begin or end of the application's transaction (``lock`` held)."""
        self.in_transaction = active
        for send_state in self.send_states():
            send_state.transaction(active, aborted=aborted)
            self.refresh(send_state)

    # -- reports -----------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take librdkafka's reports in hand from the library's thread; callbacks are only queued.

        Does nothing while the application's thread polls: its reports are taken in hand there.
        """
        with suppress(Busy), self.poll_lock.within(0):
            try:
                self._collecting(True)
                self.rdkafka.poll(0)
            finally:
                self._collecting(False)

    def forget_unreported(self) -> None:
        """Wait for no report any more where librdkafka has no record: something was raised at its begin.

        librdkafka's len() counts a record until its report has returned.
        """
        with self.lock.first:
            lost = 0 if self.rdkafka.queued() else sum(f.unreported() for f in self.send_states())
        if lost:
            log.warning("kpsplit: %d reports were cut short by an exception from outside", lost)

    def _collecting(self, collecting: bool) -> None:
        with self.lock.first:
            self.collecting = collecting
            for send_state in self.send_states():
                self.refresh(send_state)

    def report(self, send_state: SendState, finals: list[Final[PendingRecord]], gave_up: Any = None) -> None:
        """Queue the callbacks of records that became final (``lock`` held).

        ``gave_up``: why those of them that failed did, whatever the broker had said before.
        """
        for final in finals:
            content, error = final.record.payload, None
            if final.failed:
                self.failures += not send_state.transactions.abandoned(final.record.sequence)
                error = gave_up or content.error or _GIVEN_UP
            if content.callback is None or (self.settings.only_errors and error is None):
                continue
            self.callbacks.put(content.callback, error, self._message(send_state, final, error))

    def _message(self, send_state: SendState, final: Final[PendingRecord], error: Any) -> Any:
        content, parent = final.record.payload, send_state.state.parent
        if error is content.error or not final.failed:
            return logical_message(content.message, final.segment, parent, final.offset)
        return lost_message(content.message, parent, final.segment.source, error)

    # -- counts ---------------------------------------------------------------------------

    def strays(self) -> int:
        """Return how many records went astray so far."""
        return sum(f.statistics.strays for f in self.send_states())

    def pending(self) -> int:
        """Return how many records the broker acknowledged that are not final yet."""
        return sum(f.pending() for f in self.send_states())

    def unresolved(self) -> int:
        """Return how many records the application has no report for, apart from those inside librdkafka."""
        return self.tally.count + self.pending() + len(self.callbacks)
