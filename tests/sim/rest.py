"""The end of a run: no faults any more. Everything must come to rest by itself (invariant 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kpsplit.splitter.states import Phase
from tests.sim import operations
from tests.sim.control import Fate
from tests.sim.events import do
from tests.sim.members import SimMember
from tests.sim.oracle import ViolationError
from tests.sim.producers import SimProducer
from tests.sim.world import World

ROUNDS = 200
_STEPS = 60


def come_to_rest(world: World) -> int:
    """Let everything go on without faults until nothing is left to do; return the rounds it took.

    First the operation and the producers, then the group: so its members read in large steps.

    Raises:
        ViolationError: it does not come to rest, or something is wrong on the way there.
    """
    for member in world.members:
        member.asleep = False
    world.producers_topic.frozen = False
    for producer in world.producers:
        producer.asleep = False
        producer.writer.cut_off = False
    rounds = _repeat(world, _cluster_round, _unfinished)
    return rounds + _repeat(world, _group_round, _unread)


def _repeat(
    world: World, one_round: Callable[[World, int], None], left: Callable[[World], Iterator[str]]
) -> int:
    for number in range(ROUNDS):
        if not any(left(world)):
            return number
        one_round(world, number)
        world.oracle.check()
    raise ViolationError(f"STUCK: {'; '.join(left(world))}")


def _unfinished(world: World) -> Iterator[str]:
    state = world.control.truth
    if world.late:
        yield "something is in the network"
    if state.phase is not Phase.STEADY or world.operators:
        yield f"the partition is {state.phase}, {len(world.operators)} operators"
    for producer in world.producers:
        if not producer.idle():
            waiting = producer.dispatcher.unresolved()
            yield f"{producer.name} waits: {len(producer.client)} in flight, {waiting} held or not final"


def _unread(world: World) -> Iterator[str]:
    oracle = world.oracle
    unread = [i for i, p in oracle.effective.items() if i not in oracle.processed and not oracle.expired(p)]
    if unread:
        yield f"the group has not read {unread[:5]}"
    for member in world.members:
        if member.job is not None:
            yield f"{member.name} has not committed"


def _cluster_round(world: World, number: int) -> None:
    _pass_time(world, number)
    while world.late:
        world.late.pop(0)[1]()
        world.oracle.check()
    for record in world.control.records[world.control.stable() :]:
        if record.state is None and record.fate is Fate.OPEN:
            record.fate = Fate.COMMITTED
    _operate(world)
    for producer in world.producers:
        _produce(world, producer)


def _group_round(world: World, number: int) -> None:
    _pass_time(world, number)
    for member in world.members:
        _consume(world, member)
    for index, slot in enumerate(world.coordinator.slots):
        if any(slot in m.holdings and m.holdings[slot].leaving for m in world.members):
            do(world, ("move", index))


def _pass_time(world: World, number: int) -> None:
    world.timeline.now += 0.3 if number < 4 else 1.2
    world.control.time_out(world.timeline.now)
    world.offsets.time_out(world.timeline.now)


def _operate(world: World) -> None:
    state = world.control.truth
    if not world.operators and state.phase is Phase.FENCED:
        attempt_id = operations.due_for_takeover(world, state)
        if attempt_id is None:
            world.timeline.now += 3.0
        else:
            world.new_operator("takeover", operations.take_over(attempt_id))
    elif not world.operators and state.phase is not Phase.STEADY:
        world.new_operator("resume", operations.resume)
    for operator in list(world.operators):
        for _ in range(_STEPS):
            if not operator.process.ready():
                break
            operator.step()
            world.oracle.check()
        if operator.process.over:
            world.operators.remove(operator)


def _produce(world: World, producer: SimProducer) -> None:
    client = producer.client
    producer.writer.land()
    for place in client.places():
        while client.write(place):
            pass
        while client.acknowledge(place):
            pass
    request = producer.tail.request
    if request is not None and not request.done():
        request.ends = {0: world.control.stable()}
    for lookup in world.lookups:
        if not lookup.searched:
            lookup.look()
    producer.turn()
    world.oracle.check()
    producer.poll()


def _consume(world: World, member: SimMember) -> None:
    member.heartbeat()
    member.see(world.control.stable())
    for slot in list(member.holdings):
        member.start(slot)
    member.refresh()
    member.refresh()
    for source in list(member.tracks.wanted()):
        member.fetch(source, 1000)
    member.work(1000)
    member.work(0)
    world.oracle.check()
    for _ in range(3):
        if member.commit() is None:
            break
