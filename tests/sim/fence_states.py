"""The values of which a state of the fence's world is made; see ``fence_world``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.marker import Marker, MarkerKind

PARENT = PhysicalPartition("t", 0)
LOW, HIGH = 0x10000000, 0x90000000
"""Hashes of two keys, one in each half of the key space."""

NOBODY: frozenset[int] = frozenset()
STALE = 0
"""A valid lease that was asked for before the latest record."""


@dataclass(frozen=True)
class Scope:
    """What a world contains. ``keys``: per producer, the key hash of each of its records."""

    keys: tuple[tuple[int, ...], ...] = ((LOW, LOW),)
    operations: tuple[str, ...] = ("split",)
    begin: tuple[str, ...] = ()
    """Operations that are over when the exploration begins."""
    aborts: int = 0
    """How many attempts die and are rolled back."""
    lapses: bool = True
    """Leases run out."""
    errors: bool = False
    """Acknowledgements get lost, records are dropped."""
    joining: bool = False
    """The producers are not registered yet."""
    one_by_one: bool = False
    """Markers are appended one by one, and a dead operator's late marker may follow."""
    slow_reading: bool = False
    """Between asking for the control topic's end and having read to it, other things happen."""
    gives_up: bool = False
    """The application purges its queue."""
    times_out: bool = False
    """What was acknowledged and is not final is given up after the message timeout, one record or another."""
    zombie: bool = False
    """A dead operator wakes up while it waits for readiness, and finds everybody silent."""
    counts_early: bool = False
    """A wrong protocol: a report counts its record as done before it takes it in hand."""
    retries: bool = True
    """A record that is in the log may be rejected by a hard seal: its first acknowledgement was lost."""


class Item(NamedTuple):
    """A record inside librdkafka: written at ``offset``, or (-1) not yet."""

    segment: int
    sequence: int
    epoch: int
    offset: int
    counted: bool = False


class Held(NamedTuple):
    """The state of one producer apart from its fence."""

    fence: int
    view: int
    lease: int
    """How long the control topic was when the lease was asked for, ``STALE``, or -1: no valid lease."""
    asking: int | None
    flight: tuple[tuple[Item, ...], ...]
    outcomes: tuple[Any, ...]
    registered: bool
    fresh: bool
    """The registration is good although no lease was renewed under it."""
    removed: bool
    """Operators do not see the registration any more."""
    ready: str | None
    acknowledged: str | None
    begun: int = -1
    """The first record of the transaction under way; -1: none (``TransactionalWorld`` only, as all below)."""
    committed: tuple[int, ...] = ()
    spoilt: bool = False
    """A record of the transaction went astray: it must be aborted."""


class Operator(NamedTuple):
    """The state of the operator and of those that died."""

    attempts: int = 0
    aborted: int = 0
    running: bool = False
    ready: bool = False
    acknowledged: bool = False
    cuts: tuple[tuple[int, int], ...] = ()
    sealed: bool = False
    first: frozenset[int] | None = None
    """Whose registrations were there when the wait for readiness began; None: it has not begun."""
    over: frozenset[int] = NOBODY
    """Whose registrations are being removed, by this operator or one before it."""
    late: tuple[tuple[int, str, bool], ...] = ()
    """Markers that a dead operator may still append."""
    asleep: tuple[str, int, frozenset[int]] | None = None
    """Who was put to sleep while it waited for readiness: its attempt, since which record, ``first``."""


class Global(NamedTuple):
    """One state of the world."""

    control: tuple[int, ...]
    logs: tuple[tuple[Any, ...], ...]
    sealed: frozenset[int]
    producers: tuple[Held, ...]
    operator: Operator


Move = tuple[str, bool, Global]
"""What happened, whether it is a fault (needs not happen), and the state behind it."""


def put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    """Return the values with another one at a place."""
    return (*values[:index], value, *values[index + 1 :])


def marker_entry(marker: Marker) -> tuple[str, str, bool]:
    """Return what stands in a log for a marker."""
    return ("m", marker.attempt_id, marker.kind is MarkerKind.SEAL)
