"""What happens to producers: their applications, the library's thread, their client and its network."""

from __future__ import annotations

from collections.abc import Callable

from kpsplit.splitter.lineage import PhysicalPartition
from tests.sim.event_words import FAULTS, Happening, Told, awake, suspend, with_fault
from tests.sim.producers import DUTIES, SimProducer
from tests.sim.world import KEYS, World


def _produce(world: World, index: int, key: int) -> Told:
    producer = awake(world, index)
    if producer is None:
        return None
    chosen = KEYS[key] if key < len(KEYS) else None
    id_ = world.send(producer, chosen)
    return f"{producer.name} sends {id_.decode()}, key {chosen!r}"


def _poll(world: World, index: int) -> Told:
    producer = awake(world, index)
    if producer is None:
        return None
    if not producer.poll():
        return None
    told = (f"{i.decode()}: {'failed' if at is None else at}" for i, at in producer.told)
    return f"{producer.name} polls: {', '.join(told) or 'nothing is final'}"


def turn(world: World, index: int, fault: int, prompt: int) -> Told:
    """The library's thread of a producer has a turn; ``prompt``: its questions are answered at once."""
    producer = awake(world, index)
    if producer is None:
        return None
    producer.turn(FAULTS[fault], prompt=bool(prompt))
    return f"{producer.name} does a turn{with_fault(fault)}; {_view(producer)}"


def _duty(world: World, index: int, duty: int, fault: int) -> Told:
    producer = awake(world, index)
    if producer is None:
        return None
    producer.duty(DUTIES[duty], FAULTS[fault])
    return f"{producer.name} does {DUTIES[duty]}{with_fault(fault)}; {_view(producer)}"


def _see(world: World, index: int, behind: int) -> Told:
    producer = awake(world, index)
    length = world.control.stable() - behind
    if producer is None or length <= producer.tail.length:
        return None
    producer.see(length)
    return f"{producer.name} reads the control topic; {_view(producer)}"


def _answer(world: World, index: int) -> Told:
    request = world.producers[index].tail.request
    if request is None or request.done():
        return None
    request.ends = {0: world.control.stable()}
    return f"{world.producers[index].name} gets the control topic's end"


def _lose_answer(world: World, index: int) -> Told:
    request = world.producers[index].tail.request
    if request is None or request.done():
        return None
    request.lost = True
    return f"{world.producers[index].name} gets no answer about the control topic's end"


def _land_registration(world: World, index: int) -> Told:
    producer = world.producers[index]
    return f"a late record of {producer.name} reaches the producers topic" if producer.writer.land() else None


def _sleep(world: World, index: int, asleep: int) -> Told:
    return suspend(world.producers[index], bool(asleep))


def _crash(world: World, index: int) -> Told:
    producer = world.producers[index]
    producer.client.left_behind()
    world.producers[index] = world.new_producer(producer.name)
    world.count("producer crashes")
    return f"{producer.name} is killed and started anew as producer {world.instances}"


def _close(world: World, index: int) -> Told:
    producer = awake(world, index)
    if producer is None or not producer.idle():
        return None
    producer.close()
    world.producers[index] = world.new_producer(producer.name)
    return f"{producer.name} is closed and started anew as producer {world.instances}"


def _write(world: World, index: int, place: int) -> Told:
    return _network(world, index, place, lambda p, at: p.client.write(at))


def _acknowledge(world: World, index: int, place: int) -> Told:
    return _network(world, index, place, lambda p, at: p.client.acknowledge(at))


def flow(world: World, index: int, place: int) -> Told:
    """Some records of a producer are written and acknowledged without trouble."""

    def some(producer: SimProducer, at: PhysicalPartition) -> Told:
        told = [
            t for _ in range(3) for t in (producer.client.write(at), producer.client.acknowledge(at)) if t
        ]
        return "; ".join(told) or None

    return _network(world, index, place, some)


def _fail(world: World, index: int, place: int, how: int) -> Told:
    return _network(world, index, place, lambda p, at: p.client.fail(at, ("lost", "late", "rejected")[how]))


def _network(world: World, index: int, place: int, what: Callable[..., Told]) -> Told:
    producer = world.producers[index]
    places = producer.client.places()
    return what(producer, places[place % len(places)]) if places else None


def _search(world: World) -> Told:
    lookup = next((k for k in world.lookups if not k.searched), None)
    if lookup is None:
        return None
    lookup.look()
    return f"a log is searched for rejected records: {lookup.search.found}"


def _view(producer: SimProducer) -> str:
    state, lease = producer.state, "lease" if producer.dispatcher.lease_valid() else "no lease"
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
