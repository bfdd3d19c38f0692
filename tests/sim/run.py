"""One run: a list of events, then rest. One seed is one run; a list of events can be run again exactly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.sim.clock import simulated_seams
from tests.sim.event_words import Event
from tests.sim.events import do
from tests.sim.judge import judge
from tests.sim.oracle import ViolationError
from tests.sim.producers import SimLookup
from tests.sim.rest import come_to_rest
from tests.sim.schedule import Schedule
from tests.sim.world import SimOperationLog, World

STEPS = 300
"""How many events one run draws; those that cannot happen are not counted."""


@dataclass
class RunResult:
    """What a run came to. ``violation`` None: all held. ``trace``: the events in words, if asked for."""

    events: list[Event] = field(default_factory=list)
    violation: str | None = None
    trace: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def run_seed(seed: int, steps: int = STEPS, *, trace: bool = False) -> RunResult:
    """Run one seed."""
    schedule = Schedule(seed)
    return _run((schedule.draw() for _ in range(steps)), trace)


def run_events(events: Iterable[Event], *, trace: bool = False) -> RunResult:
    """Run a list of events; those that cannot happen are passed over."""
    return _run(events, trace)


def _run(events: Iterable[Event], trace: bool) -> RunResult:
    result = RunResult()
    world = World()
    with simulated_seams(world.timeline, SimLookup, SimOperationLog):
        try:
            world.warm_up()
            for event in events:
                result.events.append(event)
                told = do(world, event)
                if told is None:
                    result.events.pop()
                    continue
                if trace:
                    result.trace.append(told)
                world.oracle.check()
            rounds = come_to_rest(world)
            report = judge(world)
            result.counts = {
                **world.counts,
                "epochs": world.control.truth.epoch,
                "records": report.sent,
                "strays": sum(p.dispatcher.strays() for p in world.producers),
                "rounds": rounds,
                "delivered again": world.oracle.repeated,
            }
        except ViolationError as violation:
            result.violation = str(violation)
        except Exception as error:  # noqa: BLE001 - whatever the product raises in a run is a finding
            result.violation = f"ERROR {type(error).__name__}: {error}"
            result.counts["error"] = 1
            if trace:
                import traceback

                result.trace.append(traceback.format_exc())
    return result
