"""What each kind of client may do, and no more, as Kafka's access lists say it (docs/security.md). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum

from kpsplit.splitter.records.keys import (
    CONTROL_TOPIC,
    OFFSETS_TOPIC,
    PRODUCERS_TOPIC,
    group_ids,
    operator_ids,
    slots_topic,
    subtopics_prefix,
)


class Role(StrEnum):
    OPERATOR = "operator"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    VERIFIER = "verifier"


class Resource(StrEnum):
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"


class Operation(StrEnum):
    """What is allowed, in Kafka's words.

    Read, Write, Delete and Alter bring Describe with them, AlterConfigs brings DescribeConfigs.
    """

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    ALTER_CONFIGS = "AlterConfigs"
    DESCRIBE_CONFIGS = "DescribeConfigs"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One entry: an operation on a resource, or on all whose names begin so (``prefixed``)."""

    resource: Resource
    name: str
    prefixed: bool
    operation: Operation

    def covers(self, topic: str) -> bool:
        named = topic.startswith(self.name) if self.prefixed else topic == self.name
        return self.resource is Resource.TOPIC and named

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}{'*' if self.prefixed else ''}"


GROUPS_TOPIC = "__consumer_offsets"
"""Kafka's own: groups with their ordinary offsets. The leader of a partition coordinates its groups."""

LIST_GROUPS = Right(Resource.CLUSTER, "kafka-cluster", False, Operation.DESCRIBE)
"""With it brokers list all groups, without it only those that we may describe."""

EVERY_GROUP = Right(Resource.GROUP, "", True, Operation.DESCRIBE)
"""To see how far groups have read, before a sub-topic is deleted."""


def rights_for(
    role: Role,
    topic: str,
    *,
    group: str | None = None,
    transactional_id: str | None = None,
    takeover: bool = False,
    changelog: str | None = None,
    generation: int = 1,
) -> tuple[Right, ...]:
    """Return the least rights with which a role can work on a topic.

    Args:
        role: whose rights.
        topic: the logical topic.
        group: the consumer's group; required for consumers.
        transactional_id: with what the transactional ids of producers begin, if they use transactions.
        takeover: whether the producer may roll back an operation whose operator died in the fence: it can
            write to the control topic then.
        changelog: the topic of the consumer's state, if it keeps any.
        generation: of the topic's number of slots; each has a slots topic of its own.

    Raises:
        ValueError: a consumer without a group.
    """
    slots = slots_topic(topic, generation)
    match role:
        case Role.OPERATOR:
            return _operator(topic, slots)
        case Role.PRODUCER:
            return (*_producer(topic, transactional_id), *(takeover_rights(topic) if takeover else ()))
        case Role.CONSUMER:
            if group is None:
                raise ValueError("a consumer has a group")
            return (*_consumer(topic, group, slots), *_keeping(changelog))
        case Role.VERIFIER:
            return _verifier(topic, slots)


def lacking(topic: str, allowed: Mapping[str, Set[Operation]], generation: int = 1) -> tuple[Right, ...]:
    """Return what an operator of a topic lacks on topics that exist; ``allowed``: what the brokers say."""
    return tuple(
        Right(Resource.TOPIC, name, False, right.operation)
        for name, operations in sorted(allowed.items())
        for right in _operator(topic, slots_topic(topic, generation))
        if right.covers(name) and right.operation not in {*operations, Operation.CREATE}
    )


