"""Which fault comes next, how long it lasts and how long the rest after it is: drawn from one seed. Pure.

A run goes through *mixes*: kinds of faults that belong together, in an order that the seed decides. After
each mix comes a long rest, in which the system has to get somewhere. A run of twenty minutes has aims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Kind(StrEnum):
    """What is done. The values are the rows of the table."""

    BROKER_KILLED = "broker SIGKILL, started again"
    BROKER_STOPPED = "broker SIGSTOP"
    TWO_BROKERS_STOPPED = "two of three brokers SIGSTOP"
    CONTROLLER_KILLED = "active controller SIGKILL, started again"
    CONTROLLER_STOPPED = "active controller SIGSTOP"
    LEADERS_MOVED = "leaders moved in a loop"
    BROKERS_SLOWED = "all brokers SIGSTOP most of the time: every step takes seconds"
    OPERATOR_KILLED = "operator SIGKILL"
    OPERATOR_STOPPED = "operator SIGSTOP, woken later"
    WRITER_KILLED = "writer SIGKILL"
    WRITER_STOPPED = "writer SIGSTOP, woken later"
    MEMBER_KILLED = "member SIGKILL"
    MEMBER_STOPPED = "member SIGSTOP, woken later"
    SUSPENSIONS = "writers and members SIGSTOP, many short ones"
    CUT_OFF = "clients and operators cut off, both ways"
    REQUESTS_HELD = "clients and operators cut off, requests only"
    RESPONSES_HELD = "clients and operators cut off, responses only"
    DELAYED = "network slow, each way"
    RESPONSES_LOST = "responses lost after the write"
    THROTTLED = "quota throttle"
    DRAINED_REMOVED = "retention takes what the group has read"
    UNREAD_REMOVED = "retention takes what the group has not read"
    TRANSACTION_OPEN = "a stranger's open transaction on the control topic"
    REGISTRATIONS_STOPPED = "the broker that leads the producers topic SIGSTOP"
    DEAD_PRODUCERS = "10,000 registrations of dead producers"
    PARTITIONS_ADDED = "a partition added to the topic"
    FOREIGN_RECORDS = "records with copied stamps and header names that are no text"
    ENROLMENT_KILLED = "operator SIGKILL inside enroll of another topic"
    RETIREMENT_KILLED = "operator SIGKILL inside retire of another topic"


PREPARING = ("Claim", "Prepare", "CreateSubTopic", "CoLocateLeaders", "AwaitReady")
FENCED = ("Fence", "AwaitAcknowledged")
CUT = ("AppendMarkers",)
AFTER_CUT = ("Commit", "SealSubTopics", "Finish")
STEPS = (*PREPARING, *FENCED, *CUT, *AFTER_CUT)
"""After which step of an operation a fault can be made to strike."""

ACROSS_THE_CUT = ("Prepare", "AwaitReady", "Fence")
"""Where a fault begins that is to last beyond the cut."""

MANY_SUSPENSIONS = "suspensions"
"""The mix that a long run never cuts short: its suspensions are one of the aims."""

MIXES: dict[str, tuple[Kind, ...]] = {
    "brokers": (Kind.BROKER_KILLED, Kind.BROKER_STOPPED, Kind.CONTROLLER_KILLED, Kind.LEADERS_MOVED),
    "frozen": (Kind.BROKER_STOPPED, Kind.TWO_BROKERS_STOPPED, Kind.CONTROLLER_STOPPED),
    "slow": (Kind.BROKERS_SLOWED,),
    "operators": (Kind.OPERATOR_KILLED, Kind.OPERATOR_STOPPED),
    "clients": (Kind.WRITER_KILLED, Kind.WRITER_STOPPED, Kind.MEMBER_KILLED, Kind.MEMBER_STOPPED),
    "network": (
        Kind.CUT_OFF,
        Kind.REQUESTS_HELD,
        Kind.RESPONSES_HELD,
        Kind.DELAYED,
        Kind.RESPONSES_LOST,
        Kind.THROTTLED,
    ),
    "retention": (Kind.DRAINED_REMOVED, Kind.UNREAD_REMOVED),
    "strangers": (
        Kind.TRANSACTION_OPEN,
        Kind.REGISTRATIONS_STOPPED,
        Kind.DEAD_PRODUCERS,
        Kind.PARTITIONS_ADDED,
        Kind.FOREIGN_RECORDS,
        Kind.ENROLMENT_KILLED,
        Kind.RETIREMENT_KILLED,
    ),
    MANY_SUSPENSIONS: (*(Kind.SUSPENSIONS,) * 3, Kind.OPERATOR_STOPPED),
    "everything": tuple(Kind),
}
OF_PROCESSES = tuple(kind for kind in Kind if kind not in MIXES["network"])
"""Everything that is done to processes, and the leaders that are moved; the rest is done to the network."""

_FAULTS_OF_A_MIX = {
    "frozen": 2,
    "slow": 2,
    "brokers": 4,
    "retention": 4,
    "strangers": 7,
    MANY_SUSPENSIONS: 16,
}
"""How many there are; the last has twelve series of at least seventeen suspensions each."""

MOMENT = (0.05, 2.5)
"""Seconds of a suspension in a series; a lease is 2 s."""

_FAULTS = 8
_REST = (0.5, 4.0)
_HOLD: dict[Kind, tuple[float, float]] = {
    Kind.BROKER_KILLED: (0.5, 12.0),
    Kind.BROKER_STOPPED: (3.0, 45.0),
    Kind.TWO_BROKERS_STOPPED: (10.0, 45.0),
    Kind.CONTROLLER_KILLED: (0.5, 12.0),
    Kind.CONTROLLER_STOPPED: (3.0, 45.0),
    Kind.LEADERS_MOVED: (5.0, 20.0),
    Kind.BROKERS_SLOWED: (30.0, 45.0),
    Kind.OPERATOR_KILLED: (0.0, 5.0),
    Kind.OPERATOR_STOPPED: (0.5, 20.0),
    Kind.WRITER_KILLED: (0.0, 3.0),
    Kind.WRITER_STOPPED: (0.3, 8.0),
    Kind.MEMBER_KILLED: (0.0, 3.0),
    Kind.MEMBER_STOPPED: (0.3, 16.0),
    Kind.SUSPENSIONS: (22.0, 28.0),
    Kind.CUT_OFF: (2.0, 30.0),
    Kind.REQUESTS_HELD: (2.0, 30.0),
    Kind.RESPONSES_HELD: (2.0, 30.0),
    Kind.DELAYED: (5.0, 20.0),
    Kind.RESPONSES_LOST: (1.0, 8.0),
    Kind.THROTTLED: (5.0, 20.0),
    Kind.DRAINED_REMOVED: (0.0, 2.0),
    Kind.UNREAD_REMOVED: (1.0, 6.0),
    Kind.TRANSACTION_OPEN: (1.0, 12.0),
    Kind.REGISTRATIONS_STOPPED: (3.0, 20.0),
    Kind.DEAD_PRODUCERS: (0.0, 3.0),
    Kind.PARTITIONS_ADDED: (0.0, 3.0),
    Kind.FOREIGN_RECORDS: (0.0, 1.0),
    Kind.ENROLMENT_KILLED: (0.0, 1.0),
    Kind.RETIREMENT_KILLED: (0.0, 1.0),
}
_TARGETED = (Kind.OPERATOR_KILLED, Kind.OPERATOR_STOPPED)
_WHILE_IT_DRAINS = (Kind.DRAINED_REMOVED, Kind.UNREAD_REMOVED)
_AT_A_STEP = (
    Kind.WRITER_STOPPED,
    Kind.MEMBER_STOPPED,
    Kind.BROKER_KILLED,
    Kind.TWO_BROKERS_STOPPED,
    Kind.CUT_OFF,
    Kind.RESPONSES_LOST,
    Kind.TRANSACTION_OPEN,
    Kind.FOREIGN_RECORDS,
)
_AT_PREPARE = (Kind.REGISTRATIONS_STOPPED,)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Times are in seconds.

    ``hold``: how long it lasts; ``rest``: how long nothing is done after it; ``target``: which of the
    processes in question is struck, counted on from any; ``step``: after which step of an operation it
    strikes, None: at once.
    """

    kind: Kind
    hold: float
    rest: float
    target: int
    step: str | None = None

    @property
    def times(self) -> int:
        """How many suspensions a series has that lasts about so long."""
        return max(1, int(self.hold / (sum(MOMENT) / 2)))


