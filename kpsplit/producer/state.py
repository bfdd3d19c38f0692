"""What the parts of one Producer share: routes, callbacks that wait, and the locks that guard everything.

And what it reports about its records: statistics while it runs, certificates at its end.

Lock order: ``poll_lock`` before ``lock``. ``lock`` guards routes, send states and what is held; ``poll_lock``
makes one thread at a time take librdkafka's reports, so that a segment's ``done`` has a single writer.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, TypeVar
from zlib import crc32

from confluent_kafka import KafkaError, murmur2

from kpsplit.clock import monotonic
from kpsplit.errors import KpsplitError, UsageError
from kpsplit.kafka.logical_message import is_identity
from kpsplit.producer.config import ProducerSettings
from kpsplit.producer.finality import Final, SegmentWriter
from kpsplit.producer.locks import Busy, QuickLock, holds_lock, refuse_reentry
from kpsplit.producer.messages import PendingRecord, PlainProducer, Unrouted, logical_message, lost_message
from kpsplit.producer.send_state import PartitionSendState, SendCounts, Tally
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment, Partitioner
from kpsplit.splitter.records.data import instance_name, prefix
from kpsplit.splitter.records.producers import Certificate

log = logging.getLogger(__name__)

T = TypeVar("T")

_GIVEN_UP = KafkaError(KafkaError._PURGE_INFLIGHT)
"""The error of a record that was acknowledged, and that the producer gave up before it was final."""
STICKY_SECONDS = 0.01
"""Records without a key stay on one partition for so long, so that they share batches."""


class ReportLease:
    """Until when (monotonic) acknowledgements that are taken in hand are final at once; one per producer.

    Reports look at it without the producer, which they must not keep alive.
    """

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until = 0.0


NEVER = ReportLease()  # of segments that are fenced or closed, and of suspended partitions; never changed


class RouteWriter(SegmentWriter[PendingRecord]):
    """A segment's writer with what the fast path needs at hand. ``lease``: the producer's, or ``NEVER``."""

    __slots__ = ("_stamped", "identity", "lease", "parent", "partition", "stamp_prefix", "topic")

    def __init__(self, segment: Segment, parent: PhysicalPartition) -> None:
        super().__init__(segment)
        self.parent = parent
        self.topic = segment.source.topic
        self.partition = segment.source.partition
        self.identity = is_identity(segment, parent)
        self.stamp_prefix = b""
        self._stamped: tuple[int, int] | None = None
        self.lease = NEVER

    def stamp_as(self, state: PartitionState, instance: int) -> None:
        """Stamp later records with the epoch of a view, and with its name for this physical partition."""
        stamped = (state.epoch, state.home(self.segment.source))
        if stamped != self._stamped:
            self._stamped, self.stamp_prefix = stamped, prefix(stamped[0], instance, stamped[1])


SendState = PartitionSendState[PendingRecord, RouteWriter]


class PassThrough: ...


PASS_THROUGH = PassThrough()


class TopicRoute:
    """An enrolled topic, or one that is left and ``parting``: new records wait for the stamped ones."""

    def __init__(self, enrolment: Enrolment, send_states: list[SendState]) -> None:
        self.enrolment = enrolment
        self.send_states = send_states
        self.count = len(send_states)
        self.parting = False
        self.by_crc = enrolment.partitioner is Partitioner.CONSISTENT_RANDOM
        self._sticky = 0
        self._sticky_until = 0.0

    def extend(self, send_states: list[SendState]) -> None:
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
            self._sticky, self._sticky_until = random.randrange(self.count), now + STICKY_SECONDS
        return self._sticky


class CallbackQueue:
    """Callbacks run only in the application's poll() and flush(), with ``lock`` released."""

    def __init__(self, state: ProducerState) -> None:
        self._state = state
        self.queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def __len__(self) -> int:
        return len(self.queue)

    def put(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.queue.append((callback, arguments))

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
            for callback, arguments in iter(self.queue.popleft, None):  # no signal handler comes in between
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


class ProducerState:
    """See the module.

    ``instance``: the number in this producer's stamps; ``rdkafka``: the application's plain producer.
    ``wake``: set when the library's thread has work. ``routes``: how each topic is treated; ``fast_routes``:
    the send states of those that the fast path knows, and ``fast_plain``: the topics that it gives to
    librdkafka as they are; ``refused``: topics that are not written to while enrolled by that partitioner,
    and why. ``unrouted``: records of topics that are not looked up yet; ``tally``: what waits there and in
    the send states; ``failures``: how many failed, save those of aborted transactions. ``collecting``: the
    library's thread takes reports in hand now. ``fatal``: why nothing will ever be sent again; ``forked``:
    that is because this is a child process. ``ended``: there will be no lease any more. ``accepting``:
    records are taken; not once the producer is being closed. ``parted``: send states of topics that it left.
    """

    # The compiled calls read these three for each record, without a look-up.
    __slots__ = ("__dict__", "collecting", "forked", "lease_until")

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
        self.parted: dict[PhysicalPartition, SendState] = {}
        self.unrouted: dict[str, deque[Unrouted]] = {}
        self.tally = Tally()
        self.failures = 0
        self.refused: dict[str, tuple[Partitioner, KpsplitError]] = {}
        self.lease_until = 0.0
        self.report_lease = ReportLease()
        self.ended = False
        self.accepting = True
        self.in_transaction = False
        self.collecting = False
        self.fatal: KpsplitError | None = None
        self.forked = False

    def lease_valid(self) -> bool:
        """Return whether the view of the control topic is still good."""
        return monotonic() < self.lease_until

    def route(self, topic: str) -> TopicRoute | PassThrough | None:
        """Return how a topic is treated, None if that is not known; that it passes through, with a lease."""
        route = self.routes.get(topic)
        if isinstance(route, TopicRoute):
            return None if route.parting else route
        return None if route is PASS_THROUGH and not self.lease_valid() else route

    def add_route(self, topic: str, route: TopicRoute) -> None:
        self.routes[topic] = route
        if route.by_crc and self.accepting:
            self.fast_routes[topic] = route.send_states

    def accept_no_more(self) -> None:
        """Refuse every record from now on: the producer is closed (``lock`` held)."""
        self.accepting = False
        self.fast_routes.clear()
        self.fast_plain.clear()

    def remove_route(self, topic: str) -> None:
        route = self.routes.pop(topic, None)
        self.fast_routes.pop(topic, None)
        self.fast_plain.discard(topic)
        if isinstance(route, TopicRoute):
            for send_state in route.send_states:
                send_state.suspend(True)  # the fast path may have found it a moment ago
                self.refresh(send_state)  # no renewal resolves what waits there
                send_state.backlog.leave()
                self.tally.active.pop(send_state, None)

    def clear_routes(self) -> None:
        for topic in list(self.routes):
            self.remove_route(topic)

    def topic_routes(self) -> list[TopicRoute]:
        return [route for route in self.routes.values() if isinstance(route, TopicRoute)]

    def send_states(self) -> list[SendState]:
        return [f for route in self.topic_routes() for f in route.send_states]

    def send_states_of(self, subject: PhysicalPartition | str) -> list[SendState]:
        """Return that of a partition, or all of a topic; none where it is not routed."""
        if isinstance(subject, str):
            topic, which = subject, slice(None)
        else:
            topic, which = subject.topic, slice(subject.partition, subject.partition + 1)
        route = self.routes.get(topic)
        return route.send_states[which] if isinstance(route, TopicRoute) else []

    def active(self) -> list[SendState]:
        """Return those that may have something to do for the library's thread; all others are at rest."""
        return [f for f in list(self.tally.active) if f in self.send_states_of(f.state.parent)]

    def refresh(self, send_state: SendState) -> None:
        """Tell the fast path of a partition what its fence says (``lock`` held)."""
        for writer in send_state.closing:
            writer.lease = NEVER
        for writer in send_state.writers:
            writer.stamp_as(send_state.state, self.instance)
            writer.lease = NEVER if writer.fenced or send_state.suspended else self.report_lease

    def refuse_in_child(self) -> None:
        """Refuse everything from now on: this is a child process, and the threads stayed in the parent."""
        self.lock.renew_after_fork()
        self.poll_lock.renew_after_fork()
        self.wake = threading.Event()
        self.clear_routes()
        self.unrouted.clear()
        self.tally.count = 0
        self.callbacks.queue.clear()
        self.forked = True
        self.fatal = KpsplitError(
            "this Producer was made before fork() and cannot be used in the child",
            hint="make a new Producer in the child process",
        )

    @holds_lock
    def locked(self, step: Callable[[], T]) -> T:
        """Take one step under the lock; it calls nothing of the application's."""
        with self.lock:
            return step()

    # -- the lease and the transaction -------------------------------------------------------------

    def renew(self, until: float) -> None:
        """Extend the lease (``lock`` held) and look at everything pending again.

        Not to a time that is over: the process slept since the end of the control topic was asked for.
        """
        if self.ended or until <= monotonic():  # the library's thread was not quick enough to see that
            return
        if not self.lease_valid():  # nor to see this: what rested on the last lease ends with it
            self.lapse()
        self.lease_until = until
        suspended = (f for f in self.send_states() if f.suspended)
        for send_state in dict.fromkeys([*self.active(), *suspended]):
            send_state.suspend(False)
            self.report(send_state, send_state.resolve(lease_valid=self.lease_valid()))
            self.refresh(send_state)
        self.report_lease.until = until  # last: no later record is reported before what waited

    def lapse(self) -> None:
        """Hold everything until the lease is renewed (``lock`` held)."""
        self.lease_until = self.report_lease.until = 0.0
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
        self.in_transaction = active
        for send_state in self.send_states():
            send_state.transaction(active, aborted=aborted)
        for send_state in self.active():
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
            # Callbacks may run in the application's thread only: no report is final at once meanwhile.
            self.report_lease.until = 0.0 if collecting else self.lease_until

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

    def pending(self) -> int:
        """Return how many records the broker acknowledged that are not final yet."""
        return sum(f.pending() for f in self.active())

    def unresolved(self) -> int:
        """Return how many records the application has no report for, apart from those inside librdkafka."""
        return self.tally.count + self.pending() + len(self.callbacks)


@dataclass(slots=True, kw_only=True)
class PartitionStats(SendCounts):
    """One enrolled logical partition, as this producer sees it. Counts are of records since the start.

    ``fences``: how many fences it has seen; ``held``: how many records had to wait for a segment to open;
    ``strays``: how many went astray and were sent again; ``next_sequence``: how many were accepted;
    ``waiting``: how many wait now; ``pending``: acknowledged and not final yet; ``delivered``: reported as
    delivered, per segment id; ``failed``: reported as failed.
    """

    epoch: int
    segments: int
    next_sequence: int
    waiting: int
    pending: int
    delivered: dict[int, int]
    failed: int


@dataclass(frozen=True, slots=True)
class LayoutStats:
    """A producer's statistics. ``pauses_ms``: the length of each pause so far, in milliseconds."""

    instance: str
    lease_valid: bool
    partitions: dict[str, PartitionStats]
    pauses_ms: tuple[int, ...]
    last_error: str | None

    @property
    def strays(self) -> int:
        """How many records went astray and were sent again."""
        return sum(p.strays for p in self.partitions.values())

    @property
    def held(self) -> int:
        """How many records had to wait for a segment to open."""
        return sum(p.held for p in self.partitions.values())


@holds_lock
def layout_stats(
    state: ProducerState, pauses_ms: Sequence[int] = (), last_error: str | None = None
) -> LayoutStats:
    """Return what a producer knows about layouts, fences, held records and strays.

    Raises:
        KpsplitError: called by a signal handler in the middle of another call.
    """
    refuse_reentry(state.lock)
    with state.lock:
        partitions = {str(f.state.parent): _partition_stats(f) for f in state.send_states()}
        valid = state.lease_valid()
    return LayoutStats(instance_name(state.instance), valid, partitions, tuple(pauses_ms), last_error)


@holds_lock
def certificates(state: ProducerState) -> dict[str, Certificate]:
    """Return what was delivered and what failed, per partition to which anything was sent.

    None where a number neither was delivered nor failed (its report was lost, or has not come): it would be
    taken for a lost record. Nor where the topic was made again: some numbers lie in the one that is gone. Nor
    where too many records failed to list their numbers.
    """
    found: dict[str, Certificate] = {}
    with state.lock:
        for one in (*state.send_states(), *state.parted.values()):
            if one.next_sequence > 0 and one.state.topic_id == one.topic_id:
                delivered = {str(segment): count for segment, count in one.delivered().items()}
                failed = tuple(one.statistics.failed.numbers() or ())
                if sum(delivered.values()) + len(failed) == one.next_sequence:
                    said = Certificate(one.next_sequence, delivered, failed, one.topic_id)
                    found[str(one.state.parent)] = said
    return found


def _partition_stats(send_state: SendState) -> PartitionStats:
    return PartitionStats(
        epoch=send_state.state.epoch,
        segments=len(send_state.writers),
        next_sequence=send_state.next_sequence,
        waiting=send_state.waiting(),
        pending=send_state.pending(),
        delivered=send_state.delivered(),
        failed=send_state.statistics.failed.count,
        **{count.name: getattr(send_state.statistics, count.name) for count in fields(SendCounts)},
    )
