"""The one transition table."""

from __future__ import annotations

import itertools

import pytest

from kpsplit.errors import InvariantError
from kpsplit.splitter.partition_state import TRANSITIONS, EventKind, Phase, next_phase

PAIRS = list(itertools.product(Phase, EventKind))


@pytest.mark.parametrize(("phase", "event"), PAIRS)
def test_a_pair_is_legal_exactly_if_the_table_has_it(phase: Phase, event: EventKind) -> None:
    if (phase, event) in TRANSITIONS:
        assert next_phase(phase, event) is TRANSITIONS[phase, event]
    else:
        with pytest.raises(InvariantError, match="illegal"):
            next_phase(phase, event)


def test_every_phase_can_be_reached_and_left_so_that_nothing_gets_stuck() -> None:
    reached, left = set(TRANSITIONS.values()), {phase for phase, _ in TRANSITIONS}
    assert reached == left == set(Phase)


def test_from_every_phase_the_partition_can_come_to_rest() -> None:
    resting = {Phase.STEADY}
    for _ in Phase:
        resting |= {phase for (phase, _), after in TRANSITIONS.items() if after in resting}
    assert resting == set(Phase)


def test_an_attempt_can_be_rolled_back_exactly_before_its_commit_point() -> None:
    assert {p for p, e in TRANSITIONS if e is EventKind.ABORT} == {Phase.PREPARING, Phase.FENCED}


def test_every_event_is_used() -> None:
    assert {event for _, event in TRANSITIONS} == set(EventKind)
