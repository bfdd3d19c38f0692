"""The life of a group member: the table is complete, reachable, and refuses what it does not name."""

from __future__ import annotations

import pytest

from kpsplit.consumer.group.states import TRANSITIONS, Event, Life, State, next_state
from kpsplit.errors import InvariantError


def test_a_pair_that_is_not_in_the_table_is_illegal():
    for state in State:
        for event in Event:
            if (state, event) in TRANSITIONS:
                assert next_state(state, event) is TRANSITIONS[state, event]
            else:
                with pytest.raises(InvariantError, match="illegal"):
                    next_state(state, event)


def test_every_state_is_reached_from_the_first_one():
    reached = {State.UNSUBSCRIBED}
    while more := {after for (before, _), after in TRANSITIONS.items() if before in reached} - reached:
        reached |= more
    assert reached == set(State)


def test_close_is_legal_in_every_state_but_the_last_two():
    legal = {state for state, event in TRANSITIONS if event is Event.CLOSE}
    assert legal == set(State) - {State.CLOSING, State.CLOSED}


def test_slots_can_be_lost_in_every_state_in_which_there_are_some():
    assigned = {state for state, event in TRANSITIONS if event is Event.LOSE}
    assert assigned == set(State) - {State.UNSUBSCRIBED, State.LOST, State.CLOSING, State.CLOSED}


def test_a_revocation_goes_through_pause_callback_and_commit():
    life = Life()
    path = [Event.JOIN, Event.ASSIGN, Event.START, Event.REVOKE, Event.RELEASE, Event.ANSWER, Event.HAND_OVER]
    assert [life.on(event) for event in path] == [
        State.PREPARING_REBALANCE,
        State.ASSIGNING_PARTITIONS,
        State.STABLE,
        State.PREPARE_REVOCATION,
        State.REVOKING_PARTITION,
        State.PARTITION_REVOKED,
        State.PREPARING_REBALANCE,
    ]


def test_edges_are_counted_and_an_illegal_event_changes_nothing():
    life = Life()
    for _ in range(3):
        life.on(Event.JOIN)
        life.on(Event.LEAVE)
    with pytest.raises(InvariantError):
        life.on(Event.START)
    assert life.state is State.UNSUBSCRIBED
    assert life.edges == {
        (State.UNSUBSCRIBED, Event.JOIN): 3,
        (State.PREPARING_REBALANCE, Event.LEAVE): 3,
    }
