"""kpsplit's own topics: created with the right policy, or refused by name (protocol, section 4).

The slots topic of a topic has P x R empty partitions, made to be assigned (protocol, section 10.1). It holds
no records, and takes none: ``max.message.bytes`` is 0. A topic of its name that is not like that is somebody
else's, and is left alone. ``kpsplit enroll`` makes it. Where the topic grows, members of groups add its slots
(``GrowingSlots``), or ``kpsplit enroll`` does when it is run again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewPartitions

from kpsplit.clock import Deadline, monotonic
from kpsplit.errors import AuthorizationError, CheckFailedError, ConflictError, KpsplitError, after_a_change
from kpsplit.kafka.cluster_admin import (
    ANSWER_SECONDS,
    ClusterAdmin,
    TopicFacts,
    allowed_on,
    answer_within,
    await_served,
)
from kpsplit.kafka.error_map import RIGHTS_HINT, error_of, is_one_of, translate
from kpsplit.splitter.key_range import MAX_SLOTS, check_slots, default_slots, unread_text, without_slots
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Enrolment, SlotDivision
from kpsplit.splitter.records.keys import (
    CONTROL_PARTITIONS,
    CONTROL_TOPIC,
    MOST_GENERATIONS,
    OFFSETS_TOPIC,
    PRODUCERS_TOPIC,
    slots_topic,
)
from kpsplit.splitter.rights import lacking

REPLICATION = 3
SEGMENT_BYTES = 4 << 20
"""Compaction leaves the newest segment as it is, and whoever starts reads it: about a second in Python."""
CHANGELOG_SEGMENT_BYTES = 16 << 20
SEGMENT_MS = 24 * 3600 * 1000
"""So old are records at most in a segment that is never compacted, where something is written."""
LONGEST_SEGMENT_BYTES = 64 << 20
DEFAULT_OFFSETS_PARTITIONS = 16
TAKES_NOTHING = ("max.message.bytes", "0")
"""For topics that nobody ever writes to. Older versions sealed sub-topics with it."""
AGAIN = "run kpsplit init again: it goes on from there"
_MIN_MESSAGE_BYTES = 1_000_000
"""A control record may have 900,000 bytes."""


@dataclass(frozen=True, slots=True)
class OwnTopic:
    """How one of kpsplit's topics has to be. ``partitions`` None: any number will do for an existing one."""

    name: str
    partitions: int | None


def own_topics(offsets_partitions: int | None) -> tuple[OwnTopic, ...]:
    return (
        OwnTopic(PRODUCERS_TOPIC, 1),
        OwnTopic(CONTROL_TOPIC, CONTROL_PARTITIONS),
        OwnTopic(OFFSETS_TOPIC, offsets_partitions),
    )


def topic_config(replication: int, segment_bytes: int = SEGMENT_BYTES) -> dict[str, str]:
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(segment_bytes),
        "segment.ms": str(SEGMENT_MS),
        "unclean.leader.election.enable": "false",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "LogAppendTime",
    }
    return config | ({"min.insync.replicas": "2"} if replication >= REPLICATION else {})


def misfits(own: OwnTopic, found: TopicFacts, brokers: int) -> list[str]:
    """Return what is wrong with an existing topic of ours, each with the remedy; empty if nothing is."""
    wrong = []
    policy = found.config.get("cleanup.policy", "")
    if policy != "compact":
        wrong.append(f"cleanup.policy is {policy!r}, not 'compact': set it with kafka-configs")
    if own.partitions is not None and len(found.partitions) != own.partitions:
        wrong.append(
            f"it has {len(found.partitions)} partitions, not {own.partitions}: delete it if it is unused"
        )
    needed = min(REPLICATION, brokers)
    if found.replication < needed:
        wrong.append(
            f"its replication factor is {found.replication}, not {needed}: "
            "raise it with kafka-reassign-partitions"
        )
    if needed >= REPLICATION and found.min_insync < 2:
        wrong.append(f"min.insync.replicas is {found.min_insync}, not 2: set it with kafka-configs")
    if found.config.get("unclean.leader.election.enable") == "true":
        wrong.append("unclean.leader.election.enable is true: set it to false with kafka-configs")
    if int(found.config.get("max.message.bytes", _MIN_MESSAGE_BYTES)) < _MIN_MESSAGE_BYTES:
        wrong.append(f"max.message.bytes is below {_MIN_MESSAGE_BYTES}: raise it with kafka-configs")
    return wrong


