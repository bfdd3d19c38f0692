"""Everything that can happen between two steps.

An event is a name with small numbers: the same event does the same in the same world, and one that cannot
happen does nothing. So a run is a list of events, and shrinking it is leaving some out.
"""

from __future__ import annotations

from collections.abc import Callable

from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition
from tests.sim import operators
from tests.sim.logs import Fate
from tests.sim.members import SimMember
from tests.sim.producers import DUTIES, SimProducer
from tests.sim.world import KEYS, World

# -- what events are made of -----------------------------------------------------------------------


Event = tuple[str, *tuple[int, ...]]
Done = str | None
"""What was done; None: nothing."""
Happening = Callable[..., Done]
"""Takes the world and an event's numbers."""

FAULTS = ("", "lost", "late", "unknown")
STEPS_OF_TIME = (0.02, 0.3, 1.0, 3.0, 6.0, 70.0)


def awake(world: World, index: int) -> SimProducer | None:
    """Return a producer that can do something now."""
    producer = world.producers[index]
    return None if producer.asleep or producer.closed else producer


def suspend(process: SimProducer | SimMember, asleep: bool) -> Done:
    """Suspend a process, or let it go on."""
    if process.asleep == asleep:
        return None
    process.asleep = asleep
    return f"{process.name} {'is suspended' if asleep else 'goes on'}"


def with_fault(fault: int) -> str:
    """Return what goes wrong, for a trace."""
    return f" ({FAULTS[fault]} write)" if fault else ""


# -- the cluster: time, late arrivals, leaders, retention, plain writers ---------------------------


def tick(world: World, step: int) -> Done:
    """Time passes, and ends transactions that were open for too long."""
    world.timeline.now += STEPS_OF_TIME[step]
    world.control.time_out(world.timeline.now)
    world.offsets.time_out(world.timeline.now)
    return f"{STEPS_OF_TIME[step]} s pass"


def _late(world: World, index: int) -> Done:
    if index >= len(world.late):
        return None
    what, land = world.late.pop(index)
    land()
    return f"late, {what} arrives"


def _stranger(world: World) -> Done:
    """Somebody's transaction about another partition begins, or ends."""
    for record in world.control.records:
        if record.state is None and record.fate is Fate.OPEN:
            record.fate = Fate.COMMITTED
            return "another partition's transaction ends"
    world.control.begin(0, None, "another partition", world.timeline.now)
    return "another partition's transaction holds up the control topic"


def _leader(world: World, index: int) -> Done:
    """A leader moves: acknowledgements on their way are late, which the client's queue shows already."""
    logs = list(world.brokers.logs.values())
    log = logs[index % len(logs)]
    log.leader_epoch += 1
    return f"the leader of {log.source} moves"


def _retention(world: World, index: int) -> Done:
    logs = list(world.brokers.logs)
    place = logs[index % len(logs)]
    removed = world.brokers.expire(place, world.timeline.now)
    return f"retention removes records of {place}" if removed else None


def _hole(world: World, index: int) -> Done:
    logs = list(world.brokers.logs)
    place = logs[index % len(logs)]
    if place.topic in world.brokers.sealed or place.topic not in world.brokers.topics:
        return None
    if not world.brokers.logs[place].entries:
        return None
    world.brokers.leave_hole(place)
    return f"a transaction's end takes up an offset of {place}"


def _foreign(world: World, key: int) -> Done:
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


# -- producers: application, library thread, client, network ---------------------------------------


def _produce(world: World, index: int, key: int) -> Done:
    producer = awake(world, index)
    if producer is None:
        return None
    chosen = KEYS[key] if key < len(KEYS) else None
    id_ = world.send(producer, chosen)
    return f"{producer.name} sends {id_.decode()}, key {chosen!r}"


def _poll(world: World, index: int) -> Done:
    producer = awake(world, index)
    if producer is None:
        return None
    if not producer.poll():
        return None
    done = (f"{i.decode()}: {outcome if at is None else at}" for i, outcome, at in producer.reported)
    return f"{producer.name} polls: {', '.join(done) or 'nothing is final'}"


