"""One run: a list of events, then rest. One seed is one run; a list of events can be run again exactly.

Each run has weights of its own: some kinds of trouble never happen in it, some happen often. So fewer runs
meet more ways to go wrong than if all runs were alike.
"""

from __future__ import annotations

import os
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from multiprocessing import get_context
from random import Random

from kpsplit.splitter.partition_state import Phase
from tests.sim import operators
from tests.sim.events import STEPS_OF_TIME, Event, do
from tests.sim.logs import Fate
from tests.sim.members import SimMember
from tests.sim.oracle import ViolationError, judge
from tests.sim.processes import simulated_seams
from tests.sim.producers import DUTIES, SimLookup, SimProducer
from tests.sim.world import KEYS, SimOperationLog, World

# -- which event comes next ------------------------------------------------------------------------


_RARELY = 0.06
"""How often a write goes wrong that can."""

_WEIGHTS = {
    "produce": 16, "poll": 7, "turn": 12, "duty": 6, "see": 5, "answer": 9, "lose_answer": 0.4,
    "land_registration": 1, "sleep": 2, "crash": 0.15, "close": 0.3, "write": 8, "acknowledge": 7, "flow": 7,
    "fail": 0.5, "search": 2, "plan": 6, "rush": 1.6, "cut_off": 0.6, "freeze": 0.3, "call_on": 0.8,
    "return": 2, "take_over": 1.5,
    "operate": 30, "kill": 0.35, "tick": 5, "late": 1.2, "stranger": 0.4, "leader": 0.2, "retention": 0.3,
    "hole": 0.3, "foreign": 1.5, "read": 2.5, "refresh": 3, "heartbeat": 2.5, "start": 3.5, "fetch": 8,
    "work": 7, "commit": 4.5, "doze": 1.2, "die": 0.15, "expel": 0.35, "move": 1.5,
}  # fmt: skip
_TROUBLE = (
    "lose_answer", "land_registration", "sleep", "crash", "close", "fail", "call_on", "take_over", "kill",
    "tick", "late", "stranger", "leader", "retention", "hole", "foreign", "doze", "die", "expel", "move",
    "duty", "cut_off", "freeze", "rush",
)  # fmt: skip
_OFTEN = (0.0, 0.5, 1.0, 1.0, 3.0, 6.0)
_PACE = ("commit", "start", "heartbeat", "read", "see", "poll", "acknowledge", "flow", "work", "fetch")
_RETURNS = (0, 0, 0, 1, 5)
"""A return takes many of a run's events; what follows from them is not seen then."""
_PACES = (0.3, 1.0, 1.0, 2.5)
_NAMES = list(_WEIGHTS)
_TIMES = list(accumulate((6, 8, 2, 1, 1, 0.06)))
assert len(_TIMES) == len(STEPS_OF_TIME)


