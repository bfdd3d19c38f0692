"""The judgement of a run: every kind of harm is found, and what a fault explains is no harm."""

from __future__ import annotations

import pytest

from kpsplit.demo.judge import GroupVerdict
from kpsplit.demo.records import Worked
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.testing import HistoryChecker
from tests.fault.chaos.verdict import (
    EVERYBODY,
    IN_HAND_SECONDS,
    SETTLING_SECONDS,
    Hurt,
    Verdict,
    judge_group,
)

PARENT = PhysicalPartition("orders", 0)
LINEAGES = [Lineage.unsplit(PARENT)]
KEY, OTHER_KEY = 7, 8


def worked(offset: int, at: float, key: int = KEY) -> Worked:
    return Worked(at, key, offset, 0, 0)


def judged(
    journals: dict[str, list[Worked]], read: set[int], hurts: list[Hurt] | None = None
) -> GroupVerdict:
    return judge_group(journals, {0: read}, LINEAGES, hurts or [])


def test_a_group_that_was_handed_everything_in_order_is_good() -> None:
    verdict = judged({"a": [worked(0, 1.0), worked(2, 3.0)], "b": [worked(1, 2.0, OTHER_KEY)]}, {0, 1, 2})
    assert verdict.good and verdict.records == 3


def test_a_record_that_nobody_was_handed_is_missing() -> None:
    assert judged({"a": [worked(0, 1.0)]}, {0, 1}).missing == 1


def test_a_record_that_no_reader_saw_is_told() -> None:
    verdict = judged({"a": [worked(0, 1.0), worked(5, 2.0)]}, {0})
    assert (verdict.unknown, verdict.missing) == (1, 0) and not verdict.good


def test_an_earlier_record_of_a_key_behind_a_later_one_is_out_of_order() -> None:
    assert judged({"a": [worked(1, 1.0)], "b": [worked(0, 2.0)]}, {0, 1}).out_of_order == 1


def test_keys_have_no_order_among_each_other() -> None:
    assert judged({"a": [worked(1, 1.0)], "b": [worked(0, 2.0, OTHER_KEY)]}, {0, 1}).good


def test_a_repetition_without_a_fault_is_without_a_reason() -> None:
    verdict = judged({"a": [worked(0, 1.0)], "b": [worked(0, 2.0)]}, {0})
    assert verdict.unexplained == 1 and not verdict.good


@pytest.mark.parametrize(
    ("hurt", "explained"),
    [
        (Hurt("a", "kill", 102.0, 103.0), True),
        (Hurt(EVERYBODY, "broker", 102.0, 103.0), True),
        (Hurt("c", "kill", 102.0, 103.0), False),
        (Hurt("a", "kill", 100.0 + IN_HAND_SECONDS + 1, 200.0), False),
        (Hurt("a", "kill", 10.0, 100.0 - SETTLING_SECONDS - 1), False),
    ],
)
def test_only_a_fault_of_the_same_member_at_that_time_explains_a_repetition(
    hurt: Hurt, explained: bool
) -> None:
    verdict = judged({"a": [worked(0, 100.0)], "b": [worked(0, 300.0)]}, {0}, [hurt])
    assert (verdict.redelivered.total() == 1, verdict.unexplained == 1) == (explained, not explained)


def test_a_member_that_wakes_up_and_repeats_what_it_had_in_hand_is_explained() -> None:
    hurt = Hurt("b", "stopped", 100.0, 110.0)
    assert judged({"a": [worked(0, 80.0)], "b": [worked(0, 110.5)]}, {0}, [hurt]).good


@pytest.mark.parametrize(
    ("gaps", "troubles", "good"), [((), (), True), (("gap",), (), False), ((), ("a writer ended",), False)]
)
def test_gaps_and_processes_that_end_by_themselves_fail_a_run(
    gaps: tuple[str, ...], troubles: tuple[str, ...], good: bool
) -> None:
    clean = HistoryChecker(LINEAGES).report()
    verdict = Verdict(clean, GroupVerdict(0), 0, gaps, troubles)
    assert (verdict.good, verdict.harmed) == (good, not good)
    assert str(verdict).startswith("PASS " if good else "FAIL ")


def test_a_long_run_that_missed_an_aim_is_no_pass_and_no_failure() -> None:
    verdict = Verdict(HistoryChecker(LINEAGES).report(), GroupVerdict(0), 0, (), (), missed=("records",))
    assert not verdict.good and not verdict.harmed
    assert str(verdict).startswith("MISSED ")
