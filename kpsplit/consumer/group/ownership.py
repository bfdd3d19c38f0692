"""Whether a member that may have slept still owns its slots; pure (protocol, section 10).

A suspended process, a paused machine: a member that does not run sends no heartbeat, and when its session
ends its slots are given to others. It cannot know that when it wakes up. So every turn of the engine is a
sign that the member is awake, good for a moment; whoever hands out records looks whether that has passed.
Behind a longer gap nothing is handed out until the coordinator, asked behind it, has named this member as the
owner of every slot that it holds.

======================================  ======================================================================
the coordinator, asked behind the gap   what follows
======================================  ======================================================================
names this member                       the slot is confirmed; when all are, records are handed out again
names another member                    the slot is lost
names nobody (a rebalance goes on, or   it is asked again; where the member was expelled, librdkafka hears of
the member was expelled)                it with its next heartbeat
cannot be asked                         it is asked again
======================================  ======================================================================

Only what was held when the question was asked, and is the same holding still, is judged by its answer: a slot
may have been lost and given back meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from kpsplit.consumer.slots.assigned import Holding
from kpsplit.kafka.groups import Owner
from kpsplit.splitter.lineage import PhysicalPartition

ASLEEP_SECONDS = 2.0
"""The longest gap behind which nothing is asked.

Sessions last longer; but heartbeats of before the gap may have been lost, and to ask costs little.
"""
AGAIN_SECONDS = 0.5
SHUT = 0.0
"""A moment that has always passed."""


@dataclass(frozen=True, slots=True)
class Question:
    """Who owns these slots? ``sleep`` numbers the gap behind which it is asked, ``at`` is when."""

    sleep: int
    at: float
    holdings: tuple[Holding, ...]


class Waking:
    """See the module. All times are seconds of one clock, which must also run while the member sleeps.

    Args:
        known_for: how long it holds good that the member owns its slots; less than any session.
        now: the time.
    """

    def __init__(self, known_for: float, now: float) -> None:
        self._known_for = known_for
        self._bound = min(known_for, ASLEEP_SECONDS)
        self._turned = now
        self._shared = False
        self._sleeps = 0
        self._ask_at = 0.0
        self._told = False
        self._confirmed: list[Holding] = []
        self.held = False
        """Nothing may be handed out."""

    @property
    def until(self) -> float:
        """The moment until which records may be handed out, unless a later turn names a later one."""
        if self.held:
            return SHUT
        return self._turned + self._bound if self._shared else inf

    def turned(self, now: float, *, shared: bool) -> bool:
        """Note a turn; tell whether it is the first behind a sleep.

        ``shared``: the member is in a group. Without one there is nobody who could be given its slots.
        """
        slept = shared and self._shared and now - self._turned > self._bound
        self._turned, self._shared = now, shared
        if slept:
            self._sleeps += 1
            self._ask_at = now
            self._told, self._confirmed = False, []
        self.held = shared and (self.held or slept)
        return slept

    def question(self, now: float, holdings: Sequence[Holding]) -> Question | None:
        """Return what to ask the coordinator now; None if nothing."""
        if not self.held or now < self._ask_at:
            return None
        return Question(self._sleeps, now, tuple(holdings))

    def failed(self, now: float) -> None:
        """The coordinator could not be asked."""
        self._ask_at = now + AGAIN_SECONDS

    def answered(
        self,
        now: float,
        question: Question,
        owners: Mapping[PhysicalPartition, Owner],
        me: str | None,
        holdings: Sequence[Holding],
    ) -> list[Holding]:
        """Take an answer; return the slots that are lost. ``settle`` follows.

        Args:
            now: the time.
            question: what was asked.
            owners: whom the coordinator names.
            me: this member's id, None or "" while it has none.
            holdings: what the member holds now.
        """
        if question.sleep != self._sleeps and now - question.at > self._known_for:
            return []  # else a machine so busy that every turn comes late would never go on
        self._told, self._ask_at = True, now + AGAIN_SECONDS
        asked = [h for h in holdings if _among(h, question.holdings)]
        named = [(h, owners[h.place].member) for h in asked if me and h.place in owners]
        self._confirmed = [h for h, owner in named if owner == me]
        return [h for h, owner in named if owner != me]

    def expelled(self) -> None:
        """Librdkafka has told of a loss behind the sleep: slots that come now are new."""
        self._told = True

    def settle(self, holdings: Sequence[Holding]) -> None:
        """Let go if everything that is held now is the member's for certain."""
        if self._told and all(_among(h, self._confirmed) for h in holdings):
            self.held = False


def _among(holding: Holding, holdings: Sequence[Holding]) -> bool:
    return any(holding is other for other in holdings)
