"""Which consumer groups there are, and how far they have read."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
)

from kpsplit.clock import Deadline
from kpsplit.errors import (
    AuthorizationError,
    ConflictError,
    KpsplitError,
    UnknownOutcomeError,
    UnreachableError,
    after_a_change,
)
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin, answer_within
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.coordinators import (
    COORDINATOR_LIMIT_SECONDS,
    PAUSE,
    answered,
    at_rest,
    every_group,
    group_names,
)
from kpsplit.kafka.error_map import RIGHTS_HINT, error_of, is_one_of, translate
from kpsplit.kafka.kafka_python import KafkaPythonError, NotExpressibleError, ask_kafka_python
from kpsplit.kafka.offset_log import OffsetTail
from kpsplit.splitter.commits import CommitFold, ordinary_offsets
from kpsplit.splitter.group_slots import group_topics
from kpsplit.splitter.key_range import WHOLE
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.keys import OFFSETS_TOPIC, offsets_partition

MEMBER_LETTERS = 8
"""So much of a member id is shown."""

_EAGER = {"range", "roundrobin", "sticky"}
"""Strategies of classic groups whose members release everything before they join."""

WITHOUT_MEMBERS = {ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD}


@dataclass(frozen=True, slots=True)
class Owner:
    """A member of a group, as the coordinator names it."""

    member: str
    client_id: str
    host: str
    instance: str = ""
    """Its ``group.instance.id``; empty: it has none, or it was not asked for."""

    @property
    def name(self) -> str:
        """The name that outlives a restart, where the member has one."""
        return self.instance or self.member

    def __str__(self) -> str:
        """Return client id, begin of the member id, host: so members without a client id differ."""
        number = self.member.removeprefix(f"{self.client_id}-")[:MEMBER_LETTERS]
        return f"{self.client_id}-{number}@{self.host}"


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a group. ``assigned``: the owner of each partition of a topic that the group shares."""

    active: bool
    settled: bool
    """No rebalance is going on, so ``assigned`` is all there is."""
    assigned: dict[PhysicalPartition, Owner]
    kept: frozenset[PhysicalPartition] = frozenset()
    """What the members of a classic group had when they joined its present generation, where that was asked.

    Between the two rebalances that move a partition (KIP-429) such a group is stable, the partition is
    assigned to nobody, and the member that has to release it may still work on what it read there.
    """

    @property
    def state(self) -> str:
        """Return ``empty``, ``stable``, or ``in rebalance``: who owns what is being decided."""
        return ("stable" if self.settled else "in rebalance") if self.active else "empty"

    def nobody_on(self, place: PhysicalPartition) -> bool:
        """Return whether for certain no member owns a partition, or still works on what it read there.

        With the protocol ``consumer`` a group is not settled while a member has something to release. Of a
        classic group only ``kept`` tells.
        """
        return self.active and self.settled and place not in self.assigned and place not in self.kept

    def on(self, topics: Iterable[str]) -> bool:
        """Return whether a member owns something of these topics, may be about to, or has it to release."""
        wanted = set(topics)
        owned = (*self.assigned, *self.kept)
        return self.active and (not self.settled or any(p.topic in wanted for p in owned))


def describe_members(
    admin: ClusterAdmin, group: str, seconds: float = ANSWER_SECONDS, *, kept: bool = False, me: str = ""
) -> Members:
    """Return the members of a group; none if there is no such group.

    ``kept``: ask a classic group also for what its members had when they joined. ``me``: the member that
    asks. A group of it alone is not asked: it knows what it has, and the question takes a large library.
    """
    limit = Deadline(seconds)
    found = at_rest(lambda: _described(admin, group, limit), limit)
    if found is None:
        return Members(False, True, {})
    assigned = {
        PhysicalPartition(place.topic, place.partition): Owner(
            m.member_id, m.client_id, m.host.lstrip("/"), m.group_instance_id or ""
        )
        for m in found.members
        for place in (m.assignment.topic_partitions if m.assignment else ())
    }
    active = found.state not in WITHOUT_MEMBERS
    members = Members(active, not active or found.state is ConsumerGroupState.STABLE, assigned)
    cooperates = found.type is not ConsumerGroupType.CONSUMER and found.partition_assignor not in _EAGER
    alone = [m.member_id for m in found.members] == [me]
    if kept and active and members.settled and cooperates and not alone:
        return at_rest(lambda: _classic_members(admin, group, max(PAUSE, limit.left()), members), limit)
    return members