def turn(world: World, index: int, fault: int, prompt: int) -> Done:
    """The library's thread of a producer has a turn; ``prompt``: its questions are answered at once."""
    producer = awake(world, index)
    if producer is None:
        return None
    producer.turn(FAULTS[fault], prompt=bool(prompt))
    return f"{producer.name} does a turn{with_fault(fault)}; {_view(producer)}"


def _duty(world: World, index: int, duty: int, fault: int) -> Done:
    producer = awake(world, index)
    if producer is None:
        return None
    producer.duty(DUTIES[duty], FAULTS[fault])
    return f"{producer.name} does {DUTIES[duty]}{with_fault(fault)}; {_view(producer)}"


def _see(world: World, index: int, lag: int) -> Done:
    producer = awake(world, index)
    length = world.control.stable() - lag
    if producer is None or length <= producer.tail.length:
        return None
    producer.see(length)
    return f"{producer.name} reads the control topic; {_view(producer)}"


def _answer(world: World, index: int) -> Done:
    request = world.producers[index].tail.request
    if request is None or request.done():
        return None
    request.ends = {0: world.control.stable()}
    return f"{world.producers[index].name} gets the control topic's end"


def _lose_answer(world: World, index: int) -> Done:
    request = world.producers[index].tail.request
    if request is None or request.done():
        return None
    request.lost = True
    return f"{world.producers[index].name} gets no answer about the control topic's end"


def _land_registration(world: World, index: int) -> Done:
    producer = world.producers[index]
    return f"a late record of {producer.name} reaches the producers topic" if producer.writer.land() else None


def _sleep(world: World, index: int, asleep: int) -> Done:
    return suspend(world.producers[index], bool(asleep))


def _crash(world: World, index: int) -> Done:
    producer = world.producers[index]
    producer.client.die()
    world.producers[index] = world.new_producer(producer.name)
    world.count("producer crashes")
    return f"{producer.name} is killed and started anew as producer {world.instances}"


def _close(world: World, index: int) -> Done:
    producer = awake(world, index)
    if producer is None or not producer.idle():
        return None
    producer.close()
    world.producers[index] = world.new_producer(producer.name)
    return f"{producer.name} is closed and started anew as producer {world.instances}"


def _write(world: World, index: int, place: int) -> Done:
    return _network(world, index, place, lambda p, at: p.client.write(at))


def _acknowledge(world: World, index: int, place: int) -> Done:
    return _network(world, index, place, lambda p, at: p.client.acknowledge(at, latest=place % 4 == 3))


def flow(world: World, index: int, place: int) -> Done:
    """Some records of a producer are written and acknowledged without trouble."""

    def some(producer: SimProducer, at: PhysicalPartition) -> Done:
        done = [
            t for _ in range(3) for t in (producer.client.write(at), producer.client.acknowledge(at)) if t
        ]
        return "; ".join(done) or None

    return _network(world, index, place, some)


def _fail(world: World, index: int, place: int, how: int) -> Done:
    return _network(world, index, place, lambda p, at: p.client.fail(at, ("lost", "late", "rejected")[how]))


def _network(world: World, index: int, place: int, what: Callable[..., Done]) -> Done:
    producer = world.producers[index]
    places = producer.client.places()
    return what(producer, places[place % len(places)]) if places else None


def _search(world: World) -> Done:
    lookup = next((k for k in world.lookups if not k.searched), None)
    if lookup is None:
        return None
    lookup.look()
    return f"a log is searched for rejected records: {lookup.search.found}"


def _view(producer: SimProducer) -> str:
    state, lease = producer.state, "lease" if producer.shared.lease_valid() else "no lease"
    return f"{state.phase}@{state.epoch}, {lease}"


PRODUCER_EVENTS: dict[str, Happening] = {
    "produce": _produce,
    "poll": _poll,
    "turn": turn,
    "duty": _duty,
    "see": _see,
    "answer": _answer,
    "lose_answer": _lose_answer,
    "land_registration": _land_registration,
    "sleep": _sleep,
    "crash": _crash,
    "close": _close,
    "write": _write,
    "acknowledge": _acknowledge,
    "flow": flow,
    "fail": _fail,
    "search": _search,
}


# -- operators, and what keeps producers from answering them ---------------------------------------


_RUSHED_TURNS, _RUSHED_STEPS, _RUSHED_SECONDS = 6, 12, 13


