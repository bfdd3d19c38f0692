"""What events are made of."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.members import SimMember
from tests.sim.producers import SimProducer
from tests.sim.world import World

Event = tuple[str, *tuple[int, ...]]
Told = str | None
"""What was done; None: nothing."""
Happening = Callable[..., Told]
"""Takes the world and an event's numbers."""

FAULTS = ("", "lost", "late", "unknown")
STEPS_OF_TIME = (0.02, 0.3, 1.0, 3.0, 6.0, 70.0)


def awake(world: World, index: int) -> SimProducer | None:
    """Return a producer that can do something now."""
    producer = world.producers[index]
    return None if producer.asleep or producer.closed else producer


def suspend(process: SimProducer | SimMember, asleep: bool) -> Told:
    """Suspend a process, or let it go on."""
    if process.asleep == asleep:
        return None
    process.asleep = asleep
    return f"{process.name} {'is suspended' if asleep else 'goes on'}"


def with_fault(fault: int) -> str:
    """Return what goes wrong, for a trace."""
    return f" ({FAULTS[fault]} write)" if fault else ""
