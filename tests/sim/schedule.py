"""Which event comes next: drawn by weight, from one generator of random numbers.

Each run has weights of its own: some kinds of trouble never happen in it, some happen often. So more ways
to go wrong are met in few runs than if all runs were alike.
"""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from random import Random

from tests.sim.event_words import STEPS_OF_TIME, Event
from tests.sim.producers import DUTIES
from tests.sim.world import KEYS

_RARELY = 0.06
"""How often a write goes wrong that can."""

_WEIGHTS = {
    "produce": 16, "poll": 7, "turn": 12, "duty": 6, "see": 5, "answer": 9, "lose_answer": 0.4,
    "land_registration": 1, "sleep": 2, "crash": 0.15, "close": 0.3, "write": 8, "acknowledge": 7, "flow": 7,
    "fail": 0.5, "search": 2, "plan": 6, "rush": 1.6, "cut_off": 0.6, "freeze": 0.3, "call_on": 0.8,
    "take_over": 1.5,
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
            behind = int(random.random() * 4) if random.random() < 0.15 else 0
            pause = int(random.random() * 3)
            return (
                name,
                behind,
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
            return name, two, four, 1 + four
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
