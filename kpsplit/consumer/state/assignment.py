"""Which worker takes which task, and which member keeps a warm copy of which slot (pure, deterministic).

``assign`` iterates towards the least loaded worker and moves no more than the balance needs:

1. a task stays where it is, if its worker is still there;
2. the others go, heaviest first, to the worker with the least load;
3. while the loads of two workers differ by more than the heaviest task, one task moves from the most to the
   least loaded.

So afterwards no two loads differ by more than the heaviest task. From such a balance it follows that when a
worker leaves only its own tasks move, and when one joins tasks move only to it: proofs beside ``assign``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from kpsplit.errors import UsageError


class Ordered(Protocol):
    """Something with a total order, which decides between equals."""

    def __lt__(self, other: Any, /) -> bool:
        """Tell whether this one comes first."""

    def __hash__(self) -> int:
        """Return the same for equal ones."""


T = TypeVar("T", bound=Ordered)
W = TypeVar("W", bound=Ordered)


def assign(tasks: Mapping[T, int], workers: Iterable[W], previous: Mapping[T, W] | None = None) -> dict[T, W]:
    """Return the worker of each task.

    Let m be the heaviest weight and the loads of ``previous`` differ by at most m. *Leaving*: putting a task
    of weight w <= m on the least load l gives l + w <= l + m and lowers no load, so step 3 has nothing to do.
    *Joining*: step 3 takes from the greatest load g and gives to the least l, g - l > m; what is left of g
    is more than l was and within m of every other load, so the newcomer stays the only one with too little.

    Args:
        tasks: the weight of each task, at least 0 (what counts is known to the caller: bytes, records, 1).
        workers: at least one, unless there are no tasks.
        previous: where tasks were; workers that are gone and tasks that are over may still be in it.

    Raises:
        UsageError: no workers, or a negative weight.
    """
    loads = dict.fromkeys(sorted(workers), 0)
    if not loads and tasks:
        raise UsageError("tasks cannot be assigned to no worker", hint="workers must be at least 1")
    if any(weight < 0 for weight in tasks.values()):
        raise UsageError("a task's weight is negative")
    held: dict[W, list[T]] = {worker: [] for worker in loads}
    homeless = _keep(tasks, previous or {}, loads, held)
    for task in homeless:
        _give(task, tasks[task], _least(loads), loads, held)
    _level(tasks, loads, held)
    return {task: worker for worker, theirs in held.items() for task in theirs}


def _keep(
    tasks: Mapping[T, int], previous: Mapping[T, W], loads: dict[W, int], held: dict[W, list[T]]
) -> list[T]:
    """Step 1: return the tasks that have no worker, heaviest first."""
    homeless = []
    for task in sorted(tasks):
        worker = previous.get(task)
        if worker is not None and worker in loads:
            _give(task, tasks[task], worker, loads, held)
        else:
            homeless.append(task)
    return sorted(homeless, key=lambda task: -tasks[task])


def _level(tasks: Mapping[T, int], loads: dict[W, int], held: dict[W, list[T]]) -> None:
    """Step 3. It ends: every move brings two loads nearer to each other without exchanging them."""
    heaviest = max(tasks.values(), default=0)
    while loads:
        full, idle = max(loads, key=lambda w: loads[w]), _least(loads)
        gap = loads[full] - loads[idle]
        if gap <= heaviest:
            return
        task = _best(tasks, held[full], gap)
        held[full].remove(task)
        loads[full] -= tasks[task]
        _give(task, tasks[task], idle, loads, held)


def _best(tasks: Mapping[T, int], candidates: list[T], gap: int) -> T:
    """Return the task whose move levels the gap best; those without weight change nothing."""
    return min(
        (task for task in candidates if tasks[task] > 0), key=lambda task: (abs(gap - 2 * tasks[task]), task)
    )


def _least(loads: Mapping[W, int]) -> W:
    return min(loads, key=lambda worker: loads[worker])


def _give(task: T, weight: int, worker: W, loads: dict[W, int], held: dict[W, list[T]]) -> None:
    held[worker].append(task)
    loads[worker] += weight


def standbys(
    owners: Mapping[T, str], members: Iterable[str], copies: int, name: Callable[[T], str] = str
) -> dict[T, tuple[str, ...]]:
    """Return which members keep a warm copy of each slot: never its owner, ``copies`` of the others.

    Every member computes the same from the group's assignment alone, without knowing what was before: each
    slot has an order of all members of its own (by a hash of both names), and takes the first in it. When a
    member comes or goes, only copies that it takes or had are moved.

    Args:
        owners: the owner of each slot.
        members: of the group, by a name that lasts (``group.instance.id``, else the member id).
        copies: of each slot besides its owner's; fewer if there are not so many members.
        name: gives the name of a slot that is the same at every member.
    """
    everyone = sorted(set(members))
    placed = {}
    for slot, owner in owners.items():
        ranked = _ranked(everyone, name(slot))
        placed[slot] = tuple(member for member in ranked if member != owner)[: max(copies, 0)]
    return placed


def _ranked(members: list[str], slot: str) -> list[str]:
    return sorted(
        members, key=lambda member: hashlib.blake2b(f"{member}\0{slot}".encode(), digest_size=8).digest()
    )
