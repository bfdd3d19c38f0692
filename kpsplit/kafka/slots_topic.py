"""The slots topic of an enrolled topic: P x R empty partitions that exist to be assigned (design, section 4).

It holds no records, and takes none: ``max.message.bytes`` is 0. A topic of its name that is not like that is
somebody else's, and is left alone.
"""

from __future__ import annotations

import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewPartitions

from kpsplit.errors import CheckFailedError, ConflictError
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin, TopicFacts
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.kafka.initialise import REPLICATION
from kpsplit.kafka.served import await_served
from kpsplit.kafka.subtopics import SEALED_CONFIG
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.keys import slots_topic
from kpsplit.splitter.slots import MAX_SLOTS, check_slots, default_slots

_PAUSE = 0.05


def wanted_slots(partitions: int, known: Enrolment | None, asked: int | None, existing: int | None) -> int:
    """Return how many slots each partition of a topic has, or is to have.

    Args:
        partitions: of the topic.
        known: its enrolment, None if it has none.
        asked: what the user wants, None: whatever is there, else the default.
        existing: how many partitions a slots topic has already that was never recorded: from an enrolment
            that was broken off.

    Raises:
        UsageError: the number asked for is out of bounds.
        ConflictError: the topic has another number; it is fixed.
    """
    if asked is not None:
        check_slots(asked)
    if known is not None and known.slots is not None:
        if asked not in (None, known.slots):
            raise ConflictError(
                f"topic {known.topic} has {known.slots} slots per partition, not {asked}",
                hint=f"groups share it by them: leave --slots away, or give --slots {known.slots}",
            )
        return known.slots
    if asked is not None:
        return asked
    left_over = existing is not None and existing % partitions == 0
    if existing is not None and left_over and 1 <= existing // partitions <= MAX_SLOTS:
        return existing // partitions
    return default_slots(partitions)


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

    def __init__(self, connection: Connection, admin: ClusterAdmin) -> None:
        self._connection = connection
        self._admin = admin

    def decide(self, topic: TopicFacts, known: Enrolment | None, asked: int | None) -> int:
        """Return how many slots each partition of a topic is to have; as ``wanted_slots``."""
        existing = self._admin.topics().get(slots_topic(topic.name))
        return wanted_slots(len(topic.partitions), known, asked, existing)

    def ensure(self, topic: TopicFacts, slots: int, recorded: bool, deadline: Deadline) -> bool:
        """Create a topic's slots topic, or add partitions where the topic has grown; tell whether it changed.

        Args:
            topic: the topic.
            slots: per partition.
            recorded: whether this number is in the enrolment already.
            deadline: of the whole call.

        Raises:
            CheckFailedError: there is a topic of that name that is no slots topic; it was left alone.
            AuthorizationError: it must not be created.
            DeadlineExceededError: not every broker serves it in time.
        """
        name, wanted = slots_topic(topic.name), len(topic.partitions) * slots
        brokers = self._admin.brokers()
        replication = min(REPLICATION, len(brokers))
        created = name not in self._admin.topics() and self._create(name, wanted, replication, deadline)
        count = wanted if created else self._checked(name, wanted, replication, slots if recorded else None)
        if count < wanted:
            self._grow(name, wanted, deadline)
        if created or count < wanted:
            await_served(self._connection, brokers, {name: wanted}, deadline)
        return created or count < wanted

    def _create(self, name: str, partitions: int, replication: int, deadline: Deadline) -> bool:
        config = dict([SEALED_CONFIG])
        return self._admin.create(
            name, config, partitions=partitions, replication=replication, seconds=_within(deadline)
        )

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
        """Tell whether a record was ever written there, as far as the brokers know the partitions by now."""
        ends = self._admin.end_offsets(PhysicalPartition(name, p) for p in range(partitions))
        return any(end.offset > 0 for end in ends.values())

    def _grow(self, name: str, partitions: int, deadline: Deadline) -> None:
        futures = self._admin.client.create_partitions(
            [NewPartitions(name, partitions)], request_timeout=_within(deadline)
        )
        try:
            futures[name].result(_within(deadline) + 1.0)
        except KafkaException as exception:
            error = error_of(exception)
            raise translate(error, f"add partitions to topic {name}", writing=True) from exception
        while self._admin.topics().get(name, 0) < partitions:
            deadline.check(f"topic {name} to have {partitions} partitions")
            time.sleep(_PAUSE)


def _within(deadline: Deadline) -> float:
    return max(0.1, min(ANSWER_SECONDS, deadline.left()))
