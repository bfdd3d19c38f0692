"""Everything that can happen between two steps.

An event is a name with small numbers: the same event does the same in the same world, and one that cannot
happen does nothing. So a run is a list of events, and shrinking it is leaving some out.
"""

from __future__ import annotations

from tests.sim.cluster_events import CLUSTER_EVENTS
from tests.sim.event_words import Event, Happening, Told
from tests.sim.group_events import GROUP_EVENTS
from tests.sim.operator_events import OPERATOR_EVENTS
from tests.sim.producer_events import PRODUCER_EVENTS
from tests.sim.world import World

EVENTS: dict[str, Happening] = {**PRODUCER_EVENTS, **OPERATOR_EVENTS, **CLUSTER_EVENTS, **GROUP_EVENTS}


def do(world: World, event: Event) -> Told:
    """Let an event happen."""
    name, *numbers = event
    return EVENTS[name](world, *numbers)