def _described(admin: ClusterAdmin, group: str, limit: Deadline) -> Any:
    """Return what the coordinator says about a group, None if there is no such group."""
    what = f"describe group {group}"
    futures: dict[str, Future[Any]] = admin.client.describe_consumer_groups(
        [group], request_timeout=COORDINATOR_LIMIT_SECONDS
    )
    try:
        return answered(admin, futures[group], what, limit.left())
    except KafkaException as exception:
        if is_one_of(exception, {KafkaError.GROUP_ID_NOT_FOUND}):
            return None
        raise translate(error_of(exception), what) from exception


def _ask(connection: Connection, seconds: float, question: Callable[[Any], Any]) -> Any:
    return ask_kafka_python(connection.properties, "kpsplit-groups", seconds, question)


def _classic_members(admin: ClusterAdmin, group: str, seconds: float, members: Members) -> Members:
    """Return the members of a classic group, with what each had when it joined, in one answer.

    Asked by means of kafka-python: librdkafka does not give what members say when they join. Where it cannot
    be given the settings, ``members`` is all that is known.
    """
    what = f"describe group {group}"
    try:
        answers = _ask(admin.connection, seconds, lambda client: client.describe_groups([group]))
    except NotExpressibleError:
        return members
    except KafkaPythonError as error:
        raise _refused(what, error.kind, right="Describe") from None
    found = answers[group]
    if found["error"] is not None:
        raise UnreachableError(f"could not {what}: {found['error']}", hint="retry")
    return _told(found)


def _stable_classic(admin: ClusterAdmin, groups: list[str], seconds: float) -> dict[str, Members]:
    """Return the members of those groups that are classic and stable, asked with one client.

    All others are left out, all groups if they cannot be asked so: the question for one says why.
    """
    try:
        answers = _ask(admin.connection, seconds, lambda client: client.describe_groups(groups))
    except (NotExpressibleError, KafkaPythonError):
        return {}
    stable = {g: told for g, told in answers.items() if not told["error"] and told["group_state"] == "Stable"}
    return {
        group: replace(_told(told), kept=frozenset()) if told["protocol_data"] in _EAGER else _told(told)
        for group, told in stable.items()
    }


def _told(found: dict[str, Any]) -> Members:
    """Return the members in what kafka-python says of a classic group."""
    assigned: dict[PhysicalPartition, Owner] = {}
    kept: set[PhysicalPartition] = set()
    readable = True
    for member in found["members"]:
        owner = Owner(member["member_id"], member["client_id"], member["client_host"].lstrip("/"))
        joined, given = member["member_metadata"], member["member_assignment"]
        assigned |= dict.fromkeys(_places(given, "assigned_partitions"), owner)
        kept |= _places(joined, "owned_partitions")
        readable = readable and _names_what_it_has(joined) and not isinstance(given, bytes)
    stable = found["group_state"] == "Stable"
    return Members(True, stable and readable, assigned, frozenset(kept))


def _names_what_it_has(joined: Any) -> bool:
    """Return whether it is known what a member had when it joined; bytes are what kafka-python cannot decode.

    kafka-go says version 1 and writes version 0, topics and user data: it has nothing to release then.
    """
    if not isinstance(joined, bytes):
        return True
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

    plain = bytes(2) + joined[2:]
    try:
        return bool(ConsumerProtocolSubscription.decode(plain).encode() == plain)
    except (struct.error, ValueError):
        return False


def _places(told: Any, name: str) -> set[PhysicalPartition]:
    """Return the partitions in what a member said or got; none where it has none, or was not decoded."""
    listed = told.get(name) if isinstance(told, dict) else None
    return {PhysicalPartition(p["topic"], number) for p in listed or () for number in p["partitions"]}


_AT_A_TIME = 50
_REBALANCE_SECONDS = 10.0

Positions = dict[PhysicalPartition, int]
"""The next offset that a group will read, by partition."""


def committed_positions(admin: ClusterAdmin, deadline: Deadline) -> dict[str, Positions]:
    """Return the committed positions of every group that has any.

    Raises: as ``known_groups``.
    """
    return _committed(admin, group_names(admin, deadline), deadline)


def known_groups(admin: ClusterAdmin, topics: Collection[str], deadline: Deadline) -> dict[str, Positions]:
    """Return the ordinary offsets of every group that brokers know on some topics, by one list of all groups.

    It has committed there, or a member owns something of them, or may still work on what it owned. The list
    comes first: a group on it that commits meanwhile has positions, one that forgets them has its members.
    One that gets its first member after the list, and has committed nothing, is not known yet.

    Raises:
        AuthorizationError: groups may be hidden from us.
        KpsplitError: a group could not be asked; what is not known must not be taken for drained.
    """
    listed = every_group(admin, deadline)
    committed = _committed(admin, sorted(g.group_id for g in listed), deadline)
    known = groups_of(committed, topics)
    known.update(_readers(admin, [g for g in listed if g.group_id not in known], topics, deadline))
    return {group: committed.get(group, {}) for group in sorted(known)}


