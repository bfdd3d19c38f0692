"""What a run of twenty minutes has to amount to, and how its time is shared so that it does. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tests.fault.chaos.faults import MANY_SUSPENSIONS, MIXES, Kind

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

    def told(self, reached: Reached) -> str:
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
    """Return the seconds that a mix may take of those that are left to it and to the mixes behind it."""
    weight = _WEIGHTS.get(name, 1.0)
    return max(0.0, left) * weight / (weight + sum(_WEIGHTS.get(other, 1.0) for other in later))
