"""Which topics of the group stand for what an application subscribed to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kpsplit.consumer.group import membership
from kpsplit.errors import UsageError
from kpsplit.splitter.group_slots import Mode, Subscribed, group_topics, resolve, subscribed
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import Enrolment, Partitioner, SlotDivision
from tests.unit.engine_world import World, record, slot


def enrolment(*, settled, slots):
    return Enrolment("orders", "id", Partitioner.CONSISTENT_RANDOM, settled, slots)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (None, Subscribed("orders", "orders", Mode.PLAIN, 1)),
        (enrolment(settled=False, slots=None), Subscribed("orders", "orders", Mode.MOVING, 1)),
        (enrolment(settled=False, slots=16), Subscribed("orders", "orders", Mode.MOVING, 1)),
        (enrolment(settled=True, slots=None), Subscribed("orders", "orders", Mode.WHOLE, 1)),
        (enrolment(settled=True, slots=16), Subscribed("orders", "__kpsplit.slots.orders", Mode.SLOTS, 16)),
    ],
)
def test_slots_are_used_once_the_enrolment_is_settled(known, expected):
    assert subscribed("orders", known) == expected


FORMER = SlotDivision("__kpsplit.slots.orders", 16)


def test_while_the_number_of_slots_changes_the_former_ones_are_read_on_and_none_begins():
    begun = replace(enrolment(settled=False, slots=8), generation=2, former_slots=16)
    former = Subscribed("orders", FORMER.topic, Mode.SLOTS, 16, begins=False)
    present = Subscribed("orders", "__kpsplit.slots-2.orders", Mode.SLOTS, 8, former=FORMER)
    assert subscribed("orders", begun) == former
    assert subscribed("orders", begun, lease_over=True) == present
    assert subscribed("orders", replace(begun, settled=True)) == present
    finished = replace(begun, settled=True, former_slots=None)
    assert subscribed("orders", finished) == replace(present, former=None)


def test_what_a_slot_has_before_it_is_the_partition_and_its_former_slots():
    whole = PhysicalPartition("orders", 1)
    first = Subscribed("orders", FORMER.topic, Mode.SLOTS, 16)
    assert first.predecessors(1) == {whole}
    second = replace(first, former=SlotDivision("__kpsplit.slots.orders", 2))
    places = {PhysicalPartition("__kpsplit.slots.orders", number) for number in (2, 3)}
    assert second.predecessors(1) == {whole} | places


@pytest.mark.parametrize(("generation", "former"), [(1, None), (2, 4)])
def test_a_group_that_reads_a_topic_has_partitions_of_it_and_of_its_slots_topics(generation, former):
    known = replace(enrolment(settled=True, slots=8), generation=generation, former_slots=former)
    slots = {"__kpsplit.slots.orders", "__kpsplit.slots-2.orders"} if former else {"__kpsplit.slots.orders"}
    assert group_topics("orders", known) == {"orders", *slots}
    assert group_topics("orders", None) == {"orders"}


def test_a_pattern_means_neither_sub_topics_nor_topics_of_kpsplit():
    existing = {"orders", "orders.split-3-1", "orders-2", "__kpsplit.slots.orders", "payments"}
    assert resolve(["^.*orders.*"], existing, {"orders.split-3-1"}) == {"orders", "orders-2"}


def test_names_are_taken_as_they_are():
    assert resolve(["orders", "unknown"], set(), set()) == {"orders", "unknown"}


def test_a_topic_of_kpsplit_and_a_broken_pattern_are_refused():
    with pytest.raises(UsageError, match="internal topic of kpsplit"):
        resolve(["__kpsplit.control"], (), ())
    with pytest.raises(UsageError, match="pattern"):
        resolve(["^orders("], (), ())


def test_names_are_resolved_again_only_when_the_view_has_changed(monkeypatch):
    """A view may hold thousands of partitions, and the engine takes a hundred turns a second."""
    resolved, turns, real = [], [], membership.resolve
    monkeypatch.setattr(membership, "resolve", lambda *about: (resolved.append(about), real(*about))[1])
    with World() as world:
        world.metadata.turn = lambda: turns.append(1)
        world.subscribe()
        world.until(lambda: resolved, "the first look")
        looks, seen = len(resolved), len(turns)
        world.until(lambda: len(turns) >= seen + 20, "turns of the engine")
        assert len(resolved) == looks
        world.metadata.position += 1
        world.until(lambda: len(resolved) == looks + 1, "a look at the changed view")


def test_a_pattern_that_means_no_topic_any_more_ends_the_membership_until_it_means_one() -> None:
    """The client refuses to subscribe to nothing, and would keep slots that nobody reads."""
    with World() as world:
        listed = frozenset({"orders"})
        world.engine.subscribing.topics.listed = lambda: listed  # type: ignore[method-assign]
        world.engine.call(lambda: world.engine.subscribing.subscribe(["^orders"]))
        world.until(lambda: world.coordinator.topics, "the subscription")
        world.coordinator.give(0)
        world.polls(lambda: slot(0) in world.reader.owned, "the slot")
        world.reader.write(record(0))
        world.take(1)
        listed = frozenset()
        world.polls(lambda: not world.coordinator.held(), "the slot to be let go")
        assert world.group_offsets.commits == [{slot(0).range: 1}]
        assert world.coordinator.left == 1 and not world.coordinator.topics
        listed = frozenset({"orders"})
        world.polls(lambda: world.coordinator.topics, "the group to be joined again")
        world.coordinator.give(0)
        world.polls(lambda: slot(0) in world.reader.owned, "the slot once more")