def long_segments(found: TopicFacts) -> str | None:
    """Return what is wrong with how an existing log of ours is divided into segments, None if nothing is.

    That makes starts slow and no more, so nobody refuses such a topic.
    """
    size = int(found.config.get("segment.bytes", "0"))
    if size <= LONGEST_SEGMENT_BYTES:
        return None
    return f"{found.name} has segment.bytes={size}: compaction leaves the newest, and every start reads it"


def create_own_topics(admin: ClusterAdmin, offsets_partitions: int | None, deadline: Deadline) -> list[str]:
    """Create what is missing of kpsplit's topics; return the names of those that were created.

    Raises:
        CheckFailedError: one of them exists and is not as it has to be; nothing was created then.
    """
    brokers = admin.brokers()
    wanted = own_topics(offsets_partitions)
    names = admin.topics()
    found = {own.name: admin.find(own.name) if own.name in names else None for own in wanted}
    for own in wanted:
        _refuse_misfit(own, found[own.name], len(brokers))
    created: list[str] = []
    replication = min(REPLICATION, len(brokers))
    for own in wanted:
        partitions = own.partitions or DEFAULT_OFFSETS_PARTITIONS
        with after_a_change(AGAIN, done=bool(created)):
            if found[own.name] is not None:
                continue
            together = own.name == CONTROL_TOPIC
            if together:
                await_served(admin, {PRODUCERS_TOPIC: 1}, deadline)
            # A lease needs the ends of all partitions of the control topic. So they are on the brokers of the
            # producers topic, in the same order: no more brokers than one must answer for a lease.
            beside = admin.describe(PRODUCERS_TOPIC).partitions[0].replicas if together else ()
            where = {"assignment": [beside] * partitions} if together else {"replication": replication}
            if admin.create(own.name, topic_config(replication), partitions=partitions, **where):
                created.append(own.name)
    with after_a_change(AGAIN, done=bool(created)):
        for own in wanted:
            if found[own.name] is None and own.name not in created:  # somebody else has just made it
                found[own.name] = admin.describe(own.name)
                _refuse_misfit(own, found[own.name], len(brokers))
        counts = {own.name: own.partitions or DEFAULT_OFFSETS_PARTITIONS for own in wanted}
        there = {name: len(topic.partitions) for name, topic in found.items() if topic}
        await_served(admin, counts | there, deadline)
    return created


def _refuse_misfit(own: OwnTopic, topic: TopicFacts | None, brokers: int) -> None:
    wrong = misfits(own, topic, brokers) if topic else []
    if wrong:
        raise CheckFailedError(
            f"topic {own.name} exists, but {wrong[0]}",
            hint="a topic that exists is not changed: set it right, or delete it",
        )


_log = logging.getLogger(__name__)

_PAUSE = 0.05
_LOOK_AGAIN_SECONDS = 1.0
"""How soon it is looked whether slots that were added are there."""


def wanted_slots(partitions: int, known: Enrolment | None, asked: int | None, existing: int | None) -> int:
    """Return how many slots each partition of a topic has, or is to have first.

    Args:
        partitions: of the topic.
        known: its enrolment.
        asked: what the user wants, None: whatever is there, else the default.
        existing: partitions of a slots topic that an enrolment left that was broken off.
    """
    if known is not None and known.slots is not None:
        return known.slots
    if asked is not None:
        return asked
    left_over, rest = divmod(existing or 0, partitions)
    return left_over if rest == 0 and 1 <= left_over <= MAX_SLOTS else default_slots(partitions)


