"""The schedule of faults and the table of what they struck."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.fault.chaos.faults import MIXES, STEPS, Kind, Schedule
from tests.fault.chaos.table import Column, Ending, Operation, Strike, column_of, rendered, tabulate


def test_the_same_seed_draws_the_same_faults() -> None:
    assert list(islice(Schedule(5).mixes(), 20)) == list(islice(Schedule(5).mixes(), 20))
    assert list(islice(Schedule(5).mixes(), 20)) != list(islice(Schedule(6).mixes(), 20))


@pytest.mark.parametrize("seed", range(20))
def test_every_mix_comes_once_before_any_comes_again(seed: int) -> None:
    names = [mix.name for mix in islice(Schedule(seed).mixes(), 3 * len(MIXES))]
    for first in range(0, len(names), len(MIXES)):
        assert sorted(names[first : first + len(MIXES)]) == sorted(MIXES)


def test_only_the_mixes_that_are_asked_for_come() -> None:
    names = [mix.name for mix in islice(Schedule(1).mixes(["network", "frozen"]), 4)]
    assert sorted(names) == ["frozen", "frozen", "network", "network"]


@pytest.mark.parametrize("seed", range(20))
def test_a_short_run_has_each_kind_once_and_none_that_is_too_long(seed: int) -> None:
    faults = Schedule(seed, longest=2.0).each_once().faults
    assert sorted(fault.kind for fault in faults) == sorted(Kind)
    assert all(0 <= fault.hold <= 2.0 for fault in faults)


def test_operators_are_struck_behind_every_step() -> None:
    schedule = Schedule(1)
    assert {schedule.draw(Kind.OPERATOR_KILLED).step for _ in range(500)} == set(STEPS)


def test_every_kind_is_in_a_mix_of_its_own_field() -> None:
    assert set(Kind) == {kind for name, kinds in MIXES.items() if name != "everything" for kind in kinds}


@pytest.mark.parametrize(
    ("step", "column"),
    [
        (None, Column.PLAN),
        ("Claim", Column.PREPARE),
        ("CreateSubTopic", Column.PREPARE),
        ("AwaitReady", Column.FENCE),
        ("Fence", Column.FENCE),
        ("AwaitAcknowledged", Column.CUT),
        ("AppendMarkers", Column.COMMIT),
        ("Commit", Column.BEHIND),
        ("SealSubTopics", Column.BEHIND),
    ],
)
def test_a_fault_strikes_what_comes_behind_the_latest_step(step: str | None, column: Column) -> None:
    assert column_of(step) is column


@pytest.mark.parametrize(
    ("after", "finished", "ending"),
    [
        (3, True, Ending.WENT_ON),
        (3, False, Ending.ROLLED_FORWARD),
        (2, False, Ending.ROLLED_BACK),
        (None, False, Ending.UNKNOWN),
    ],
)
def test_the_epoch_tells_how_an_operation_ended(after: int | None, finished: bool, ending: Ending) -> None:
    assert Operation("split", 0, 2, "Fence", after, finished).ending is ending


def test_the_table_counts_endings_by_fault_and_step() -> None:
    back = Operation("split", 0, 2, "Fence", 2)
    strikes = [
        Strike(Kind.OPERATOR_KILLED, Column.FENCE, back),
        Strike(Kind.OPERATOR_KILLED, Column.FENCE, back),
        Strike(Kind.BROKER_KILLED, Column.REST, None),
    ]
    assert tabulate(strikes)[Kind.OPERATOR_KILLED][Column.FENCE] == {"RB": 2}
    lines = rendered(strikes).splitlines()
    assert lines[2].startswith("| broker SIGKILL, started again | 1 |")
    assert lines[3] == "| operator SIGKILL | – | – | – | 2 RB | – | – | – | 2 |"