@dataclass(frozen=True, slots=True)
class Mix:
    """Faults that follow one another, and then a long rest."""

    name: str
    faults: tuple[Fault, ...]


class Schedule:
    """The faults of a run: the same for the same seed.

    Args:
        seed: of everything that is drawn.
        longest: no fault, and no rest after one, lasts longer than so many seconds.
    """

    def __init__(self, seed: int, longest: float = 45.0) -> None:
        self._random = Random(seed)
        self._longest = longest

    def mixes(self, names: Sequence[str] = tuple(MIXES)) -> Iterator[Mix]:
        """Yield mixes without end; each comes once before any comes again."""
        while True:
            for name in self._shuffled(names):
                number = _FAULTS_OF_A_MIX.get(name, _FAULTS)
                kinds = self._turns(MIXES[name], number)
                yield Mix(name, tuple(self.draw(kind) for kind in kinds))

    def each_once(self, kinds: Sequence[Kind] = tuple(Kind)) -> Mix:
        """Return one fault of each kind, for a short run."""
        return Mix("each once", tuple(self.draw(kind) for kind in self._shuffled(kinds)))

    def draw(self, kind: Kind) -> Fault:
        """Return a fault of a kind."""
        low, high = _HOLD[kind]
        return Fault(
            kind,
            min(self._longest, self._random.uniform(low, high)),
            min(self._longest, self._random.uniform(*_REST)),
            self._random.randrange(1 << 16),
            self._step(kind),
        )

    def _step(self, kind: Kind) -> str | None:
        if kind in _TARGETED:
            return self._random.choice(STEPS)
        if kind in _WHILE_IT_DRAINS:
            return AFTER_CUT[0]
        if kind in _AT_PREPARE:
            return "Prepare"
        if kind in _AT_A_STEP and self._random.random() < 0.5:
            return self._random.choice(ACROSS_THE_CUT)
        return None

    def _turns(self, kinds: Sequence[Kind], number: int) -> list[Kind]:
        """Return so many kinds; none comes twice more often than another."""
        turns: list[Kind] = []
        while len(turns) < number:
            turns += self._shuffled(kinds)
        return turns[:number]

    def _shuffled(self, items: Sequence[T]) -> list[T]:
        return self._random.sample(items, len(items))