def changed(known: Enrolment | None, asked: int | None) -> Enrolment | None:
    """Return the enrolment that begins another number of slots, None if the number stays.

    Raises:
        UsageError: the number is out of bounds. ConflictError: the one in force is not alone yet.
    """
    if asked is not None:
        check_slots(asked)
    if known is None or known.slots is None or asked in (None, known.slots):
        return None
    if known.former is not None:
        raise ConflictError(
            known.change_text,
            hint=f"to finish that run: kpsplit enroll {known.topic}; then change them again",
        )
    if known.generation == MOST_GENERATIONS:
        raise ConflictError(f"the slots of topic {known.topic} were changed {MOST_GENERATIONS - 1} times")
    following = known.generation + 1
    return replace(known, settled=False, slots=asked, generation=following, former_slots=known.slots)


def misfit(found: TopicFacts, wanted: int, replication: int, *, may_grow: int | None) -> str | None:
    """Return what is wrong with an existing slots topic, None if nothing is.

    ``may_grow``: the number of slots in force (None: nothing was recorded yet); the slots topic may then have
    fewer partitions than are wanted, in whole slots, because the topic has grown.
    """
    count = len(found.partitions)
    growing = may_grow is not None and count < wanted and count % may_grow == 0
    if count != wanted and not growing:
        return f"it has {count} partitions, not {wanted}"
    if found.replication < replication:
        return f"its replication factor is {found.replication}, not {replication}"
    return None


class SlotsTopics:
    """Creates and repairs slots topics. Not thread safe."""

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin

    def decide(self, topic: TopicFacts, known: Enrolment | None, asked: int | None, name: str) -> int:
        """Return how many slots a topic has, or is to have in a slots topic of this name."""
        return wanted_slots(len(topic.partitions), known, asked, self._admin.topics().get(name))

    def check_rights(self, topic: str, generation: int) -> None:
        """Raises AuthorizationError, with its name, for a right on a slots topic that an operator lacks."""
        allowed = allowed_on(self._admin, {slots_topic(topic, generation)})
        if missing := lacking(topic, allowed, generation):
            raise AuthorizationError(f"missing {', '.join(map(str, missing))}", hint=RIGHTS_HINT)

    def ensure(self, topic: TopicFacts, division: SlotDivision, recorded: bool, deadline: Deadline) -> bool:
        """Create a topic's slots topic, or add partitions where the topic has grown; return whether it did.

        ``recorded``: the number of slots is in the enrolment already.

        Raises:
            CheckFailedError: there is a topic of that name that is no slots topic; it was left alone.
            AuthorizationError: it must not be created.
            DeadlineExceededError: not every broker serves it in time.
        """
        admin, name, slots = self._admin, division.topic, division.slots
        wanted = len(topic.partitions) * slots
        replication, config = min(REPLICATION, len(admin.brokers())), dict([TAKES_NOTHING])
        where: dict[str, Any] = {"partitions": wanted, "replication": replication}
        created = name not in admin.topics() and admin.create(
            name, config, **where, seconds=answer_within(deadline)
        )
        count = wanted if created else self._checked(name, wanted, replication, slots if recorded else None)
        if count < wanted:
            self._grow(name, wanted, deadline)
        if created or count < wanted:
            with after_a_change():
                await_served(admin, {name: wanted}, deadline)
        return created or count < wanted

    def _checked(self, name: str, wanted: int, replication: int, may_grow: int | None) -> int:
        """Return how many partitions an existing slots topic has."""
        found = self._admin.describe(name)
        wrong = misfit(found, wanted, replication, may_grow=may_grow)
        if wrong is None and self._holds_records(name, len(found.partitions)):
            wrong = "it holds records, and no slots topic does"
        if wrong is not None:
            raise CheckFailedError(
                f"topic {name} exists, but {wrong}",
                hint=f"if nobody uses it, delete {name}, then retry",
            )
        return len(found.partitions)

    def _holds_records(self, name: str, partitions: int) -> bool:
        """Return whether a record was ever written there, as far as brokers know the partitions by now."""
        ends = self._admin.end_offsets(PhysicalPartition(name, p) for p in range(partitions))
        return any(end.offset > 0 for end in ends.values())

    def _grow(self, name: str, partitions: int, deadline: Deadline) -> None:
        self._admin.add_partitions(name, partitions, answer_within(deadline))
        with after_a_change():
            while self._admin.topics().get(name, 0) < partitions:
                deadline.check(f"topic {name} to have {partitions} partitions")
                time.sleep(_PAUSE)


