"""What operators do, and what keeps producers from answering them."""

from __future__ import annotations

from tests.sim import operations
from tests.sim.cluster_events import tick
from tests.sim.event_words import FAULTS, Happening, Told, awake
from tests.sim.producer_events import flow, turn
from tests.sim.world import World

_RUSHED_TURNS, _RUSHED_STEPS = 6, 12


def _plan(world: World, behind: int, what: int, first: int, count: int, pause: int, second: int) -> Told:
    if len(world.operators) > 2 * second:
        return None
    state = world.control.states[max(0, world.control.stable() - behind)]
    name = f"a{world.attempts + 1}"
    attempt = operations.planned(state, name, (what, first, count), pause)
    operator = world.new_operator("a", operations.run(attempt, state.epoch))
    ranges = ", ".join(map(str, attempt.ranges))
    return f"{operator.name} wants a {attempt.kind} of {list(attempt.sources)} into {ranges}"


def _rush(world: World, what: int, first: int, count: int) -> Told:
    """An operation goes through without trouble, as far as the producers are awake."""
    if world.operators or any(p.asleep for p in world.producers):
        return None
    told = _plan(world, 0, what, first, count, 2, 0)
    operator = world.operators[0]
    for _ in range(_RUSHED_TURNS):
        for _ in range(_RUSHED_STEPS):
            if operator.process.ready():
                operator.step()
                world.oracle.check()
        if operator.process.over:
            world.operators.remove(operator)
            break
        for producer in world.producers:
            producer.turn()
            for place in producer.client.places():
                while producer.client.write(place) or producer.client.acknowledge(place):
                    world.oracle.check()
    state = world.control.truth
    return f"{told}, without trouble; {state.phase}@{state.epoch}"


def _cut_off(world: World, index: int, cut: int) -> Told:
    """A producer can read, but its writes to the producers topic are lost."""
    writer = world.producers[index].writer
    if writer.cut_off == bool(cut):
        return None
    writer.cut_off = bool(cut)
    return f"{world.producers[index].name} {'cannot' if cut else 'can'} write to the producers topic"


def _freeze(world: World, frozen: int) -> Told:
    """The broker that leads the producers topic stands still: nobody reads it, writes arrive later."""
    topic = world.producers_topic
    if topic.frozen == bool(frozen):
        return None
    topic.frozen = bool(frozen)
    if not frozen:
        for producer in world.producers:
            producer.writer.land()
    return f"the producers topic {'stands still' if frozen else 'is back'}"


def _call_on(world: World, what: int, second: int) -> Told:
    if len(world.operators) > 2 * second:
        return None
    name, work = (("resume", operations.resume), ("abort", operations.abort), ("retire", operations.retire))[
        what
    ]
    return f"{world.new_operator(name, work).name} begins"


def _take_over(world: World, index: int) -> Told:
    producer = awake(world, index)
    attempt_id = operations.due_for_takeover(world, producer.state) if producer else None
    if attempt_id is None or producer is None or len(world.operators) >= 3:
        return None
    operator = world.new_operator("takeover", operations.take_over(attempt_id))
    return f"{operator.name} of {attempt_id} by {producer.name} begins"


def _operate(world: World, index: int, steps: int, fault: int) -> Told:
    """An operator does some steps; what goes wrong goes wrong in the last of them.

    While it waits, a producer has a turn, or time passes; while there is none, records go their way.
    """
    if not world.operators:
        return flow(world, steps % 2, 0)
    operator, told = world.operators[index % len(world.operators)], []
    if not operator.process.ready():
        return tick(world, 2) if steps > 3 else turn(world, steps % 2, 0, 1)
    for number in range(steps):
        if not operator.process.ready():
            break
        told.append(operator.step(FAULTS[fault] if number == steps - 1 else ""))
        world.oracle.check()
    if operator.process.over:
        world.operators.remove(operator)
    state = world.control.truth
    return f"{operator.name} {', '.join(told)}; {state.phase}@{state.epoch}" if told else None


def _kill(world: World, index: int) -> Told:
    if index >= len(world.operators):
        return None
    world.count("operator crashes")
    return f"{world.operators.pop(index).name} is killed"


OPERATOR_EVENTS: dict[str, Happening] = {
    "plan": _plan,
    "rush": _rush,
    "cut_off": _cut_off,
    "freeze": _freeze,
    "call_on": _call_on,
    "take_over": _take_over,
    "operate": _operate,
    "kill": _kill,
}
