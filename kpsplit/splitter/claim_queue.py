"""Whose turn it is to claim an operation; pure.

Theory of operation. A claim fences the one before it, so claims that begin whenever they like end each other,
and nobody gets as far as its first record. Therefore whoever wants to claim announces it first: it appends a
small record to the control topic, outside of any transaction, and reads the announcements. They are about one
*revision* of the partition's state; what becomes the next revision ends them all. The first announcement of
the latest *round* has the turn. Everybody else waits. When its turn is over and the revision is still the
same, it is dead or too slow: the next to look announces the next round. A turn is longer in later rounds,
so that on slow brokers some turn is long enough.

Safety does not rest on this: the broker fences. So clocks may differ, an announcement may be lost,
and two may believe that it is their turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kpsplit.splitter.records.claims import Claim

TURN_SECONDS = 15.0
"""The first turn. A claim and its first record take some 50 ms, on brokers that are overloaded 3 to 15 s."""
LONGEST_TURN_SECONDS = 45.0
"""Shorter than anybody waits for a claim: a queue of dead claimers holds nobody up for good."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Append this announcement, then look again."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody else has the turn for so long, or until the revision is another one."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Go:
    """It is the turn of this announcement, which is ours."""

    claim: Claim


class ClaimQueue:
    """The queue as one claimer sees it; one object for all its tries. ``claimer``: who, unique."""

    def __init__(self, claimer: str) -> None:
        self.claimer = claimer
        self._first_seen: dict[Claim, float] = {}

    def decide(self, revision: int, announced: Iterable[Claim], now: float) -> Announce | Wait | Go:
        """Say what to do at ``now``; ``announced`` in the order of the log."""
        first = _whose_turn(revision, announced)
        if first is None:
            return Announce(Claim(self.claimer, revision, 1))
        left = self._first_seen.setdefault(first, now) + turn_seconds(first.round) - now
        if left <= 0:
            return Announce(Claim(self.claimer, revision, first.round + 1))
        return Go(first) if first.claimer == self.claimer else Wait(left)

    def has_turn(self, revision: int, announced: Iterable[Claim]) -> bool:
        """Tell whether the turn is ours, over or not: then nobody else is at work."""
        first = _whose_turn(revision, announced)
        return first is not None and first.claimer == self.claimer


def _whose_turn(revision: int, announced: Iterable[Claim]) -> Claim | None:
    """Return the first announcement of the latest round, None if there is none for this revision."""
    claims = [claim for claim in announced if claim.revision == revision]
    return max(claims, key=lambda claim: claim.round, default=None)  # the first of those that are equal


def turn_seconds(number: int) -> float:
    """Return how long the turn of a round is."""
    return min(TURN_SECONDS * number, LONGEST_TURN_SECONDS)