class GrowingSlots:
    """Adds slots where a topic has grown, for members of a group: nothing here waits.

    A member may do so with Alter on the slots topic. Members that see the same growth ask for the same number
    of partitions, so it does not matter which is first. Owned by one thread.

    Args:
        admin: returns the client that is asked.
        seconds: how often topics are looked at.
    """

    def __init__(self, admin: Callable[[], AdminClient], seconds: float) -> None:
        self._admin = admin
        self._seconds = seconds
        self._look_at = 0.0
        self._looks: dict[str, tuple[SlotDivision, tuple[Future[Any], Future[Any]]]] = {}
        self._adding: dict[str, tuple[str, Future[None]]] = {}
        self._counts: dict[str, int] = {}
        self.unread: dict[str, range] = {}
        """The partitions of topics that had no slots at the latest look: no group reads them."""
        self.grown = False
        """A slots topic has more partitions than before; the member that acts on it takes it back."""

    def turn(self, topics: Mapping[str, SlotDivision]) -> list[KpsplitError]:
        """Look at topics if it is time, with their slots; return what people have to see to.

        Slots that could not be added are returned once for each look. A topic that could not be looked at
        waits for the next one: the group consumer reports what is wrong with a topic.
        """
        self._take_looks()
        troubles = list(self._take_added())
        if not self._looks and not self._adding and monotonic() >= self._look_at:
            self._look_at = monotonic() + self._seconds
            self.unread = {name: lost for name, lost in self.unread.items() if name in topics}
            for name, division in topics.items():
                asked = TopicCollection([name, division.topic])
                futures = self._admin().describe_topics(asked, request_timeout=ANSWER_SECONDS)
                self._looks[name] = division, (futures[name], futures[division.topic])
        return troubles

    def _take_looks(self) -> None:
        for topic, (division, futures) in list(self._looks.items()):
            if not all(future.done() for future in futures):
                continue
            del self._looks[topic]
            try:
                partitions, has = (len(future.result().partitions) for future in futures)
            except KafkaException as exception:
                _log.info("it could not be looked whether topic %s has grown: %s", topic, exception)
                continue
            self.grown = self.grown or has > self._counts.get(division.topic, has)
            self._counts[division.topic] = has
            self.unread.pop(topic, None)
            unread = without_slots(partitions, division.slots, has)
            if unread:
                self.unread[topic] = unread
                wanted = NewPartitions(division.topic, partitions * division.slots)
                added = self._admin().create_partitions([wanted], request_timeout=ANSWER_SECONDS)
                self._adding[topic] = division.topic, added[wanted.topic]

    def _take_added(self) -> Iterator[KpsplitError]:
        for topic, (name, added) in [(t, one) for t, one in self._adding.items() if one[1].done()]:
            del self._adding[topic]
            try:
                added.result()
            except KafkaException as exception:
                if not is_one_of(exception, {KafkaError.INVALID_PARTITIONS}):  # else somebody was faster
                    yield _unread(topic, name, self.unread[topic], error_of(exception))
                    continue
            self._look_at = min(self._look_at, monotonic() + _LOOK_AGAIN_SECONDS)


def _unread(topic: str, name: str, partitions: range, error: KafkaError | None) -> KpsplitError:
    refused = translate(error, f"add partitions to topic {name}", writing=True)
    return type(refused)(
        f"{unread_text(topic, partitions)}; {refused.message}",
        hint=f"run: kpsplit enroll {topic}",
    )
