"""Who is in a consumer group now, and which key ranges of a topic each member owns."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from kpsplit.errors import UnreachableError
from kpsplit.kafka.cluster_admin import ANSWER_SECONDS, ClusterAdmin
from kpsplit.kafka.error_map import error_of, translate
from kpsplit.splitter.key_range import WHOLE, KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Enrolment
from kpsplit.splitter.records.keys import slots_topic
from kpsplit.splitter.slots import slot_number, slot_range

MEMBER_LETTERS = 8
"""So much of a member id is shown."""

WITHOUT_MEMBERS = {ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD}


@dataclass(frozen=True, slots=True)
class Owner:
    """A member of a group, as the coordinator names it."""

    member: str
    client_id: str
    host: str

    def __str__(self) -> str:
        """Return client id, begin of the member id, host: members without a client id are told apart."""
        number = self.member.removeprefix(f"{self.client_id}-")[:MEMBER_LETTERS]
        return f"{self.client_id}-{number}@{self.host}"


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a group. ``assigned``: the owner of each partition of a topic that the group shares."""

    active: bool
    settled: bool
    """No rebalance is going on, so ``assigned`` is all there is."""
    assigned: dict[PhysicalPartition, Owner]

    def nobody_on(self, place: PhysicalPartition) -> bool:
        """Tell whether for certain no member owns a partition, or still works on what it read there."""
        return self.active and self.settled and place not in self.assigned

    def on(self, topics: Iterable[str]) -> bool:
        """Tell whether a member owns something of these topics, or may be about to."""
        wanted = set(topics)
        return self.active and (not self.settled or any(p.topic in wanted for p in self.assigned))


def describe_members(admin: ClusterAdmin, group: str, seconds: float = ANSWER_SECONDS) -> Members:
    """Return the members of a group; none if there is no such group.

    Raises:
        KpsplitError: the coordinator could not be asked.
    """
    what = f"describe group {group}"
    futures: dict[str, Future[Any]] = admin.client.describe_consumer_groups([group], request_timeout=seconds)
    try:
        found = futures[group].result(seconds + 1)
    except TimeoutError:
        raise UnreachableError(f"could not {what}: no answer in time") from None
    except KafkaException as exception:
        error = error_of(exception)
        if error is not None and error.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return Members(False, True, {})
        raise translate(error, what) from exception
    assigned = {
        PhysicalPartition(place.topic, place.partition): Owner(m.member_id, m.client_id, m.host.lstrip("/"))
        for m in found.members
        for place in (m.assignment.topic_partitions if m.assignment else ())
    }
    active = found.state not in WITHOUT_MEMBERS
    return Members(active, not active or found.state is ConsumerGroupState.STABLE, assigned)


def owners(
    members: Members, parent: PhysicalPartition, enrolment: Enrolment | None
) -> list[tuple[KeyRange, Owner]]:
    """Return who owns which key range of a logical partition, neighbours of one owner joined."""
    if enrolment is None or enrolment.slots is None:
        whole = members.assigned.get(parent)
        return [(WHOLE, whole)] if whole else []
    found: list[tuple[KeyRange, Owner]] = []
    for index in range(enrolment.slots):
        number = slot_number(parent.partition, index, enrolment.slots)
        owner = members.assigned.get(PhysicalPartition(slots_topic(parent.topic), number))
        range_ = slot_range(index, enrolment.slots)
        if owner is None:
            continue
        if found and found[-1][1] == owner and found[-1][0].hi == range_.lo:
            range_ = KeyRange(found.pop()[0].lo, range_.hi)
        found.append((range_, owner))
    return found
