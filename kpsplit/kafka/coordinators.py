"""The coordinators of consumer groups: how they are asked, and which groups there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation

from kpsplit.clock import Deadline
from kpsplit.errors import AuthorizationError, KpsplitError, UnreachableError
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin
from kpsplit.kafka.error_map import COORDINATOR_MOVES, RIGHTS_HINT, error_of, is_one_of, translate, translated
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.rights import EVERY_GROUP, GROUPS_TOPIC, LIST_GROUPS

T = TypeVar("T")

PAUSE = 0.1
"""Between two questions."""

QUESTION_SECONDS = 1.0
"""With less time left no question is asked again: it would be reported as one that was not answered."""

COORDINATOR_LIMIT_SECONDS = 3600.0
"""The client's own limit for a question to a group's coordinator; the caller stops waiting long before.

librdkafka (2.16; its issue 4605) aborts the process if it has ended such a question by its own limit, and the
coordinator comes back afterwards: a broker that restarts is enough. So the client must not end it. It may
also wait for ever, and questions that follow wait with it: so the client goes with the question.
"""


def answered(admin: ClusterAdmin, future: Future[Any], what: str, seconds: float) -> Any:
    """Return a coordinator's answer.

    After no answer, and after one of a broker that is not the coordinator (any more), the client is another
    one: librdkafka (2.16) asks the broker that it once found for as long as that broker is up.

    Raises:
        UnreachableError: no answer in time. KafkaException: the broker refused.
    """
    try:
        return future.result(seconds)
    except TimeoutError:
        admin.renew()
        raise UnreachableError(f"could not {what}: no answer in time") from None
    except KafkaException as exception:
        if is_one_of(exception, COORDINATOR_MOVES):
            admin.renew()
        raise


def at_rest(ask: Callable[[], T], limit: Deadline) -> T:
    """Return what coordinators answer, asked again while one moves or reads its log, as one that starts does.

    Raises:
        KpsplitError: they refused, or did not come to rest in time.
    """
    while True:
        try:
            return ask()
        except KpsplitError as error:
            if not error.retriable or not _may_ask_again(limit):
                raise
        time.sleep(PAUSE)


def _may_ask_again(limit: Deadline) -> bool:
    return limit.left() > PAUSE + QUESTION_SECONDS


_HIDDEN = "groups that are hidden would be taken for drained"


def every_group(admin: ClusterAdmin, deadline: Deadline) -> list[Any]:
    """Return every group of the cluster.

    A broker lists the groups of those partitions of ``__consumer_offsets`` that it leads and has read. Of the
    others no answer says a word: those without a leader, those whose new leader has not begun to read, and
    those that it could not read. A new leader answers from what it knows to be committed, for a moment less
    than its predecessor had committed. So a list counts only if the leader of each partition said before it
    where the partition ends, which a new one cannot say in that moment (KIP-207), its coordinator answered,
    and each partition had the same leader before and after.

    Raises:
        AuthorizationError: we may not see the leaders, or a group may be hidden from us.
        UnreachableError: a partition has no leader or no coordinator, or they do not come to rest.
    """
    _check_none_is_denied(admin)
    limit = Deadline(min(ANSWER_SECONDS, deadline.left()))
    while True:
        leaders = _leaders(admin, deadline)
        if None not in leaders:
            at_rest(partial(_ask_each, admin, len(leaders), limit), limit)
            listed = at_rest(lambda: _listed(admin), limit)
            if _leaders(admin, deadline) == leaders:
                return listed
        if not _may_ask_again(limit):
            without = leaders.index(None) if None in leaders else None
            why = "its leaders move" if without is None else f"its partition {without} has no leader"
            raise UnreachableError(
                f"groups may be hidden: {GROUPS_TOPIC} keeps them, and {why}",
                hint="start its brokers, then retry",
            )
        time.sleep(PAUSE)


def _check_none_is_denied(admin: ClusterAdmin) -> None:
    """Ask for the right with which brokers list every group.

    Without it they leave out, one by one, those that we may not describe: a rule that denies one group is
    seen in no answer about another.
    """
    future = admin.client.describe_cluster(include_authorized_operations=True, request_timeout=ANSWER_SECONDS)
    allowed = admin.answer(future, "describe the cluster").authorized_operations
    if AclOperation.DESCRIBE not in (allowed or ()):
        raise AuthorizationError(f"missing {LIST_GROUPS}: {_HIDDEN}", hint=RIGHTS_HINT)


def _ask_each(admin: ClusterAdmin, partitions: int, limit: Deadline) -> None:
    """Ask the leader of each partition for its end, its coordinator for a group that there is not.

    One that answers both has read the partition, and knows all of it that was committed.

    Raises:
        AuthorizationError: brokers leave out of their lists what we may not see.
        UnreachableError: a coordinator did not answer, or has not read its partition.
    """
    places = [PhysicalPartition(GROUPS_TOPIC, number) for number in range(partitions)]
    admin.end_offsets(places, seconds=limit.left())
    names = made_up_groups(partitions)
    futures: dict[str, Future[Any]] = (
        admin.client.describe_consumer_groups(names, request_timeout=COORDINATOR_LIMIT_SECONDS)
        if names
        else {}
    )
    for number, name in enumerate(names):
        what = f"learn the groups of partition {number} of {GROUPS_TOPIC}"
        try:
            answered(admin, futures[name], what, limit.left())
        except KafkaException as exception:
            if is_one_of(exception, {KafkaError.GROUP_ID_NOT_FOUND}):
                continue
            if is_one_of(exception, {KafkaError.GROUP_AUTHORIZATION_FAILED}):
                raise AuthorizationError(f"missing {EVERY_GROUP}: {_HIDDEN}", hint=RIGHTS_HINT) from exception
            raise translate(error_of(exception), what) from exception


def made_up_groups(partitions: int) -> list[str]:
    """Return a name that no group has for each partition of ``__consumer_offsets``.

    They begin as no right for a prefix does.
    """
    stem = f"~{uuid4().hex}"
    begun, found, tried = java_hash(stem), dict[int, str](), 0
    while len(found) < partitions:
        tail = str(tried)
        found.setdefault(partition_of_hash(java_hash(tail, begun), partitions), stem + tail)
        tried += 1
    return [found[partition] for partition in range(partitions)]


def java_hash(text: str, begun: int = 0) -> int:
    """Return Java's ``String.hashCode`` without its sign, of ASCII; ``begun``: that of the text before."""
    for letter in text:
        begun = (31 * begun + ord(letter)) & 0xFFFF_FFFF
    return begun


def partition_of_hash(hashed: int, partitions: int) -> int:
    """Return which partition of ``__consumer_offsets`` keeps the groups whose names have this hash."""
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def _leaders(admin: ClusterAdmin, deadline: Deadline) -> list[int | None]:
    """Return the broker that coordinates the groups of each partition; empty: there was never a group."""
    topic = admin.known(GROUPS_TOPIC, deadline)
    return [partition.leader for partition in topic.partitions] if topic else []


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


def group_names(admin: ClusterAdmin, deadline: Deadline) -> list[str]:
    """Return the names of all groups that brokers know: those with members or ordinary offsets.

    Raises:
        AuthorizationError: groups may be hidden from us.
        KpsplitError: it is not certain that these are all.
    """
    return sorted(g.group_id for g in every_group(admin, deadline))


def nearest_group(admin: ClusterAdmin, group: str, more: Iterable[str] = ()) -> str | None:
    """Return the existing group whose name is most like this one, None if none is, or none may be seen."""
    try:
        names = {*(g.group_id for g in _listed(admin)), *more}
    except KpsplitError:
        names = set(more)
    return next(iter(get_close_matches(group, sorted(names), n=1)), None)
