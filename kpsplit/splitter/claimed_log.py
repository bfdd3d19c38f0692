"""What the holder of a partition's operation may take for the partition's state, and whose turn it is; pure.

**The claim.** All operators of a logical partition use one transactional id, but they share the control topic
with the operators of others. So a read-committed reader can stand before an open transaction of a stranger
while committed records of ours lie after it. An operator that acts on what such a reader knows undoes them.
Three steps in this order make a claim safe (protocol, section 5.2):

1. Take the transactional id. The broker fences every earlier holder. It returns when their transactions are
   decided and the markers of their ends are written.
2. Write a record, the announcement of this claim once more. Whatever an earlier holder wrote lies before it.
   To *ask* where the log ends is not enough: a leader that was frozen, and does not know yet that another one
   was elected meanwhile, would name an old end. It acknowledges no write: its followers are gone.
3. Read until everything before that record is decided. Only then is the state known.

A record is read back in the same way: everything up to it is decided before the state is looked at.
The real log and the simulated one inherit these steps, so that a test of one is a test of the other.

**The turn** (protocol, section 5.3). A claim fences the one before it, so claims that begin at any time end
each other, and none gets as far as its first record. Therefore a claimer first announces its claim: it
appends a small record to the control topic, outside of any transaction, and reads the announcements. They
are about one *revision* of the partition's state; the next revision ends them all. The first announcement of
the latest *round* has the turn. All others wait. When a turn is over and the revision is still the same, its
claimer is dead or too slow: the next one that looks announces the next round. A turn is longer in later
rounds, so that on slow brokers some turn is long enough.

Producers settle among themselves who takes over before that is due, while the operator may still finish:
their announcements of round 0 are *reservations*. An operator ignores them and announces round 1.

Safety does not rest on turns: the broker fences. So clocks may differ, an announcement may be lost, and two
claimers may believe that it is their turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kpsplit.errors import FencedError, UnknownOutcomeError, UnreachableError, after_a_change
from kpsplit.splitter.machine import apply
from kpsplit.splitter.partition_state import Event, PartitionState
from kpsplit.splitter.records.control import MOST_ROUNDS, RESERVED, Claim

if TYPE_CHECKING:
    from kpsplit.clock import Deadline  # it is handed its deadlines and makes none: the core has no clock
    from kpsplit.splitter.steps import Fit  # every producer imports this module, and plans no operation

TURN_SECONDS = 15.0
"""The first turn. A claim and its first record take some 50 ms, on brokers that are overloaded 3 to 15 s."""
LONGEST_TURN_SECONDS = 45.0
"""Shorter than anybody waits for a claim: a queue of dead claimers holds nobody up for good."""
RESERVED_SECONDS = 5.0
"""How long the others wait, once it is due, for the claim of the producer that reserved the turn."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Append this announcement, then look again."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class WaitForTurn:
    """Another claimer has the turn for so long, or until the revision is another one."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Go:
    claim: Claim


class ClaimQueue:
    """The queue as one claimer sees it; one object for all its tries. ``claimer``: a unique name.

    ``due``: the time from which a producer may take over. Until then it only reserves its turn. Operators
    give None: they wait for nobody's reservation.
    """

    def __init__(self, claimer: str, due: float | None = None) -> None:
        self.claimer = claimer
        self._due = due
        self._first_seen: dict[Claim, float] = {}

    def decide(self, revision: int, announced: Iterable[Claim], now: float) -> Announce | WaitForTurn | Go:
        """Return what to do at ``now``; ``announced`` in the order of the log."""
        known = self._counting(revision, announced)
        first = _whose_turn(known)
        if first is None:
            reserves = self._due is not None and now < self._due
            return Announce(Claim(self.claimer, revision, RESERVED if reserves else 1))
        since = self._first_seen.setdefault(first, now)
        if first.round >= MOST_ROUNDS:
            return self._in_the_order_of_the_log(known, now - since)
        if first.round == RESERVED and self._due is not None:
            since = max(since, self._due)
            if first.claimer == self.claimer:
                return WaitForTurn(since - now) if now < since else Go(Claim(self.claimer, revision, 1))
        left = since + turn_seconds(first.round) - now
        if left <= 0:
            return Announce(Claim(self.claimer, revision, first.round + 1))
        return Go(first) if first.claimer == self.claimer else WaitForTurn(left)

    def has_turn(self, revision: int, announced: Iterable[Claim]) -> bool:
        """Return whether the turn is ours, reserved or over or not: then nobody else is at work."""
        first = _whose_turn(self._counting(revision, announced))
        return first is not None and first.claimer == self.claimer

    def _counting(self, revision: int, announced: Iterable[Claim]) -> list[Claim]:
        least = 1 if self._due is None else RESERVED
        return [claim for claim in announced if claim.revision == revision and claim.round >= least]

    def _in_the_order_of_the_log(self, known: list[Claim], passed: float) -> Announce | WaitForTurn | Go:
        """Give turns in the last round, after which there is none: only a forgery gets as far."""
        line = list(dict.fromkeys(claim for claim in known if claim.round >= MOST_ROUNDS))
        over, within = divmod(passed, LONGEST_TURN_SECONDS)
        own = Claim(self.claimer, line[0].revision, MOST_ROUNDS)
        if over and own not in line:
            return Announce(own)
        return Go(own) if line[int(over) % len(line)] == own else WaitForTurn(LONGEST_TURN_SECONDS - within)


def _whose_turn(known: list[Claim]) -> Claim | None:
    """Return the first announcement of the latest round, None if there is none."""
    return max(known, key=lambda claim: claim.round, default=None)  # the first of those that are equal


def turn_seconds(number: int) -> float:
    return RESERVED_SECONDS if number == RESERVED else min(TURN_SECONDS * number, LONGEST_TURN_SECONDS)


LOOK_SECONDS = 1.0
"""How often the log is looked at while another claimer has the turn."""


class FencedLog(ABC):
    """The three steps of a claim, whatever is claimed; what is abstract talks to brokers."""

    def _fence(self, mark: Callable[[Deadline], int], deadline: Deadline) -> None:
        """Fence every earlier holder, and read everything that they wrote.

        ``mark`` appends a record outside of any transaction and returns where the log ends with it. It is
        acknowledged by all replicas that may become leaders: only the true leader can report that.

        Raises:
            UnreachableError: the mark is not acknowledged; nothing depends on whether it is written.
        """
        self._take(deadline)
        self._read_decided(_marked(mark, deadline), deadline)

    @abstractmethod
    def _take(self, deadline: Deadline) -> None:
        """Take the transactional id: what earlier holders left open is decided afterwards."""

    @abstractmethod
    def _read_decided(self, end: int, deadline: Deadline) -> None:
        """Read until everything before ``end`` is decided and read."""


def _marked(mark: Callable[[Deadline], int], deadline: Deadline) -> int:
    try:
        return mark(deadline)
    except UnknownOutcomeError as error:
        what = error.message.removesuffix(" (outcome unknown)")
        raise UnreachableError(f"could not make a claim: {what}") from error


class ClaimedLog(FencedLog):
    """The part of ControlPort that decides; what is abstract talks to brokers."""

    def __init__(self, queue: ClaimQueue) -> None:
        self._queue = queue

    def claim(self, deadline: Deadline, fit: Fit | None = None) -> PartitionState:
        """Fence every earlier holder and return the state, with everything that they wrote decided.

        ``fit`` is given the state before anybody is fenced, as often as it is looked at. Where it says no
        that state is returned, and nothing is claimed.

        Raises:
            KpsplitError: what ``fit`` raised, or the log could not be read so far; nothing was written.
        """
        claim = self._await_turn(deadline, fit)
        if claim is not None:
            self._fence(partial(self._announce, claim), deadline)
        return self.seen()

    def record(self, before: PartitionState, event: Event, deadline: Deadline) -> PartitionState:
        """Apply and write an event in one transaction, read it back, return the new state.

        Raises:
            FencedError: a newer holder claimed the operation. UnknownOutcomeError: claim again.
        """
        after = apply(before, event)
        offset = self._write(after, event, deadline)
        with after_a_change():
            self._read_back(offset + 1, event, deadline)
            seen = self.seen()
        if seen != after:
            raise FencedError(
                f"{after.parent}: the control topic does not say what was just written", changed=None
            )
        return after

    def _await_turn(self, deadline: Deadline, fit: Fit | None) -> Claim | None:
        """Return our announcement when it is its turn, None where the state is not to be claimed."""
        while True:
            state = self.peek(deadline)
            if fit is not None and not fit(state):
                return None
            match self._queue.decide(state.revision, self._announced(deadline), self._now()):
                case Announce(claim):
                    _marked(partial(self._announce, claim), deadline)
                case WaitForTurn(seconds):
                    self._wait(min(seconds, LOOK_SECONDS), deadline)
                case Go(claim):
                    return claim

    @abstractmethod
    def peek(self, deadline: Deadline) -> PartitionState:
        """Read the log to its last stable offset, return the state; fences nobody."""

    @abstractmethod
    def _announced(self, deadline: Deadline) -> Sequence[Claim]:
        """Return the announcements of claims as far as they are written, in the order of the log."""

    @abstractmethod
    def _announce(self, claim: Claim, deadline: Deadline) -> int:
        """Append an announcement, as the mark of ``_fence``; return where the log ends with it."""

    @abstractmethod
    def _wait(self, seconds: float, deadline: Deadline) -> None:
        """Let so much time pass while another claimer has the turn.

        Raises:
            DeadlineExceededError: there is no time left.
        """

    @abstractmethod
    def _now(self) -> float: ...

    @abstractmethod
    def _read_back(self, end: int, event: Event, deadline: Deadline) -> None:
        """Do the same for what was just written: it has some patience after the deadline, too."""

    @abstractmethod
    def _write(self, after: PartitionState, event: Event, deadline: Deadline) -> int:
        """Write a state in one transaction; return its offset.

        Raises:
            DeadlineExceededError: no time was left; nothing was written.
        """

    @abstractmethod
    def seen(self) -> PartitionState:
        """Return the state that was read last, without asking again."""
