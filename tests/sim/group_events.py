"""What happens to the consumer group: its members read, work, commit, and get and lose slots."""

from __future__ import annotations

from kpsplit.consumer.fetch.batch import OwnedSlot
from tests.sim.event_words import FAULTS, Happening, Told, suspend
from tests.sim.members import SimMember
from tests.sim.world import World


def _member(world: World, index: int) -> SimMember | None:
    member = world.members[index]
    return None if member.asleep else member


def _read(world: World, index: int, behind: int) -> Told:
    member = _member(world, index)
    if member is None or not member.see(world.control.stable() - behind):
        return None
    return f"{member.name} reads the control topic; {member.state.phase}@{member.state.epoch}"


def _refresh(world: World, index: int) -> Told:
    member = _member(world, index)
    return f"{member.name} refreshes its view" if member and member.refresh() else None


def _heartbeat(world: World, index: int) -> Told:
    member = _member(world, index)
    if member is None or not member.heartbeat():
        return None
    return f"{member.name} is in generation {member.generation} with {len(member.holdings)} slots"


def _start(world: World, index: int) -> Told:
    member = _member(world, index)
    for slot in list(member.holdings) if member else ():
        if member and member.start(slot):
            return f"{member.name} looks up where {slot} begins"
    return None


def _fetch(world: World, index: int, place: int, most: int) -> Told:
    member = _member(world, index)
    wanted = sorted(member.tracks.wanted()) if member else []
    if member is None or not wanted:
        return None
    source = wanted[place % len(wanted)]
    return f"{member.name} fetches from {source}" if member.fetch(source, most) else None


def _work(world: World, index: int, most: int) -> Told:
    member = _member(world, index)
    if member is None or not member.work(most):
        return None
    return f"{member.name} is given {[(m.value() or b'').decode() for m in member.in_work]}"


def _commit(world: World, index: int, fault: int) -> Told:
    member = _member(world, index)
    told = member.commit(FAULTS[fault]) if member else None
    return f"{member.name} {told}" if member and told else None


def _doze(world: World, index: int, asleep: int) -> Told:
    return suspend(world.members[index], bool(asleep))


def _die(world: World, index: int) -> Told:
    """A member is killed; a new one joins, and the coordinator gives it the slots."""
    gone = world.members[index]
    world.joined += 1
    member = world.members[index] = SimMember(world, f"m{world.joined}")
    _give(world, [s for s, name in world.coordinator.owner.items() if name == gone.name], member.name)
    return f"{gone.name} is killed, {member.name} takes its place"


def _expel(world: World, index: int) -> Told:
    """The coordinator thinks that a member is gone, which does not know it yet."""
    gone, other = world.members[index], world.members[1 - index]
    slots = [s for s, name in world.coordinator.owner.items() if name == gone.name]
    if not slots:
        return None
    _give(world, slots, other.name)
    return f"{gone.name} is expelled, {other.name} gets {', '.join(map(str, slots))}"


def _move(world: World, number: int) -> Told:
    """The next step of handing a slot over in good order."""
    slot = world.coordinator.slots[number % len(world.coordinator.slots)]
    index = next(i for i, m in enumerate(world.members) if m.name == world.coordinator.owner[slot])
    member = _member(world, index)
    if member is None or slot not in member.holdings:
        return None
    return f"{member.name}, giving up {slot}, {_give_up(world, member, slot, world.members[1 - index].name)}"


def _give_up(world: World, member: SimMember, slot: OwnedSlot, other: str) -> str:
    member.holdings[slot].leaving = True
    if not member.release(slot):
        member.work(0)
        return "finishes its work"
    if member.job is not None or (member.holdings[slot].reading and not _clean(member, slot)):
        return member.commit() or "waits"
    member.drop(slot)
    _give(world, [slot], other)
    return f"lets it go to {other}"


def _clean(member: SimMember, slot: OwnedSlot) -> bool:
    processed = member.buffer.cursor(slot)[0].settled(member.state.lineage)
    return member.holdings[slot].committed == processed


def _give(world: World, slots: list[OwnedSlot], name: str) -> None:
    world.count("hand-overs")
    world.coordinator.assign(slots, name)


GROUP_EVENTS: dict[str, Happening] = {
    "read": _read,
    "refresh": _refresh,
    "heartbeat": _heartbeat,
    "start": _start,
    "fetch": _fetch,
    "work": _work,
    "commit": _commit,
    "doze": _doze,
    "die": _die,
    "expel": _expel,
    "move": _move,
}
