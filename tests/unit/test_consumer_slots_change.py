"""A member whose topic gets another number of slots."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from kpsplit.consumer import metadata
from kpsplit.consumer.group import group_consumer
from kpsplit.consumer.group.membership import State
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import slots_topic
from tests.unit.engine_world import PARENT, SLOTS, TOPIC, World, slot
from tests.unit.engine_world import record as a_record

FORMER, PRESENT = slots_topic(TOPIC), slots_topic(TOPIC, 2)
EIGHTH = OwnedSlot(PARENT, 0, 8)


def record(world: World, *, settled: bool, former: int | None = SLOTS) -> None:
    """The control topic says this from now on."""
    known = world.metadata.view.enrolments[TOPIC]
    change = replace(known, settled=settled, slots=8, generation=2, former_slots=former)
    world.metadata.view.enrolments[TOPIC] = change


def test_a_member_reads_on_what_it_has_begins_nothing_and_goes_over_when_the_change_is_settled() -> None:
    with World() as world:
        wanted = world.group_offsets.wanted
        world.subscribe()
        world.coordinator.give(0, 1)
        world.polls(lambda: {slot(0), slot(1)} <= world.reader.owned.keys(), "its slots")
        record(world, settled=False)
        world.coordinator.give(2)
        world.until(lambda: slot(2) in world.slots, "another slot")
        asked, turns = world.group_offsets.asked, turns_of(world)
        world.until(lambda: len(turns) > 5, "some turns")
        assert world.coordinator.topics == [FORMER] and world.group_offsets.asked == asked
        assert world.reader.owned.keys() == {slot(0), slot(1)}
        record(world, settled=True)
        world.polls(lambda: world.coordinator.topics == [PRESENT], "the new subscription")
        assert world.told[-1] == ("revoke", [0]) and not world.reader.owned
        world.coordinator.take(0, 1, 2)
        world.coordinator.give_partitions(TopicPartition(PRESENT, 0))
        world.polls(lambda: world.reader.owned.keys() == {EIGHTH}, "the new slot")
        former = {PhysicalPartition(FORMER, number) for number in range(SLOTS)}
        assert wanted[-1].predecessors == {PARENT, *former} and wanted[0].predecessors == {PARENT}


def test_when_the_change_is_finished_a_slot_waits_for_no_former_one() -> None:
    with World() as world:
        wanted = world.group_offsets.wanted
        record(world, settled=True, former=None)
        world.subscribe()
        assert world.coordinator.topics == [PRESENT]
        world.coordinator.give_partitions(TopicPartition(PRESENT, 0))
        world.polls(lambda: EIGHTH in world.reader.owned, "its slot")
        assert [w.predecessors for w in wanted] == [{PARENT}]


def test_a_member_without_a_right_on_the_new_slots_topic_names_it() -> None:
    with World() as world:
        record(world, settled=True)
        world.subscribe()
        error = KafkaError(
            KafkaError.TOPIC_AUTHORIZATION_FAILED, f"subscribed topic not available: {PRESENT}"
        )
        told: list[KafkaError] = []
        world.events.tell = lambda reason, **_: told.append(reason)  # type: ignore[method-assign]
        world.engine.call(lambda: world.engine.subscribing.explain(error))
        assert f"the slots of topic {TOPIC} cannot be seen" in told[0].str()
        assert f"the right to describe and read {PRESENT}" in told[0].str()


def test_slots_are_handed_over_and_committed_before_the_subscription_changes() -> None:
    """Librdkafka would take them away in the middle of a join, and learn of no generation meanwhile."""
    with World() as world:
        world.subscribe()
        world.coordinator.give(0)
        world.polls(lambda: slot(0) in world.reader.owned, "its slot")
        world.reader.write(a_record(0))
        end = time.monotonic() + 20
        while world.poll() is None:
            assert time.monotonic() < end, "waited for a record"
        at_the_commit: list[list[str]] = []
        commit = world.group_offsets.commit

        def observe(*args: Any) -> None:
            at_the_commit.append(list(world.coordinator.topics))
            commit(*args)

        world.group_offsets.commit = observe  # type: ignore[method-assign]
        record(world, settled=True)
        world.polls(lambda: world.coordinator.topics == [PRESENT], "the new subscription")
        assert at_the_commit == [[FORMER]] and not len(world.slots)
        assert world.coordinator.held() == {0}, "the group consumer has not let go yet"
        world.coordinator.take(0)
        world.until(lambda: not world.coordinator.held(), "the group consumer to let go")
        assert world.told.count(("revoke", [0])) == 1


def test_a_subscription_changes_only_to_topics_that_the_client_knows() -> None:
    """Else librdkafka would let the slots go and not tell the coordinator."""
    with World() as world:
        world.coordinator.unknown[PRESENT] = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        world.subscribe()
        world.coordinator.give(0)
        world.polls(lambda: slot(0) in world.reader.owned, "its slot")
        record(world, settled=True)
        pass_turns(world, 50)
        assert world.coordinator.topics == [FORMER] and not world.coordinator.left
        assert slot(0) in world.reader.owned, "nothing is let go before"
        world.coordinator.unknown.clear()
        world.polls(lambda: world.coordinator.topics == [PRESENT], "the new subscription")
        assert not len(world.slots)


def test_a_member_whose_brokers_are_slow_reads_on_until_they_answer() -> None:
    with World() as world:
        world.coordinator.answers_in = 0.3
        world.subscribe()
        world.coordinator.give(0)
        world.polls(lambda: slot(0) in world.reader.owned, "its slot")
        record(world, settled=True)
        pass_turns(world, 10)
        assert world.coordinator.topics == [FORMER] and slot(0) in world.reader.owned
        world.polls(lambda: world.coordinator.topics == [PRESENT], "the new subscription")
        assert not world.coordinator.left


def test_a_member_whose_brokers_do_not_answer_keeps_what_it_has(monkeypatch: Any) -> None:
    monkeypatch.setattr(metadata, "LEARN_SECONDS", 0.1)
    monkeypatch.setattr(group_consumer, "SEE_SECONDS", 0.05)
    with World() as world:
        world.coordinator.answers_in = 60.0
        world.subscribe()
        world.coordinator.give(0)
        world.polls(lambda: slot(0) in world.reader.owned, "its slot")
        record(world, settled=True)
        pass_turns(world, 100)
        assert world.coordinator.topics == [FORMER] and not world.coordinator.left
        assert slot(0) in world.reader.owned
        world.coordinator.answers_in = 0.0
        world.polls(lambda: world.coordinator.topics == [PRESENT], "the new subscription")


def test_a_topic_that_does_not_exist_holds_up_nothing() -> None:
    with World() as world:
        world.coordinator.unknown["nope"] = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        world.subscribe()
        world.coordinator.give(0)
        world.polls(lambda: slot(0) in world.reader.owned, "its slot")
        world.engine.call(lambda: world.engine.subscribing.subscribe([TOPIC, "nope"]))
        world.polls(lambda: world.coordinator.topics == [FORMER, "nope"], "the new subscription")
        assert slot(0) in world.reader.owned and not world.coordinator.left


def test_time_of_a_change_that_was_taken_back_does_not_count_for_the_next_one(monkeypatch: Any) -> None:
    monkeypatch.setattr(metadata, "LEARN_SECONDS", 0.5)
    with World() as world:
        for name in ("nope", "neither"):
            world.coordinator.unknown[name] = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        world.subscribe()
        for wanted in ([TOPIC, "nope"], [TOPIC], [TOPIC, "nope"], [TOPIC, "neither"], [TOPIC, "nope"]):
            world.engine.call(lambda wanted=wanted: world.engine.subscribing.subscribe(wanted))  # type: ignore[misc]
            end = time.monotonic() + 0.3
            world.until(lambda end=end: time.monotonic() > end, "a part of the time")  # type: ignore[misc]
        assert not world.coordinator.left
        world.until(lambda: world.coordinator.left, "all of it")


def test_the_client_is_not_closed_while_it_looks_at_a_topic() -> None:
    with World() as world:
        world.coordinator.answers_in = 0.5
        world.subscribe()
        record(world, settled=True)
        world.polls(lambda: world.coordinator.asked, "a question")
        world.close()
        assert world.coordinator.closed and not world.coordinator.broken


def test_a_member_that_cannot_see_the_new_slots_leaves_the_group_and_joins_anew(monkeypatch: Any) -> None:
    """So it holds up nobody, and hears what is wrong."""
    monkeypatch.setattr(metadata, "LEARN_SECONDS", 0.2)
    with World() as world:
        world.coordinator.unknown[PRESENT] = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        world.subscribe()
        record(world, settled=True)
        world.until(lambda: world.coordinator.topics == [PRESENT], "the new subscription")
        assert world.coordinator.left == 1


def test_slots_that_were_handed_over_for_a_change_that_is_taken_back_are_held_again() -> None:
    """The coordinator has heard of nothing: nobody else would read them."""
    with World() as world:
        world.subscribe()
        world.coordinator.give(0, 1)
        world.polls(lambda: {slot(0), slot(1)} <= world.reader.owned.keys(), "its slots")
        world.reader.write(a_record(0))
        world.take(1)
        world.engine.call(lambda: world.engine.subscribing.subscribe(["payments"]))
        world.until(lambda: world.state is State.PREPARE_REVOCATION, "the hand-over")
        world.engine.call(lambda: world.engine.subscribing.subscribe([TOPIC]))
        world.polls(lambda: ("revoke", [0]) in world.told, "the end of the hand-over")
        world.polls(lambda: {slot(0), slot(1)} <= world.reader.owned.keys(), "its slots once more")
        assert world.coordinator.topics == [FORMER] and not world.coordinator.left
        assert [name for name, _ in world.told] == ["assign", "revoke", "assign"]
        assert world.group_offsets.commits, "they start where they were committed"


def test_slots_that_the_client_has_not_let_go_when_their_topic_comes_back_are_held_again() -> None:
    with World() as world:
        world.subscribe()
        world.coordinator.give(0)
        world.polls(lambda: slot(0) in world.reader.owned, "its slot")
        world.engine.call(lambda: world.engine.subscribing.subscribe(["payments"]))
        world.polls(lambda: world.coordinator.topics == ["payments"], "the other subscription")
        pass_turns(world, 5)
        assert not len(world.slots) and world.coordinator.held() == {0}
        world.engine.call(lambda: world.engine.subscribing.subscribe([TOPIC, "payments"]))
        world.polls(lambda: slot(0) in world.reader.owned, "its slot once more")
        world.coordinator.take(0)
        world.polls(lambda: not world.coordinator.held(), "the group consumer to let go")
        pass_turns(world, 5)
        assert not len(world.slots)


def test_a_slot_that_is_named_for_another_member_is_not_held_again_when_its_topic_comes_back() -> None:
    """By the coordinator it is the other member's: only a later answer of it says otherwise."""
    with World() as world:
        world.subscribe()
        world.coordinator.give(0, 1)
        world.polls(lambda: {slot(0), slot(1)} <= world.reader.owned.keys(), "its slots")
        world.engine.call(lambda: world.slots.withdraw([world.slots[slot(0)]]))
        world.engine.call(lambda: world.engine.subscribing.subscribe(["payments"]))
        world.polls(lambda: world.coordinator.topics == ["payments"], "the other subscription")
        world.engine.call(lambda: world.engine.subscribing.subscribe([TOPIC, "payments"]))
        world.polls(lambda: slot(1) in world.reader.owned, "the other slot once more")
        pass_turns(world, 5)
        assert world.reader.owned.keys() == {slot(1)} and world.slots[slot(0)].gone
        world.engine.call(lambda: world.slots.read_again([world.slots[slot(0)]]))
        world.polls(lambda: slot(0) in world.reader.owned, "the slot, which is this member's after all")


def pass_turns(world: World, count: int) -> None:
    """Let the engine turn, while the application polls."""
    turns = turns_of(world)
    world.polls(lambda: len(turns) > count, "some turns")


def turns_of(world: World) -> list[int]:
    """The turns of the engine from now on."""
    turns, turn = list[int](), world.engine.initializer.turn
    world.engine.initializer.turn = lambda: turns.append(1) or turn()  # type: ignore[func-returns-value,method-assign]
    return turns
