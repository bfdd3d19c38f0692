"""What a consumer knows of the control topic, and for how long that is good; and of the cluster's topics.

Owned by the engine's thread; nothing here waits. While there is no control topic, nothing is enrolled, and
a look for it every third of a lease keeps that knowledge fresh. A member that may not see the control topic
reads nothing: it cannot know what is enrolled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from kpsplit.clock import monotonic
from kpsplit.consumer.broker_executor import BrokerExecutor, QueryClient
from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.control.own_topics import GrowingSlots
from kpsplit.errors import AuthorizationError, FutureVersionError, KpsplitError
from kpsplit.kafka.connection import AdminUse, Connection
from kpsplit.kafka.control_log import ControlTail
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.log_ends import EndRequest
from kpsplit.splitter.control_plane import LEASE_MARGIN, ControlView
from kpsplit.splitter.group_slots import Mode, Subscribed, subscribed
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import LOOK_LEASE_MS, Enrolment, SlotDivision
from kpsplit.splitter.records.keys import CONTROL_TOPIC

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
REST_SECONDS = 0.25
"""How long a failed question rests."""
RIGHTS_REST_SECONDS = 2.0
"""How long a question rests that was refused for a missing right: an operator has to grant it first."""
LIST_SECONDS = 10.0
LIST_AGAIN_SECONDS = 1.0
SEE_AGAIN_SECONDS = 0.25
LEARN_SECONDS = 5.0
"""So long the group's client may take to learn of topics, from the first answer of brokers on."""
AGAIN_SECONDS = 0.05
"""How soon a reader that waits for an outcome has the end asked for again."""


