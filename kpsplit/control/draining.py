"""How far consumer groups still have to read before a merge's new segment, and about how long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from kpsplit.control.plans import Drain
from kpsplit.control.precondition_facts import Facts
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.groups import Positions
from kpsplit.splitter.ports import Deadline

SHORT_LOOK = 1.0
LONG_LOOK = 5.5
"""Seconds between two looks at positions: consumers commit every 5 s unless they are told otherwise."""

_PART_OF_CALL = 0.25


def left_to_read(facts: Facts, positions: Mapping[str, Positions]) -> dict[str, int]:
    """Return how many offsets each group has before it in the segments that would close."""
    closing = [(s, facts.logs[s.source]) for s in facts.closing if s.source in facts.logs]
    places = {s.source for s, _ in closing}
    left = {}
    for group, known in positions.items():
        if any(place.topic == facts.parent.topic or place in places for place in known):
            left[group] = sum(
                max(0, (log.end or 0) - max(known.get(s.source, 0), log.start or 0, s.start))
                for s, log in closing
            )
    return left


def estimated(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> tuple[Drain, ...]:
    """Return the drains of groups from two looks at the same stretch of log, the longest first.

    What is written meanwhile is left out: once the fence is on nothing is added.
    """
    drains = []
    for group, left in after.items():
        read = before.get(group, left) - left
        takes = round(left * seconds / read) if read > 0 else None
        drains.append(Drain(group, left, takes if left else 0))
    return tuple(sorted(drains, key=lambda d: (d.seconds is not None, -(d.seconds or 0), -d.left, d.group)))


def look_twice(look: Callable[[], dict[str, int]], deadline: Deadline) -> tuple[Drain, ...]:
    """Look at what groups have before them, and again a moment later; longer if one did not move.

    Raises:
        KpsplitError: what ``look`` raises.
    """
    before, began = look(), monotonic()
    after, longest = before, deadline.left() * _PART_OF_CALL
    for until in (SHORT_LOOK, LONG_LOOK):
        if any(after[g] and after[g] == before.get(g) for g in after):
            time.sleep(max(0.0, min(until, longest) - (monotonic() - began)))
            after = look()
    return estimated(before, after, monotonic() - began)
