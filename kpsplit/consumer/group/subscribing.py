"""From what the application subscribed to, to what the group consumer subscribes to.

Owned by the engine's thread. The group's topics follow the control topic: when a topic is enrolled its slots
topic takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import monotonic
from kpsplit.consumer.broker_executor import BrokerExecutor, QueryClient
from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.events import Events, kafka_error
from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.consumer.group.membership import Membership
from kpsplit.consumer.metadata import Metadata
from kpsplit.control.own_topics import GrowingSlots
from kpsplit.errors import KpsplitError
from kpsplit.splitter.group_slots import Mode, Subscribed, resolve, subtopics
from kpsplit.splitter.records.keys import slots_topic

log = logging.getLogger(__name__)

LIST_SECONDS = 10.0
AGAIN_SECONDS = 1.0

_UNSUPPORTED = KafkaError(KafkaError.UNSUPPORTED_ASSIGNOR).str()
"""librdkafka reports it as a fatal error without a code of its own."""


class ClusterTopics:
    """Which topics the cluster has, and which of them have grown; brokers are asked, nothing here waits."""

    def __init__(
        self,
        group: GroupConsumer,
        query_client: QueryClient,
        executor: BrokerExecutor[Any],
        growing: GrowingSlots,
    ) -> None:
        self._group = group
        self._query_client = query_client
        self._executor = executor
        self._growing = growing
        self._listing: Future[frozenset[str]] | None = None
        self._list_at = 0.0
        self._listed: frozenset[str] | None = None

    @property
    def without_slots(self) -> Mapping[str, range]:
        """The partitions of topics that have no slots: no group reads them."""
        return self._growing.unread

    def list_anew(self) -> None:
        """Take nothing for known that was listed until now."""
        self._listed, self._list_at = None, 0.0

    def listed(self, seconds: float) -> frozenset[str] | None:
        """Return the topics that were listed latest, None while they are not known; listed every so often."""
        if self._listing is not None and self._listing.done():
            self._take_list(self._listing, seconds)
        if self._listing is None and monotonic() >= self._list_at:
            client = self._query_client
            self._listing = self._executor.run(
                lambda: frozenset(client.client.list_topics(timeout=LIST_SECONDS).topics)
            )
        return self._listed

    def _take_list(self, listing: Future[frozenset[str]], seconds: float) -> None:
        self._listing = None
        try:
            self._listed = listing.result()
            self._list_at = monotonic() + seconds
        except (KafkaException, KpsplitError):
            self._list_at = monotonic() + AGAIN_SECONDS

    def add_slots(self, topics: Mapping[str, int]) -> list[KpsplitError]:
        """Have slots added where topics have grown; return what keeps partitions from being read.

        Args:
            topics: slots per partition, by topic.
        """
        errors = self._growing.turn(topics)
        if self._growing.grown:
            self._growing.grown = False
            self._group.look_at_topics()
        return errors


class Subscribing:
    """What the application has subscribed to, and what was done for it. Owned by the engine's thread."""

    def __init__(
        self,
        settings: ConsumerSettings,
        membership: Membership,
        metadata: Metadata,
        topics: ClusterTopics,
        events: Events,
    ) -> None:
        self._settings = settings
        self._membership = membership
        self._metadata = metadata
        self.topics = topics
        self._events = events
        self._wanted: tuple[str, ...] | None = None
        self._leaving = False
        self.by_hand = False
        """Partitions were assigned by hand: there is no group."""

    def subscribe(self, names: Sequence[str]) -> None:
        """Take a new subscription of the application; an empty one is none."""
        resolve(names, (), ())  # a pattern that is none is refused at once
        self._wanted = tuple(names) or None
        self.topics.list_anew()
        if self._wanted is None:
            self.leave()

    def leave(self) -> None:
        """Leave the group: a revocation of everything follows."""
        self._wanted = None
        self._leaving = True
        self._membership.leave_group()

    def come_back(self) -> None:
        """The application polls again after its slots were given up; the group has to be left before.

        A member that gave up a part of its slots would otherwise stay in the group with the others, and
        would not be given them again.
        """
        if self._membership.out(by_hand=False):
            self._membership.away = False

    def turn(self, *, nested: bool) -> None:
        """Follow the view and the cluster's topics; nothing is changed from inside a rebalance."""
        if nested:
            return
        if self._membership.away or self._wanted is None:
            self._leave_for_now()
            return
        metadata = self._metadata
        if not metadata.ready or (listed := self._listed(self._wanted)) is None:
            return
        names = resolve(self._wanted, listed, subtopics(metadata.view.states.values()))
        topics = [metadata.subscribed(name) for name in sorted(names)]
        self._membership.follow_modes(topics)
        self._follow_growth(topics)
        wanted = frozenset(t.group_topic for t in topics)
        if wanted != self._membership.topics:
            self._leaving = False
            self._membership.subscribe(topics)

    def explain(self, error: KafkaError) -> None:
        """Report an error of the group consumer in terms of the application's topics and settings."""
        self._events.tell(_explained(error, self._settings, self._wanted or ()))

    def _leave_for_now(self) -> None:
        if self._membership.leave_group():
            self._leaving = True
        elif self._leaving and self._membership.out():
            self._leaving = False
            self._membership.left()

    def _follow_growth(self, topics: Sequence[Subscribed]) -> None:
        """Have slots added where topics have grown; report partitions that cannot be read."""
        for error in self.topics.add_slots({t.topic: t.slots for t in topics if t.mode is Mode.SLOTS}):
            log.warning("kpsplit: %s", error)
            self._events.warn(kafka_error(error))

    def _listed(self, wanted: Sequence[str]) -> frozenset[str] | None:
        """Return the cluster's topics, none where no pattern asks for them; None while they are not known."""
        if not any(name.startswith("^") for name in wanted):
            return frozenset()
        return self.topics.listed(self._settings.metadata_refresh)


def _explained(error: KafkaError, settings: ConsumerSettings, wanted: Sequence[str]) -> KafkaError:
    code, text = error.code(), error.str()
    if code == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
        return KafkaError(
            code,
            "the other members of the group do not use the setting of this one, "
            f"partition.assignment.strategy={settings.strategy}; give all members the same "
            "partition.assignment.strategy and group.protocol",
        )
    if settings.assignor and _UNSUPPORTED in text:
        return KafkaError(
            KafkaError.UNSUPPORTED_ASSIGNOR,
            f"the brokers have no assignor group.remote.assignor={settings.assignor}; nothing was assigned; "
            "give the name of one of theirs (their setting group.consumer.assignors: uniform and range "
            "unless changed), or none",
            fatal=error.fatal(),
        )
    for topic in wanted:
        slots = slots_topic(topic)
        if slots in text:
            hint = f"ask for the right to describe and read {slots}, or run: kpsplit enroll {topic}"
            return KafkaError(code, f"{text}; the slots of topic {topic} cannot be seen: {hint}")
    return error
