"""Plain questions and orders to the cluster: brokers, topics, their settings, the ends of their logs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
    TopicMetadata,
)

from kpsplit.clock import Deadline, in_thread, monotonic
from kpsplit.errors import AuthorizationError, DeadlineExceededError, UsageError
from kpsplit.kafka.admin_answers import ANSWER_SECONDS, ExistsError, MissingError
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.error_map import error_of
from kpsplit.kafka.log_ends import LogEnd, LogEndQueries
from kpsplit.kafka.topic_facts import PartitionFacts, TopicFacts
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.rights import Operation

_LOOK_PAUSE = 0.02
_ASK_SECONDS = 2.0


def await_served(admin: ClusterAdmin, topics: Mapping[str, int], deadline: Deadline) -> None:
    """Return when each broker's own metadata has the topics, with leaders and every replica in sync.

    A producer that asks any broker then finds the new partitions at once. A broker that ends while we wait
    is asked until the deadline: an operation is not begun on a cluster that is losing brokers.

    Args:
        admin: asks for the brokers.
        topics: partition count by name.
        deadline: of the whole wait.

    Raises:
        DeadlineExceededError: not in time; the message names the broker that was waited for.
    """
    connection = admin.connection
    for broker, address in admin.brokers().items():
        # Limited to one broker: as long as this client has asked nothing else it is connected to no other.
        one = connection.open_admin(
            "served", reconnect_backoff_max_ms=connection.longest_pause(500), **_limited_to(address)
        )
        while not all(_serves(one, topic, count, deadline) for topic, count in topics.items()):
            if deadline.left() <= 0:
                names = ", ".join(topics)
                raise DeadlineExceededError(f"broker {broker} ({address}) does not serve {names} in time")
            time.sleep(_LOOK_PAUSE)


def _limited_to(address: str) -> dict[str, object]:
    return {"bootstrap_servers": address, "metadata_broker_list": address, "enable_sparse_connections": True}


def _serves(one: AdminClient, topic: str, partitions: int, deadline: Deadline) -> bool:
    try:
        listed = one.list_topics(topic, timeout=max(0.05, min(_ASK_SECONDS, deadline.left())))
    except KafkaException:
        return False
    found = listed.topics.get(topic)
    return found is not None and found.error is None and complete(found, partitions)


CERTAIN_SECONDS = 10.0
"""A broker that lags behind the controller may not know every topic: so long "no" is asked for again."""


class Absence:
    """Decides whether a topic that a broker does not know is gone. Not thread safe.

    Admin clients ask any broker that answers. That may be a stale one for as long as the others are frozen or
    cannot be reached. So a topic is gone when two things hold: for ``CERTAIN_SECONDS`` nothing but "no such
    topic" was answered, and then most brokers, each asked by itself, do not know it and none knows it.
    """

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._since: Deadline | None = None
        self._vote: Future[bool] | None = None

    def denied(self) -> bool:
        """Take the answer that there is no such topic; return whether that is certain by now.

        It does not wait. The brokers are asked by a thread of its own.
        """
        self._since = self._since or Deadline(CERTAIN_SECONDS)
        if not self._since.expired():
            return False
        if self._vote is None:
            ask = partial(most_brokers_lack, self._connection, self._topic)
            self._vote = in_thread(ask, "kpsplit-absence")
        if not self._vote.done():
            return False
        if self._vote.exception() is None and self._vote.result():
            return True
        self.doubted()
        return False

    def doubted(self) -> None:
        """Take any other answer, or none: what was denied before is not certain."""
        self._since = self._vote = None


def most_brokers_lack(connection: Connection, topic: str) -> bool:
    """Ask each broker by itself whether it knows a topic; return whether most do not, and none does.

    A broker that does not answer counts as one that may know it. So does one that is not listed and has
    replicas: brokers leave out of their lists those that the controller takes for dead.

    Raises:
        KafkaException: no broker names the brokers of the cluster.
    """
    cluster = connection.shared_admin().list_topics(timeout=ANSWER_SECONDS)
    replicas = {
        broker
        for listed in cluster.topics.values()
        for partition in listed.partitions.values()
        for broker in partition.replicas
    }
    lacking = 0
    for broker in cluster.brokers.values():
        one = connection.open_admin("absence", **_limited_to(f"{broker.host}:{broker.port}"))
        try:
            # Of all topics: a question for one may create it, and describe_topics asks another broker.
            if topic in one.list_topics(timeout=ANSWER_SECONDS).topics:
                return False
        except KafkaException:
            continue
        lacking += 1
    return lacking * 2 > len(cluster.brokers.keys() | replicas)


def complete(topic: TopicMetadata, partitions: int) -> bool:
    """Return whether metadata has all partitions of a topic, each with a leader and all replicas in sync."""
    return len(topic.partitions) == partitions and all(
        p.leader >= 0 and set(p.isrs) == set(p.replicas) for p in topic.partitions.values()
    )


__all__ = ["ANSWER_SECONDS", "ClusterAdmin", "LogEnd", "PartitionFacts", "TopicFacts", "no_partition"]

_PATIENCE = 1.5
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
        """Return a topic with its settings, None if there is none of that name."""
        found = self.known(topic)
        if found is None:
            return None
        entries = self._config_entries(topic)
        return TopicFacts(
            found.name,
            found.topic_id,
            found.partitions,
            _values(entries),
            _values({name: e for name, e in entries.items() if _set_on_topic(e)}),
        )

    def describe(self, topic: str) -> TopicFacts:
        """Return a topic with its settings.

        Raises:
            UsageError: there is none of that name.
        """
        return _there(topic, self.find(topic))

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has; nobody needs a right on its settings for that.

        Raises:
            UsageError: there is none of that name.
        """
        return len(_there(topic, self.known(topic)).partitions)

    def known(self, topic: str) -> TopicFacts | None:
        """Return a topic without its settings; None only if it stays unknown for a while.

        A broker that has just started, or not heard of a new topic yet, does not know it.
        """
        end = monotonic() + _PATIENCE
        while (found := self.layout(topic)) is None and monotonic() < end:
            time.sleep(_PAUSE)
        return found

    def certain(self, topics: Iterable[str], deadline: Deadline) -> dict[str, TopicFacts | None]:
        """Return topics without their settings; None only if it is certain that there is none (``Absence``).

        What certainty takes is waited for once, however many topics there are.

        Raises:
            AuthorizationError: one of them may not be described.
            DeadlineExceededError: the brokers did not agree in time.
        """
        found: dict[str, TopicFacts | None] = {}
        doubtful = {topic: Absence(self.connection, topic) for topic in topics}
        while True:
            for topic, absence in doubtful.items():
                facts = self.layout(topic)
                if facts is not None or absence.denied():
                    found[topic] = facts
            doubtful = {topic: absence for topic, absence in doubtful.items() if topic not in found}
            if not doubtful:
                return found
            deadline.check(f"most brokers to agree that there is no topic {', '.join(sorted(doubtful))}")
            time.sleep(_PAUSE)

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

    def config(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic that are in force."""
        return _values(self._config_entries(topic))

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
        """Return the settings of a broker that are in force."""
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        return _values(self._described(resource, f"read the settings of broker {broker}"))

    def _config_entries(self, topic: str) -> dict[str, ConfigEntry]:
        """Return a topic's settings; as ``known``, believe only after a while that there is none."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        end = monotonic() + _PATIENCE
        while True:
            try:
                return self._described(resource, f"read the settings of topic {topic}")
            except MissingError:
                if monotonic() >= end:
                    raise UsageError(f"there is no topic {topic}") from None
            time.sleep(_PAUSE)

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
    """Return the error for a partition that its topic, with so many of them, does not have."""
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

    Raises:
        KpsplitError: no answer.
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
