"""Which consumer groups there are, and how far they have read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
)

from kpsplit.errors import FutureVersionError, KpsplitError, UnreachableError
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import offsets_partition
from kpsplit.kafka.error_map import error_of, translate, translated
from kpsplit.kafka.log_slice import read_slice
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records import offsets
from kpsplit.splitter.records.keys import OFFSETS_TOPIC

_AT_A_TIME = 50

Positions = dict[PhysicalPartition, int]
"""The next offset that a group will read, by partition."""


def committed_positions(admin: ClusterAdmin, deadline: Deadline) -> dict[str, Positions]:
    """Return the committed positions of every group that has any.

    Raises:
        KpsplitError: a group could not be asked; what is not known must not be taken for drained.
    """
    groups = _group_ids(admin)
    found: dict[str, Positions] = {}
    for first in range(0, len(groups), _AT_A_TIME):
        deadline.check("the positions of the consumer groups")
        asked = {g: _ask(admin, g) for g in groups[first : first + _AT_A_TIME]}
        for group, future in asked.items():
            positions = _positions(group, future)
            if positions:
                found[group] = positions
    return found


def groups_in_offset_log(
    connection: Connection, admin: ClusterAdmin, parent: PhysicalPartition, deadline: Deadline
) -> set[str]:
    """Return the groups that have range commits for a logical partition.

    Raises:
        FutureVersionError: a newer kpsplit wrote to the log: its groups could be overlooked.
        DeadlineExceededError: it could not be read to its end in time.
    """
    count = admin.topics().get(OFFSETS_TOPIC, 0)
    if not count:
        return set()
    place = PhysicalPartition(OFFSETS_TOPIC, offsets_partition(parent, count))
    end = admin.end_offsets([place], IsolationLevel.READ_COMMITTED)[place].offset
    low = admin.start_offsets([place])[place]
    groups = set()
    for message in read_slice(connection, place, low, end, deadline):
        group = group_of(message, parent)
        if group is not None:
            groups.add(group)
    deadline.check("the offset log to be read to its end")
    return groups


def group_of(message: Message, parent: PhysicalPartition) -> str | None:
    """Return the group of a range commit for a logical partition, None for any other record.

    Raises:
        FutureVersionError: the record is of a newer kpsplit.
    """
    key, value = _json(message.key()), _json(message.value())
    version = value.get("v")
    if isinstance(version, int) and version > offsets.VERSION:
        raise FutureVersionError(
            f"offset log: format version {version} is newer than {offsets.VERSION}", hint="upgrade kpsplit"
        )
    group = key.get("group")
    if not isinstance(group, str) or message.value() is None:
        return None
    return group if (key.get("topic"), key.get("partition")) == (parent.topic, parent.partition) else None


def _json(data: bytes | None) -> dict[str, Any]:
    try:
        value = json.loads(data or b"")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _group_ids(admin: ClusterAdmin) -> list[str]:
    with translated("list the consumer groups"):
        try:
            future = admin.client.list_consumer_groups(request_timeout=ANSWER_SECONDS)
            listed = future.result(ANSWER_SECONDS + 1)
        except TimeoutError:
            raise UnreachableError("could not list the consumer groups: no answer in time") from None
    if listed.errors:
        raise translate(error_of(listed.errors[0]), "list the consumer groups of every broker")
    return sorted(g.group_id for g in listed.valid or [])


def _ask(admin: ClusterAdmin, group: str) -> Future[Any]:
    request = [ConsumerGroupTopicPartitions(group)]
    answers: dict[str, Future[Any]] = admin.client.list_consumer_group_offsets(
        request, request_timeout=ANSWER_SECONDS
    )
    return answers[group]


def _positions(group: str, future: Future[Any]) -> Positions:
    what = f"read the positions of group {group}"
    try:
        answer = future.result(ANSWER_SECONDS + 1)
    except TimeoutError:
        raise UnreachableError(f"could not {what}: no answer in time") from None
    except KafkaException as exception:
        error = error_of(exception)
        if error is not None and error.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise translate(error, what) from exception
    positions = {}
    for place in answer.topic_partitions or []:
        if place.error is not None:
            raise KpsplitError(f"could not {what}: {place.error.str()}")
        if place.offset >= 0:
            positions[PhysicalPartition(place.topic, place.partition)] = place.offset
    return positions


def groups_of(positions: dict[str, Positions], topics: Iterable[str]) -> set[str]:
    """Return the groups that have a position in one of the topics."""
    wanted = set(topics)
    return {group for group, known in positions.items() if any(p.topic in wanted for p in known)}
