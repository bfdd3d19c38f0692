"""The schedule of faults and the table of what they struck."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.fault.chaos.faults import (
    AFTER_CUT,
    LONG_MINUTES,
    MANY_SUSPENSIONS,
    MIXES,
    RECORDS,
    STEPS,
    SUSPENDED,
    SUSPENSIONS,
    Aims,
    Kind,
    Reached,
    Schedule,
    share,
    suspensions,
)
from tests.fault.chaos.verdict import Column, Ending, Operation, Strike, column_of, rendered, tabulate


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


@pytest.mark.parametrize("seed", range(50))
def test_the_mix_of_suspensions_alone_has_as_many_as_a_long_run_needs(seed: int) -> None:
    mix = next(Schedule(seed).mixes([MANY_SUSPENSIONS]))
    assert sum(fault.times for fault in mix.faults if fault.kind is Kind.SUSPENSIONS) >= SUSPENSIONS


def test_retention_strikes_while_what_a_split_or_merge_closed_is_drained() -> None:
    schedule = Schedule(1)
    assert {schedule.draw(k).step for k in (Kind.DRAINED_REMOVED, Kind.UNREAD_REMOVED)} == {AFTER_CUT[0]}


def test_only_runs_of_twenty_minutes_and_more_have_aims() -> None:
    assert Aims.of(None) is None and Aims.of(LONG_MINUTES - 0.1) is None
    aims = Aims.of(LONG_MINUTES)
    assert aims == Aims(100_000, 200, tuple(MIXES))
    assert Aims.of(LONG_MINUTES, ["network"]) == Aims(100_000, None, ("network",))


@pytest.mark.parametrize("seconds", [0.0, 30.0, 60 * LONG_MINUTES])
@pytest.mark.parametrize("overrun", [0.0, 100.0])
def test_the_first_round_gets_to_every_mix_whatever_each_one_takes(seconds: float, overrun: float) -> None:
    left, had = seconds, []
    for name in MIXES:
        later = [other for other in MIXES if other not in (*had, name)]
        mine = share(left, name, later)
        assert 0 <= mine <= max(0.0, left) and (mine < left or not later or left <= 0)
        left -= mine + overrun
        had.append(name)
    assert left <= 1e-6
    assert share(seconds, MANY_SUSPENSIONS, ["network"]) == pytest.approx(seconds * 3 / 4)


MIX_NAMES = frozenset(MIXES)


@pytest.mark.parametrize(
    ("reached", "missed"),
    [
        (Reached(RECORDS, SUSPENSIONS, MIX_NAMES), ()),
        (Reached(RECORDS - 1, SUSPENSIONS, MIX_NAMES), ("records",)),
        (Reached(RECORDS, SUSPENSIONS - 1, MIX_NAMES), ("suspensions",)),
        (Reached(RECORDS, SUSPENSIONS, MIX_NAMES - {"network"}), ("mix network",)),
        (Reached(0, 0, MIX_NAMES), ("records", "suspensions")),
    ],
)
def test_what_a_long_run_did_not_come_to_is_named(reached: Reached, missed: tuple[str, ...]) -> None:
    aims = Aims.of(LONG_MINUTES)
    assert aims is not None
    assert aims.missed(reached) == missed
    assert ("MISSED" in aims.line(reached)) == bool(missed)


def test_the_aims_are_told_with_what_was_reached() -> None:
    aims = Aims.of(LONG_MINUTES)
    assert aims is not None
    told = aims.line(Reached(104_233, 214, MIX_NAMES))
    number = len(MIXES)
    assert told == f"aims: records 104,233 of 100,000, suspensions 214 of 200, mixes {number} of {number}"


def test_suspensions_are_those_of_writers_and_members() -> None:
    assert suspensions([*SUSPENDED, Kind.OPERATOR_STOPPED, Kind.SUSPENSIONS, Kind.WRITER_STOPPED]) == 3


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
        ("Commit", Column.AFTER),
        ("SealSubTopics", Column.AFTER),
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