class Metadata:
    """The folded control topic with its lease. ``position`` rises with everything that is new."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.admin = AdminUse(connection)
        """The client for the engine's own looks, until this is closed."""
        self.admin()  # at once: a client that is asked early knows no leaders
        self._tail: ControlTail | None = None
        self._look: tuple[float, Future[Any]] | None = None
        self._request: EndRequest | None = None
        self._rest_until = 0.0
        self._good_until = 0.0
        self._asked = -1.0
        self._wanted_at = -inf
        """A view is wanted that was asked for at this time or later."""
        self._request_id, self._requested_at = 0, -inf
        self._nothing = ControlView()
        self._noted = -1
        self._unsettled: dict[Enrolment, float] = {}
        """Enrolments that are not settled, and since when they are known: a lease later, at the latest,
        no member hands out by partition any more."""
        self.trouble: KpsplitError | None = None
        self.ready = False
        """What is enrolled has been known once."""

    # -- what is known -----------------------------------------------------------------------------

    @property
    def view(self) -> ControlView:
        """The folded control topic; empty while there is none."""
        return self._nothing if self._tail is None else self._tail.view

    @property
    def position(self) -> int:
        """Rises when the view changes."""
        return -1 if self._tail is None else self._tail.progress()

    @property
    def lease(self) -> float:
        """How long a view stays good, in seconds."""
        return (LOOK_LEASE_MS if self._tail is None else self.view.settings.lease_ms) / 1000

    def fresh(self) -> bool:
        """Return whether "not enrolled" can be relied on now."""
        return monotonic() < self._good_until

    def may_subscribe(self, topics: Iterable[str]) -> bool:
        """Return whether the group may be joined with topics by what was read of the view until now.

        With settled enrolments it is joined before all is read. Slots begin by a view that is fresh.
        """
        found = (self.view.enrolments.get(topic) for topic in topics)
        return self.ready or all(e and e.settled and e.former is None and not e.returning for e in found)

    def subscribed(self, topic: str) -> Subscribed:
        enrolment = self.view.enrolments.get(topic)
        since = None if enrolment is None else self._unsettled.get(enrolment)
        over = since is not None and monotonic() >= since + self.lease * LEASE_MARGIN
        return subscribed(topic, enrolment, lease_over=over)

    def returning(self, topic: str, mode: Mode) -> bool:
        """Return whether partitions that are shared so come to one place each: the topic returns, or has."""
        recorded = self.view.recorded(topic)
        return mode is Mode.WHOLE and recorded is not None and recorded.returning

    def state(self, parent: PhysicalPartition, *, left: bool = False) -> PartitionState:
        """Return a partition's state; that of a topic that is not enrolled is unsplit.

        ``left``: that of a topic that is back with plain clients is its last one.
        """
        recorded = self.view.left.get(parent.topic) if left else None
        if recorded is not None:
            return self.view.left_states.get(parent) or PartitionState.unsplit(parent, recorded.topic_id)
        enrolment = self.view.enrolments.get(parent.topic)
        back = enrolment is not None and enrolment.returning and self.subscribed(parent.topic).mode.plain
        state = None if back and not left else self.view.state(parent)
        return state or PartitionState.unsplit(parent, "")

    # -- keeping it fresh --------------------------------------------------------------------------

    def want_refresh(self, request_id: int = 0) -> None:
        """Have a view read that is newer than now; ``request_id`` names the wish, for ``refreshed``.

        A wish is made once for each id; without one (0) it is made anew once the last was fulfilled.
        """
        if request_id != self._request_id if request_id else self._asked >= self._wanted_at:
            self._wanted_at = monotonic()
            if request_id:
                self._request_id, self._requested_at = request_id, self._wanted_at

    def refreshed(self, request_id: int) -> bool:
        """Return, once, whether the view was read to an end asked for after that ``want_refresh``."""
        done = request_id == self._request_id and self._asked >= self._requested_at
        if done:
            self._request_id = 0
        return done

    def turn(self) -> None:
        """Follow the topic without waiting.

        Raises:
            FutureVersionError: a newer kpsplit writes it; nothing may be handed out by what is known here.
        """
        if monotonic() < self._rest_until:
            return
        if self._tail is None:
            self._attempt(self._search)
        if self._tail is not None:
            self._attempt(self._follow)

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
        self.admin.close()

    def _attempt(self, duty: Callable[[], None]) -> None:
        try:
            duty()
        except FutureVersionError:
            raise
        except KpsplitError as error:
            if self.trouble is None or self.trouble.message != error.message:
                log.warning("kpsplit: %s", error)
            self.trouble = error
            missing = isinstance(error, AuthorizationError)
            self._rest_until = monotonic() + (RIGHTS_REST_SECONDS if missing else REST_SECONDS)

    def _search(self) -> None:
        """Look for the control topic: asked, and looked at again in a later turn."""
        if self._look is None:
            if monotonic() < self._good_until - self.lease * 2 / 3 and self._asked >= self._wanted_at:
                return
            asked = TopicCollection([CONTROL_TOPIC])
            futures = self.admin().describe_topics(asked, request_timeout=LOOK_SECONDS)
            self._look = (monotonic(), futures[CONTROL_TOPIC])
        asked_at, answer = self._look
        if not answer.done():
            return
        self._look = None
        exists = self._exists(answer)
        self.trouble = None
        if exists:
            self._tail = ControlTail(self._connection)
        else:
            self.ready = True
            self._good_until, self._asked = asked_at + self.lease, asked_at

    def _exists(self, answer: Future[Any]) -> bool:
        try:
            answer.result()
        except KafkaException as exception:
            error = error_of(exception)
            if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return False
            # Also without the right to see it: a split topic that is read as a plain one ends at the split.
            raise translate(error, f"look at {CONTROL_TOPIC}") from exception
        return True

    def _follow(self) -> None:
        tail = self._tail
        if tail is None:
            return
        tail.poll(0)
        self._note_unsettled(tail)
        if self._request is None:
            if not self._due():
                return
            self._request = tail.ask_end()
        request = self._request
        if not request.done():
            return
        try:
            ends = request.result()
        except KpsplitError:
            self._request = None
            raise
        if not tail.reached(ends):
            return
        self._request = None
        self.ready, self.trouble = True, None
        self._asked, self._good_until = request.asked, request.asked + self.lease

    def _note_unsettled(self, tail: ControlTail) -> None:
        """Note since when enrolments are known that are not settled, where something new was read."""
        if tail.progress() == self._noted:
            return
        self._noted, now = tail.progress(), monotonic()
        unsettled = [e for e in tail.view.enrolments.values() if not e.settled]
        self._unsettled = {e: self._unsettled.get(e, now) for e in unsettled}

    def _due(self) -> bool:
        now = monotonic()
        if self._asked < self._wanted_at and now >= self._asked + AGAIN_SECONDS:
            return True
        return now >= self._good_until - self.lease * 3 / 4


