"""The short form of ``make chaos``: one fault of each kind, each for a moment, judged like a long run."""

from __future__ import annotations

import pytest

from tests.fault.chaos.faults import MIXES, OF_PROCESSES, Kind
from tests.fault.chaos.run import run
from tests.fault.chaos.scenario import Options

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

LONGEST_SECONDS = 2.0
RATE = 100.0
"""Records per second and writer: more than the throttle lets through."""
BESIDE = {Kind.ENROLMENT_KILLED, Kind.RETIREMENT_KILLED}
"""What happens to topics of its own: tests/broker/test_operators_killed.py does it step by step."""
OF_THE_TOPIC = tuple(kind for kind in OF_PROCESSES if kind not in BESIDE)


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(OF_THE_TOPIC, id="processes", marks=pytest.mark.nightly),
        pytest.param(MIXES["network"], id="network"),
    ],
)
def test_one_fault_of_each_kind_loses_doubles_and_reorders_nothing(kinds: tuple[Kind, ...]) -> None:
    outcome = run(Options(seed=7, minutes=None, longest=LONGEST_SECONDS, rate=RATE, kinds=kinds))
    assert outcome.verdict.good, outcome.report()
    assert {strike.kind for strike in outcome.strikes} >= set(kinds) - {Kind.SUSPENSIONS}
