"""Which consumer groups there are, and how far they have read."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Future
from typing import Any
from uuid import uuid4

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
)

from kpsplit.errors import AuthorizationError, KpsplitError, UnreachableError
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.control_log import offsets_partition
from kpsplit.kafka.error_map import RIGHTS_HINT, error_of, translate, translated
from kpsplit.kafka.group_members import WITHOUT_MEMBERS, describe_members
from kpsplit.kafka.offset_log import OffsetTail
from kpsplit.splitter.commits import CommitFold, ordinary_offsets
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.ports import Deadline
from kpsplit.splitter.records.keys import OFFSETS_TOPIC
from kpsplit.splitter.rights import EVERY_GROUP

_AT_A_TIME = 50

Positions = dict[PhysicalPartition, int]
"""The next offset that a group will read, by partition."""


def committed_positions(admin: ClusterAdmin, deadline: Deadline) -> dict[str, Positions]:
    """Return the committed positions of every group that has any.

    Raises:
        AuthorizationError: groups may be hidden from us.
        KpsplitError: a group could not be asked; what is not known must not be taken for drained.
    """
    _check_none_is_hidden(admin, deadline)
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


def positions_of(admin: ClusterAdmin, group: str) -> Positions:
    """Return the ordinary committed offsets of one group; none if there is no such group.

    Raises:
        KpsplitError: the coordinator could not be asked.
    """
    return _positions(group, _ask(admin, group))


def range_commits(
    connection: Connection, admin: ClusterAdmin, parents: Iterable[PhysicalPartition], deadline: Deadline
) -> CommitFold:
    """Return the range commits of all groups for some logical partitions; none without an offset log.

    Raises:
        FutureVersionError: a newer kpsplit wrote to the log: its groups could be overlooked.
        DeadlineExceededError: it could not be read to its end in time.
    """
    count = admin.topics().get(OFFSETS_TOPIC, 0)
    if not count:
        return CommitFold()
    tail = OffsetTail(connection, {offsets_partition(parent, count) for parent in parents})
    try:
        return tail.read_all(deadline)
    finally:
        tail.close()


def positions_by_range_commits(fold: CommitFold, state: PartitionState) -> dict[str, Positions]:
    """Return where each group stands that has range commits for a logical partition.

    A physical partition of which any key has no commit is missing: it is *not drained*.
    """
    found: dict[str, Positions] = {}
    for group in fold.groups(state.parent):
        pieces = fold.cursor(group, state.parent, WHOLE, state.lineage)
        found[group] = ordinary_offsets(state, (cursor for _, cursor in pieces if cursor is not None))
    return found


def _check_none_is_hidden(admin: ClusterAdmin, deadline: Deadline) -> None:
    """Ask for a group that nobody has named: brokers leave out of their lists what we may not see.

    Its name begins as no rights for a prefix do.
    """
    try:
        describe_members(admin, f"~{uuid4().hex}", min(deadline.left(), ANSWER_SECONDS))
    except AuthorizationError as error:
        raise AuthorizationError(
            f"missing {EVERY_GROUP}: groups that are hidden would be taken for drained", hint=RIGHTS_HINT
        ) from error


def readers_without_commit(
    admin: ClusterAdmin, committed: Collection[str], topics: Collection[str], deadline: Deadline
) -> list[str]:
    """Return the groups besides those that ``committed`` of which a member owns something of these topics.

    Raises:
        KpsplitError: a group could not be asked; what is not known must not be taken for drained.
    """
    found = []
    for group in _listed(admin):
        if group.group_id not in committed and group.state not in WITHOUT_MEMBERS:
            deadline.check("the members of the consumer groups")
            assigned = describe_members(admin, group.group_id).assigned
            found += [group.group_id] if any(p.topic in topics for p in assigned) else []
    return sorted(found)


def _group_ids(admin: ClusterAdmin) -> list[str]:
    return sorted(g.group_id for g in _listed(admin))


def _listed(admin: ClusterAdmin) -> list[Any]:
    with translated("list the consumer groups"):
        try:
            future = admin.client.list_consumer_groups(request_timeout=ANSWER_SECONDS)
            listed = future.result(ANSWER_SECONDS + 1)
        except TimeoutError:
            raise UnreachableError("could not list the consumer groups: no answer in time") from None
    if listed.errors:
        raise translate(error_of(listed.errors[0]), "list the consumer groups of every broker")
    return list(listed.valid or [])


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
