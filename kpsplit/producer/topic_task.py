"""Routing topics: looking new ones up, registering enrolled ones, the way from not enrolled to enrolled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from confluent_kafka import KafkaError

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import AuthorizationError, ConfigurationError, KpsplitError
from kpsplit.kafka.control_log import ControlTail
from kpsplit.producer.lease import ControlFeed
from kpsplit.producer.lookup import AutoCreation, PartitionCounts
from kpsplit.producer.pending import HeldRecords
from kpsplit.producer.sending import PassThroughSender
from kpsplit.producer.state import PASS_THROUGH, RouteWriter, SendState, TopicRoute, check_partitioner
from kpsplit.splitter.control_plane import ControlView, to_answer
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import Phase
from kpsplit.splitter.records.control import Enrolment

REGISTRATION_SECONDS = 10.0
LEARN_AGAIN_SECONDS = 1.0
"""How soon a topic that grows is looked at again: brokers, and the client, see it one after the other."""


class TopicTask:
    """Owned by the library's thread. ``watch`` is called for each new partition.

    ``transitions``: topics that became enrolled while we wrote to them, and since when.
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
        self._create = AutoCreation(feed.connection, feed.producer.settings.auto_create).look_at
        self._metadata_at = 0.0
        self._new, self._known = PartitionCounts(), PartitionCounts()
        self.transitions: dict[str, float] = {}

    # -- topics that are not enrolled --------------------------------------------------------------

    def none_enrolled(self) -> None:
        """Send everything as it is: there is no control topic (``lock`` held)."""
        for topic in list(self._producer.unrouted):
            self._pass_through(topic)
            self._held.route(topic)

    def _pass_through(self, topic: str) -> None:
        if topic not in self._producer.routes:
            self._create(topic)
        self._producer.routes[topic] = PASS_THROUGH

    def adopt(self, view: ControlView) -> None:
        """Hold the records of topics that passed through and are enrolled in the view (``lock`` held)."""
        for topic in [t for t, r in self._producer.routes.items() if r is PASS_THROUGH]:
            if topic in view.enrolments:
                self._producer.remove_route(topic)
                self._producer.unrouted.setdefault(topic, deque())
                self._plain.count()
                self.transitions[topic] = monotonic()

    def answer(self) -> None:
        """Answer PREPARE for every partition whose unstamped records are resolved."""
        for topic in list(self.transitions):
            self._settled(topic)
        own = self._feed.registration
        for state in to_answer(self._feed.states(), own.record):
            if state.attempt is None or not self._settled(state.parent.topic, state.parent.partition):
                continue
            own.answer_ready(str(state.parent), state.attempt.id, Deadline(self._feed.lease_seconds()))

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
        # Brokers take a producer's records of one partition in order: a later one is through, so these are.
        return any(w.done for w in route.send_states[partition].writers)

    # -- enrolled topics ---------------------------------------------------------------------------

    def route_new_topics(self) -> None:
        """Look up the topics of records that wait for it, and let them go on."""
        producer, tail = self._producer, self._feed.following()
        failed: KpsplitError | None = None
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
            check_partitioner(enrolment, self._producer.settings.partitioner)
        except ConfigurationError as error:
            with self._producer.lock.first:
                self._refuse(topic, error)
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
        send_state: SendState = SendState(
            state, lambda segment: RouteWriter(segment, parent), self._producer.tally
        )
        send_state.suspend(True)  # until the control topic was read to an end asked for after we registered
        return send_state

    def _refuse(self, topic: str, error: KpsplitError) -> None:
        self._producer.refused[topic] = error
        refusal = KafkaError(KafkaError._INVALID_ARG, error.message)
        self._held.fail_unrouted(topic, refusal)

    def refresh_partition_counts(self) -> None:
        """Follow added partitions: like any producer, keys move to where the partitioner now puts them."""
        routes = {t: r for t, r in self._producer.routes.items() if isinstance(r, TopicRoute)}
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


def not_allowed(error: AuthorizationError) -> KafkaError:
    """Return the error of records whose topic cannot be looked up for want of a right."""
    return KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, error.message)
