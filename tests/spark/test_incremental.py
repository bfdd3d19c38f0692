"""Verification in several runs: each goes on where the one before it ended; together they say what one says.

A case writes a partition's history and yields at the end of each run, with what that run must say. All cases
run side by side as the partitions of one topic; between runs the state goes through its JSON form.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

import pytest

from kpsplit.spark_jobs.snapshot import LogBounds
from kpsplit.spark_jobs.verification.findings import Check, Finding, Severity, Verdict
from kpsplit.spark_jobs.verification.state import State, to_read
from kpsplit.spark_jobs.verification.state_json import decode_state, encode_state
from kpsplit.splitter.key_range import WHOLE, key_hash
from kpsplit.splitter.records.offsets import Cause
from kpsplit.splitter.records.stamp import HEADER, Stamp
from tests.spark.histories import KEYS, TOPIC, World, busy, judge

Expect = Callable[[Verdict], None]
Case = Callable[[World], Generator[Expect, None, None]]
RUNS = 4
CASES: dict[str, Case] = {}


def case(plant: Case) -> Case:
    CASES[plant.__name__] = plant
    return plant


@dataclass
class Outcome:
    """What the runs of a case said, each with what it had to say; and what one run over everything says."""

    runs: list[tuple[Verdict, Expect]] = field(default_factory=list)
    full: Verdict | None = None


@pytest.fixture(scope="module")
def outcomes(spark) -> dict[str, Outcome]:
    worlds = [World(number) for number in range(len(CASES))]
    going = {}
    for world, plant in zip(worlds, CASES.values(), strict=True):
        world.open |= {world.anna, world.bert}
        going[plant.__name__] = plant(world)
    found = {name: Outcome() for name in CASES}
    past = State("cluster", TOPIC)
    for _ in range(RUNS):
        expected = {name: next(steps, None) for name, steps in going.items()}
        verdict = judge(spark, worlds, past)
        assert verdict.successor is not None
        past = decode_state(encode_state(verdict.successor))
        assert past == verdict.successor
        for number, (name, expect) in enumerate(expected.items()):
            if expect is not None:
                found[name].runs.append((verdict.of_partition(number), expect))
    assert all(next(steps, None) is None for steps in going.values())
    everything = judge(spark, worlds)
    for number, outcome in enumerate(found.values()):
        outcome.full = everything.of_partition(number)
    return found


@pytest.mark.parametrize("name", CASES)
def test_runs(outcomes, name: str) -> None:
    for verdict, expect in outcomes[name].runs:
        expect(verdict)


def clean(verdict: Verdict) -> None:
    assert verdict.clean, (verdict.defects, verdict.unproven)


def nothing_new(verdict: Verdict) -> None:
    """Clean, and not even a note about numbers: what was told is not told again."""
    clean(verdict)
    assert not [f for f in verdict.findings if f.check in (Check.MISSING, Check.STRAYS)]


def _is_open_producer(finding: Finding) -> bool:
    """Tell whether it only says up to where a producer is proven that has left no certificate."""
    return finding.check is Check.CERTIFICATES and finding.severity is Severity.NOTE


def only(check: Check, severity: Severity, first: int | None = None) -> Expect:
    """Findings of one check and severity, and nothing graver: with notes only, all is clean."""

    def expect(verdict: Verdict) -> None:
        found = [f for f in verdict.findings if f.severity is severity and not _is_open_producer(f)]
        assert {f.check for f in found} == {check}, verdict.findings
        assert not [f for f in verdict.defects if f.severity is not severity]
        assert severity is not Severity.NOTE or verdict.clean, verdict.unproven
        assert first is None or [f.first for f in found] == [first]

    return expect


def finding(check: Check, test: Callable[[Finding], bool] = lambda _: True) -> Expect:
    """Exactly one defect."""

    def expect(verdict: Verdict) -> None:
        (found,) = verdict.defects
        assert found.check is check and test(found), found

    return expect


def close(world: World) -> None:
    """The producers close: from now on their certificates are there."""
    world.open.clear()


def pair_of_one_key(world: World, later_key: bytes) -> tuple[int, int]:
    """Give two numbers and write only the second one; the first comes late."""
    first, second = world.number(world.anna), world.number(world.anna)
    world.put(world.taking(later_key).source, later_key, world.state.epoch, world.anna, second)
    return first, second


def come(world: World, key: bytes, number: int) -> None:
    """A number arrives in the segment of its key."""
    world.put(world.taking(key).source, key, world.state.epoch, world.anna, number)


def account_for_all(world: World) -> None:
    """Make the certificates count what the segments hold."""
    for producer in world.given:
        world.delivered[producer] = {}
    for place, log in world.logs.items():
        for offset, record in enumerate(log):
            value = dict(record.headers).get(HEADER) if record else None
            segment, stamp = world.state.lineage.at(place, offset), value and Stamp.decode(value)
            if segment and stamp and stamp.epoch >= segment.opened_epoch:
                counts = world.delivered[stamp.instance]
                counts[str(segment.id)] = counts.get(str(segment.id), 0) + 1


# Clean chains


@case
def a_life_in_four_runs_says_what_one_run_says(world: World) -> Generator[Expect, None, None]:
    busy(world)
    world.foreign(b"before")
    world.abort(world.anna, KEYS[0])
    yield clean
    world.split(0, 2)
    world.stray(world.anna, KEYS[0], world.parent, 0)
    world.foreign(b"overflow")
    busy(world)
    world.commit_all("readers")
    yield clean
    nested = world.state.lineage.open_segments()[0]
    world.split(nested.id, 3)
    world.stray(world.bert, next(k for k in KEYS if key_hash(k) in nested.range), nested.source, 1)
    busy(world)
    world.fail(world.anna)
    world.abort(world.bert, KEYS[5])
    yield clean
    world.merge()
    busy(world)
    world.commit_all("readers")
    close(world)
    yield clean


def test_a_chain_says_what_one_run_over_everything_says(outcomes) -> None:
    outcome = outcomes[a_life_in_four_runs_says_what_one_run_says.__name__]
    last, full = outcome.runs[-1][0], outcome.full
    assert full.clean
    assert last.counts == full.counts
    assert last.segments == full.segments
    assert 0 < last.new_records < full.counts[str(full.findings[0].parent)]["data"] / 2


@case
def a_quiet_hour_is_clean(world: World) -> Generator[Expect, None, None]:
    busy(world)
    yield clean
    yield nothing_new
    close(world)
    yield nothing_new


@case
def a_number_that_was_under_way_when_a_run_ended_arrives(world: World) -> Generator[Expect, None, None]:
    busy(world)
    late, _ = pair_of_one_key(world, KEYS[1])
    yield only(Check.MISSING, Severity.NOTE, late)
    come(world, KEYS[2], late)
    account_for_all(world)
    close(world)
    yield nothing_new


@case
def a_stray_that_a_later_run_sees_sent_again_is_clean(world: World) -> Generator[Expect, None, None]:
    busy(world)
    world.split(0, 2)
    astray = world.number(world.anna)
    world.put(world.parent, KEYS[0], 0, world.anna, astray)
    yield only(Check.STRAYS, Severity.NOTE, astray)
    come(world, KEYS[0], astray)
    account_for_all(world)
    close(world)
    yield nothing_new


@case
def what_failed_is_decided_by_the_certificate(world: World) -> Generator[Expect, None, None]:
    busy(world)
    world.fail(world.anna)
    busy(world)
    yield only(Check.MISSING, Severity.NOTE)
    close(world)
    yield nothing_new


@case
def an_aborted_transaction_at_the_very_end_of_a_run_is_no_loss(world: World) -> Generator[Expect, None, None]:
    busy(world)
    world.abort(world.anna, KEYS[0])
    yield nothing_new
    yield nothing_new
    busy(world)
    close(world)
    yield nothing_new


@case
def what_an_open_transaction_hides_is_decided_when_it_is_over(world: World) -> Generator[Expect, None, None]:
    busy(world)
    close(world)
    behind = len(world.logs[world.parent])
    bounds = {world.parent: LogBounds(0, behind - 3, behind)}
    world.adjust = lambda snapshot: replace(snapshot, bounds=bounds)
    yield only(Check.MISSING, Severity.NOTE)
    world.adjust = lambda snapshot: snapshot
    yield nothing_new


@case
def what_was_verified_may_expire(world: World) -> Generator[Expect, None, None]:
    busy(world)
    yield clean
    world.lows[world.parent] = len(world.logs[world.parent])
    busy(world)
    close(world)
    yield nothing_new


# Faults across the boundary of two runs


@case
def the_last_record_before_a_run_ended_is_lost(world: World) -> Generator[Expect, None, None]:
    busy(world)
    lost = world.number(world.anna)
    yield nothing_new
    busy(world)
    yield only(Check.MISSING, Severity.NOTE, lost)
    yield only(Check.MISSING, Severity.UNPROVEN, lost)
    close(world)
    yield finding(Check.MISSING, lambda f: (f.first, f.last) == (lost, lost))


@case
def the_first_record_after_a_run_ended_is_lost_and_told_once(world: World) -> Generator[Expect, None, None]:
    busy(world)
    yield nothing_new
    lost = world.number(world.bert)
    busy(world)
    close(world)
    yield finding(Check.MISSING, lambda f: f.first == lost)

    def told(verdict: Verdict) -> None:
        nothing_new(verdict)
        assert verdict.told_before == 1

    yield told


@case
def an_old_record_comes_again(world: World) -> Generator[Expect, None, None]:
    busy(world)
    old = world.logs[world.parent][7]
    yield clean
    world.logs[world.parent].append(old)
    at = len(world.logs[world.parent]) - 1
    busy(world)
    yield lambda v: finding(Check.REPEATED, lambda f: f.first == at)(of_check(v, Check.REPEATED))
    yield nothing_new


def of_check(verdict: Verdict, check: Check) -> Verdict:
    """What comes again stands behind later numbers of its key as well: one fault, two checks."""
    assert {f.check for f in verdict.defects} <= {check, Check.ORDER}
    return replace(verdict, findings=verdict.of(check))


@case
def two_records_of_a_key_are_swapped_across_the_boundary(world: World) -> Generator[Expect, None, None]:
    busy(world)
    late, _ = pair_of_one_key(world, KEYS[1])
    yield only(Check.MISSING, Severity.NOTE, late)
    come(world, KEYS[1], late)
    account_for_all(world)
    close(world)
    yield finding(Check.ORDER, lambda f: (f.first, f.key_hash) == (late, key_hash(KEYS[1])))
    yield nothing_new


@case
def two_records_of_a_key_are_swapped_across_the_boundary_and_a_split(
    world: World,
) -> Generator[Expect, None, None]:
    busy(world)
    late, _ = pair_of_one_key(world, KEYS[1])
    yield clean
    world.split(0, 2)
    come(world, KEYS[1], late)
    busy(world)
    account_for_all(world)
    close(world)
    yield finding(Check.ORDER, lambda f: f.first == late)


@case
def order_cannot_be_judged_when_the_earlier_records_are_gone(world: World) -> Generator[Expect, None, None]:
    busy(world)
    late, _ = pair_of_one_key(world, KEYS[1])
    yield clean
    world.lows[world.parent] = len(world.logs[world.parent])
    come(world, KEYS[1], late)
    yield only(Check.ORDER, Severity.UNPROVEN)


@case
def a_stray_that_is_never_sent_again_is_found_in_the_end(world: World) -> Generator[Expect, None, None]:
    busy(world)
    world.split(0, 2)
    astray = world.number(world.anna)
    world.put(world.parent, KEYS[0], 0, world.anna, astray)
    yield only(Check.STRAYS, Severity.NOTE, astray)
    busy(world)
    yield only(Check.STRAYS, Severity.UNPROVEN, astray)
    close(world)
    yield finding(Check.STRAYS, lambda f: f.first == astray)
    yield nothing_new


@case
def a_certificate_that_counts_other_records_than_all_runs_saw(world: World) -> Generator[Expect, None, None]:
    busy(world)
    yield clean
    busy(world)
    world.delivered[world.bert]["0"] += 1
    close(world)
    yield finding(Check.CERTIFICATES, lambda f: f.count == 1)
    yield nothing_new


@case
def a_certificate_is_compared_also_where_numbers_were_under_way_when_a_run_ended(
    world: World,
) -> Generator[Expect, None, None]:
    """The two numbers are in the segment, and not in the certificate's count."""
    busy(world)
    late, _ = pair_of_one_key(world, KEYS[1])
    yield only(Check.MISSING, Severity.NOTE, late)
    come(world, KEYS[2], late)
    close(world)
    yield finding(Check.CERTIFICATES, lambda f: f.count == 2)


