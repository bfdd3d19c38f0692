"""The library's own thread in a Producer: follows the control topic, keeps the lease, answers operators.

It is the only writer of the registration and the only one that applies control states to fences. It never
runs a callback of the application, and never waits for the application.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kpsplit.errors import AuthorizationError, ConfigurationError, FutureVersionError, KpsplitError
from kpsplit.kafka.clock import Deadline, monotonic
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.log_tail import EndRequest
from kpsplit.producer.config import ProducerSettings
from kpsplit.producer.dispatcher import PASS_THROUGH, Dispatcher, ProducerGone
from kpsplit.producer.lease import Renewal, owes, seen
from kpsplit.producer.lookup import Lookup
from kpsplit.producer.pauses import PauseClock
from kpsplit.producer.registration import Registration
from kpsplit.producer.routes import Fence, RouteWriter, TopicRoute, check_partitioner
from kpsplit.producer.takeover import Takeover
from kpsplit.producer.topic_lookup import control_topic_exists, partition_count
from kpsplit.splitter.control_view import ControlView
from kpsplit.splitter.fence_answers import to_acknowledge, to_answer
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import LOOK_LEASE_MS, Enrolment
from kpsplit.splitter.records.producers import Certificate, PauseReport
from kpsplit.splitter.states import Phase

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.1
BUSY_SECONDS = 0.002
ERROR_PAUSE_SECONDS = 0.25
METADATA_SECONDS = 300.0
"""How often the partition count of topics is looked at again (librdkafka's topic.metadata.refresh)."""
EXPIRY_SECONDS = 0.5
RETRY_SECONDS = 0.05
ANSWER_SECONDS = 5.0
PREPARING = Phase.PREPARING


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
        self._transitions: dict[str, float] = {}
        """Topics that became enrolled while we wrote to them, and since when."""
        self._takeovers: dict[PhysicalPartition, Takeover] = {}
        self._pauses = PauseClock()
        self._renewal = Renewal()
        self._lookups: dict[tuple[PhysicalPartition, int], Lookup] = {}
        self._over: list[tuple[str, PauseReport]] = []
        self._failures: dict[str, float] = {}
        self._adopted = -1
        self._request: EndRequest | None = None
        self._renew_at = 0.0
        self._expire_at = 0.0
        self._metadata_at = 0.0
        self._stopping = threading.Event()
        self.pauses_ms = self._pauses.pauses_ms
        self.last_error: KpsplitError | None = None

    # -- the thread --------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until stopped; errors are told and waited out, a newer format is not."""
        try:
            while not self._stopping.is_set():
                try:
                    self._turn()
                except (FutureVersionError, ProducerGone):
                    raise
                except Exception:
                    log.exception("kpsplit: internal error")
                    self._stopping.wait(ERROR_PAUSE_SECONDS)
        except FutureVersionError as error:
            self._fail_closed(error)
        except ProducerGone:
            log.debug("kpsplit: a Producer was dropped without close()")
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
        self._queued()  # ends the thread when the Producer is gone
        if not self._attempt(self._follow):
            self._stopping.wait(BUSY_SECONDS if self._busy() else IDLE_SECONDS)
        self._attempt(self._watch_time)
        tail = self._tail
        if tail is not None:
            self._attempt(self._answer)
            self._attempt(self._renew)
            self._attempt(self._route_new_topics)
            self._attempt(self._refresh_partition_counts)
        self._attempt(self._take_reports)
        self._attempt(self._acknowledge)
        self._attempt(self._release)
        self._attempt(self._report_pauses)
        self._attempt(self._look_up)
        if not self._failures:
            self.last_error = None

    def _attempt(self, duty: Callable[[], None]) -> bool:
        """Do one duty; tell whether it was done.

        One that failed is told, and rests for a moment; it never keeps the others from being done.
        """
        name = duty.__name__
        if monotonic() < self._failures.get(name, 0.0):
            return False
        try:
            duty()
        except (FutureVersionError, ProducerGone):
            raise
        except KpsplitError as error:
            return self._note(name, error)
        except KafkaException as exception:
            return self._note(name, translate(error_of(exception), "follow the control topic"))
        except Exception as error:
            log.exception("kpsplit: internal error in %s", name)
            return self._note(name, KpsplitError(f"internal error: {type(error).__name__}: {error}"))
        self._failures.pop(name, None)
        return True

    def _note(self, duty: str, error: KpsplitError) -> bool:
        self._failures[duty] = monotonic() + ERROR_PAUSE_SECONDS
        if self.last_error is None or self.last_error.message != error.message:
            log.warning("kpsplit: %s", error)
        self.last_error = error
        if isinstance(error, AuthorizationError):
            with self._dispatcher.lock:
                for topic in list(self._dispatcher.unrouted):
                    refusal = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, error.message)
                    self._dispatcher.fail_unrouted(topic, refusal)
        return False

    def _follow(self) -> None:
        """Read what is new in the control topic, and apply it."""
        if self._tail is None and not self._find_control_topic():
            return
        tail = self._tail
        if tail is not None:
            try:
                tail.poll(BUSY_SECONDS if self._busy() else IDLE_SECONDS)
            finally:
                self._adopt()

    def _watch_time(self) -> None:
        """Hold everything once the lease has run out; fail what has waited too long."""
        now = monotonic()
        dispatcher = self._dispatcher
        if now >= dispatcher.lease_until > 0:
            with dispatcher.lock:
                dispatcher.lapse()
            self._renew_at = 0.0
        if now >= self._expire_at:
            self._expire_at = now + EXPIRY_SECONDS
            with dispatcher.lock:
                dispatcher.expire(now)

    def _fail_closed(self, error: FutureVersionError) -> None:
        """A newer kpsplit writes the control topic: nothing may be sent by what is known here."""
        log.error("kpsplit: %s", error)
        self.last_error = error
        with self._dispatcher.lock:
            self._dispatcher.fail_closed(error)

    # -- the control topic -------------------------------------------------------------------------

    def _find_control_topic(self) -> bool:
        """Look for the control topic; while there is none, nothing is enrolled and the look is the lease."""
        self._admin = self._admin or AdminClient(self._connection.client("look"))
        asked = monotonic()
        if control_topic_exists(self._admin):
            self._tail = ControlTail(self._connection)
            return True
        lease = LOOK_LEASE_MS / 1000
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

    def _renew(self) -> None:
        """Renew the lease, without waiting, by the rules of ``lease``.

        The view is good for a lease from when the end was asked for.
        """
        dispatcher, tail, own = self._dispatcher, self._following(), self._registration
        if self._request is None:
            if monotonic() < self._renew_at:
                return
            states = self._states()
            owing = owes(states, own.record)
            if self._renewal.must_register(lease_valid=dispatcher.lease_valid(), owing=owing):
                self._renewal.registering(seen(states))
                own.renew(Deadline(tail.view.settings.lease_ms / 1000))
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
        states = self._states()
        owing = owes(states, own.record)
        if not self._renewal.renews(seen(states), lease_valid=dispatcher.lease_valid(), owing=owing):
            self._renew_at = monotonic() + RETRY_SECONDS
            return
        lease = tail.view.settings.lease_ms / 1000
        with dispatcher.lock:
            dispatcher.renew(request.asked + lease)
        self._renew_at = request.asked + lease / 4

    def _following(self) -> ControlTail:
        if self._tail is None:
            raise KpsplitError("the control topic was not found yet", retriable=True)
        return self._tail

    def _answered(self) -> None:
        """An answer counts only for ends of the control topic that are asked for behind it."""
        self._request = None
        self._renew_at = 0.0

    def _adopt(self) -> None:
        """Apply what is new in the control topic to every fence that it concerns."""
        tail = self._following()
        if tail.position == self._adopted:
            return
        self._adopted = tail.position
        dispatcher, view = self._dispatcher, tail.view
        with dispatcher.lock:
            for fence in dispatcher.fences():
                state = view.state(fence.state.parent)
                if state is None or state is fence.state:
                    continue
                finals = fence.observe(state, lease_valid=dispatcher.lease_valid())
                dispatcher.refresh(fence)
                dispatcher.queue_callbacks(fence, finals)
                self._pauses.observe(fence)
                self._watch(fence)
            for topic in [t for t, r in dispatcher.routes.items() if r is PASS_THROUGH]:
                if topic in view.enrolments:
                    self._begin_transition(topic)

    def _states(self) -> list[PartitionState]:
        """Return the states of all partitions of our topics, those that were added a moment ago as well.

        An operator counts on our answers for every partition of a topic that we registered.
        """
        fenced = {f.state.parent: f.state for f in self._dispatcher.fences()}
        topics = self._registration.record.topics
        others = self._following().view.states
        return [*fenced.values(), *(s for p, s in others.items() if p.topic in topics and p not in fenced)]

    def _answer(self) -> None:
        """Answer PREPARE for every partition whose unstamped records are resolved."""
        for topic in list(self._transitions):
            self._settled(topic)
        for state in to_answer(self._states(), self._registration.record):
            if state.attempt is None or not self._settled(state.parent.topic, state.parent.partition):
                continue
            deadline = Deadline(self._following().view.settings.lease_ms / 1000)
            self._registration.answer_ready(str(state.parent), state.attempt.id, deadline)
            self._answered()

    # -- topics ------------------------------------------------------------------------------------

    def _route_new_topics(self) -> None:
        dispatcher, tail = self._dispatcher, self._following()
        failed: KpsplitError | None = None
        for topic in list(dispatcher.unrouted):
            if not dispatcher.lease_valid():
                return
            try:
                if topic not in dispatcher.routes and topic in tail.view.enrolments:
                    self._route_enrolled(topic, tail)
            except KpsplitError as error:  # one topic that cannot be seen does not stop the others
                failed = error
                continue
            with dispatcher.lock:
                if topic not in tail.view.enrolments:
                    dispatcher.routes.setdefault(topic, PASS_THROUGH)
                dispatcher.route_waiting(topic)
        if failed is not None:
            raise failed

    def _route_enrolled(self, topic: str, tail: ControlTail) -> None:
        """Register an enrolled topic and make its fences.

        A PREPARE that is in the view already is answered in the same record: an operator whose patience is
        at its end would otherwise expire the whole registration, other topics' lease or not.
        """
        preparing = [s for s in tail.view.states.values() if s.parent.topic == topic and s.phase is PREPARING]
        if preparing and not self._settled(topic):
            return
        ready = {str(s.parent): s.attempt.id for s in preparing if s.attempt}
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
        self._registration.add_topic(topic, ready, deadline)
        fences = [self._new_fence(enrolment, p, tail.view) for p in range(count)]
        with self._dispatcher.lock:
            self._dispatcher.add_route(topic, TopicRoute(enrolment, fences))
            for fence in fences:
                self._pauses.observe(fence)
                self._watch(fence)
        self._answered()  # only an end asked for after the registration opens the topic

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
        self._dispatcher.count_plain()
        self._transitions[topic] = monotonic()

    def _settled(self, topic: str, partition: int | None = None) -> bool:
        """Tell whether no unstamped record of ours can be on its way to a topic (or one partition) still."""
        since = self._transitions.get(topic)
        if since is None:
            return True
        dispatcher = self._dispatcher
        if dispatcher.nothing_unstamped(self._queued):
            self._transitions.clear()
            return True
        if monotonic() - since > self._settings.message_timeout:
            del self._transitions[topic]
            return True
        route = dispatcher.routes.get(topic)
        if not isinstance(route, TopicRoute) or partition is None or partition >= route.count:
            return False
        return any(w.done for w in route.fences[partition].writers)  # a later record is through: so are they

    def _refresh_partition_counts(self) -> None:
        """Follow added partitions: like any producer, keys move to where the partitioner now puts them."""
        if monotonic() < self._metadata_at:
            return
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
                        self._pauses.observe(fence)
                        self._watch(fence)

    # -- fences ------------------------------------------------------------------------------------

    def _busy(self) -> bool:
        dispatcher = self._dispatcher
        waiting = bool(dispatcher.unrouted) or bool(self._transitions) or not dispatcher.lease_valid()
        return waiting or any(f.busy() for f in dispatcher.fences())

    def _take_reports(self) -> None:
        if any(f.busy() for f in self._dispatcher.fences()):
            self._dispatcher.collect(self._poll)

    def _release(self) -> None:
        """Send what was held and may be sent now; between two portions the application gets the lock."""
        dispatcher = self._dispatcher
        sent = 1
        while sent and not self._stopping.is_set():
            with dispatcher.lock:
                sent = dispatcher.release()
        with dispatcher.lock:
            for topic in list(dispatcher.unrouted):
                dispatcher.route_waiting(topic)

    def _report_pauses(self) -> None:
        dispatcher = self._dispatcher
        for takeover in list(self._takeovers.values()):
            takeover.check()
        with dispatcher.lock:
            self._over += [p for f in dispatcher.fences() if (p := self._pauses.over(f)) is not None]
        while self._over:
            partition, pause = self._over[0]
            self._registration.report_pause(partition, pause, Deadline(ANSWER_SECONDS))
            self._over.pop(0)

    def _acknowledge(self) -> None:
        with self._dispatcher.lock:
            fences = self._dispatcher.fences()
            quiescent = [f.state for f in fences if f.state.attempt and f.quiescent()]
        if self._tail is None:
            return
        ours = {f.state.parent for f in fences}
        quiescent += [s for s in self._states() if s.parent not in ours]
        for state in to_acknowledge(quiescent, self._registration.record):
            if state.attempt is not None:
                self._registration.acknowledge(str(state.parent), state.attempt.id, Deadline(ANSWER_SECONDS))
                self._answered()

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

    def _look_up(self) -> None:
        """Look for rejected records in the log, in a thread of its own: a log can be long."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            unclear = [(f, w, set(n)) for f in dispatcher.fences() for w, n in f.unclear()]
        for fence, writer, numbers in unclear:
            segment = fence.state.lineage.get(writer.segment.id)
            place = (fence.state.parent, segment.id)
            lookup = self._lookups.get(place)
            if lookup is None:
                self._lookups[place] = Lookup(self._connection, segment, dispatcher.instance, numbers)
            elif lookup.done():
                del self._lookups[place]
                found = lookup.result()
                with dispatcher.lock:
                    dispatcher.queue_callbacks(fence, fence.looked_up(writer, found))
