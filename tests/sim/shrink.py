"""Making a failing run short: events are left out as long as the same thing still goes wrong."""

from __future__ import annotations

from tests.sim.event_words import Event
from tests.sim.run import RunResult, run_events

MOST_RUNS = 3000


def kind_of(violation: str) -> str:
    """Return what went wrong, without which record or process it was."""
    return violation.split(" ", 1)[0].rstrip(":")


def shrink(failed: RunResult, most_runs: int = MOST_RUNS) -> RunResult:
    """Return a run of as few events as can be found that fails alike, with its trace.

    Whole stretches are left out first, then ever shorter ones, then single events.
    """
    wanted = kind_of(failed.violation or "")
    events, runs = list(failed.events), 0
    size = max(1, len(events) // 2)
    while True:
        at, shorter = len(events), False
        while at > 0 and runs < most_runs:
            fewer = events[: max(0, at - size)] + events[at:]
            runs += 1
            result = run_events(fewer)
            if result.violation is not None and kind_of(result.violation) == wanted:
                events, shorter = _done(fewer, result.events), True
                at = min(at, len(events))
            at -= size
        if size == 1 and (not shorter or runs >= most_runs):
            return run_events(events, trace=True)
        size = max(1, size // 2) if not shorter else size


def _done(tried: list[Event], happened: list[Event]) -> list[Event]:
    """Return the events that did anything; what comes behind a violation did not happen at all."""
    return happened if len(happened) < len(tried) else tried
