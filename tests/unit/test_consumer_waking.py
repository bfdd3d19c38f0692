"""When a member that may have slept hands out nothing, and when it goes on: the decision alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import monotonic
from kpsplit.consumer.config import split_config
from kpsplit.consumer.fetch.batch import SHUT
from kpsplit.consumer.group import ownership as ownership_module
from kpsplit.consumer.group.ownership import (
    AGAIN_SECONDS,
    ASLEEP_SECONDS,
    OwnershipCheck,
    OwnershipGuard,
    OwnershipQuestion,
)
from kpsplit.consumer.slots.assigned import AssignedSlot
from kpsplit.errors import KpsplitError, UnreachableError
from kpsplit.kafka.error_map import translate
from kpsplit.kafka.groups import Members, Owner
from kpsplit.splitter.group_slots import Mode, OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition

PARENT = PhysicalPartition("orders", 0)


def assigned(index: int) -> AssignedSlot:
    return AssignedSlot(OwnedSlot(PARENT, index, 4), PhysicalPartition("slots", index), Mode.SLOTS)


def owners(*, settled: bool = True, **names: int) -> Members:
    """What the coordinator says: which member owns which slot."""
    assigned = {PhysicalPartition("slots", index): Owner(name, "", "") for name, index in names.items()}
    return Members(True, settled, assigned)


def asked(ownership: OwnershipCheck, *held: AssignedSlot, now: float = 11.0) -> OwnershipQuestion:
    question = ownership.question(now, held)
    assert question is not None
    return question


@pytest.fixture
def ownership() -> OwnershipCheck:
    """A member that has just slept for ten seconds, longer than its session lets it."""
    one = OwnershipCheck(6.0, 0.0)
    assert not one.turned(1.0, shared=True)
    assert one.turned(11.0, shared=True)
    return one


def test_each_turn_is_good_for_the_bound() -> None:
    ownership = OwnershipCheck(6.0, 0.0)
    for now in (1.0, 2.75, 4.75):
        assert not ownership.turned(now, shared=True)
        assert ownership.until == now + ASLEEP_SECONDS
    assert not ownership.held


def test_behind_a_sleep_nothing_is_handed_out_whatever_time_passes(ownership: OwnershipCheck) -> None:
    assert not ownership.turned(11.01, shared=True)
    assert (ownership.held, ownership.until) == (True, SHUT)


def test_without_a_group_a_sleep_costs_nothing() -> None:
    ownership = OwnershipCheck(6.0, 0.0)
    assert not ownership.turned(50.0, shared=False)
    assert (ownership.held, ownership.until) == (False, inf)
    assert not ownership.turned(99.0, shared=True)
    assert not ownership.held


def test_a_member_that_leaves_its_group_holds_nothing_back(ownership: OwnershipCheck) -> None:
    ownership.turned(11.01, shared=False)
    assert (ownership.held, ownership.until) == (False, inf)


def test_when_the_coordinator_names_the_member_for_every_slot_it_goes_on(ownership: OwnershipCheck) -> None:
    one, two = assigned(1), assigned(2)
    assert ownership.answered(11.1, asked(ownership, one, two), owners(me=1), "me", [one, two]) == []
    ownership.settle([one, two])
    assert ownership.held
    names = Members(True, True, {**owners(me=1).assigned, **owners(me=2).assigned})
    assert ownership.answered(12.1, asked(ownership, one, two, now=12.0), names, "me", [one, two]) == []
    ownership.settle([one, two])
    assert not ownership.held


def test_slots_of_another_member_are_lost_and_the_others_go_on(ownership: OwnershipCheck) -> None:
    one, two = assigned(1), assigned(2)
    question = asked(ownership, one, two)
    assert ownership.answered(11.1, question, owners(me=1, other=2), "me", [one, two]) == [two]
    ownership.settle([one, two])
    assert ownership.held
    ownership.settle([one])
    assert not ownership.held


@pytest.mark.parametrize("me", ["me", None, ""])
def test_where_the_coordinator_names_nobody_it_is_asked_again(
    ownership: OwnershipCheck, me: str | None
) -> None:
    one = assigned(1)
    assert ownership.answered(11.1, asked(ownership, one), owners(), me, [one]) == []
    ownership.settle([one])
    assert ownership.held
    assert ownership.question(11.1, [one]) is None
    assert ownership.question(99.0, [one]) is not None


def test_a_member_without_an_id_takes_nobody_for_another(ownership: OwnershipCheck) -> None:
    one = assigned(1)
    assert ownership.answered(11.1, asked(ownership, one), owners(other=1), None, [one]) == []
    ownership.settle([one])
    assert ownership.held


def test_an_answer_says_nothing_of_a_slot_that_was_lost_and_given_back_meanwhile(
    ownership: OwnershipCheck,
) -> None:
    before, now = assigned(1), assigned(1)
    question = asked(ownership, before)
    assert ownership.answered(11.1, question, owners(other=1), "me", [now]) == []
    assert ownership.answered(11.1, question, owners(me=1), "me", [now]) == []
    ownership.settle([now])
    assert ownership.held


def test_an_answer_to_a_question_of_before_a_second_sleep_counts_for_nothing(
    ownership: OwnershipCheck,
) -> None:
    one = assigned(1)
    question = asked(ownership, one)
    assert ownership.turned(30.0, shared=True)
    assert ownership.answered(30.1, question, owners(me=1), "me", [one]) == []
    ownership.settle([one])
    ownership.settle([])
    assert ownership.held


@pytest.mark.parametrize("second", ["sleep", "refusal"])
def test_an_answer_that_is_older_than_a_doubt_ends_none_however_young_it_is(
    ownership: OwnershipCheck, second: str
) -> None:
    """The session may have ended in between: that the coordinator answers proves no heartbeat."""
    one = assigned(1)
    question = asked(ownership, one)
    if second == "sleep":
        assert ownership.turned(13.1, shared=True)
    else:
        ownership.doubt(11.1)
    assert ownership.answered(13.1, question, owners(me=1), "me", [one]) == []
    ownership.settle([one])
    assert ownership.held
    assert ownership.answered(13.3, asked(ownership, one, now=13.2), owners(me=1), "me", [one]) == []
    ownership.settle([one])
    assert not ownership.held


def test_a_coordinator_that_cannot_be_asked_is_asked_again(ownership: OwnershipCheck) -> None:
    ownership.failed(11.1)
    ownership.settle([])
    assert ownership.held
    assert ownership.question(11.1, []) is None
    assert ownership.question(99.0, []) is not None


def test_what_comes_behind_a_loss_is_new(ownership: OwnershipCheck) -> None:
    ownership.expelled()
    ownership.settle([assigned(1)])
    assert ownership.held
    ownership.settle([])
    assert not ownership.held


def test_a_doubt_holds_back_as_a_sleep_does_until_an_answer_that_came_after_it() -> None:
    ownership, one = OwnershipCheck(6.0, 0.0), assigned(1)
    assert not ownership.turned(1.0, shared=True)
    ownership.doubt(1.5)
    assert (ownership.held, ownership.until) == (True, SHUT)
    question = asked(ownership, one, now=1.5)
    assert ownership.answered(1.6, question, owners(me=1), "me", [one]) == []
    ownership.doubt(1.7)
    ownership.settle([one])
    assert ownership.held, "confirmed before the second doubt"
    assert ownership.answered(1.9, asked(ownership, one, now=1.8), owners(me=1), "me", [one]) == []
    ownership.settle([one])
    assert not ownership.held


def test_without_a_group_there_is_nothing_to_doubt() -> None:
    ownership = OwnershipCheck(6.0, 0.0)
    ownership.turned(1.0, shared=False)
    ownership.doubt(1.5)
    assert (ownership.held, ownership.until) == (False, inf)


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
    ownership = OwnershipCheck(0.5, 0.0)
    ownership.turned(0.0, shared=True)
    assert ownership.until == 0.5
    assert ownership.turned(1.0, shared=True)


def awake(*times: float) -> OwnershipCheck:
    """A member that has run all the time; its session lasts 12 s at least."""
    one = OwnershipCheck(6.0, 0.0)
    for now in times:
        assert not one.turned(now, shared=True)
    return one


def test_a_coordinator_that_is_silent_for_a_session_is_a_doubt() -> None:
    slot, ownership = assigned(1), awake(1.0)
    assert ownership.question(3.0, [slot]) is None
    assert ownership.question(4.0, [slot]) is not None
    ownership.failed(6.0)
    assert ownership.question(7.0, [slot]) is None
    for now in (2.5, 4.0, 5.5, 7.0, 8.5, 10.0, 11.5):
        ownership.turned(now, shared=True)
        assert not ownership.silent(now)
    assert ownership.until == 13.0, "not a moment longer than the session"
    ownership.turned(13.0, shared=True)
    assert ownership.silent(13.0)


def test_whatever_the_coordinator_answers_it_is_not_silent() -> None:
    slot, ownership = assigned(1), awake(1.0, 2.9, 4.8)
    question = asked(ownership, slot, now=5.0)
    assert ownership.answered(5.5, question, owners(settled=False), "me", [slot]) == []
    assert ownership.question(7.9, [slot]) is None
    assert ownership.question(8.0, [slot]) is not None
    for now in (6.5, 8.0, 9.5, 11.0, 12.5, 14.0, 15.5):
        ownership.turned(now, shared=True)
    assert not ownership.silent(16.9)
    assert ownership.silent(17.0)


def test_without_slots_nobody_is_asked_and_the_silence_begins_with_the_first_slot() -> None:
    ownership = awake(1.0)
    assert ownership.question(11.0, []) is None
    assert ownership.question(13.0, [assigned(1)]) is None
    assert not ownership.silent(22.9)


def test_slots_that_are_named_for_another_by_the_way_are_asked_about_again() -> None:
    slot, ownership = assigned(1), awake(1.0, 2.9, 4.8)
    assert ownership.answered(5.1, asked(ownership, slot, now=5.0), owners(other=1), "me", [slot]) == [slot]
    assert ownership.held and ownership.question(5.1 + AGAIN_SECONDS - 0.01, [slot]) is None
    again = asked(ownership, slot, now=5.1 + AGAIN_SECONDS)
    assert ownership.answered(5.7, again, owners(other=1), "me", [slot]) == [slot]


@pytest.mark.parametrize(
    ("answer", "me", "doubtful"),
    [
        (owners(), "me", [1, 2]),
        (owners(me=3), "me", [1, 2]),
        (owners(me=1), "me", []),
        (owners(settled=False), "me", []),
        (owners(), "", []),
    ],
)
def test_a_settled_group_in_which_this_member_owns_nothing_of_what_it_holds_is_a_doubt(
    answer: Members, me: str, doubtful: list[int]
) -> None:
    """Its heartbeats do not arrive, though the coordinator can be asked."""
    slots, ownership = [assigned(1), assigned(2)], awake(1.0, 2.9, 4.8)
    found = ownership.answered(5.1, asked(ownership, *slots, now=5.0), answer, me, slots)
    assert [h.place.partition for h in found] == doubtful


def test_what_was_asked_by_the_way_says_nothing_of_a_doubt_that_came_since() -> None:
    slot, ownership = assigned(1), awake(1.0, 2.9, 4.8)
    question = asked(ownership, slot, now=5.0)
    ownership.doubt(5.1)
    assert ownership.answered(5.2, question, owners(me=1), "me", [slot]) == []
    ownership.settle([slot])
    assert ownership.held


class Sink:
    """Says until when records may be handed out."""

    until = inf

    def keep_open(self, until: float) -> None:
        self.until = until


class Slots(list[AssignedSlot]):
    """The slots of a member, none of which is ever lost."""

    lost = 0

    def withdraw(self, assigned_slots: list[AssignedSlot]) -> None: ...

    def read_again(self, assigned_slots: list[AssignedSlot]) -> None: ...

    def __init__(self, sink: Sink, *assigned_slots: AssignedSlot) -> None:
        super().__init__(assigned_slots)
        self.sink = sink

    def still(self, assigned_slots: list[AssignedSlot]) -> list[AssignedSlot]:
        return assigned_slots


def routinely_asked(
    sink: Sink,
    group: SimpleNamespace,
    answer: Future[Members],
    give_up: Callable[[str], None] = lambda _: None,
) -> OwnershipGuard:
    """The shell around the decision; its routine question is under way, and has been due for a while."""
    group.topics, group.memberid, group.expelled = {"slots"}, lambda: "", lambda: False
    executor = SimpleNamespace(ask=lambda question: answer)
    slots, events = Slots(sink, assigned(1)), SimpleNamespace(trouble=None)
    parts: tuple[Any, ...] = slots, group, executor, events
    guard = OwnershipGuard(2.75, *parts, give_up, lambda: 0)
    guard.turned(monotonic())
    guard._check._heard -= 2.0
    guard.turn(nested=True)
    return guard


def test_a_doubt_shuts_the_sink_although_the_answer_that_is_there_is_an_error() -> None:
    sink, group, answer = Sink(), SimpleNamespace(), Future[Members]()
    guard = routinely_asked(sink, group, answer)
    answer.set_exception(UnreachableError("no answer in time"))
    group.expelled = lambda: True
    guard.turned(monotonic())
    with pytest.raises(KpsplitError, match="no answer in time"):
        guard.turn(nested=True)
    assert (guard.held, sink.until) == (True, SHUT)


@pytest.mark.parametrize(
    ("code", "is_answer"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, True),
        (KafkaError._AUTHENTICATION, False),
        (KafkaError._TIMED_OUT, False),
    ],
)
def test_a_coordinator_that_refuses_to_describe_the_group_is_not_silent(code: int, is_answer: bool) -> None:
    """Not so one that does not let the client in: then heartbeats are not let in either."""
    answer = Future[Members]()
    guard = routinely_asked(Sink(), SimpleNamespace(), answer)
    error = KafkaError(code)
    try:
        raise translate(error, "describe group g") from KafkaException(error)
    except KpsplitError as raised:
        answer.set_exception(raised)
    guard.turn(nested=True)
    now = monotonic()
    for later in (1.0, 2.0, 3.0, 4.0):
        guard.turned(now + later)
    assert guard.held is not is_answer


def test_the_time_of_a_withdrawn_slot_counts_from_the_end_of_a_hand_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inside one the client cannot say that the slot is lost: it needs a turn after that."""
    now, reasons = monotonic(), list[str]()
    sink, group, answer = Sink(), SimpleNamespace(), Future[Members]()
    guard = routinely_asked(sink, group, answer, reasons.append)
    monkeypatch.setattr(ownership_module, "monotonic", lambda: now)
    group.memberid = lambda: "me"
    answer.set_result(owners(other=1))
    guard.turn(nested=True)  # a doubt
    now += 1.0
    guard.turn(nested=True)  # asked again
    guard.turn(nested=True)
    assert guard._withdrawn
    now += 60.0
    guard.turn(nested=True)
    guard.turn(nested=False)
    assert not reasons
    now += guard._check.session
    guard.turn(nested=False)
    assert len(reasons) == 1