LONG_MINUTES = 20.0
"""A run of so many minutes, or more, has aims."""
RECORDS = 100_000
SUSPENSIONS = 200
OVERTIME = 0.5
"""How much longer than asked, in parts of it, a long run goes on that has not reached its aims."""
SUSPENDED = frozenset({Kind.WRITER_STOPPED, Kind.MEMBER_STOPPED})
_WEIGHTS = {MANY_SUSPENSIONS: 3.0}


@dataclass(frozen=True, slots=True)
class Reached:
    """What a run has come to: records acknowledged, writers and members suspended, mixes begun."""

    records: int
    suspensions: int
    mixes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Aims:
    """What a run must reach. None for what is not asked of it."""

    records: int
    suspensions: int | None
    mixes: tuple[str, ...]

    @classmethod
    def of(cls, minutes: float | None, mixes: Sequence[str] = tuple(MIXES)) -> Aims | None:
        """Return the aims of a run, None if it is a short one.

        Without the mix that does nothing else, no number of suspensions is asked for.
        """
        if minutes is None or minutes < LONG_MINUTES:
            return None
        return cls(RECORDS, SUSPENSIONS if MANY_SUSPENSIONS in mixes else None, tuple(dict.fromkeys(mixes)))

    def missed(self, reached: Reached) -> tuple[str, ...]:
        """Return what has not been reached, in words."""
        short = []
        if reached.records < self.records:
            short.append("records")
        if self.suspensions is not None and reached.suspensions < self.suspensions:
            short.append("suspensions")
        return (*short, *(f"mix {name}" for name in self.mixes if name not in reached.mixes))

    def line(self, reached: Reached) -> str:
        """Return one line: "aims: records 104,233 of 100,000, ..."."""
        of = "" if self.suspensions is None else f" of {self.suspensions:,}"
        line = (
            f"aims: records {reached.records:,} of {self.records:,}, "
            f"suspensions {reached.suspensions:,}{of}, "
            f"mixes {len(reached.mixes.intersection(self.mixes))} of {len(self.mixes)}"
        )
        missed = self.missed(reached)
        return f"{line}; MISSED: {', '.join(missed)}" if missed else line


def suspensions(kinds: Iterable[Kind]) -> int:
    """Count the suspensions of writers and members among the faults that were done."""
    return sum(kind in SUSPENDED for kind in kinds)


def share(left: float, name: str, later: Collection[str]) -> float:
    """Return the seconds that a mix may take of those that are left to it and to the mixes after it."""
    weight = _WEIGHTS.get(name, 1.0)
    return max(0.0, left) * weight / (weight + sum(_WEIGHTS.get(other, 1.0) for other in later))
