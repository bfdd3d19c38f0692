"""The operator of a run, a process: ``python -m tests.fault.chaos.operating``.

It splits, splits again, merges partly and wholly, one partition after the other, and resumes or aborts what
was left over. "kill STEP" or "stop STEP" on stdin: it sends itself SIGKILL or SIGSTOP right after the next
step of that name ("any": after the next step). "finish": it brings everything to rest, and ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from random import Random

from kpsplit import Plan, StepDone
from kpsplit.admin import Admin
from kpsplit.demo.endpoints import FINISH, Orders, first_line, listen
from kpsplit.errors import KpsplitError
from kpsplit.kafka.connection import Connection
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition, Segment, SegmentKind
from kpsplit.splitter.partition_state import PartitionState, Phase

MAX_PAUSE_MS = 10_000
CALL_SECONDS = 60.0
PAUSE_SECONDS = 0.5
MOST_PHANTOMS = 6
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOrders(Orders):
    """What the operator works on."""

    partitions: int
    seed: int


def send(event: str, **what: object) -> None:
    """Report to the parent."""
    sys.stdout.write(json.dumps({"event": event, **what}) + "\n")
    sys.stdout.flush()


class Commands:
    """What the parent has asked for so far."""

    def __init__(self) -> None:
        self.finish = threading.Event()
        self._armed: tuple[signal.Signals, str] | None = None

    def obey(self, command: str) -> None:
        match command.split():
            case ["kill" | "stop" as verb, step]:
                self._armed = SIGNALS[verb], step
            case ["disarm"]:
                self._armed = None
            case [word] if word == FINISH:
                self.finish.set()

    def observe(self, step: StepDone) -> None:
        """Report a step, then die or stop if the parent asked for that."""
        send("step", name=step.name)
        armed = self._armed
        if armed is not None and armed[1] in (ANY, step.name):
            self._armed = None
            os.kill(os.getpid(), armed[0])


class Operator:
    """Works on all partitions of a topic until asked to finish."""

    def __init__(self, orders: OperatorOrders, commands: Commands) -> None:
        self._orders = orders
        self._commands = commands
        self._random = Random(orders.seed)
        self._parents = [PhysicalPartition(orders.topic, p) for p in range(orders.partitions)]

    def run(self) -> None:
        """Work; at the end everything is at rest."""
        self._tell_epochs("found")
        while not self._commands.finish.is_set():
            self._turn()
        while left := [s for s in self._states() if s.phase is not Phase.STEADY]:
            for state in left:
                self._settle(state)
        self._tell_epochs("at rest")

    def _tell_epochs(self, event: str) -> None:
        send(event, epochs={str(s.parent.partition): s.epoch for s in self._states()})

    def _turn(self) -> None:
        states = self._states()
        for state in states:
            self._settle(state)
        state = self._random.choice(states)
        if state.phase is Phase.STEADY:
            self._operate(state)
        time.sleep(self._random.uniform(0, PAUSE_SECONDS))

    def _operate(self, state: PartitionState) -> None:
        verb = self._verb(state)
        send("begin", verb=verb, partition=state.parent.partition, epoch=state.epoch)
        how = "done"
        try:
            with self._operations() as operations:
                plan = self._plan(operations, state, verb)
                operations.run(plan, max_pause_ms=MAX_PAUSE_MS, observer=self._commands.observe, force=True)
        except KpsplitError as error:
            how = f"{type(error).__name__}: {error.message}"
        send("end", how=how, epoch=self._states()[state.parent.partition].epoch)

    def _settle(self, state: PartitionState) -> None:
        """Bring to its end what was left over, one way or the other."""
        if state.phase is Phase.FROZEN:
            raise SystemExit(f"{state.parent} is frozen: {state.frozen_reason}")
        if state.phase is Phase.STEADY:
            return
        forward = state.phase is Phase.COMMITTED or self._random.random() < 0.5
        send("settle", partition=state.parent.partition, verb="resume" if forward else "abort")
        try:
            with self._operations() as operations:
                if forward:
                    operations.resume(state.parent, observer=self._commands.observe)
                else:
                    operations.abort(state.parent, "chaos", self._commands.observe)
        except KpsplitError as error:
            send("note", text=f"settle {state.parent}: {type(error).__name__}: {error.message}")
            time.sleep(PAUSE_SECONDS)

    def _verb(self, state: PartitionState) -> str:
        phantoms = len(_phantoms(state))
        if not phantoms:
            return "split"
        verbs = ["split again", "merge partly", "merge", "merge"]
        return self._random.choice(verbs if phantoms < MOST_PHANTOMS else verbs[1:])

    def _plan(self, operations: Admin, state: PartitionState, verb: str) -> Plan:
        phantoms = _phantoms(state)
        match verb:
            case "split":
                even = self._random.random() < 0.5
                return operations.plan_split(state.parent, self._random.randint(2, 4), even=even)
            case "split again":
                of = self._random.choice(phantoms).range
                return operations.plan_split(state.parent, 2, of=of, even=True)
            case "merge partly":
                first = self._random.randrange(max(1, len(phantoms) - 1))
                pair = phantoms[first : first + 2]
                return operations.plan_merge(state.parent, KeyRange(pair[0].range.lo, pair[-1].range.hi))
            case _:
                return operations.plan_merge(state.parent)

    def _states(self) -> list[PartitionState]:
        """Return the states of all partitions; while brokers are away this waits."""
        while True:
            try:
                with self._operations() as operations:
                    view = operations.view()
            except KpsplitError as error:
                send("note", text=f"look: {type(error).__name__}: {error.message}")
                time.sleep(PAUSE_SECONDS)
                continue
            found = [view.state(parent) for parent in self._parents]
            return [state for state in found if state is not None]

    def _operations(self) -> Admin:
        """Return fresh clients, as every call of the command line has."""
        return Admin(Connection(self._orders.properties), CALL_SECONDS)


def _phantoms(state: PartitionState) -> list[Segment]:
    found = (s for s in state.lineage.open_segments() if s.kind is SegmentKind.PHANTOM)
    return sorted(found, key=lambda segment: segment.range.lo)


def main() -> None:
    """Operate."""
    orders = OperatorOrders.decode(first_line())
    commands = Commands()
    listen(commands.obey, commands.finish.set)
    Operator(orders, commands).run()


if __name__ == "__main__":
    main()