def _committed(admin: ClusterAdmin, groups: list[str], deadline: Deadline) -> dict[str, Positions]:
    found: dict[str, Positions] = {}
    for first in range(0, len(groups), _AT_A_TIME):
        deadline.check("the positions of the consumer groups")
        found |= _positions(admin, groups[first : first + _AT_A_TIME])
    return {group: positions for group, positions in found.items() if positions}


def positions_of(admin: ClusterAdmin, group: str) -> Positions:
    """Return the ordinary committed offsets of one group; none if there is no such group."""
    return _positions(admin, [group]).get(group, {})


def delete_positions(connection: Connection, group: str, places: Collection[PhysicalPartition]) -> None:
    """Have the coordinator forget ordinary offsets of a group, by means of kafka-python.

    Raises:
        ConflictError: it has members on one of the topics. UnknownOutcomeError: it may be done.
        KpsplitError: it could not be done; if ``changed``, some are forgotten.
    """
    from kafka import TopicPartition as Place
    from kafka import errors

    what = f"forget the ordinary offsets of group {group}"
    asked = [Place(p.topic, p.partition) for p in places]
    try:
        answers = _ask(connection, ANSWER_SECONDS, lambda c: c.delete_group_offsets(group, asked))
    except NotExpressibleError as error:
        hint = "kafka-consumer-groups.sh --delete-offsets does it"
        raise KpsplitError(f"could not {what}: {error}", hint=hint) from None
    except KafkaPythonError as error:
        if error.kind is errors.GroupIdNotFoundError:
            return
        raise _not_deleted(what, error.kind) from None
    done = (errors.NoError, None)
    with after_a_change(done=any(kind in done for kind in answers.values())):
        for kind in answers.values():
            if kind not in (*done, errors.UnknownTopicOrPartitionError):
                raise _not_deleted(what, kind)


def _not_deleted(what: str, kind: type[BaseException]) -> KpsplitError:
    """Return the error for a deletion that failed.

    Only a coordinator that still reads its log has certainly not begun. One that does not coordinate the
    group any more, or is not available, says so too when it could not replicate what it has written.
    """
    from kafka import errors

    sent = kind in (TimeoutError, errors.UnknownError) or getattr(kind, "retriable", False)
    if sent and kind is not errors.CoordinatorLoadInProgressError:
        text = f"could not {what} ({kind.__name__}, outcome unknown)"
        return UnknownOutcomeError(text, hint="run it again: what is forgotten already stays so")
    return _refused(what, kind)


def _refused(what: str, kind: type[BaseException], right: str = "Delete") -> KpsplitError:
    name = kind.__name__
    if "Authorization" in name:
        return AuthorizationError(
            f"could not {what}: missing the right {right} on the group", hint=RIGHTS_HINT
        )
    if kind is TimeoutError:
        return UnreachableError(f"could not {what}: no answer in time")
    if name in ("NonEmptyGroupError", "GroupSubscribedToTopicError"):
        return ConflictError(f"could not {what}: it has members", hint="stop them, then retry")
    return KpsplitError(f"could not {what} ({name})", retriable=getattr(kind, "retriable", False))


def range_commits(
    admin: ClusterAdmin,
    parents: Iterable[PhysicalPartition] | None,
    deadline: Deadline,
    group: str | None = None,
) -> CommitFold:
    """Return a group's range commits (None: those of all groups) for some logical partitions (None: all).

    There are none without an offset log. Brokers leave out of a list of all topics what we may not describe;
    so the log is asked for by its name.

    Raises:
        AuthorizationError: we may not describe or read it.
        DeadlineExceededError: it could not be read to its end in time, or the brokers did not agree whether
            there is one.
    """
    log = admin.certain([OFFSETS_TOPIC], deadline)[OFFSETS_TOPIC]
    if log is None:
        return CommitFold()
    count = len(log.partitions)
    places = range(count) if parents is None else {offsets_partition(p, count) for p in parents}
    tail = OffsetTail(admin.connection, count, places, group)
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


def proven_positions(
    known: Mapping[str, Positions], fold: CommitFold, state: PartitionState
) -> dict[str, Positions]:
    """Return what each group has read for certain: the lesser of its ordinary offsets and its range commits.

    A client that may commit for one group can write range commits of any; for ordinary offsets it needs the
    right on the group itself. A member commits both in one transaction. So both count for a group that
    brokers know on the topic (``known_groups``), and an ordinary offset that is missing is *not drained*.
    Brokers forget a group that has stopped (``offsets.retention.minutes``): then the range commits count
    alone.
    """
    found = dict(known)
    for group, by_range in positions_by_range_commits(fold, state).items():
        plain = known.get(group)
        if plain is None:
            found[group] = by_range
        else:
            found[group] = {place: min(at, plain[place]) for place, at in by_range.items() if place in plain}
    return found


