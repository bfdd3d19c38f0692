"""Runs that somebody wrote down: what is needed to notice a guard that random runs seldom need."""

from __future__ import annotations

from tests.sim.event_words import Event

LOW, HIGH = 0, 5
"""Keys of the first and of the last slot."""

WRITTEN: list[Event] = [("flow", 0, 0), ("flow", 1, 0)]
"""The record that each producer has sent at the beginning is in the log."""
SPLIT: Event = ("rush", 9, 0, 1)
MERGE: Event = ("rush", 0, 0, 0)


def reads(member: int, most: int, places: int = 1) -> list[Event]:
    """A member fetches, works, and finishes its work."""
    fetched: list[Event] = [("fetch", member, place, most) for place in range(places)]
    return [*fetched, ("work", member, 9), ("work", member, 9)]


def commits(member: int) -> list[Event]:
    """A member's whole commit."""
    return [("commit", member, 0)] * 3


def takes_over(member: int) -> list[Event]:
    """The other member is expelled; this one hears of it and begins, if it may."""
    return [("expel", 1 - member), ("heartbeat", member), ("start", member), ("start", member)]


WAITING_FOR_COMMITS: list[Event] = [
    *WRITTEN,
    *reads(0, 5),
    ("commit", 0, 0),
    ("commit", 0, 0),
    *takes_over(1),
    ("commit", 0, 0),
    *reads(1, 1),
    *commits(1),
]
"""A commit whose offsets were taken is ended while the next owner looks where to begin."""

RECORDS_FIRST: list[Event] = [
    *WRITTEN,
    *reads(0, 1),
    ("commit", 0, 0),
    *takes_over(1),
    *reads(1, 5),
    *commits(1),
    *commits(0),
]
"""A member is expelled between two steps of its commit, and the next owner commits more."""

OLD_VIEW: list[Event] = [
    *WRITTEN,
    SPLIT,
    ("read", 0, 0),
    *reads(0, 9),
    *reads(0, 9, 3),
    *commits(0),
    *takes_over(1),
    *reads(1, 1),
    *commits(1),
]
"""The next owner of a slot has not heard of the split that the committed cursor is about."""

EMPTY_SEGMENT: list[Event] = [
    *WRITTEN,
    SPLIT,
    ("produce", 1, HIGH),
    ("flow", 1, 0),
    MERGE,
    SPLIT,
    ("produce", 1, HIGH),
    ("turn", 1, 0, 1),
    ("flow", 1, 0),
    ("read", 0, 0),
    *reads(0, 9, 3),
    *commits(0),
    *takes_over(0),
    ("fetch", 0, 2, 9),
    *reads(0, 9, 4),
]
"""The parent was reopened and split again with nothing written to it; ordinary offsets are known of some."""

UNTOLD_GAP: list[Event] = [
    *WRITTEN,
    ("tick", 5),
    ("tick", 5),
    ("retention", 0),
    ("fetch", 0, 0, 9),
    *commits(0),
    ("die", 0),
]
"""Retention takes records before a member reads them; it commits before it polls, and is killed."""

REJECTED: list[Event] = [
    *WRITTEN,
    SPLIT,
    ("turn", 0, 0, 1),
    ("produce", 0, LOW),
    ("write", 0, 0),
    ("sleep", 0, 1),
    ("plan", 0, 0, 0, 0, 2, 0),
    *[("operate", 0, steps, 0) for _ in range(16) for steps in (5, 3)],
    ("sleep", 0, 0),
    ("fail", 0, 0, 2),
]
"""A record was written, its acknowledgement lost, and the retry meets the seal of a merge."""

CANNOT_ANSWER: list[Event] = [
    *WRITTEN,
    ("cut_off", 0, 1),
    ("plan", 0, 9, 0, 1, 2, 0),
    *[e for _ in range(15) for e in (("operate", 0, 4, 0), ("turn", 1, 0, 1), ("turn", 0, 0, 1))],
    *[("operate", 0, 1, 0)] * 4,
    ("produce", 0, LOW),
    *[("operate", 0, 1, 0)] * 8,
    ("flow", 0, 0),
    ("poll", 0),
]
"""A producer can read the control topic, but its answers do not arrive."""

ASLEEP: list[Event] = [("operate", 0, steps, 0) for _ in range(17) for steps in (5, 3)]
"""An operation ends although a producer is suspended: its lease runs out, twice."""

STRAY_IN_THE_REOPENED_PARENT: list[Event] = [
    *WRITTEN,
    ("produce", 0, LOW),
    ("sleep", 0, 1),
    ("plan", 0, 9, 0, 1, 2, 0),
    *ASLEEP,
    ("plan", 0, 0, 0, 0, 2, 0),
    *ASLEEP,
    ("write", 0, 0),
]
"""A producer is suspended before a split; what it had queued lands in the parent that a merge reopened."""

READING_IN_THE_FENCE: list[Event] = [
    *WRITTEN,
    ("plan", 0, 9, 0, 1, 2, 0),
    *[e for _ in range(9) for e in (("operate", 0, 1, 0), ("turn", 1, 0, 1), ("turn", 0, 0, 1))],
    *[e for _ in range(12) for e in (("operate", 0, 1, 0), ("turn", 0, 0, 1))],
    ("foreign", LOW),
    ("read", 0, 0),
    ("fetch", 0, 0, 9),
    ("refresh", 0),
    ("refresh", 0),
    *reads(0, 9),
]
"""A reader meets the marker of an attempt whose end is not decided, and a plain writer's record behind it."""

SLOW_READ_BACK: list[Event] = [
    ("plan", 0, 9, 0, 0, 2, 0),
    *[("operate", 0, 1, 0)] * 9,
    ("kill", 0),
    ("plan", 0, 9, 0, 0, 2, 0),
    *[("operate", 0, 1, 0)] * 10,
    ("stranger",),
    *[("operate", 0, 1, 0)] * 3,
    *[("tick", 3)] * 3,
    *[("tick", 1)] * 3,
    ("operate", 0, 1, 0),
]
"""A retirement is recorded, and another partition's transaction hides it for longer than anybody waits."""

END_BEFORE_CLAIM: list[Event] = [
    *WRITTEN,
    ("plan", 0, 9, 0, 1, 2, 0),
    ("operate", 0, 12, 0),
    ("turn", 0, 0, 1),
    ("turn", 1, 0, 1),
    ("operate", 0, 9, 0),
    ("turn", 0, 0, 1),
    ("turn", 1, 0, 1),
    ("operate", 0, 3, 0),
    ("call_on", 1, 1),
    ("operate", 1, 5, 0),
    ("operate", 0, 3, 0),
    *[("operate", 1, 4, 0)] * 3,
]
"""An operator commits while somebody who aborts it is between two steps of the claim."""
