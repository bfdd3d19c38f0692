"""The library's own thread in a Producer: follows the control topic, keeps the lease, answers operators.

It is the only writer of the registration and the only one that applies control states to fences. It never
runs a callback of the application, and never waits for the application.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kpsplit.errors import AuthorizationError, ConfigurationError, FutureVersionError, KpsplitError
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.log_tail import EndRequest
from kpsplit.producer.config import ProducerSettings
from kpsplit.producer.dispatcher import PASS_THROUGH, Dispatcher
from kpsplit.producer.lookup import find_own_records
from kpsplit.producer.pauses import PauseClock
from kpsplit.producer.registration import Registration
from kpsplit.producer.routes import Fence, RouteWriter, TopicRoute, check_partitioner
from kpsplit.producer.takeover import Takeover
from kpsplit.producer.topic_lookup import control_topic_exists, partition_count
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.fence_answers import may_renew, to_acknowledge, to_answer
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import DEFAULT_LEASE_MS, Enrolment
from kpsplit.splitter.records.producers import Certificate

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.1
BUSY_SECONDS = 0.002
ERROR_PAUSE_SECONDS = 0.25
LOOKUP_SECONDS = 60.0
METADATA_SECONDS = 300.0
"""How often the partition count of topics is looked at again (librdkafka's topic.metadata.refresh)."""
EXPIRY_SECONDS = 0.5


@dataclass(slots=True)
class _Transition:
    """A topic that became enrolled while we wrote to it: its unstamped records must be resolved first."""

    since: float
    open_partitions: set[int]


class Coordinator(threading.Thread):
    """See the module. ``poll`` and ``queued`` are poll() and len() of the application's plain producer."""

    def __init__(
        self,
        connection: Connection,
        settings: ProducerSettings,
        dispatcher: Dispatcher,
        poll: Callable[[float], int],
        queued: Callable[[], int],
    ) -> None:
        super().__init__(name="kpsplit-coordinator", daemon=True)
        self._connection = connection
        self._settings = settings
        self._dispatcher = dispatcher
        self._poll = poll
        self._queued = queued
        self._admin: AdminClient | None = None
        self._tail: ControlTail | None = None
        self._registration = Registration(
            connection, dispatcher.instance, settings.client_id, settings.transactional_id
        )
        self._transitions: dict[str, _Transition] = {}
        self._takeovers: dict[PhysicalPartition, Takeover] = {}
        self._pauses = PauseClock()
        self._registered_anew = False
        self._request: EndRequest | None = None
        self._answered_at = 0.0
        self._renew_at = 0.0
        self._expire_at = 0.0
        self._metadata_at = 0.0
        self._stopping = threading.Event()
        self.pauses_ms = self._pauses.pauses_ms
        self.last_error: KpsplitError | None = None

    # -- the thread --------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until stopped; errors of the cluster are waited out, a newer format is not."""
        while not self._stopping.is_set():
            try:
                self._turn()
                self.last_error = None
            except FutureVersionError as error:
                self._fail_closed(error)
                return
            except KpsplitError as error:
                self._note(error)
            except KafkaException as exception:
                self._note(translate(error_of(exception), "follow the control topic"))
        if self._tail is not None:
            self._tail.close()

    def stop(self, timeout: float) -> None:
        """End the thread."""
        self._stopping.set()
        self._dispatcher.wake.set()
        if self.is_alive():
            self.join(timeout)

    def certify(self, certificates: dict[str, Certificate], deadline: Deadline) -> None:
        """Publish the certificates; only after ``stop``."""
        self._registration.certify(certificates, deadline)

    def _turn(self) -> None:
        dispatcher = self._dispatcher
        if self._tail is None and not self._find_control_topic():
            return
        tail = self._tail
        if tail is None:
            return
        if tail.poll(BUSY_SECONDS if self._busy() else IDLE_SECONDS):
            self._adopt(tail.view)
        now = monotonic()
        if now >= dispatcher.lease_until > 0:
            with dispatcher.lock:
                dispatcher.lapse()
        self._answer(tail.view)
        self._renew(tail)
        self._route_new_topics(tail)
        self._settle_fences()
        if now >= self._metadata_at:
            self._refresh_partition_counts()
        if now >= self._expire_at:
            self._expire_at = now + EXPIRY_SECONDS
            with dispatcher.lock:
                dispatcher.expire(now)

    def _note(self, error: KpsplitError) -> None:
        if self.last_error is None or self.last_error.message != error.message:
            log.warning("kpsplit: %s", error)
        self.last_error = error
        if isinstance(error, AuthorizationError):
            with self._dispatcher.lock:
                for topic in list(self._dispatcher.unrouted):
                    refusal = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, error.message)
                    self._dispatcher.fail_unrouted(topic, refusal)
        self._take_reports()
        now = monotonic()
        with self._dispatcher.lock:
            if now >= self._dispatcher.lease_until > 0:
                self._dispatcher.lapse()
            self._dispatcher.expire(now)
        self._stopping.wait(ERROR_PAUSE_SECONDS)

    def _fail_closed(self, error: FutureVersionError) -> None:
        """A newer kpsplit writes the control topic: nothing may be sent by what is known here."""
        log.error("kpsplit: %s", error)
        self.last_error = error
        with self._dispatcher.lock:
            self._dispatcher.lapse()
            self._dispatcher.fatal = error
            for topic in list(self._dispatcher.unrouted):
                self._refuse(topic, error)

    # -- the control topic -------------------------------------------------------------------------

    def _find_control_topic(self) -> bool:
        """Look for the control topic; while there is none, nothing is enrolled and the look is the lease."""
        self._admin = self._admin or AdminClient(self._connection.client("look"))
        asked = monotonic()
        if control_topic_exists(self._admin):
            self._tail = ControlTail(self._connection)
            return True
        lease = DEFAULT_LEASE_MS / 1000
        dispatcher = self._dispatcher
        with dispatcher.lock:
            dispatcher.renew(asked + lease)
            for topic in list(dispatcher.unrouted):
                dispatcher.routes[topic] = PASS_THROUGH
                dispatcher.route_waiting(topic)
        self._wait_for_work(lease / 3)
        return False

    def _wait_for_work(self, seconds: float) -> None:
        end = monotonic() + seconds
        while monotonic() < end and not self._stopping.is_set() and not self._dispatcher.unrouted:
            self._dispatcher.wake.wait(IDLE_SECONDS)
            self._dispatcher.wake.clear()

    def _renew(self, tail: ControlTail) -> None:
        """Renew the lease, without waiting: the view is good for a lease from when the end was asked for.

        An answer to a PREPARE counts only if it was acknowledged before that.
        """
        if self._request is None:
            if monotonic() < self._renew_at and self._dispatcher.lease_valid():
                return
            if not self._dispatcher.lease_valid() and not self._registered_anew:
                self._registration.renew(Deadline(tail.view.settings.lease_ms / 1000))
                self._registered_anew = True
            self._request = tail.ask_end()
        request = self._request
        if not request.done():
            return
        try:
            end = request.result()
        except KpsplitError:
            self._request = None
            tail.learn_leader()
            raise
        if tail.position < end:
            return
        self._request = None
        if request.asked < self._answered_at or not may_renew(self._states(), self._registration.record):
            return
        lease = tail.view.settings.lease_ms / 1000
        with self._dispatcher.lock:
            self._dispatcher.renew(request.asked + lease)
        self._registered_anew = False
        self._renew_at = request.asked + lease / 4

    def _adopt(self, view: ControlView) -> None:
        """Apply what the control topic says to every fence that it concerns."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            for fence in dispatcher.fences():
                state = view.state(fence.state.parent)
                if state is None or state is fence.state:
                    continue
                finals = fence.observe(state, lease_valid=dispatcher.lease_valid())
                dispatcher.refresh(fence)
                dispatcher.observe_finals(fence, finals)
                self._pauses.observe(fence)
                self._watch(fence)
            for topic in [t for t, r in dispatcher.routes.items() if r is PASS_THROUGH]:
                if topic in view.enrolments:
                    self._begin_transition(topic)

    def _states(self) -> list[Any]:
        return [f.state for f in self._dispatcher.fences()]

    def _answer(self, view: ControlView) -> None:
        """Answer PREPARE for every partition whose unstamped records are resolved."""
        for state in to_answer(self._states(), self._registration.record):
            if state.attempt is None or not self._settled(state.parent):
                continue
            deadline = Deadline(view.settings.lease_ms / 1000)
            self._registration.answer_ready(str(state.parent), state.attempt.id, deadline)
            self._answered_at = monotonic()

    # -- topics ------------------------------------------------------------------------------------

    def _route_new_topics(self, tail: ControlTail) -> None:
        dispatcher = self._dispatcher
        if not dispatcher.unrouted or not dispatcher.lease_valid():
            return
        for topic in list(dispatcher.unrouted):
            if topic not in dispatcher.routes and topic in tail.view.enrolments:
                self._route_enrolled(topic, tail)
            with dispatcher.lock:
                if topic in dispatcher.refused:
                    continue
                dispatcher.routes.setdefault(topic, PASS_THROUGH)
                dispatcher.route_waiting(topic)

    def _route_enrolled(self, topic: str, tail: ControlTail) -> None:
        enrolment = tail.view.enrolments[topic]
        deadline = Deadline(10.0)
        try:
            check_partitioner(enrolment, self._settings.partitioner)
        except ConfigurationError as error:
            with self._dispatcher.lock:
                self._refuse(topic, error)
            return
        self._admin = self._admin or AdminClient(self._connection.client("look"))
        count = partition_count(self._admin, topic)
        self._registration.add_topic(topic, deadline)
        fences = [self._new_fence(enrolment, p, tail.view) for p in range(count)]
        with self._dispatcher.lock:
            self._dispatcher.add_route(topic, TopicRoute(enrolment, fences))
        self._request = None  # only an end asked for after the registration opens the topic
        self._renew_at = 0.0

    def _new_fence(self, enrolment: Enrolment, partition: int, view: ControlView) -> Fence:
        parent = PhysicalPartition(enrolment.topic, partition)
        state = view.state(parent)
        if state is None:
            raise KpsplitError(f"topic {enrolment.topic} is not enrolled any more", retriable=True)
        fence: Fence = Fence(state, lambda segment: RouteWriter(segment, parent))
        fence.transaction(self._dispatcher.in_transaction)
        fence.suspend(True)  # until the control topic was read again behind the registration
        return fence

    def _refuse(self, topic: str, error: KpsplitError) -> None:
        self._dispatcher.refused[topic] = error
        self._dispatcher.fail_unrouted(topic, KafkaError(KafkaError._INVALID_ARG, error.message))

    def _begin_transition(self, topic: str) -> None:
        """A topic that passed through is enrolled now: hold its records until it is routed anew."""
        self._dispatcher.remove_route(topic)
        self._dispatcher.unrouted.setdefault(topic, deque())
        self._transitions[topic] = _Transition(monotonic(), set())

    def _settled(self, parent: PhysicalPartition) -> bool:
        """Tell whether no unstamped record of ours can still be on its way to a partition."""
        transition = self._transitions.get(parent.topic)
        if transition is None:
            return True
        if monotonic() - transition.since > self._settings.message_timeout:
            del self._transitions[parent.topic]
            return True
        dispatcher = self._dispatcher
        route = dispatcher.routes.get(parent.topic)
        if isinstance(route, TopicRoute) and any(w.done for w in route.fences[parent.partition].writers):
            return True
        return self._nothing_unstamped(parent.topic)

    def _nothing_unstamped(self, topic: str) -> bool:
        dispatcher = self._dispatcher
        if not dispatcher.poll_lock.acquire(blocking=False):
            return False
        try:
            with dispatcher.lock:
                ours = sum(w.in_flight for f in dispatcher.fences() for w in f.all_writers())
                if self._queued() > ours:
                    return False
                self._transitions.pop(topic, None)
                return True
        finally:
            dispatcher.poll_lock.release()

    def _refresh_partition_counts(self) -> None:
        """Follow added partitions: like any producer, keys move to where the partitioner now puts them."""
        self._metadata_at = monotonic() + METADATA_SECONDS
        tail = self._tail
        if self._admin is None or tail is None:
            return
        for topic, route in list(self._dispatcher.routes.items()):
            if isinstance(route, TopicRoute):
                count = partition_count(self._admin, topic)
                added = [self._new_fence(route.enrolment, p, tail.view) for p in range(route.count, count)]
                with self._dispatcher.lock:
                    route.extend(added)
                    for fence in added:
                        fence.suspend(not self._dispatcher.lease_valid())
                        self._dispatcher.refresh(fence)

    # -- fences ------------------------------------------------------------------------------------

    def _busy(self) -> bool:
        dispatcher = self._dispatcher
        waiting = bool(dispatcher.unrouted) or not dispatcher.lease_valid()
        return waiting or any(f.busy() for f in dispatcher.fences())

    def _take_reports(self) -> None:
        if any(f.busy() for f in self._dispatcher.fences()):
            self._dispatcher.collect(self._poll)

    def _settle_fences(self) -> None:
        """Resolve what is in flight, acknowledge fences, release what was held, report pauses."""
        dispatcher = self._dispatcher
        self._take_reports()
        self._acknowledge()
        with dispatcher.lock:
            dispatcher.release()
            for topic in list(dispatcher.unrouted):
                dispatcher.route_waiting(topic)
            over = [p for f in dispatcher.fences() if (p := self._pauses.over(f)) is not None]
        for takeover in list(self._takeovers.values()):
            takeover.check()
        for partition, pause in over:
            self._registration.report_pause(partition, pause, Deadline(5.0))
        self._look_up_unclear()

    def _acknowledge(self) -> None:
        with self._dispatcher.lock:
            quiescent = [f.state for f in self._dispatcher.fences() if f.state.attempt and f.quiescent()]
        for state in to_acknowledge(quiescent, self._registration.record):
            if state.attempt is not None:
                self._registration.acknowledge(str(state.parent), state.attempt.id, Deadline(5.0))

    def _watch(self, fence: Fence) -> None:
        """Start or end the watch over an operator that may die in the fence."""
        parent, attempt = fence.state.parent, fence.state.attempt
        if attempt is None or not fence.state.fenced_segments():
            self._takeovers.pop(parent, None)
            return
        known = self._takeovers.get(parent)
        if self._settings.takeover and (known is None or known.attempt_id != attempt.id):
            self._takeovers[parent] = Takeover(
                self._connection, parent, attempt.id, attempt.max_pause_ms / 1000
            )

    def _look_up_unclear(self) -> None:
        dispatcher = self._dispatcher
        with dispatcher.lock:
            unclear = [(f, w, set(n)) for f in dispatcher.fences() for w, n in f.unclear()]
        for fence, writer, numbers in unclear:
            found = find_own_records(
                self._connection, writer.segment, dispatcher.instance, numbers, Deadline(LOOKUP_SECONDS)
            )
            with dispatcher.lock:
                dispatcher.observe_finals(fence, fence.looked_up(writer, found))