def _operator(topic: str, slots: str) -> tuple[Right, ...]:
    data = (Operation.READ, Operation.WRITE)
    subtopics = (*data, Operation.CREATE, Operation.DELETE, Operation.ALTER_CONFIGS)
    own = (*data, Operation.CREATE, Operation.DESCRIBE_CONFIGS)
    shared = (Operation.CREATE, Operation.ALTER, Operation.DELETE, Operation.DESCRIBE_CONFIGS)
    return (
        *_on(Resource.TOPIC, topic, *data, Operation.DESCRIBE_CONFIGS),
        *_on(Resource.TOPIC, subtopics_prefix(topic), *subtopics, prefixed=True),
        *_on(Resource.TOPIC, CONTROL_TOPIC, *own),
        *_on(Resource.TOPIC, PRODUCERS_TOPIC, *own),
        *_on(Resource.TOPIC, OFFSETS_TOPIC, *own),
        *_on(Resource.TOPIC, slots, *shared),
        _claiming(topic),
        EVERY_GROUP,
        *_on(Resource.TOPIC, GROUPS_TOPIC, Operation.DESCRIBE),
        LIST_GROUPS,
        *_on(Resource.CLUSTER, LIST_GROUPS.name, Operation.ALTER),
    )


def _producer(topic: str, transactional_id: str | None) -> tuple[Right, ...]:
    return (
        *_on(Resource.TOPIC, topic, Operation.WRITE),
        *_on(Resource.TOPIC, subtopics_prefix(topic), Operation.WRITE, prefixed=True),
        *_on(Resource.TOPIC, CONTROL_TOPIC, Operation.READ),
        *_on(Resource.TOPIC, PRODUCERS_TOPIC, Operation.WRITE),
        *_transactions(transactional_id),
    )


def _transactions(prefix: str | None) -> tuple[Right, ...]:
    if prefix is None:
        return ()
    return _on(Resource.TRANSACTIONAL_ID, prefix, Operation.WRITE, prefixed=True)


def _claiming(topic: str) -> Right:
    return Right(Resource.TRANSACTIONAL_ID, operator_ids(topic), True, Operation.WRITE)


def takeover_rights(topic: str) -> tuple[Right, ...]:
    return (
        *_on(Resource.TOPIC, CONTROL_TOPIC, Operation.WRITE),
        _claiming(topic),
    )


def _consumer(topic: str, group: str, slots: str) -> tuple[Right, ...]:
    return (
        *_reading(topic),
        *_on(Resource.GROUP, group, Operation.READ),
        *_on(Resource.TOPIC, slots, Operation.READ, Operation.ALTER),
        *_on(Resource.TOPIC, OFFSETS_TOPIC, Operation.READ, Operation.WRITE, Operation.DESCRIBE_CONFIGS),
        *_on(Resource.TRANSACTIONAL_ID, group_ids("commit", group), Operation.WRITE, prefixed=True),
        *_on(Resource.TRANSACTIONAL_ID, group_ids("run", group), Operation.WRITE, prefixed=True),
    )


def _keeping(changelog: str | None) -> tuple[Right, ...]:
    wanted = (
        *(Operation.READ, Operation.WRITE, Operation.CREATE),
        *(Operation.ALTER, Operation.DESCRIBE_CONFIGS),
    )
    return () if changelog is None else _on(Resource.TOPIC, changelog, *wanted)


def _verifier(topic: str, slots: str) -> tuple[Right, ...]:
    return (
        *_reading(topic),
        *_on(Resource.TOPIC, topic, Operation.DESCRIBE_CONFIGS),
        *_on(Resource.TOPIC, subtopics_prefix(topic), Operation.DESCRIBE_CONFIGS, prefixed=True),
        *_on(Resource.TOPIC, PRODUCERS_TOPIC, Operation.READ),
        *_on(Resource.TOPIC, OFFSETS_TOPIC, Operation.READ),
        *_on(Resource.TOPIC, slots, Operation.DESCRIBE),
    )


def _reading(topic: str) -> tuple[Right, ...]:
    return (
        *_on(Resource.TOPIC, topic, Operation.READ),
        *_on(Resource.TOPIC, subtopics_prefix(topic), Operation.READ, prefixed=True),
        *_on(Resource.TOPIC, CONTROL_TOPIC, Operation.READ),
    )


def _on(resource: Resource, name: str, *operations: Operation, prefixed: bool = False) -> tuple[Right, ...]:
    return tuple(Right(resource, name, prefixed, operation) for operation in operations)
