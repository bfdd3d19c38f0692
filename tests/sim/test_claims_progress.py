"""Fifty producers take over from a dead operator on brokers that are slow: one of them gets through.

The product's takeover and claim run on the simulated log, with brokers that take their time: for a plain
write, for taking the transactional id (one after the other) and for the rest of a transaction.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kpsplit import clock
from kpsplit.clock import Deadline
from kpsplit.errors import KpsplitError
from kpsplit.producer import fence_task
from kpsplit.producer.fence_task import Takeover
from kpsplit.splitter.claimed_log import ClaimQueue, Go
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Event, Fence, PartitionState, Phase, Prepare
from kpsplit.splitter.records.control import Claim
from tests.sim import operators
from tests.sim.logs import PARENT
from tests.sim.operators import Operator
from tests.sim.processes import Blocked, Effect, Process, ProcessClock, simulated_seams
from tests.sim.producers import SimLookup
from tests.sim.world import SimOperationLog, World

PRODUCERS = 50
MAX_PAUSE = 30.0
STEP = 0.05
PLAIN_WRITE, LOOK, TAKING, OPENING = 0.1, 0.1, 0.3, 0.6
"""As shares of a transaction's time: a write, a look at the log, taking the id, opening four clients."""


class SlowOperator(Operator):
    """One producer's takeover. ``transaction``: how long taking the id and one transaction last together."""

    def __init__(self, world: World, name: str, due: float, transaction: float) -> None:
        super().__init__(world, name, 1.0, lambda _: self._take_over())
        self._due, self._transaction, self.load = due, transaction, 1
        self._attempt = cast(Any, world.control.truth.attempt).id

    def _take_over(self) -> None:
        queue, at = self._queue, self._due
        while True:
            self.process.call(partial(self._sleep_until, at))
            try:
                fence_task.roll_back(cast(Any, self), PARENT, self._attempt, queue)
                return
            except KpsplitError:
                at = self.now() + fence_task.RETRY_SECONDS

    def _sleep_until(self, at: float) -> Effect:
        yield Blocked("waits", lambda: self.clock.now() >= at)

    def _lasting(self, share: float) -> Effect:
        at = self.clock.now() + share * self._transaction * self.load
        yield Blocked("waits for the brokers", lambda: self.clock.now() >= at)

    def _peek(self) -> Effect:
        yield from self._lasting(LOOK)
        read = yield from super()._peek()
        return read

    def _write_claim(self, claim: Any) -> Effect:
        yield from self._lasting(PLAIN_WRITE)
        end = yield from super()._write_claim(claim)
        return end

    def _claim(self) -> Effect:
        control = cast(Any, self.world.control)
        yield Blocked("waits for the coordinator", lambda: self.clock.now() >= control.busy_until)
        control.busy_until = self.clock.now() + TAKING * self._transaction * self.load
        yield from self._lasting(TAKING)
        yield from super()._claim()

    def _commit(self, after: PartitionState, event: Event, deadline: Deadline) -> Effect:
        yield from self._lasting(1.0 - TAKING)
        offset = yield from super()._commit(after, event, deadline)
        return offset


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    log = logging.getLogger("kpsplit")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


def fenced_world() -> World:
    """A partition in the fence, whose operator is gone."""
    world = World()
    control = world.control
    attempt = operators.planned(control.truth, "dead", (9, 0, 1), 0)
    for event in (Prepare(attempt), Fence(attempt.id, "some-id")):
        holder = control.claim()
        record = control.begin(holder, apply(control.truth, event), str(event.kind), world.timeline.now)
        control.commit(holder, record)
    cast(Any, control).busy_until = 0.0
    return world


def pause(transaction: float, seed: int, limit: float) -> tuple[float, int]:
    """Return how long the partition stays fenced, at most ``limit``, and how often somebody took the id."""
    chance, world = Random(seed), fenced_world()
    began, before = world.timeline.now, world.control.holder
    with simulated_seams(world.timeline, SimLookup, SimOperationLog):
        producers = [
            SlowOperator(
                world,
                f"p{number}",
                MAX_PAUSE + fence_task.GRACE_SECONDS + chance.uniform(0.0, fence_task.SPREAD_SECONDS),
                transaction,
            )
            for number in range(PRODUCERS)
        ]
        while world.control.truth.phase is Phase.FENCED and world.timeline.now - began < limit:
            chance.shuffle(producers)
            for producer in producers:
                if producer.process.ready():
                    producer.step()
            world.timeline.now += STEP
    return world.timeline.now - began, world.control.holder - before


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("transaction", [0.05, 1.0, 5.0])
def test_the_partition_is_writable_within_max_pause_and_five_seconds_and_one_transaction(
    transaction: float, seed: int
) -> None:
    took, claims = pause(transaction, seed, 300.0)
    print(f"{transaction} s a transaction: writable after {took:.1f} s, {claims} claims")
    assert took <= MAX_PAUSE + 5.0 + transaction
    assert claims == 1


