"""What moves: a partition between members of a classic group, a group between coordinators."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import ConsumerGroupState

from kpsplit.clock import Deadline
from kpsplit.kafka.cluster_admin import ClusterAdmin
from kpsplit.kafka.connection import Connection
from kpsplit.kafka.coordinators import every_group
from kpsplit.kafka.groups import Members, describe_members
from kpsplit.splitter.lineage import PhysicalPartition
from tests.broker.committing import SECONDS, Member, await_owned, member
from tests.broker.consuming import kept_in, move_leader, wait_for

pytestmark = pytest.mark.broker


def polls(condition: Callable[[], bool], why: str, *members: Member) -> None:
    deadline = Deadline(SECONDS)
    while not condition():
        deadline.check(why)
        for one in members:
            one.consumer.poll(0.1)


def test_a_partition_that_is_still_to_be_released_is_not_free_though_the_group_is_stable(
    bootstrap, make_topic
):
    """Its owner has it in its hands until it polls; the coordinator names nobody (KIP-429)."""
    topic, other = make_topic(partitions=2), make_topic()
    group = f"g-{topic}"
    places = [PhysicalPartition(topic, n) for n in (0, 1)]
    admin = ClusterAdmin(Connection({"bootstrap.servers": bootstrap}))

    def described(*, kept: bool) -> Members:
        return describe_members(admin, group, kept=kept)

    def unassigned() -> list[PhysicalPartition]:
        return [place for place in places if described(kept=False).nobody_on(place)]

    with member(bootstrap, group, topic, "classic") as old:
        old.consumer.subscribe([topic], on_revoke=lambda *_: None)  # so the client waits for a poll
        await_owned([(old, 2)])
        with member(bootstrap, group, topic, "classic") as new:
            polls(lambda: bool(unassigned()), "the first of the two rebalances", new)
            (moving,) = unassigned()
            members = described(kept=True)
            assert members.settled and moving in members.kept and moving not in members.assigned
            assert not members.nobody_on(moving)
            await_owned([(old, 1), (new, 1)])
            assert set(described(kept=True).assigned) == set(places)
        old.consumer.subscribe([other])
        polls(lambda: all(described(kept=True).nobody_on(p) for p in places), "the group to be off", old)


@pytest.fixture(params=["classic", "consumer"])
def grouped(request, bootstrap, make_topic) -> Iterator[str]:
    """A group with a member that owns a partition, since a moment ago."""
    topic = make_topic()
    with member(bootstrap, f"g-{topic}", topic, request.param) as one:
        await_owned([(one, 1)])
        yield one.group


def test_a_group_is_described_by_its_new_coordinator(bootstrap, admin, grouped):
    """The old one is up; librdkafka would ask it for ever."""
    asking = ClusterAdmin(Connection({"bootstrap.servers": bootstrap}))
    before = describe_members(asking, grouped)
    move_leader(bootstrap, admin, kept_in(admin, grouped))
    wait_for(lambda: describe_members(asking, grouped) == before, "the members of the group")


def test_a_group_is_listed_with_its_members_by_a_coordinator_that_has_just_begun(bootstrap, admin, grouped):
    """It answers from what it knows to be committed: for a moment a group that has just begun is empty."""
    asking = ClusterAdmin(Connection({"bootstrap.servers": bootstrap}))
    move_leader(bootstrap, admin, kept_in(admin, grouped))
    (listed,) = (g for g in every_group(asking, Deadline(SECONDS)) if g.group_id == grouped)
    assert listed.state is ConsumerGroupState.STABLE
