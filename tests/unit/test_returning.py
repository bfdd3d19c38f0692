"""A topic goes back to plain clients: what is recorded, and who sees what of it (protocol, section 10.16)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kpsplit.control.returning import following
from kpsplit.splitter.control_plane import ControlView
from kpsplit.splitter.group_slots import Mode, Subscribed, subscribed
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.control import (
    Enrolment,
    Partitioner,
    SlotDivision,
    encode_enrolment,
    encode_state,
)
from kpsplit.splitter.records.keys import enrolment_key, partition_key
from tests.unit.samples import STATES

ENROLLED = Enrolment("orders", "id-orders", Partitioner.CONSISTENT_RANDOM, True, 8, 3)
STATE = next(s for s in STATES.values() if s.parent.topic == "orders" and s.epoch > 0)


def records(enrolment: Enrolment) -> list[Enrolment]:
    """All records of a return, from an enrolment on."""
    following_ = following(enrolment)
    return [] if following_ is None else [following_, *records(following_)]


FIRST, SECOND, THIRD, LAST = records(ENROLLED)


def test_the_records_of_a_return_are_those_of_the_protocol() -> None:
    said = [(e.returning, e.generation, e.slots, e.former_slots, e.settled) for e in records(ENROLLED)]
    assert said == [
        (True, 4, None, 8, False),
        (True, 4, None, 8, True),
        (True, 4, None, None, False),
        (True, 4, None, None, True),
    ]
    assert [e.left for e in records(ENROLLED)] == [False, False, False, True]
    assert FIRST.former == SlotDivision("__kpsplit.slots-3.orders", 8)


def test_members_share_partitions_as_wholes_in_between() -> None:
    former = SlotDivision("__kpsplit.slots-3.orders", 8)
    whole = Subscribed("orders", "orders", Mode.WHOLE, 1, former=former)
    plain = Subscribed("orders", "orders", Mode.PLAIN, 1)
    on_former = Subscribed("orders", former.topic, Mode.SLOTS, 8, begins=False)
    assert subscribed("orders", FIRST) == on_former
    assert subscribed("orders", FIRST, lease_over=True) == subscribed("orders", SECOND) == whole
    assert subscribed("orders", THIRD).mode is Mode.MOVING
    assert subscribed("orders", THIRD, lease_over=True) == subscribed("orders", LAST) == plain
    assert whole.predecessors(2) == frozenset(former.places(2))


def view_of(*enrolments: Enrolment) -> ControlView:
    view = ControlView()
    view.fold(partition_key(STATE.parent), encode_state(STATE))
    for enrolment in enrolments:
        view.fold(enrolment_key(enrolment.topic), encode_enrolment(enrolment))
    return view


@pytest.mark.parametrize("seen", [FIRST, SECOND, THIRD])
def test_a_topic_that_returns_is_enrolled(seen: Enrolment) -> None:
    view = view_of(ENROLLED, seen)
    assert view.recorded("orders") == view.enrolments["orders"] == seen
    assert view.state(STATE.parent) == STATE and not view.left


def test_a_topic_that_is_left_is_not_enrolled_and_its_states_are_set_aside() -> None:
    view = view_of(ENROLLED, FIRST, LAST)
    assert view.recorded("orders") == LAST
    assert "orders" not in view.enrolments and view.state(STATE.parent) is None
    assert not view.states and view.left_states == {STATE.parent: STATE}
    assert view.owner_of(STATE.subtopics[0].name) is None


def test_the_states_of_a_topic_that_is_enrolled_again_go_on() -> None:
    again = replace(LAST, slots=4, returning=False, settled=False)
    view = view_of(LAST, again)
    assert view.recorded("orders") == again and not view.left and not view.left_states
    assert view.state(STATE.parent) == STATE
    assert view.state(PhysicalPartition("orders", 99)) is not None


def test_states_that_are_read_after_the_last_record_are_set_aside_too() -> None:
    """Partitions of the control topic are read in any order."""
    view = ControlView()
    view.fold(enrolment_key("orders"), encode_enrolment(LAST))
    view.fold(partition_key(STATE.parent), encode_state(STATE))
    assert not view.states and view.left_states == {STATE.parent: STATE}
    view.fold(partition_key(STATE.parent), None)
    assert not view.left_states