def topics_of(state: PartitionState, enrolment: Enrolment | None) -> set[str]:
    """Return the topics in which readers of a logical partition commit, or of which they own something."""
    return {*group_topics(state.parent.topic, enrolment), *(t.name for t in state.subtopics)}


def has_member_on(admin: ClusterAdmin, group: str, topic: str, enrolment: Enrolment | None) -> bool:
    """Return whether a member of a group has something of a topic, or may still work on what it had."""
    return describe_members(admin, group, kept=True).on(group_topics(topic, enrolment))


def readers_of(admin: ClusterAdmin, topic: str, enrolment: Enrolment | None, deadline: Deadline) -> list[str]:
    """Return the groups of which a member has something of a topic; see ``readers_of_topics``."""
    return readers_of_topics(admin, group_topics(topic, enrolment), deadline)


def readers_of_topics(admin: ClusterAdmin, topics: Collection[str], deadline: Deadline) -> list[str]:
    """Return the groups of which a member owns something of these topics, or may still work on what it owned.

    Raises: as ``known_groups``.
    """
    return _readers(admin, every_group(admin, deadline), topics, deadline)


def _readers(
    admin: ClusterAdmin, listed: Iterable[Any], topics: Collection[str], deadline: Deadline
) -> list[str]:
    """Return which of the listed groups ``readers_of_topics`` means.

    While a group rebalances nobody knows what its members will own. It is asked again for a while, and counts
    as a reader if it does not come to rest.
    """
    found: list[str] = []
    left = [g.group_id for g in listed if g.state not in WITHOUT_MEMBERS]
    limits: dict[str, Deadline] = {}
    told = _stable_classic(admin, left, answer_within(deadline)) if left else {}
    while left:
        for group in tuple(left):
            deadline.check("the members of the consumer groups")
            members = told.pop(group, None) or describe_members(
                admin, group, answer_within(deadline), kept=True
            )
            limit = limits.setdefault(group, Deadline(min(_REBALANCE_SECONDS, deadline.left())))
            if members.settled or limit.expired():
                left.remove(group)
                found += [group] if members.on(topics) else []
        if left:
            time.sleep(PAUSE)
    return sorted(found)


def _positions(admin: ClusterAdmin, groups: list[str]) -> dict[str, Positions]:
    """Return the ordinary committed offsets of groups, asked by means of kafka-python.

    librdkafka (2.16; its issue 5040) ends the process by a segmentation fault if the coordinator that it asks
    is no longer the group's. So it is asked only where kafka-python cannot be given the settings.
    """
    what = f"read the positions of group {groups[0]}" if len(groups) == 1 else "read the positions of groups"
    limit = Deadline(ANSWER_SECONDS)

    def ask() -> dict[str, Positions]:
        try:
            seconds = max(PAUSE, limit.left())
            answers = _ask(admin.connection, seconds, lambda client: client.list_group_offsets(groups))
        except NotExpressibleError:
            return {group: _by_librdkafka(admin, group) for group in groups}
        except KafkaPythonError as error:
            raise _refused(what, error.kind, right="Describe") from None
        return {group: _known(offsets.items()) for group, offsets in answers.items()}

    return at_rest(ask, limit)


def _known(offsets: Iterable[tuple[Any, Any]]) -> Positions:
    return {PhysicalPartition(p.topic, p.partition): at.offset for p, at in offsets if at.offset >= 0}


def _by_librdkafka(admin: ClusterAdmin, group: str) -> Positions:
    what = f"read the positions of group {group}"
    futures: dict[str, Future[Any]] = admin.client.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group)], request_timeout=COORDINATOR_LIMIT_SECONDS
    )
    try:
        answer = answered(admin, futures[group], what, ANSWER_SECONDS)
    except KafkaException as exception:
        if is_one_of(exception, {KafkaError.GROUP_ID_NOT_FOUND}):
            return {}
        raise translate(error_of(exception), what) from exception
    for place in answer.topic_partitions or []:
        if place.error is not None:
            raise KpsplitError(f"could not {what}: {place.error.str()}")
    return _known((place, place) for place in answer.topic_partitions or [])


def groups_of(positions: Mapping[str, Positions], topics: Iterable[str]) -> set[str]:
    wanted = set(topics)
    return {group for group, known in positions.items() if any(p.topic in wanted for p in known)}