@dataclass(slots=True)
class _NewTopics:
    """Topics that the group's client is to know before the group's are changed to them."""

    topics: frozenset[str]
    look: Future[bool] | None = None
    look_at: float = 0.0
    known: bool = False
    unknown_since: float = inf
    """The first answer by which it does not know all of them."""


class ClusterTopics:
    """Which topics the cluster has, and which of them have grown; brokers are asked, nothing here waits."""

    def __init__(
        self,
        group: GroupConsumer,
        query_client: QueryClient,
        executor: BrokerExecutor[Any],
        admin: AdminUse,
        seconds: float,
    ) -> None:
        self._group = group
        self._query_client = query_client
        self._executor = executor
        self._growing = GrowingSlots(admin, seconds)
        self._seconds = seconds
        self._listing: Future[frozenset[str]] | None = None
        self._list_at = 0.0
        self._listed: frozenset[str] | None = None
        self._new = _NewTopics(frozenset())

    @property
    def without_slots(self) -> Mapping[str, range]:
        """The partitions of topics that have no slots: no group reads them."""
        return self._growing.unread

    def list_anew(self) -> None:
        """Take nothing for known that was listed until now."""
        self._listed, self._list_at = None, 0.0

    def listed(self) -> frozenset[str] | None:
        """Return the topics that were listed latest, None while they are not known; listed every so often."""
        if self._listing is not None and self._listing.done():
            self._take_list(self._listing)
        if self._listing is None and monotonic() >= self._list_at:
            client = self._query_client
            self._listing = self._executor.run(
                lambda: frozenset(client.client.list_topics(timeout=LIST_SECONDS).topics)
            )
        return self._listed

    def _take_list(self, listing: Future[frozenset[str]]) -> None:
        self._listing = None
        try:
            self._listed = listing.result()
            self._list_at = monotonic() + self._seconds
        except (KafkaException, KpsplitError):
            self._list_at = monotonic() + LIST_AGAIN_SECONDS

    def known(self, topics: frozenset[str]) -> bool | None:
        """Return whether the group's client knows topics that are new to it; it looks at them.

        None while there is no answer, and while it may learn of them soon. What was asked before about other
        topics is forgotten.
        """
        new = self._new = self._new if self._new.topics == topics else _NewTopics(topics)
        if new.known or not topics:
            return True
        if new.look is None and monotonic() >= new.look_at:
            new.look = self._executor.run(lambda: self._group.sees(topics))
        if new.look is not None and new.look.done():
            look, new.look, new.look_at = new.look, None, monotonic() + SEE_AGAIN_SECONDS
            if look.exception() is None:
                new.known = look.result()
                new.unknown_since = min(new.unknown_since, monotonic())
        return new.known or (False if monotonic() >= new.unknown_since + LEARN_SECONDS else None)

    def add_slots(self, topics: Mapping[str, SlotDivision]) -> list[KpsplitError]:
        """Have slots added where topics have grown; return what keeps partitions from being read.

        Args:
            topics: their slots, by topic.
        """
        errors = self._growing.turn(topics)
        if self._growing.grown:
            self._growing.grown = False
            self._group.look_at_topics()
        return errors