def _plan(world: World, lag: int, what: int, first: int, count: int, pause: int, second: int) -> Done:
    if len(world.operators) > 2 * second:
        return None
    at = max(0, world.control.stable() - lag)
    state = world.control.states[at]
    if world.control.enrolments[at].left:
        return None
    name = f"a{world.attempts + 1}"
    attempt = operators.planned(state, name, (what, first, count), pause)
    operator = world.new_operator("a", operators.run(attempt, state.epoch))
    ranges = ", ".join(map(str, attempt.ranges))
    return f"{operator.name} wants a {attempt.kind} of {list(attempt.sources)} into {ranges}"


def _rush(world: World, what: int, first: int, count: int) -> Done:
    """An operation goes through without trouble, as far as the producers are awake."""
    if world.operators or any(p.asleep for p in world.producers):
        return None
    done = _plan(world, 0, what, first, count, 2, 0)
    if done is None:
        return None
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
    return f"{done}, without trouble; {state.phase}@{state.epoch}"


def _cut_off(world: World, index: int, cut: int) -> Done:
    """A producer can read, but its writes to the producers topic are lost."""
    writer = world.producers[index].writer
    if writer.cut_off == bool(cut):
        return None
    writer.cut_off = bool(cut)
    return f"{world.producers[index].name} {'cannot' if cut else 'can'} write to the producers topic"


def _freeze(world: World, frozen: int) -> Done:
    """The broker that leads the producers topic stands still: nobody reads it, writes arrive later."""
    topic = world.producers_topic
    if topic.frozen == bool(frozen):
        return None
    topic.frozen = bool(frozen)
    if not frozen:
        for producer in world.producers:
            producer.writer.land()
    return f"the producers topic {'stands still' if frozen else 'is back'}"


def _call_on(world: World, what: int, second: int) -> Done:
    if len(world.operators) > 2 * second:
        return None
    name, work = (("resume", operators.resume), ("abort", operators.abort), ("retire", operators.retire))[
        what
    ]
    return f"{world.new_operator(name, work).name} begins"


def _return(world: World, at_once: int, second: int) -> Done:
    """Somebody leads the topic back to plain clients, or enrols it again; ``at_once``: without trouble."""
    if len(world.operators) > 2 * second:
        return None
    left = world.control.enrolment.left
    name, work = ("enroll", operators.enroll) if left else ("unenroll", operators.unenroll)
    operator = world.new_operator(name, work)
    for _ in range(_RUSHED_SECONDS * at_once):
        while operator.process.ready():
            operator.step()
        world.timeline.now += 1.0
        for producer in world.producers:
            if not producer.asleep:
                producer.turn()
        world.oracle.check()
    if operator.process.over:
        world.operators.remove(operator)
    return f"{operator.name} {'goes through without trouble' if operator.process.over else 'begins'}"


def _take_over(world: World, index: int) -> Done:
    producer = awake(world, index)
    due = operators.due_for_takeover(world, producer.state) if producer else None
    if due is None or producer is None or len(world.operators) >= 3:
        return None
    operator = world.new_operator("takeover", operators.take_over(*due))
    return f"{operator.name} of {due[0]} by {producer.name} begins"


def _operate(world: World, index: int, steps: int, fault: int) -> Done:
    """An operator does some steps; what goes wrong goes wrong in the last of them.

    While it waits, a producer has a turn, or time passes; while there is none, records go their way.
    """
    if not world.operators:
        return flow(world, steps % 2, 0)
    operator, done = world.operators[index % len(world.operators)], []
    if not operator.process.ready():
        return tick(world, 2) if steps > 3 else turn(world, steps % 2, 0, 1)
    for number in range(steps):
        if not operator.process.ready():
            break
        done.append(operator.step(FAULTS[fault] if number == steps - 1 else ""))
        world.oracle.check()
    if operator.process.over:
        world.operators.remove(operator)
    state = world.control.truth
    return f"{operator.name} {', '.join(done)}; {state.phase}@{state.epoch}" if done else None


def _kill(world: World, index: int) -> Done:
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
    "return": _return,
    "take_over": _take_over,
    "operate": _operate,
    "kill": _kill,
}


# -- the consumer group: read, work, commit, get and lose slots ------------------------------------


def _member(world: World, index: int) -> SimMember | None:
    member = world.members[index]
    return None if member.asleep else member


