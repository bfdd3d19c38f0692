"""The library's own thread in a Producer: it follows the control topic and does its tasks in turn.

It is the only writer of the registration and the only one that applies control states to partitions. It never
runs a callback of the application, and never waits for the application. Its tasks: ``LeaseTask``,
``TopicTask`` (routing topics: looking new ones up, registering enrolled ones, the way from not enrolled to
enrolled), ``FenceTask``. It knows the Producer by weak references only: one that is dropped is collected,
thread and all.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import AuthorizationError, ConfigurationError, FutureVersionError, KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.producer.fence_task import BUSY_SECONDS, HOLDING_SECONDS, FenceTask, Looks, only_holds
from kpsplit.producer.lease import ControlFeed, LeaseTask
from kpsplit.producer.lookup import PartitionCounts, create_unless_there
from kpsplit.producer.pending import HeldRecords
from kpsplit.producer.sending import PassThroughSender
from kpsplit.producer.state import (
    PASS_THROUGH,
    ProducerState,
    RouteWriter,
    SendState,
    TopicRoute,
)
from kpsplit.splitter.control_plane import ControlView, to_answer
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Phase
from kpsplit.splitter.records.control import LOOK_LEASE_MS, Enrolment


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
ERROR_PAUSE_SECONDS = 0.25


class BackgroundThread(threading.Thread):
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
        self._lease = LeaseTask(self._feed)
        self._fences = FenceTask(self._feed, held, self._stopping.is_set)
        self._topics = TopicTask(self._feed, held, plain, self._fences.watch)
        self._looks = Looks()
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
        self._attempt(lease.watch_time)  # first: it may have run out while the thread slept
        self._attempt(fences.fail_late)
        self._attempt(topics.take_reports)
        if self._feed.tail is not None:
            self._attempt(topics.answer)
            self._attempt(topics.part)
            self._attempt(lease.renew)
            self._attempt(topics.route_new_topics, by_topic=True)
            self._attempt(topics.refresh_partition_counts, by_topic=True)
        self._attempt(fences.acknowledge)
        self._attempt(fences.release)
        self._attempt(fences.report_pauses)
        self._attempt(fences.look_up, by_topic=True)
        if not self._failures:
            self.last_error = None

    # -- errors ------------------------------------------------------------------------------------

    def _attempt(self, task: Callable[[], None], *, by_topic: bool = False) -> bool:
        """Do one task; return whether it was done.

        One that failed is logged, and rests for a moment; the others are done all the same.
        ``by_topic``: a missing right concerns one topic only, and the task itself sees to its records.
        """
        name = task.__name__
        if monotonic() < self._failures.get(name, 0.0):
            return False
        try:
            task()
        except (FutureVersionError, ProducerGone):
            raise
        except (KpsplitError, KafkaException) as raised:
            error = (
                translate(error_of(raised), "follow the control topic")
                if isinstance(raised, KafkaException)
                else raised
            )
            if isinstance(error, AuthorizationError) and not by_topic:
                self._refuse_new_topics(error)
            return self._note(name, error)
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
            self._looks.begin()
            with self._producer.lock.first:
                self._fences.adopt(tail.view, tail.changed)
                self._topics.adopt(tail.view)
            tail.changed.clear()
            self._lease.adopted = progress

    def _find_control_topic(self) -> bool:
        """Look for the control topic; while there is none, nothing is enrolled and the look is the lease."""
        asked = monotonic()
        if self._feed.find():
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
        return self._waits_for_topics() or not self._producer.lease_valid() or bool(self._fences.busy())

    def _waits_for_topics(self) -> bool:
        return bool(self._producer.unrouted) or self._topics.settling()

    def _patience(self) -> float:
        """Return how long the control topic may be waited for before the next look at everything else."""
        if not self._busy():
            self._looks.begin()
            return IDLE_SECONDS
        if self._waits_for_topics():
            return BUSY_SECONDS
        busy = self._fences.busy()
        holding = self._producer.lease_valid() and bool(busy) and all(only_holds(f) for f in busy)
        return HOLDING_SECONDS if holding else self._looks.next()


REGISTRATION_SECONDS = 10.0
LEARN_AGAIN_SECONDS = 1.0
"""How soon a topic that grows is looked at again: brokers, and the client, see it one after the other."""


class TopicTask:
    """Owned by the library's thread. ``watch`` is called for each new partition.

    ``transitions``: topics that became enrolled after we wrote to them, and since when.
    """

    def __init__(
        self,
        feed: ControlFeed,
        held: HeldRecords,
        plain: PassThroughSender,
        watch: Callable[[SendState], None],
    ) -> None:
        self._feed = feed
        self._producer = feed.producer
        self._held = held
        self._plain = plain
        self._watch = watch
        self._metadata_at = 0.0
        self._new, self._known = PartitionCounts(), PartitionCounts()
        self._passed: set[str] = set()
        """Topics that ever passed through: a lease that runs out removes the route, not what is in flight."""
        self.transitions: dict[str, float] = {}

    # -- topics that are not enrolled --------------------------------------------------------------

    def none_enrolled(self) -> None:
        """Send everything as it is: there is no control topic (``lock`` held)."""
        for topic in list(self._producer.unrouted):
            self._pass_through(topic)
            self._held.route(topic)

    def _pass_through(self, topic: str) -> None:
        if topic not in self._passed and self._producer.settings.auto_create:
            create_unless_there(self._feed.connection, topic)
        self._producer.routes[topic] = PASS_THROUGH
        self._passed.add(topic)

    def adopt(self, view: ControlView) -> None:
        """Hold the records of topics that the view treats otherwise than we do (``lock`` held)."""
        for topic, (partitioner, _) in list(self._producer.refused.items()):
            enrolment = view.enrolments.get(topic)
            if enrolment is None or enrolment.partitioner is not partitioner:
                del self._producer.refused[topic]
        self._passed |= self.transitions.keys() - view.enrolments.keys()  # left before that was settled
        for topic in self._passed & view.enrolments.keys():
            self._passed.discard(topic)
            if not isinstance(self._producer.routes.get(topic), TopicRoute):  # one that parts stays
                self._producer.remove_route(topic)
                self._producer.unrouted.setdefault(topic, deque())
            self._plain.count()
            self.transitions[topic] = monotonic()
        for route in self._producer.topic_routes():
            topic = route.enrolment.topic
            if not route.parting and (
                topic in view.left or (topic in view.enrolments and not _fits(route, view))
            ):
                route.parting = True
                self._producer.fast_routes.pop(topic, None)

    def part(self) -> None:
        """Have topics that are left pass through, once what we stamped of them is resolved.

        Until then their new records wait (protocol, section 6.10). The registration follows.
        """
        producer, view = self._producer, self._feed.following().view
        with producer.lock.first:
            for route in [route for route in producer.topic_routes() if route.parting]:
                topic = route.enrolment.topic
                if _fits(route, view):  # again, and nothing unstamped of ours is between
                    route.parting = False
                    producer.add_route(topic, route)
                    self._held.route(topic)  # at once: the fast path knows nothing of what waits
                elif not any(f.unresolved() for f in route.send_states):
                    producer.parted |= {f.state.parent: f for f in route.send_states}
                    producer.remove_route(topic)
            routed = {route.enrolment.topic for route in producer.topic_routes()}
        for topic in self._feed.registration.record.topics:
            if topic in view.left and topic not in routed:
                self._feed.registration.remove_topic(topic, Deadline(REGISTRATION_SECONDS))

    def settling(self) -> bool:
        """Return whether a topic waits for what is on its way, as it became enrolled or is left."""
        return bool(self.transitions) or any(route.parting for route in self._producer.topic_routes())

    def take_reports(self) -> None:
        """Take librdkafka's reports in hand while anything waits for one: the application may not poll."""
        if self.settling() or any(f.busy() for f in self._producer.active()):
            self._producer.collect()
            self._producer.forget_unreported()

    def answer(self) -> None:
        for topic in list(self.transitions):
            self._settled(topic)
        own, states = self._feed.registration, self._feed.states()
        for state in to_answer(states, own.record):
            if state.attempt is None or not self._settled(state.parent.topic, state.parent.partition):
                continue
            under_way = {str(s.parent) for s in states}
            deadline = Deadline(self._feed.lease_seconds())
            own.answer_ready(str(state.parent), state.attempt.id, under_way, deadline)

    def _settled(self, topic: str, partition: int | None = None) -> bool:
        """Return whether all unstamped records of ours to a topic (or one partition) are resolved."""
        since = self.transitions.get(topic)
        if since is None:
            return True
        producer = self._producer
        if self._plain.settled():
            self.transitions.clear()
            return True
        # librdkafka has failed whatever it had by then.
        if monotonic() - since > producer.settings.message_timeout:
            del self.transitions[topic]
            return True
        route = producer.routes.get(topic)
        if not isinstance(route, TopicRoute) or partition is None or partition >= route.count:
            return False
        # Brokers write a producer's records of one partition in order: a later one stands there, so these do.
        # One that failed shows nothing (a purge leaves out what is in flight), nor one of a sub-topic.
        writers = route.send_states[partition].writers
        return any(w.topic == topic and w.last_offset is not None for w in writers)

    # -- enrolled topics ---------------------------------------------------------------------------

    def route_new_topics(self) -> None:
        """Look up the topics of records that wait for it, and let them go on."""
        producer, tail = self._producer, self._feed.following()
        failed: KpsplitError | None = None
        if any(topic in tail.view.enrolments for topic in list(producer.unrouted)):
            self._feed.registration.writer()  # it connects while the control topic is read to its end
        for topic in list(producer.unrouted):
            if not producer.lease_valid():
                return  # the view may be old: a topic could be enrolled by now
            try:
                if topic not in producer.routes and topic in tail.view.enrolments:
                    self._route_enrolled(topic, tail)
            except KpsplitError as error:  # one topic that cannot be seen does not stop the others
                failed = error
                if isinstance(error, AuthorizationError):
                    with producer.lock.first:
                        self._held.fail_unrouted(topic, not_allowed(error))
                continue
            with producer.lock.first:
                if topic not in producer.routes and topic not in tail.view.enrolments:
                    self._pass_through(topic)
                self._held.route(topic)
        if failed is not None:
            raise failed

    def _route_enrolled(self, topic: str, tail: ControlTail) -> None:
        """Register an enrolled topic and make its send states.

        A PREPARE that is in the view already is answered in the same record. Otherwise an operator that has
        waited long enough could remove the whole registration, with the lease of all other topics.
        """
        states = [s for s in tail.view.states.values() if s.parent.topic == topic]
        preparing = [s for s in states if s.phase is Phase.PREPARING]
        if preparing and not self._settled(topic):
            return
        ready = {str(s.parent): s.attempt.id for s in preparing if s.attempt}
        enrolment = tail.view.enrolments[topic]
        deadline = Deadline(REGISTRATION_SECONDS)
        try:
            enrolment.check_partitioner(self._producer.settings.partitioner)
        except ConfigurationError as error:
            with self._producer.lock.first:
                self._producer.refused[topic] = enrolment.partitioner, error
                self._held.fail_unrouted(topic, KafkaError(KafkaError._INVALID_ARG, error.message))
            return
        self._new.ask(self._feed.admin(), [topic])
        count = self._new.take(topic)
        if count is None:
            return
        # Before the first record: from here on an operator waits for this producer's answers.
        self._feed.registration.add_topic(topic, ready, deadline)
        send_states = [self._new_send_state(enrolment, p, tail.view) for p in range(count)]
        with self._producer.lock.first:
            for send_state in send_states:
                send_state.transaction(self._producer.in_transaction)
            self._producer.add_route(topic, TopicRoute(enrolment, send_states))
            for send_state in send_states:
                self._watch(send_state)

    def _new_send_state(self, enrolment: Enrolment, partition: int, view: ControlView) -> SendState:
        parent = PhysicalPartition(enrolment.topic, partition)
        state = view.state(parent)
        if state is None:
            raise KpsplitError(f"topic {enrolment.topic} is not enrolled any more", retriable=True)
        send_state = self._producer.parted.pop(parent, None)
        if send_state is None:
            send_state = SendState(state, lambda segment: RouteWriter(segment, parent), self._producer.tally)
        else:
            send_state.backlog.tally = self._producer.tally
            send_state.observe(state, lease_valid=False)
            for writer in send_state.writers:
                writer.forget_acknowledged()
        send_state.suspend(True)  # until the control topic was read to an end asked for after we registered
        return send_state

    def refresh_partition_counts(self) -> None:
        """Follow added partitions: like any producer, keys move to where the partitioner now puts them."""
        routes = {r.enrolment.topic: r for r in self._producer.topic_routes() if not r.parting}
        if monotonic() >= self._metadata_at:
            self._metadata_at = monotonic() + self._producer.settings.metadata_refresh
            self._known.ask(self._feed.admin(), routes)
        view = self._feed.following().view
        failed: KpsplitError | None = None
        for topic in self._known.waiting():
            try:
                count = self._known.take(topic)
                if count is not None and topic in routes:
                    self._refresh_partition_count(routes[topic], count, view)
            except KpsplitError as error:  # one topic that is gone does not stop the others
                failed = error
        if failed is not None:
            raise failed

    def _refresh_partition_count(self, route: TopicRoute, count: int, view: ControlView) -> None:
        producer = self._producer
        if count > route.count:
            # librdkafka refuses a partition that it has not seen; it looks by itself only minutes later.
            count = min(count, self._producer.rdkafka.learn(route.enrolment.topic))
            self._metadata_at = min(self._metadata_at, monotonic() + LEARN_AGAIN_SECONDS)
        added = [self._new_send_state(route.enrolment, p, view) for p in range(route.count, count)]
        with producer.lock.first:
            route.extend(added)
            for send_state in added:
                send_state.transaction(producer.in_transaction)
                send_state.suspend(not producer.lease_valid())
                producer.refresh(send_state)
                self._watch(send_state)


def _fits(route: TopicRoute, view: ControlView) -> bool:
    """Return whether a topic is enrolled, with the partitioner by which its route sends."""
    now = view.enrolments.get(route.enrolment.topic)
    return now is not None and now.partitioner is route.enrolment.partitioner


def not_allowed(error: AuthorizationError) -> KafkaError:
    """Return the error of records whose topic cannot be looked up for want of a right."""
    return KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, error.message)