class Schedule:
    """The events of one run."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        weights = dict(_WEIGHTS)
        for name in _TROUBLE:
            weights[name] *= self._random.choice(_OFTEN)
        for name in _PACE:
            weights[name] *= self._random.choice(_PACES)
        weights["tick"] += 1.0
        weights["return"] *= _RETURNS[seed % len(_RETURNS)]
        self._second = self._random.choice((0.0, 0.02, 0.1))
        self._sums = list(accumulate(weights.values()))

    def draw(self) -> Event:
        """Return the next event; it may turn out to be impossible now."""
        name = _NAMES[bisect(self._sums, self._random.random() * self._sums[-1])]
        return _with_numbers(name, self._random, self._second)


def _with_numbers(name: str, random: Random, second: float) -> Event:
    """Return an event. ``second``: how likely an operator begins although another one is at work."""
    two, four = int(random.random() * 2), int(random.random() * 4)
    match name:
        case "produce":
            return name, two, int(random.random() * (len(KEYS) + 0.3))
        case "turn":
            return name, two, _fault(random), int(random.random() < 0.7)
        case "duty":
            return name, two, int(random.random() * len(DUTIES)), _fault(random)
        case "see" | "read":
            return name, two, int(random.random() * 3)
        case "write" | "acknowledge" | "flow":
            return name, two, four
        case "fail":
            return name, two, four, int(random.random() * 3)
        case "plan":
            lag = int(random.random() * 4) if random.random() < 0.15 else 0
            pause = int(random.random() * 3)
            return (
                name,
                lag,
                int(random.random() * 10),
                four,
                int(random.random() * 3),
                pause,
                int(random.random() < second),
            )
        case "rush":
            return name, int(random.random() * 10), four, int(random.random() * 3)
        case "sleep" | "doze" | "cut_off":
            return name, two, int(random.random() < 0.33)
        case "call_on":
            return name, int(random.random() * 3), int(random.random() < second)
        case "return":
            return name, two, int(random.random() < second)
        case "operate":
            return name, int(random.random() * 1.3), 1 + four, _fault(random)
        case "kill":
            return name, two
        case "freeze":
            return name, int(random.random() < 0.33)
        case "tick":
            return name, bisect(_TIMES, random.random() * _TIMES[-1])
        case "leader" | "retention" | "hole" | "late":
            return name, int(random.random() * (3 if name == "late" else 6))
        case "foreign":
            return name, int(random.random() * (len(KEYS) + 1))
        case "fetch":
            return name, two, four, 1 + four, int(four == 3)
        case "work":
            return name, two, 1 + four
        case "commit":
            return name, two, _fault(random)
        case "search" | "stranger":
            return (name,)
        case _:
            return name, two


def _fault(random: Random) -> int:
    return 1 + int(random.random() * 3) if random.random() < _RARELY else 0


# -- the end of a run: no faults any more ----------------------------------------------------------


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
            waiting = producer.shared.unresolved()
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
        if any(slot in m.assigned and m.assigned[slot].leaving for m in world.members):
            do(world, ("move", index))


def _pass_time(world: World, number: int) -> None:
    world.timeline.now += 0.3 if number < 4 else 1.2
    world.control.time_out(world.timeline.now)
    world.offsets.time_out(world.timeline.now)


def _operate(world: World) -> None:
    state = world.control.truth
    if not world.operators and state.phase is Phase.FENCED:
        due = operators.due_for_takeover(world, state)
        if due is None:
            world.timeline.now += 3.0
        else:
            world.new_operator("takeover", operators.take_over(*due))
    elif not world.operators and state.phase is not Phase.STEADY:
        world.new_operator("resume", operators.resume)
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
    for slot in list(member.assigned):
        member.start(slot)
    member.refresh()
    member.refresh()
    member.fetch(list(member.tracks.wanted()), 1000)
    member.work(1000)
    member.work(0)
    world.oracle.check()
    for _ in range(3):
        if member.commit() is None:
            break


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
                done = do(world, event)
                if done is None:
                    result.events.pop()
                    continue
                if trace:
                    result.trace.append(done)
                world.oracle.check()
            rounds = come_to_rest(world)
            report = judge(world)
            result.counts = {
                **world.counts,
                "epochs": world.control.truth.epoch,
                "records": report.sent,
                "strays": sum(f.statistics.strays for p in world.producers for f in p.shared.send_states()),
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


# -- making a failing run short --------------------------------------------------------------------


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
    """Return the events that did anything; what comes after a violation did not happen at all."""
    return happened if len(happened) < len(tried) else tried


# -- many seeds, in as many processes as there are processors --------------------------------------


CHUNK = 100
NICENESS = 10


@dataclass
class Swept:
    """What many runs came to: how many, what they counted together, and which failed and how."""

    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Swept) -> None:
        """Take another result in."""
        self.runs += other.runs
        self.counts.update(other.counts)
        self.failed += other.failed


def run_range(steps: int, seeds: range) -> Swept:
    """Run some seeds in this process."""
    swept = Swept()
    for seed in seeds:
        result = run_seed(seed, steps)
        swept.runs += 1
        swept.counts.update(result.counts)
        swept.counts["events"] += len(result.events)
        if result.violation is not None:
            swept.failed.append((seed, result.violation))
    return swept


def sweep(first: int, end: int, steps: int = STEPS, workers: int | None = None) -> Swept:
    """Run the seeds from ``first`` up to, not with, ``end``."""
    chunks = [range(at, min(at + CHUNK, end)) for at in range(first, end, CHUNK)]
    count = min(workers or os.cpu_count() or 1, len(chunks))
    swept = Swept()
    if count <= 1:
        for chunk in chunks:
            swept.add(run_range(steps, chunk))
        return swept
    # Spawned: a copy of a process that has Kafka clients ends with the first one that it frees.
    spawn = get_context("spawn")
    with ProcessPoolExecutor(count, spawn, partial(os.nice, NICENESS)) as pool:
        for part in pool.map(partial(run_range, steps), chunks):
            swept.add(part)
    return swept
