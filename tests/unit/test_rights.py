"""The least rights of each role."""

from __future__ import annotations

import pytest

from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import MAX_TOPIC_NAME, subtopic_name, subtopics_prefix
from kpsplit.splitter.rights import Operation, Resource, Right, Role, lacking, rights_for


@pytest.mark.parametrize("length", [1, 200, 221, 222, 240, MAX_TOPIC_NAME])
@pytest.mark.parametrize(("partition", "number"), [(0, 1), (123_456, 99_999)])
def test_the_prefix_of_sub_topics_is_that_of_every_name(length: int, partition: int, number: int) -> None:
    topic = "t" * length
    assert subtopic_name(PhysicalPartition(topic, partition), number).startswith(subtopics_prefix(topic))


def test_a_consumer_that_keeps_state_may_make_and_write_its_changelog() -> None:
    plain = rights_for(Role.CONSUMER, "orders", group="g")
    keeping = rights_for(Role.CONSUMER, "orders", group="g", changelog="__kpsplit.changelog.g.orders")
    more = set(keeping) - set(plain)
    assert {r.name for r in more} == {"__kpsplit.changelog.g.orders"}
    assert Operation.CREATE in {r.operation for r in more}


def test_a_consumer_needs_a_group() -> None:
    with pytest.raises(ValueError, match="group"):
        rights_for(Role.CONSUMER, "orders")


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
