"""Breadth-first exploration of a world: every reachable state, with a trace to the first that is wrong.

``Judged`` says what must hold in every state of the fence's world, and at its ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from kpsplit.splitter import reading
from kpsplit.splitter.partition_state import Phase
from kpsplit.splitter.records.data import Marker, MarkerKind, Stamp
from tests.sim.fence_real import PARENT, Global, Held, RealCode

if TYPE_CHECKING:
    from tests.sim.fence_world import World


@dataclass
class Explored:
    """What an exploration found. ``trace``: the moves to the wrong state, if there is one."""

    states: int
    transitions: int
    ends: int
    violation: str | None = None
    trace: list[str] = field(default_factory=list)
    complete: bool = True

    def __str__(self) -> str:
        counts = f"{self.states} states, {self.transitions} transitions, {self.ends} end states"
        if self.violation is None:
            return f"no violation in {counts}" + ("" if self.complete else " (not complete)")
        return "\n  ".join([f"{self.violation} (after {counts})", *self.trace])


def explore(world: World, limit: int = 10_000_000) -> Explored:
    """Visit every state of a world, or as many as the limit allows, until one is wrong.

    A state in which nothing happens by itself any more is an end state: everything sent must be reported
    there. From every state some end state must be reachable without a fault.
    """
    first = world.initial()
    numbers: dict[Global, int] = {first: 0}
    came_from: list[tuple[int, str]] = [(-1, "")]
    backwards: list[list[int]] = [[]]
    result = Explored(0, 0, 0)
    ends: list[int] = []
    queue: deque[tuple[int, Global]] = deque([(0, first)])
    while queue:
        number, state = queue.popleft()
        result.states += 1
        wrong = world.violation(state)
        moving = False
        if wrong is None:
            for label, fault, after in world.moves(state):
                result.transitions += 1
                known = numbers.get(after)
                if known is None:
                    known = numbers[after] = len(came_from)
                    came_from.append((number, label))
                    backwards.append([])
                    queue.append((known, after))
                if not fault and known != number:
                    moving = True
                    backwards[known].append(number)
            if not moving:
                ends.append(number)
                wrong = world.unfinished(state)
        if wrong is not None:
            return _wrong(result, wrong, list(_trace(came_from, number)))
        if result.states >= limit:
            result.complete = False
            break
    result.ends = len(ends)
    if result.complete:
        stuck = _cannot_end(backwards, ends)
        if stuck is not None:
            return _wrong(result, "NEVER ENDS from here on", list(_trace(came_from, stuck)))
    return result


def _wrong(result: Explored, violation: str, trace: list[str]) -> Explored:
    result.violation, result.trace = violation, trace
    return result


def _cannot_end(backwards: list[list[int]], ends: list[int]) -> int | None:
    seen = bytearray(len(backwards))
    waiting = list(ends)
    for number in ends:
        seen[number] = 1
    while waiting:
        for before in backwards[waiting.pop()]:
            if not seen[before]:
                seen[before] = 1
                waiting.append(before)
    return next((n for n, known in enumerate(seen) if not known), None)


def _trace(came_from: list[tuple[int, str]], number: int) -> Iterator[str]:
    labels = []
    while came_from[number][0] >= 0:
        number, label = came_from[number][0], came_from[number][1]
        labels.append(label)
    yield from reversed(labels)


def check_missed(guard: str, world: World, expected: str) -> None:
    """Without a guard a world must go wrong as expected (``|``: in one of these ways), with a trace."""
    found = explore(world, limit=300_000)
    print(f"{guard}: {found}")
    assert found.violation is not None, f"no violation in {found.states} states"
    assert any(word in found.violation for word in expected.split("|")), str(found)
    assert found.trace


# -- what must hold in every state, and at the ends ------------------------------------------------


class Judged(RealCode):
    """Finds what is wrong with a state."""

    def violation(self, world: Global) -> str | None:
        """Return what is wrong in a state, None if nothing is."""
        key = (world.control, world.logs, tuple(p.outcomes for p in world.producers))
        if key not in self._checked:
            self._checked[key] = self._wrong_delivery(world) or self._wrong_reading(world)
        return self._checked[key]

    def unfinished(self, world: Global) -> str | None:
        """Return what is missing in a state in which nothing happens by itself any more."""
        state = self.states[world.control[-1]]
        if state.phase is not Phase.STEADY or world.operator.running:
            return f"the operation stands still, {state.phase}"
        for index, producer in enumerate(world.producers):
            if None in producer.outcomes:
                return f"p{index} has no report for record {producer.outcomes.index(None)}"
        return None

    def _wrong_delivery(self, world: Global) -> str | None:
        state = world.control[-1]
        delivered: list[tuple[int, int, int, int, int]] = []
        for place, log in enumerate(world.logs):
            for offset, entry in enumerate(log):
                if entry[0] != "r":
                    continue
                verdict = self._classify(state, place, offset, entry, True)
                if isinstance(verdict, reading.Foreign):
                    return f"FOREIGN {entry} at {self.sources[place]}:{offset}: {verdict.reason}"
                if isinstance(verdict, reading.Deliver):
                    delivered.append((entry[1], verdict.logical_offset, entry[2], verdict.segment.id, offset))
        for index, producer in enumerate(world.producers):
            mine = sorted(d[1:] for d in delivered if d[0] == index)
            wrong = self._wrong_for(index, producer, mine, state)
            if wrong:
                return f"{wrong} (delivered: {mine}, reported: {producer.outcomes})"
        return None

    def _wrong_for(
        self, index: int, producer: Held, mine: list[tuple[int, int, int, int]], state: int
    ) -> str | None:
        numbers = [number for _, number, _, _ in mine]
        if len(set(numbers)) < len(numbers):
            return f"DUPLICATED p{index}"
        places = {number: (segment, offset) for _, number, segment, offset in mine}
        for number, outcome in enumerate(producer.outcomes):
            if outcome is None or outcome == "failed":
                continue
            if outcome[0] == "twice":
                return f"REPORTED TWICE p{index} #{number}"
            if number not in places:
                return f"LOST p{index} #{number}"
            if places[number] != outcome:
                return f"MISPLACED p{index} #{number}"
        keys = self.scope.keys[index]
        for key in set(keys):
            order = [n for n in numbers if keys[n] == key]
            if order != sorted(order):
                return f"OUT OF ORDER p{index}"
        lineage = self.states[state].lineage
        if any(keys[n] not in lineage.get(s).range for _, n, s, _ in mine):
            return f"WRONG SEGMENT p{index}"
        return None

    def _wrong_reading(self, world: Global) -> str | None:
        for place, log in enumerate(world.logs):
            key = (world.control, place, log)
            if key not in self._read:
                self._read[key] = self._wrong_reading_of(world.control, place, log)
            if self._read[key] is not None:
                return self._read[key]
        return None

    def _wrong_reading_of(self, control: tuple[int, ...], place: int, log: tuple[Any, ...]) -> str | None:
        """Let readers with every older view go through a log; none may decide otherwise than the latest view.

        A reader's view may be as old as it likes; where it has to wait it reads the control topic to an
        end that it had when the record was there already, and does not go on before it knows what to do.
        """
        views = set(range(len(control)))
        for offset, entry in enumerate(log):
            final = self._classify(control[-1], place, offset, entry, True)
            onward: set[int] = set()
            earliest = self._earliest(control, entry)
            for view in views:
                said = self._classify(control[view], place, offset, entry, False)
                decided = [(view, said)]
                if isinstance(said, reading.Wait):
                    decided = [
                        (later, self._classify(control[later], place, offset, entry, True))
                        for later in range(max(view, earliest), len(control))
                    ]
                for later, verdict in decided:
                    if isinstance(verdict, reading.Wait):
                        continue
                    if not _agree(verdict, final):
                        at = f"{self.sources[place]}:{offset}"
                        return f"READER at view {later} of {at} {entry}: {verdict}, then {final}"
                    onward.update(range(later, len(control)))
            views = onward
            if not views:
                break
        return None

    def _earliest(self, control: tuple[int, ...], entry: Any) -> int:
        """Return a view that was there before the record was."""
        for index, number in enumerate(control):
            state = self.states[number]
            if entry[0] == "r" and state.epoch >= entry[3]:
                return index
            if entry[0] == "m" and state.attempt and state.attempt.id == entry[1] and state.fenced_segments():
                return index
        return len(control) - 1

    def _classify(self, state: int, place: int, offset: int, entry: Any, refreshed: bool) -> reading.Verdict:
        key = (state, place, offset, entry, refreshed)
        known = self._verdicts.get(key)
        if known is None:
            stamp = Stamp(entry[3], entry[1], entry[2]) if entry[0] == "r" else None
            kind = MarkerKind.SEAL if entry[-1] else MarkerKind.UNSEAL
            marker = Marker(kind, PARENT, entry[1]) if entry[0] == "m" else None
            known = self._verdicts[key] = reading.classify(
                self.states[state], self.sources[place], offset, stamp, marker, refreshed=refreshed
            )
        return cast(reading.Verdict, known)


def _agree(verdict: reading.Verdict, final: reading.Verdict) -> bool:
    if isinstance(final, reading.Wait):
        return True
    if isinstance(verdict, reading.Deliver) and isinstance(final, reading.Deliver):
        same = verdict.segment.id == final.segment.id
        return same and verdict.logical_offset == final.logical_offset
    return isinstance(verdict, reading.Deliver) == isinstance(final, reading.Deliver)