@case
def a_marker_is_missing_at_an_end_behind_the_boundary(world: World) -> Generator[Expect, None, None]:
    busy(world)
    yield clean
    world.split(0, 2)
    world.logs[world.parent][world.state.lineage.get(0).end] = None
    yield finding(Check.STRETCHES)


@case
def a_log_ends_before_what_was_read(world: World) -> Generator[Expect, None, None]:
    busy(world)
    read = len(world.logs[world.parent])
    yield clean
    del world.logs[world.parent][-5:]
    yield finding(Check.STRETCHES, lambda f: (f.first, f.last) == (read - 5, read - 1))


@case
def what_expired_before_any_run_read_it_cannot_be_judged(world: World) -> Generator[Expect, None, None]:
    busy(world)
    yield clean
    busy(world)
    world.lows[world.parent] = len(world.logs[world.parent]) - 20
    busy(world)

    def expect(verdict: Verdict) -> None:
        assert not verdict.defects
        assert any("retention" in why for why in verdict.unproven)

    yield expect
    close(world)
    yield clean


@case
def what_went_unread_is_not_called_lost_when_its_producer_closes(
    world: World,
) -> Generator[Expect, None, None]:
    world.plain.add(world.bert)
    world.send(world.bert, KEYS[0], times=50)
    world.lows[world.parent] = 50
    for key in KEYS:
        world.send(world.anna, key)

    def expect(verdict: Verdict) -> None:
        assert not verdict.defects
        assert any("retention" in why for why in verdict.unproven)

    yield expect
    close(world)
    yield only(Check.MISSING, Severity.UNPROVEN, 0)
    yield nothing_new


