"""Breadth-first exploration of a world: every reachable state, with a trace to the first that is wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.sim.fence_world import Global, World


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
    queue: deque[Global] = deque([first])
    while queue:
        state = queue.popleft()
        number = numbers[state]
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
                    queue.append(after)
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
