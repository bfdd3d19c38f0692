"""The least rights of each role."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kpsplit.errors import UsageError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import (
    MAX_PARTITION,
    MAX_TOPIC_NAME,
    enroller_transactional_id,
    group_ids,
    is_topic_name,
    operator_transactional_id,
    parse_partition,
    subtopic_name,
    subtopics_prefix,
)
from kpsplit.splitter.rights import Operation, Resource, Right, Role, lacking, rights_for

LENGTHS = [1, 200, 221, 222, 240, MAX_TOPIC_NAME]
PARENT = PhysicalPartition("orders.3", 3)
GROUPS = ["g", "g.h", "g/h", "g%2Fh", "g h", "gé"]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("partition", "number"), [(0, 1), (123_456, 99_999), (MAX_PARTITION, MAX_PARTITION)])
def test_the_prefix_of_sub_topics_is_that_of_every_name(length: int, partition: int, number: int) -> None:
    topic = "t" * length
    name = subtopic_name(PhysicalPartition(topic, partition), number)
    assert name.startswith(subtopics_prefix(topic)) and is_topic_name(name)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("length", LENGTHS)
def test_no_prefix_of_a_topics_rights_reaches_the_topic_itself_or_another(role: Role, length: int) -> None:
    topic, other = "t" * length, "t" * (length - 1) + "u"
    others = [topic, other, subtopic_name(PhysicalPartition(other, 0), 1)]
    for right in rights_for(role, topic, group="g"):
        if right.prefixed and right.resource is Resource.TOPIC:
            assert not any(right.covers(name) for name in others)


@pytest.mark.parametrize("topic", ["orders", "orders.eu", "orders.3"])
def test_the_ids_of_a_topics_operators_begin_like_no_other_topics(topic: str) -> None:
    others = {"orders", "orders.eu", "orders.3"} - {topic}
    ids = {operator_transactional_id(PhysicalPartition(other, 3)) for other in others}
    ids |= {enroller_transactional_id(other) for other in others}
    (claim,) = (r for r in rights_for(Role.OPERATOR, topic) if r.resource is Resource.TRANSACTIONAL_ID)
    own = operator_transactional_id(PhysicalPartition(topic, 3)), enroller_transactional_id(topic)
    assert all(name.startswith(claim.name) for name in own)
    assert not any(name.startswith(claim.name) for name in ids)


def test_no_partitions_operators_have_the_id_of_those_that_write_the_enrolment() -> None:
    with pytest.raises(UsageError):
        parse_partition(enroller_transactional_id("orders.3").removeprefix("kpsplit.op."))
    assert parse_partition(operator_transactional_id(PARENT).removeprefix("kpsplit.op.")) == PARENT


@pytest.mark.parametrize("group", GROUPS)
def test_the_ids_of_a_group_begin_like_no_other_groups(group: str) -> None:
    rights = rights_for(Role.CONSUMER, "orders", group=group)
    names = {r.name for r in rights if r.resource is Resource.TRANSACTIONAL_ID}
    assert names == {group_ids("commit", group), group_ids("run", group)}
    others = {group_ids(use, other) + "1" for use in ("commit", "run") for other in GROUPS if other != group}
    assert not any(other.startswith(name) for other in others for name in names)


def test_a_consumer_that_keeps_state_may_make_and_write_its_changelog() -> None:
    plain = rights_for(Role.CONSUMER, "orders", group="g")
    keeping = rights_for(Role.CONSUMER, "orders", group="g", changelog="__kpsplit.changelog.g.orders")
    more = set(keeping) - set(plain)
    assert {r.name for r in more} == {"__kpsplit.changelog.g.orders"}
    assert {Operation.CREATE, Operation.ALTER} <= {r.operation for r in more}


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.CONSUMER, Role.VERIFIER])
def test_the_rights_on_the_slots_are_those_on_one_number_of_them(role: Role) -> None:
    first, second = (
        {r for r in rights_for(role, "orders", group="g", generation=g) if ".slots" in r.name} for g in (1, 2)
    )
    assert {r.name for r in first} == {"__kpsplit.slots.orders"}
    assert {replace(r, name="__kpsplit.slots-2.orders") for r in first} == second


def test_a_consumer_needs_a_group() -> None:
    with pytest.raises(ValueError, match="group"):
        rights_for(Role.CONSUMER, "orders")


def test_a_verifier_may_ask_how_long_topics_keep_their_records() -> None:
    found = {r.name for r in rights_for(Role.VERIFIER, "orders") if r.operation is Operation.DESCRIBE_CONFIGS}
    assert found == {"orders", "orders.split-"}


def test_a_right_is_told_as_people_say_it() -> None:
    found = [str(right) for right in rights_for(Role.PRODUCER, "orders")]
    assert found[:2] == ["Write on topic orders", "Write on topic orders.split-*"]
    assert all(isinstance(right, Right) for right in rights_for(Role.VERIFIER, "orders"))


def test_what_an_operator_lacks_is_told_for_topics_that_exist() -> None:
    everything = frozenset(Operation)
    assert lacking("orders", {"orders": everything, "orders.split-0-1": everything}) == ()
    assert lacking("orders", {"orders": everything - {Operation.READ, Operation.DELETE}}) == (
        Right(Resource.TOPIC, "orders", False, Operation.READ),
    )
    assert [
        r.operation for r in lacking("orders", {"orders.split-0-1": everything - {Operation.DELETE}})
    ] == [Operation.DELETE]
    assert lacking("orders", {"payments": frozenset()}) == ()


def test_an_operator_cannot_delete_or_change_the_topic_itself() -> None:
    on_the_topic = {r.operation for r in rights_for(Role.OPERATOR, "orders") if r.name == "orders"}
    assert on_the_topic == {Operation.READ, Operation.WRITE, Operation.DESCRIBE_CONFIGS}