@case
def a_stray_of_a_producer_of_which_nothing_else_came(world: World) -> Generator[Expect, None, None]:
    busy(world)
    world.split(0, 2)
    unknown = 0xC0FFEE0000 + world.parent.partition
    world.open.add(unknown)
    astray = world.number(unknown)
    world.put(world.parent, KEYS[0], 0, unknown, astray)
    yield only(Check.STRAYS, Severity.NOTE, astray)
    yield only(Check.STRAYS, Severity.UNPROVEN, astray)
    close(world)
    yield finding(Check.STRAYS, lambda f: f.first == astray)
    yield nothing_new


@case
def a_range_commit_goes_back_behind_one_that_compaction_removed(
    world: World,
) -> Generator[Expect, None, None]:
    busy(world)
    world.commit("back", WHOLE, {0: 50})
    yield clean
    world.commit("back", WHOLE, {0: 40})
    world.adjust = lambda snapshot: replace(snapshot, commits=snapshot.commits[1:])
    yield finding(Check.COMMITS_FORWARD, lambda f: f.first == 40)
    world.commit("back", WHOLE, {0: 10}, Cause.SEEK)
    yield clean


def test_a_run_reads_only_what_the_one_before_it_did_not() -> None:
    world = World(0)
    busy(world)
    read = len(world.logs[world.parent])
    known = replace(State("c", TOPIC).past(0), read={world.parent: read})
    world.split(0, 2)
    busy(world)
    stretches = to_read(world.snapshot(), State("c", TOPIC, partitions={0: known}))
    assert stretches[world.parent] == (read, len(world.logs[world.parent]))
    assert all(stretches[place][0] == 0 for place in stretches if place != world.parent)
