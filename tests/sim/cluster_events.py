"""What happens to the cluster: time, late arrivals, leaders, retention, writers without kpsplit."""

from __future__ import annotations

from tests.sim.control import Fate
from tests.sim.event_words import STEPS_OF_TIME, Happening, Told
from tests.sim.world import KEYS, World


def tick(world: World, step: int) -> Told:
    """Time passes, and ends transactions that were open for too long."""
    world.timeline.now += STEPS_OF_TIME[step]
    world.control.time_out(world.timeline.now)
    world.offsets.time_out(world.timeline.now)
    return f"{STEPS_OF_TIME[step]} s pass"


def _late(world: World, index: int) -> Told:
    if index >= len(world.late):
        return None
    what, land = world.late.pop(index)
    land()
    return f"late, {what} arrives"


def _stranger(world: World) -> Told:
    """Somebody's transaction about another partition begins, or ends."""
    for record in world.control.records:
        if record.state is None and record.fate is Fate.OPEN:
            record.fate = Fate.COMMITTED
            return "another partition's transaction ends"
    world.control.begin(0, None, "another partition", world.timeline.now)
    return "another partition's transaction holds up the control topic"


def _leader(world: World, index: int) -> Told:
    """A leader moves: acknowledgements on their way are late, which the client's queue shows already."""
    logs = list(world.brokers.logs.values())
    log = logs[index % len(logs)]
    log.leader_epoch += 1
    return f"the leader of {log.source} moves"


def _retention(world: World, index: int) -> Told:
    logs = list(world.brokers.logs)
    place = logs[index % len(logs)]
    removed = world.brokers.expire(place, world.timeline.now)
    return f"retention removes records of {place}" if removed else None


def _hole(world: World, index: int) -> Told:
    logs = list(world.brokers.logs)
    place = logs[index % len(logs)]
    if place.topic in world.brokers.sealed or place.topic not in world.brokers.topics:
        return None
    if not world.brokers.logs[place].entries:
        return None
    world.brokers.leave_hole(place)
    return f"a transaction's end takes up an offset of {place}"


def _foreign(world: World, key: int) -> Told:
    chosen = KEYS[key] if key < len(KEYS) else None
    return f"a plain writer writes key {chosen!r} to the parent at {world.send_foreign(chosen)}"


CLUSTER_EVENTS: dict[str, Happening] = {
    "tick": tick,
    "late": _late,
    "stranger": _stranger,
    "leader": _leader,
    "retention": _retention,
    "hole": _hole,
    "foreign": _foreign,
}
