"""The product's own code on simulated logs, network and clocks: nothing is lost, doubled or reordered.

``KPSPLIT_SIM_SEEDS=A:B`` runs other seeds than the first 1,000.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kpsplit import compiled
from tests.sim import guards
from tests.sim.__main__ import in_words
from tests.sim.run import RunResult, kind_of, run_events, run_seed, shrink, sweep

SEEDS = os.environ.get("KPSPLIT_SIM_SEEDS", "0:1000")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_invariants_hold_after_every_event_and_everything_comes_to_rest() -> None:
    first, end = map(int, SEEDS.split(":"))
    swept = sweep(first, end)
    print(f"{swept.runs} seeds: {dict(sorted(swept.counts.items()))}")
    assert swept.runs == end - first
    if swept.failed:
        seed, violation = swept.failed[0]
        trace = in_words(shrink(run_seed(seed)))
        pytest.fail(f"{len(swept.failed)} seeds fail; seed {seed}: {violation}\n{trace}")
    assert swept.counts["epochs"] >= swept.runs, "too few operations take effect"
    assert swept.counts["strays"] > 0 and swept.counts["retired"] > 0


def test_one_seed_is_one_run() -> None:
    one, other = run_seed(7, trace=True), run_seed(7, trace=True)
    assert one == other
    assert one.events and one.trace
    assert run_seed(8).events != one.events


@pytest.mark.skipif(
    compiled.fast is None or compiled.messages is None, reason="the compiled parts are not in use"
)
def test_the_compiled_calls_decide_as_those_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    by_compiled = [run_seed(seed, trace=True) for seed in range(60)]
    monkeypatch.setattr(compiled, "fast", None)
    monkeypatch.setattr(compiled, "messages", None)
    assert [run_seed(seed, trace=True) for seed in range(60)] == by_compiled


def test_a_list_of_events_runs_as_the_seed_did() -> None:
    for seed in range(20):
        by_seed = run_seed(seed, trace=True)
        by_events = run_events(by_seed.events, trace=True)
        assert by_events == by_seed


def _failing(monkeypatch: pytest.MonkeyPatch) -> RunResult:
    guards.work_without_a_claim(monkeypatch)
    result = next(r for r in map(run_seed, range(100)) if r.violation is not None)
    assert result.violation is not None
    return result


def test_a_failing_run_shrinks_to_few_events_that_fail_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = _failing(monkeypatch)
    short = shrink(failed)
    assert short.violation is not None and failed.violation is not None
    assert kind_of(short.violation) == kind_of(failed.violation)
    assert len(short.events) <= len(failed.events) / 2
    assert run_events(short.events).violation == short.violation
    assert in_words(short).splitlines()[-1] == short.violation


def test_an_error_of_the_product_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr("tests.sim.producers.SimProducer.turn", broken)
    assert run_seed(1).violation == "ERROR ZeroDivisionError: broken"


def test_the_command_runs_seeds_and_prints_what_they_came_to() -> None:
    command = [sys.executable, "-m", "tests.sim", "--workers", "1"]
    many = subprocess.run([*command, "--seeds", "0:5"], capture_output=True, text=True, check=True)
    assert many.stdout.startswith("5 seeds in ")
    one = subprocess.run([*command, "--seed", "3"], capture_output=True, text=True, check=True)
    assert one.stdout.startswith("seed 3, ") and "nothing wrong" in one.stdout
