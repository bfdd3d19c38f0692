"""Tells the state store who owns what in the group, so that it follows the slots it keeps warm copies of.

Only the coordinator knows the whole assignment. It is asked after each rebalance that this member notices,
again while one is going on, and now and then besides: one that changes nothing here goes unnoticed.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from concurrent.futures import Future

from kpsplit.consumer.context import Context
from kpsplit.consumer.fetch.reader import OwnedSlot
from kpsplit.consumer.group.membership import Membership
from kpsplit.errors import KpsplitError
from kpsplit.kafka.clock import monotonic
from kpsplit.kafka.groups import Members

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
EVERY_SECONDS = 60.0


class Peers:
    """See the module. Owned by the engine's thread."""

    def __init__(self, context: Context, membership: Membership) -> None:
        self._context = context
        self._membership = membership
        self._seen: object = None
        self._at = 0.0
        self._answer: Future[Members] | None = None

    def turn(self) -> None:
        """Ask when it is time, take the answer when it is there."""
        store = self._context.keeping.store
        if store is None or not store.standbys or not self._membership.subscribed:
            return
        now, seen = monotonic(), self._rebalances()
        if self._answer is not None:
            if self._answer.done():
                self._take(self._answer, now)
        elif seen != self._seen or now >= self._at:
            self._seen = seen
            ledger = self._context.ledger
            self._answer = self._context.errands.run(ledger.members)

    def _rebalances(self) -> object:
        counts = self._context.counts
        return self._context.rebalances, counts["slots_handed_over"], counts["slots_lost"]

    def _take(self, answer: Future[Members], now: float) -> None:
        self._answer = None
        self._at = now + AGAIN_SECONDS
        try:
            members = answer.result()
        except KpsplitError as error:
            log.info("kpsplit: warm copies stay where they are: %s", error)
            return
        if members.settled and self._tell(members):
            self._at = now + EVERY_SECONDS

    def _tell(self, members: Members) -> bool:
        """Tell the store; False while this member does not know its own name."""
        store, me = self._context.keeping.store, self._context.group.memberid()
        if store is None or not me:
            return False
        owned: dict[str, list[OwnedSlot]] = defaultdict(list)
        for place, owner in members.assigned.items():
            slot = self._membership.slot_at(place)
            if slot is not None:
                owned[owner.member].append(slot)
        store.assigned(owned, me)
        return True
