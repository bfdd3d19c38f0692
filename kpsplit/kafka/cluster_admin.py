"""Plain questions and orders to the cluster: brokers, topics, their settings, the ends of their logs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from confluent_kafka import ElectionType, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicMetadata,
)

from kpsplit.clock import Deadline, in_thread
from kpsplit.errors import AuthorizationError, DeadlineExceededError, UsageError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of
from kpsplit.kafka.following import OneBroker
from kpsplit.kafka.log_ends import (
    ANSWER_SECONDS,
    GRACE,
    ExistsError,
    HasPartitionsError,
    LogEnd,
    LogEndQueries,
    MissingError,
    answer_within,
)
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.rights import Operation

__all__ = [
    "ANSWER_SECONDS",
    "ClusterAdmin",
    "LogEnd",
    "PartitionFacts",
    "TopicFacts",
    "answer_within",
    "no_partition",
]


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition's replicas; ``leader`` is None while it has none."""

    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def in_sync(self) -> bool:
        return self.leader is not None and set(self.isr) == set(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic. ``config`` is what is in force, ``explicit`` what was set on the topic itself."""

    name: str
    topic_id: str
    partitions: tuple[PartitionFacts, ...]
    config: dict[str, str] = field(default_factory=dict)
    explicit: dict[str, str] = field(default_factory=dict)

    @property
    def replication(self) -> int:
        return min((len(p.replicas) for p in self.partitions), default=0)

    @property
    def compacted(self) -> bool:
        return "compact" in self.config.get("cleanup.policy", "")

    def keeps_for(self, ms: int) -> bool:
        """Return whether brokers remove records by their age only, and none that is younger than this."""
        by_age = (
            "delete" in self.config.get("cleanup.policy", "") and self.config.get("retention.bytes") == "-1"
        )
        return by_age and int(self.config.get("retention.ms", "-1")) >= ms

    @property
    def min_insync(self) -> int:
        return int(self.config.get("min.insync.replicas", "1"))


_LOOK_PAUSE = 0.02
_ASK_SECONDS = 2.0


def await_served(
    admin: ClusterAdmin, topics: Mapping[str, int], deadline: Deadline, in_sync: float = inf
) -> None:
    """Return when each broker's own metadata has the topics (partition counts by name), with all in sync.

    ``in_sync``: so many replicas of each partition are enough.

    A producer that asks any broker then finds the new partitions at once. A broker that ends while we wait
    is asked until the deadline: an operation is not begun on a cluster that is losing brokers.

    Raises:
        DeadlineExceededError: not in time; the message names the broker that was waited for.
    """
    connection = admin.connection
    for broker, address in admin.brokers().items():
        backoff = connection.longest_pause(500)
        one = _one(connection, "served", broker, address, reconnect_backoff_max_ms=backoff)
        while not all(_serves(one, topic, count, deadline, in_sync) for topic, count in topics.items()):
            if deadline.left() <= 0:
                names = ", ".join(topics)
                raise DeadlineExceededError(f"broker {broker} ({address}) does not serve {names} in time")
            time.sleep(_LOOK_PAUSE)


def _one(connection: Connection, role: str, broker: int, address: str, **settings: object) -> OneBroker:
    told: dict[str, object] = {"bootstrap_servers": address, "metadata_broker_list": address}
    make = partial(connection.open_admin, role, enable_sparse_connections=True, **told, **settings)
    return OneBroker(broker, make)


def _serves(one: OneBroker, topic: str, partitions: int, deadline: Deadline, in_sync: float) -> bool:
    try:
        listed = one.list_topics(max(0.05, min(_ASK_SECONDS, deadline.left())), topic)
    except KafkaException:
        return False
    found = listed.topics.get(topic)
    return found is not None and found.error is None and complete(found, partitions, in_sync)


CERTAIN_SECONDS = 10.0
"""A broker that lags behind the controller may not know every topic: so long "no" is asked for again."""

LAG_SECONDS = 1.5
"""After that a new topic is known to every broker that hears of the controller."""


class Absence:
    """Decides whether a topic that a broker does not know is gone. Not thread safe.

    Admin clients ask one broker, and another when it is away. That may be a stale one for as long as the
    others are frozen or cannot be reached. So a topic is gone when two things hold: for ``CERTAIN_SECONDS``
    nothing but "no such topic" was answered, and then most brokers, each asked by itself, do not know it and
    none knows it.
    Where *every* broker says so, ``ClusterAdmin.certain`` needs ``LAG_SECONDS`` only.
    """

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._since: Deadline | None = None
        self._vote: Future[Vote] | None = None

    def denied(self) -> bool:
        """Take the answer that there is no such topic; return whether that is certain by now.

        It does not wait. The brokers are asked by a thread of its own.
        """
        self._since = self._since or Deadline(CERTAIN_SECONDS)
        if not self._since.expired():
            return False
        if self._vote is None:
            self._vote = in_thread(partial(ask_every_broker, self._connection), "kpsplit-absence")
        if not self._vote.done():
            return False
        if self._vote.exception() is None and self._vote.result().most_lack(self._topic):
            return True
        self.doubted()
        return False

    def doubted(self) -> None:
        """Take any other answer, or none: what was denied before is not certain."""
        self._since = self._vote = None


@dataclass(frozen=True, slots=True)
class Vote:
    """What every broker, each asked by itself, says about which topics there are.

    A broker that did not answer may know any topic. So may one that nobody lists and that has replicas:
    brokers leave out of their lists those that the controller takes for dead.
    """

    brokers: frozenset[int]
    topics: Mapping[int, frozenset[str]]
    """The topics that a broker knows, for those that answered."""

    def most_lack(self, topic: str) -> bool:
        return not self._known(topic) and len(self.topics) * 2 > len(self.brokers)

    def all_lack(self, topic: str) -> bool:
        return not self._known(topic) and self.topics.keys() == self.brokers

    def none_lists(self, topic: str) -> bool:
        return bool(self.topics) and not self._known(topic)

    def _known(self, topic: str) -> bool:
        return any(topic in known for known in self.topics.values())


def ask_every_broker(connection: Connection, seconds: float = ANSWER_SECONDS) -> Vote:
    """Ask all brokers at the same time which topics they know; takes no longer than two answers may.

    ``seconds``: for one answer.

    Raises:
        KafkaException: no broker names the brokers of the cluster.
    """
    asked: dict[int, Future[ClusterMetadata]] = {}
    said: dict[int, ClusterMetadata] = {}
    found = connection.shared_admin().list_topics(timeout=seconds)
    for broker in found.brokers.values():
        # Of all topics: a question for one may create it, and describe_topics asks another broker.
        one = _one(connection, "absence", broker.id, f"{broker.host}:{broker.port}")
        asked[broker.id] = in_thread(partial(one.list_topics, seconds), "kpsplit-absence")
    wait(asked.values(), seconds + GRACE)
    for number, answer in asked.items():
        if answer.done() and answer.exception() is None:
            said[number] = answer.result()
    brokers = frozenset(n for heard in (found, *said.values()) for n in _named(heard))
    return Vote(brokers, {number: frozenset(heard.topics) for number, heard in said.items()})


def _named(heard: ClusterMetadata) -> Iterator[int]:
    """Yield the brokers that a broker lists, and those that have replicas."""
    yield from heard.brokers
    for topic in heard.topics.values():
        for partition in topic.partitions.values():
            yield from partition.replicas


def complete(topic: TopicMetadata, partitions: int, in_sync: float = inf) -> bool:
    return len(topic.partitions) == partitions and all(
        p.leader >= 0 and len(p.isrs) >= min(in_sync, len(p.replicas)) for p in topic.partitions.values()
    )


_CERTAINTY_SECONDS = CERTAIN_SECONDS + 2 * ANSWER_SECONDS
"""For one look of every broker after ``CERTAIN_SECONDS``."""

_PAUSE = 0.1


class ClusterAdmin(LogEndQueries):
    """Admin calls with kpsplit's errors. Not thread safe."""

    def brokers(self, seconds: float = ANSWER_SECONDS) -> dict[int, str]:
        """Return the address of every broker by its id."""
        metadata = self._listed(seconds)
        return {b.id: f"{b.host}:{b.port}" for b in metadata.brokers.values()}

    def cluster_id(self) -> str:
        """Return Kafka's id of the cluster, "" if the brokers name none."""
        return str(self._listed().cluster_id or "")

    def topics(self) -> dict[str, int]:
        """Return the partition count of every topic by its name."""
        return {name: len(topic.partitions) for name, topic in self._listed().topics.items()}

    def find(self, topic: str) -> TopicFacts | None:
        """Return a topic with its settings, None if there is none of that name.

        Raises:
            DeadlineExceededError: the brokers did not agree in time whether there is one.
        """
        resource = ConfigResource(ResourceType.TOPIC, topic)
        deadline = Deadline(_CERTAINTY_SECONDS)
        while (found := self.known(topic, deadline)) is not None:
            try:
                entries = self._described(resource, f"read the settings of topic {topic}")
            except MissingError:  # a broker does not know it yet, or it was deleted just now
                deadline.check(f"the settings of topic {topic}, which some brokers do not know")
                time.sleep(_PAUSE)
                continue
            explicit = {name: e for name, e in entries.items() if _set_on_topic(e)}
            return replace(found, config=_values(entries), explicit=_values(explicit))
        return None

    def describe(self, topic: str) -> TopicFacts:
        """Return a topic with its settings; UsageError if there is none of that name."""
        return _there(topic, self.find(topic))

    def partition_count(self, topic: str, deadline: Deadline | None = None) -> int:
        """Return how many partitions a topic has; needs no right on its settings. UsageError if missing."""
        return len(_there(topic, self.known(topic, deadline)).partitions)

    def known(self, topic: str, deadline: Deadline | None = None) -> TopicFacts | None:
        """Return a topic without its settings; as ``certain``, which tells when there is none."""
        return self.certain([topic], deadline or Deadline(_CERTAINTY_SECONDS))[topic]

    def certain(self, topics: Iterable[str], deadline: Deadline) -> dict[str, TopicFacts | None]:
        """Return topics without their settings; None only if it is certain that there is none (``Absence``).

        A topic is missing when for ``LAG_SECONDS`` nothing but "no such topic" was answered, and then each
        broker of the cluster does not know it. Where a broker does not answer, what certainty takes is waited
        for, once for all topics.

        Raises:
            AuthorizationError: one of them may not be described.
            DeadlineExceededError: the brokers did not agree in time.
        """
        found: dict[str, TopicFacts | None] = {}
        doubtful = {topic: Absence(self.connection, topic) for topic in topics}
        vote: Future[Vote] | None = None
        lag = Deadline(LAG_SECONDS)
        while True:
            voted = vote.result() if vote and vote.done() and vote.exception() is None else None
            for topic, absence in doubtful.items():
                facts = self.layout(topic)
                if facts is not None or absence.denied() or (voted and voted.all_lack(topic)):
                    found[topic] = facts
            doubtful = {topic: absence for topic, absence in doubtful.items() if topic not in found}
            if not doubtful:
                return found
            if vote is None and lag.expired():
                vote = in_thread(partial(ask_every_broker, self.connection), "kpsplit-absence")
            deadline.check(f"most brokers to agree that there is no topic {', '.join(sorted(doubtful))}")
            time.sleep(_PAUSE)

    def await_gone(self, topic: str, deadline: Deadline) -> None:
        """Return when no broker that answers lists a topic whose deletion was acknowledged.

        Each is asked by itself: one may list the topic for a moment longer than the others.

        Raises:
            DeadlineExceededError: not in time.
        """
        while True:
            with suppress(KafkaException):
                if ask_every_broker(self.connection, answer_within(deadline)).none_lists(topic):
                    return
            deadline.check(f"every broker to leave the deleted topic {topic} out of its list")
            deadline.pause(_PAUSE)

    def layout(self, topic: str) -> TopicFacts | None:
        """Return a topic without its settings, None if the broker that is asked knows none of that name."""
        futures = self.client.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_SECONDS)
        try:
            found = self.answer(futures[topic], f"describe topic {topic}")
        except MissingError:
            return None
        partitions = tuple(
            PartitionFacts(
                None if p.leader is None or p.leader.id < 0 else p.leader.id,
                tuple(node.id for node in p.replicas),
                tuple(node.id for node in p.isr),
            )
            for p in sorted(found.partitions, key=lambda p: p.id)
        )
        return TopicFacts(found.name, str(found.topic_id), partitions)

    def create(
        self,
        topic: str,
        config: Mapping[str, str],
        *,
        partitions: int = 1,
        replication: int = -1,
        assignment: Sequence[Sequence[int]] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> bool:
        """Create a topic; return False if there is one of that name already."""
        if assignment is not None:
            replicas = [list(brokers) for brokers in assignment]
            new = NewTopic(topic, len(replicas), replica_assignment=replicas, config=dict(config))
        else:
            new = NewTopic(topic, partitions, replication, config=dict(config))
        futures = self.client.create_topics([new], operation_timeout=seconds, request_timeout=seconds)
        try:
            self.answer(futures[topic], f"create topic {topic}", seconds, writing=True)
        except ExistsError:
            return False
        return True

    def delete(self, topic: str, seconds: float = ANSWER_SECONDS) -> bool:
        """Delete a topic; return False if there is none of that name."""
        futures = self.client.delete_topics([topic], operation_timeout=seconds, request_timeout=seconds)
        try:
            self.answer(futures[topic], f"delete topic {topic}", seconds, writing=True)
        except MissingError:
            return False
        return True

    def add_partitions(self, topic: str, partitions: int, seconds: float = ANSWER_SECONDS) -> None:
        """Have a topic grow to so many partitions; nothing happens where it has grown already."""
        futures = self.client.create_partitions([NewPartitions(topic, partitions)], request_timeout=seconds)
        with suppress(HasPartitionsError):
            self.answer(futures[topic], f"add partitions to topic {topic}", seconds, writing=True)

    def elect_preferred(self, places: Iterable[PhysicalPartition], seconds: float) -> None:
        """Have the first replica of each partition lead it, as far as it is in sync."""
        # No keyword arguments: with a timeout confluent-kafka 2.16 raises SystemError here.
        partitions = [TopicPartition(p.topic, p.partition) for p in places]
        future = self.client.elect_leaders(ElectionType.PREFERRED, partitions)
        self.answer(future, "elect leaders", seconds, writing=True)

    def set_config(self, topic: str, name: str, value: str, seconds: float = ANSWER_SECONDS) -> bool:
        """Set one of a topic's settings; return False if there is no such topic."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        futures = self.client.incremental_alter_configs([resource], request_timeout=seconds)
        try:
            self.answer(futures[resource], f"set {name} of topic {topic}", seconds, writing=True)
        except MissingError:
            return False
        return True

    def broker_config(self, broker: int) -> dict[str, str]:
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        return _values(self._described(resource, f"read the settings of broker {broker}"))

    def _described(self, resource: ConfigResource, what: str) -> dict[str, ConfigEntry]:
        futures = self.client.describe_configs([resource], request_timeout=ANSWER_SECONDS)
        entries: dict[str, ConfigEntry] = self.answer(futures[resource], what)
        return entries

    def _listed(self, seconds: float = ANSWER_SECONDS) -> Any:
        try:
            return self.client.list_topics(timeout=seconds)
        except KafkaException as exception:
            raise self.explained(error_of(exception), "read the cluster's topics") from exception


def no_partition(parent: PhysicalPartition, count: int) -> UsageError:
    return UsageError(
        f"topic {parent.topic} has no partition {parent.partition}",
        hint=f"its partitions are 0 to {count - 1}",
    )


def _values(entries: Mapping[str, ConfigEntry]) -> dict[str, str]:
    return {name: e.value for name, e in entries.items() if e.value is not None}


def _set_on_topic(entry: ConfigEntry) -> bool:
    source = getattr(entry.source, "value", entry.source)  # an int, whatever the annotation says
    return bool(source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value)


def _there(topic: str, found: TopicFacts | None) -> TopicFacts:
    if found is None:
        raise UsageError(f"there is no topic {topic}", hint="check the name and the right to describe it")
    return found


_KNOWN = {operation.name: operation for operation in Operation}


def allowed_on(admin: ClusterAdmin, topics: Collection[str]) -> dict[str, frozenset[Operation]]:
    """Return what is allowed on each topic that exists; nothing on one that we may not even see.

    A cluster without an authorizer allows everything. Topics for which the brokers name no operation
    are left out: on one that we see something is allowed.

    """
    asked = TopicCollection(sorted(topics))
    futures = admin.client.describe_topics(
        asked, include_authorized_operations=True, request_timeout=ANSWER_SECONDS
    )
    found: dict[str, frozenset[Operation]] = {}
    for topic, future in futures.items():
        try:
            operations = admin.answer(future, f"describe topic {topic}").authorized_operations
        except MissingError:
            continue
        except AuthorizationError:
            found[topic] = frozenset()
            continue
        if operations:
            found[topic] = frozenset(_KNOWN[o.name] for o in operations if o.name in _KNOWN)
    return found
