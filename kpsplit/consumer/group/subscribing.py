"""From what the application subscribed to, to what the group consumer subscribes to.

Owned by the engine's thread. The group's topics follow the control topic: when a topic is enrolled its slots
topic takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException

from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.context import Context
from kpsplit.consumer.events import kafka_error
from kpsplit.consumer.group.membership import Membership
from kpsplit.consumer.group.subscriptions import Mode, Subscribed, resolve, subtopics
from kpsplit.consumer.slots.assigned import SlotStage
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.splitter.records.keys import slots_topic

log = logging.getLogger(__name__)

LIST_SECONDS = 10.0
AGAIN_SECONDS = 1.0

_UNSUPPORTED = KafkaError(KafkaError.UNSUPPORTED_ASSIGNOR).str()
"""librdkafka tells of it as a fatal error with no code of its own."""


class Subscribing:
    """What the application wants, and what was done for it."""

    def __init__(self, context: Context, membership: Membership) -> None:
        self._context = context
        self._membership = membership
        self._wanted: tuple[str, ...] | None = None
        self._topics: frozenset[str] = frozenset()
        self._listing: Future[frozenset[str]] | None = None
        self._list_at = 0.0
        self._listed: frozenset[str] | None = None
        self._leaving = False
        self.by_hand = False
        """Partitions were assigned by hand: there is no group."""

    def subscribe(self, names: Sequence[str]) -> None:
        """Take a new subscription of the application; an empty one is none."""
        resolve(names, (), ())  # a pattern that is none is refused at once
        self._wanted = tuple(names) or None
        self._listed, self._list_at = None, 0.0
        if self._wanted is None:
            self.leave()

    def leave(self) -> None:
        """Leave the group: a revocation of everything follows."""
        self._wanted = None
        self._leaving = True
        if self._context.group.topics:
            self._context.group.unsubscribe()

    def come_back(self) -> None:
        """The application polls again after its slots were given up; the group has to be left before.

        A member that gave up a part of its slots would otherwise stay in the group with the others, which
        nobody tells it about again.
        """
        if self._out(by_hand=False):
            self._membership.away = False

    def turn(self, *, nested: bool) -> None:
        """Follow the view and the cluster's topics; nothing is changed from inside a rebalance."""
        if nested:
            return
        if self._membership.away or self._wanted is None:
            self._leave_for_now()
            return
        metadata = self._context.metadata
        if not metadata.ready or not self._known(self._wanted):
            return
        names = resolve(self._wanted, self._listed or (), subtopics(metadata.view.states.values()))
        topics = [metadata.subscribed(name) for name in sorted(names)]
        self._follow_modes(topics)
        self._follow_growth(topics)
        wanted = frozenset(t.group_topic for t in topics)
        if wanted != self._context.group.topics:
            self._leaving = False
            self._membership.subscribe(topics)

    def explain(self, error: KafkaError) -> None:
        """Tell the application of an error of the group consumer, in terms of its own topics and settings."""
        self._context.events.tell(_explained(error, self._context.settings, self._wanted or ()))

    def _leave_for_now(self) -> None:
        group = self._context.group
        if group.topics:
            self._leaving = True
            group.unsubscribe()
        elif self._leaving and self._out():
            self._leaving = False
            self._membership.left()

    def _out(self, *, by_hand: bool = True) -> bool:
        """Tell whether nothing is left of the membership; ``by_hand``: nor of what was assigned by hand."""
        group = self._context.group
        held = [h for h in self._context.assigned_slots if by_hand or not h.by_hand]
        return not group.topics and not group.assignment and not held

    def _follow_modes(self, topics: Sequence[Subscribed]) -> None:
        modes = {t.group_topic: t.mode for t in topics}
        for assigned in self._context.assigned_slots.on((SlotStage.WANTED,)):
            assigned.mode = modes.get(assigned.place.topic, Mode.MOVING)

    def _follow_growth(self, topics: Sequence[Subscribed]) -> None:
        """Have slots added where topics have grown; tell ``error_cb`` of partitions that nobody can read."""
        growing = self._context.growing
        for error in growing.turn({t.topic: t.slots for t in topics if t.mode is Mode.SLOTS}):
            log.warning("kpsplit: %s", error)
            self._context.events.warn(kafka_error(error))
        if growing.grown:
            growing.grown = False
            self._context.group.look_at_topics()

    def _known(self, wanted: Sequence[str]) -> bool:
        """Tell whether the cluster's topics are known, where a pattern asks for them; look at them again."""
        if not any(name.startswith("^") for name in wanted):
            return True
        if self._listing is not None and self._listing.done():
            self._take_list(self._listing)
        if self._listing is None and monotonic() >= self._list_at:
            query_client = self._context.query_client
            self._listing = self._context.executor.run(
                lambda: frozenset(query_client.client.list_topics(timeout=LIST_SECONDS).topics)
            )
        return self._listed is not None

    def _take_list(self, listing: Future[frozenset[str]]) -> None:
        self._listing = None
        try:
            self._listed = listing.result()
            self._list_at = monotonic() + self._context.settings.metadata_refresh
        except (KafkaException, KpsplitError):
            self._list_at = monotonic() + AGAIN_SECONDS


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