@pytest.mark.parametrize("transaction", [14.0, 25.0, 40.0])
def test_brokers_that_are_slower_than_a_turn_still_let_one_through(transaction: float) -> None:
    took, claims = pause(transaction, 0, 600.0)
    print(f"{transaction} s a transaction: writable after {took:.1f} s, {claims} claims")
    assert took < 600.0


def test_claims_that_wait_for_nobody_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(queue: ClaimQueue, revision: int, *_: object) -> Go:
        return Go(Claim(queue.claimer, revision, 1))

    monkeypatch.setattr(ClaimQueue, "decide", decide)
    took, claims = pause(5.0, 0, 120.0)
    print(f"without turns: {took:.1f} s, {claims} claims")
    assert took > MAX_PAUSE + 10.0 and claims > 1


class Watching:
    """A producer that watches the fence by its view, as the library's thread does."""

    def __init__(self, world: World, number: int, transaction: float) -> None:
        self._world, self._name, self._transaction = world, f"p{number}", transaction
        self._attempt = cast(Any, world.control.truth.attempt).id
        self._coming: list[tuple[float, Claim]] = []
        self._clock = world.timeline.shown = ProcessClock(world.timeline, 1.0)
        self._takeover = Takeover(cast(Any, None), PARENT, self._attempt, MAX_PAUSE, self._announce)
        self.at_work: SlowOperator | None = None

    def _announce(self, claim: Claim) -> None:
        self._coming.append((self._world.timeline.now + PLAIN_WRITE * self._transaction, claim))

    def turn(self, load: int) -> None:
        """Do what is due. ``load``: so many producers ask the brokers, which do everything at once."""
        self._world.timeline.shown = self._clock
        control = self._world.control
        control.claims += [claim for at, claim in self._coming if at <= self._world.timeline.now]
        self._coming = [c for c in self._coming if c[0] > self._world.timeline.now]
        view = SimpleNamespace(state=lambda _: control.seen(), claims={PARENT: control.claims})
        decision = self._takeover.look(cast(Any, view))
        if self.at_work is None:
            if self._takeover.begins(decision):
                self.at_work = SlowOperator(self._world, self._name, 0.0, self._transaction)
                self.at_work.clock, self.at_work._queue = self._clock, self._takeover._queue
                self.at_work.process = Process(self._name, partial(self._take_over, self.at_work))
            return
        self.at_work.load = load
        if self.at_work.process.ready():
            self.at_work.step()
        if self.at_work.process.over:
            self.at_work = None
            self._world.timeline.shown = self._clock
            self._takeover.rest()

    def _take_over(self, operator: SlowOperator) -> None:
        operator.process.call(lambda: operator._lasting(OPENING))
        self._takeover.roll_back(cast(Any, operator))


def pause_under_load(transaction: float, seed: int, limit: float) -> tuple[float, int]:
    """Return how long the partition stays fenced where all that ask brokers slow each other down.

    And how many asked at once.
    """
    random.seed(seed)
    world, most = fenced_world(), 0
    began = world.timeline.now
    with simulated_seams(world.timeline, SimLookup, SimOperationLog):
        producers = [Watching(world, number, transaction) for number in range(PRODUCERS)]
        while world.control.truth.phase is Phase.FENCED and world.timeline.now - began < limit:
            load = sum(p.at_work is not None for p in producers)
            most = max(most, load)
            for producer in producers:
                if world.control.truth.phase is Phase.FENCED:
                    producer.turn(max(load, 1))
            world.timeline.now += STEP
    return world.timeline.now - began, most


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("transaction", [0.05, 5.0])
def test_many_that_would_take_over_do_not_slow_down_the_one_that_does(transaction: float, seed: int) -> None:
    took, most = pause_under_load(transaction, seed, 300.0)
    print(f"{transaction} s a transaction: writable after {took:.1f} s, {most} asked brokers at once")
    assert took <= MAX_PAUSE + 5.0 + transaction
    assert most == 1


def test_a_takeover_that_is_settled_only_when_it_is_due_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence_task, "AHEAD_SECONDS", -fence_task.GRACE_SECONDS)
    took, _ = pause_under_load(5.0, 0, 120.0)
    print(f"settled when it is due: {took:.1f} s")
    assert took > MAX_PAUSE + 5.0 + 5.0


def test_producers_that_look_for_themselves_whose_turn_it_is_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Takeover, "look", lambda *_: None)
    monkeypatch.setattr(Takeover, "begins", lambda self, _: clock.monotonic() >= self._due)
    took, most = pause_under_load(5.0, 0, 120.0)
    print(f"each looks for itself: {took:.1f} s, {most} asked brokers at once")
    assert took > MAX_PAUSE + 5.0 + 5.0 and most > 10
