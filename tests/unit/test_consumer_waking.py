"""When a member that may have slept hands out nothing, and when it goes on: the decision alone."""

from __future__ import annotations

from math import inf

import pytest

from kpsplit.consumer.config import split_config
from kpsplit.consumer.fetch.batch import OwnedSlot
from kpsplit.consumer.group.ownership import ASLEEP_SECONDS, SHUT, Question, Waking
from kpsplit.consumer.group.subscriptions import Mode
from kpsplit.consumer.slots.assigned import Holding
from kpsplit.kafka.groups import Owner
from kpsplit.splitter.lineage import PhysicalPartition

PARENT = PhysicalPartition("orders", 0)


def holding(index: int) -> Holding:
    return Holding(OwnedSlot(PARENT, index, 4), PhysicalPartition("slots", index), Mode.SLOTS)


def owners(**names: int) -> dict[PhysicalPartition, Owner]:
    """What the coordinator says: which member owns which slot."""
    return {PhysicalPartition("slots", index): Owner(name, "", "") for name, index in names.items()}


def asked(waking: Waking, *held: Holding, now: float = 11.0) -> Question:
    question = waking.question(now, held)
    assert question is not None
    return question


@pytest.fixture
def waking() -> Waking:
    """A member that has just slept for ten seconds, longer than its session lets it."""
    one = Waking(6.0, 0.0)
    assert not one.turned(1.0, shared=True)
    assert one.turned(11.0, shared=True)
    return one


def test_each_turn_is_good_for_the_bound() -> None:
    waking = Waking(6.0, 0.0)
    for now in (1.0, 2.75, 4.75):
        assert not waking.turned(now, shared=True)
        assert waking.until == now + ASLEEP_SECONDS
    assert not waking.held


def test_behind_a_sleep_nothing_is_handed_out_whatever_time_passes(waking: Waking) -> None:
    assert not waking.turned(11.01, shared=True)
    assert (waking.held, waking.until) == (True, SHUT)


def test_without_a_group_a_sleep_costs_nothing() -> None:
    waking = Waking(6.0, 0.0)
    assert not waking.turned(50.0, shared=False)
    assert (waking.held, waking.until) == (False, inf)
    assert not waking.turned(99.0, shared=True)
    assert not waking.held


def test_a_member_that_leaves_its_group_holds_nothing_back(waking: Waking) -> None:
    waking.turned(11.01, shared=False)
    assert (waking.held, waking.until) == (False, inf)


def test_when_the_coordinator_names_the_member_for_every_slot_it_goes_on(waking: Waking) -> None:
    one, two = holding(1), holding(2)
    assert waking.answered(11.1, asked(waking, one, two), owners(me=1), "me", [one, two]) == []
    waking.settle([one, two])
    assert waking.held
    names = {**owners(me=1), **owners(me=2)}
    assert waking.answered(12.1, asked(waking, one, two, now=12.0), names, "me", [one, two]) == []
    waking.settle([one, two])
    assert not waking.held


def test_slots_of_another_member_are_lost_and_the_others_go_on(waking: Waking) -> None:
    one, two = holding(1), holding(2)
    question = asked(waking, one, two)
    assert waking.answered(11.1, question, owners(me=1, other=2), "me", [one, two]) == [two]
    waking.settle([one, two])
    assert waking.held
    waking.settle([one])
    assert not waking.held


@pytest.mark.parametrize("me", ["me", None, ""])
def test_where_the_coordinator_names_nobody_it_is_asked_again(waking: Waking, me: str | None) -> None:
    one = holding(1)
    assert waking.answered(11.1, asked(waking, one), {}, me, [one]) == []
    waking.settle([one])
    assert waking.held
    assert waking.question(11.1, [one]) is None
    assert waking.question(99.0, [one]) is not None


def test_a_member_without_an_id_takes_nobody_for_another(waking: Waking) -> None:
    one = holding(1)
    assert waking.answered(11.1, asked(waking, one), owners(other=1), None, [one]) == []
    waking.settle([one])
    assert waking.held


def test_an_answer_says_nothing_of_a_slot_that_was_lost_and_given_back_meanwhile(waking: Waking) -> None:
    before, now = holding(1), holding(1)
    question = asked(waking, before)
    assert waking.answered(11.1, question, owners(other=1), "me", [now]) == []
    assert waking.answered(11.1, question, owners(me=1), "me", [now]) == []
    waking.settle([now])
    assert waking.held


def test_an_answer_to_a_question_of_before_a_second_sleep_counts_for_nothing(waking: Waking) -> None:
    one = holding(1)
    question = asked(waking, one)
    assert waking.turned(30.0, shared=True)
    assert waking.answered(30.1, question, owners(me=1), "me", [one]) == []
    waking.settle([one])
    waking.settle([])
    assert waking.held


def test_on_a_machine_where_every_turn_comes_late_answers_that_are_young_count(waking: Waking) -> None:
    one = holding(1)
    question = asked(waking, one)
    assert waking.turned(15.0, shared=True)
    assert waking.answered(15.0, question, owners(me=1), "me", [one]) == []
    waking.settle([one])
    assert not waking.held


def test_a_coordinator_that_cannot_be_asked_is_asked_again(waking: Waking) -> None:
    waking.failed(11.1)
    waking.settle([])
    assert waking.held
    assert waking.question(11.1, []) is None
    assert waking.question(99.0, []) is not None


def test_what_comes_behind_a_loss_is_new(waking: Waking) -> None:
    waking.expelled()
    waking.settle([holding(1)])
    assert waking.held
    waking.settle([])
    assert not waking.held


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 22.25),
        ({"session.timeout.ms": 6000}, 2.75),
        ({"session.timeout.ms": 3000, "heartbeat.interval.ms": 3000}, 0.5),
        ({"group.protocol": "consumer"}, 10.0),
    ],
)
def test_how_long_slots_are_known_follows_from_the_session(
    settings: dict[str, object], seconds: float
) -> None:
    config = {"bootstrap.servers": "localhost:1", "group.id": "g", **settings}
    assert split_config(config)[1].known_for == seconds


def test_a_sleep_is_shorter_where_the_session_is() -> None:
    waking = Waking(0.5, 0.0)
    waking.turned(0.0, shared=True)
    assert waking.until == 0.5
    assert waking.turned(1.0, shared=True)