def _read(world: World, index: int, lag: int) -> Done:
    member = _member(world, index)
    if member is None or not member.see(world.control.stable() - lag):
        return None
    return f"{member.name} reads the control topic; {member.state.phase}@{member.state.epoch}"


def _refresh(world: World, index: int) -> Done:
    member = _member(world, index)
    return f"{member.name} refreshes its view" if member and member.refresh() else None


def _heartbeat(world: World, index: int) -> Done:
    member = _member(world, index)
    if member is None or not member.heartbeat():
        return None
    return f"{member.name} is in generation {member.generation} with {len(member.assigned)} slots"


def _start(world: World, index: int) -> Done:
    member = _member(world, index)
    for slot in list(member.assigned) if member else ():
        if member and member.start(slot):
            return f"{member.name} looks up where {slot} begins"
    return None


def _fetch(world: World, index: int, place: int, most: int, everywhere: int = 0) -> Done:
    """Take what one call of the client brings: of one log, or of every log and then of each again."""
    member = _member(world, index)
    wanted = sorted(member.tracks.wanted()) if member else []
    if member is None or not wanted:
        return None
    first = place % len(wanted)
    sources = [*wanted[first:], *wanted[:first]]
    chosen = [*sources, *sources] if everywhere else sources[:1]
    if not member.fetch(chosen, most):
        return None
    return f"{member.name} fetches from {', then '.join(map(str, chosen))}"


def _work(world: World, index: int, most: int) -> Done:
    member = _member(world, index)
    if member is None or not member.work(most):
        return None
    return f"{member.name} is given {[(m.value() or b'').decode() for m in member.in_work]}"


def _commit(world: World, index: int, fault: int) -> Done:
    member = _member(world, index)
    done = member.commit(FAULTS[fault]) if member else None
    return f"{member.name} {done}" if member and done else None


def _doze(world: World, index: int, asleep: int) -> Done:
    return suspend(world.members[index], bool(asleep))


def _die(world: World, index: int) -> Done:
    """A member is killed; a new one joins, and the coordinator gives it the slots."""
    gone = world.members[index]
    world.joined += 1
    member = world.members[index] = SimMember(world, f"m{world.joined}")
    _give(world, [s for s, name in world.coordinator.owner.items() if name == gone.name], member.name)
    return f"{gone.name} is killed, {member.name} takes its place"


def _expel(world: World, index: int) -> Done:
    """The coordinator thinks that a member is gone, which does not know it yet."""
    gone, other = world.members[index], world.members[1 - index]
    slots = [s for s, name in world.coordinator.owner.items() if name == gone.name]
    if not slots:
        return None
    world.coordinator.expelled.add(gone.name)
    _give(world, slots, other.name)
    return f"{gone.name} is expelled, {other.name} gets {', '.join(map(str, slots))}"


def _move(world: World, number: int) -> Done:
    """The next step of handing a slot over in good order."""
    slot = world.coordinator.slots[number % len(world.coordinator.slots)]
    index = next(i for i, m in enumerate(world.members) if m.name == world.coordinator.owner[slot])
    member = _member(world, index)
    if member is None or slot not in member.assigned:
        return None
    return f"{member.name}, giving up {slot}, {_give_up(world, member, slot, world.members[1 - index].name)}"


def _give_up(world: World, member: SimMember, slot: OwnedSlot, other: str) -> str:
    member.assigned[slot].leaving = True
    if not member.release(slot):
        member.work(0)
        return "finishes its work"
    if member.job is not None or (member.assigned[slot].reading and not _clean(member, slot)):
        return member.commit() or "waits"
    member.drop(slot)
    _give(world, [slot], other)
    return f"lets it go to {other}"


def _clean(member: SimMember, slot: OwnedSlot) -> bool:
    processed = member.buffer.cursor(slot)[0].settled(member.state.lineage)
    return member.assigned[slot].committed == processed


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

EVENTS: dict[str, Happening] = {**PRODUCER_EVENTS, **OPERATOR_EVENTS, **CLUSTER_EVENTS, **GROUP_EVENTS}


def do(world: World, event: Event) -> Done:
    """Let an event happen."""
    name, *numbers = event
    return EVENTS[name](world, *numbers)
