"""Who owns what in the group, as the coordinator says.

* After a sleep nothing is handed out until the coordinator has confirmed the member's slots: the decision
  (pure) and its shell.
* The state store is given every member's slots, so that it follows the slots it keeps warm copies of.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf

from kpsplit.clock import monotonic
from kpsplit.consumer.broker_executor import BrokerExecutor
from kpsplit.consumer.commit.group_offsets import GroupOffsets
from kpsplit.consumer.events import Events
from kpsplit.consumer.fetch.batch import SHUT
from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.consumer.group.membership import Membership
from kpsplit.consumer.slots.assigned import AssignedSlot
from kpsplit.consumer.slots.assigned_slots import AssignedSlots
from kpsplit.errors import KpsplitError
from kpsplit.kafka.groups import Members, Owner
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition

ASLEEP_SECONDS = 2.0
"""The longest gap after which nothing is asked.

Sessions last longer; but heartbeats of before the gap may have been lost, and to ask costs little.
"""
AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class OwnershipQuestion:
    """Who owns these slots? ``sleep`` numbers the gap after which it is asked, ``at`` is when."""

    sleep: int
    at: float
    assigned_slots: tuple[AssignedSlot, ...]


class OwnershipCheck:
    """Whether a member that may have slept still owns its slots; pure.

    A suspended process, a paused machine: a member that does not run sends no heartbeat, and when its session
    ends its slots are given to others. It cannot know that when it wakes up. So every turn of the engine is a
    sign that the member is awake, good for a moment; before a record is handed out, that moment is checked.
    After a longer gap nothing is handed out until the coordinator, asked after the gap, has named this member
    as the owner of every slot that it holds.

    =====================================  =================================================================
    the coordinator, asked after the gap   what follows
    =====================================  =================================================================
    names this member                      the slot is confirmed; when all are, records are handed out again
    names another member                   the slot is lost
    names no member (a rebalance goes on,  it is asked again; where the member was expelled, librdkafka
    or the member was expelled)            learns of it with its next heartbeat
    cannot be asked                        it is asked again
    =====================================  =================================================================

    Only what was held when the question was asked, and is the same ``AssignedSlot`` still, is judged by its
    answer: a slot may have been lost and given back meanwhile.

    All times are seconds of one clock, which must also run while the member sleeps.

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
        self._confirmed: list[AssignedSlot] = []
        self.held = False
        """Nothing may be handed out."""

    @property
    def until(self) -> float:
        """The moment until which records may be handed out, unless a later turn names a later one."""
        if self.held:
            return SHUT
        return self._turned + self._bound if self._shared else inf

    def turned(self, now: float, *, shared: bool) -> bool:
        """Note a turn; return whether it is the first after a sleep.

        ``shared``: the member is in a group. Without one its slots cannot be given to another.
        """
        slept = shared and self._shared and now - self._turned > self._bound
        self._turned, self._shared = now, shared
        if slept:
            self._sleeps += 1
            self._ask_at = now
            self._told, self._confirmed = False, []
        self.held = shared and (self.held or slept)
        return slept

    def question(self, now: float, assigned_slots: Sequence[AssignedSlot]) -> OwnershipQuestion | None:
        """Return what to ask the coordinator now; None if nothing."""
        if not self.held or now < self._ask_at:
            return None
        return OwnershipQuestion(self._sleeps, now, tuple(assigned_slots))

    def failed(self, now: float) -> None:
        """The coordinator could not be asked."""
        self._ask_at = now + AGAIN_SECONDS

    def answered(
        self,
        now: float,
        question: OwnershipQuestion,
        owners: Mapping[PhysicalPartition, Owner],
        me: str | None,
        assigned_slots: Sequence[AssignedSlot],
    ) -> list[AssignedSlot]:
        """Take an answer; return the slots that are lost. ``settle`` follows.

        Args:
            now: the time.
            question: what was asked.
            owners: whom the coordinator names.
            me: this member's id, None or "" while it has none.
            assigned_slots: what the member holds now.
        """
        if question.sleep != self._sleeps and now - question.at > self._known_for:
            return []  # else a machine so busy that every turn comes late would never go on
        self._told, self._ask_at = True, now + AGAIN_SECONDS
        asked = [h for h in assigned_slots if _among(h, question.assigned_slots)]
        named = [(h, owners[h.place].member) for h in asked if me and h.place in owners]
        self._confirmed = [h for h, owner in named if owner == me]
        return [h for h, owner in named if owner != me]

    def expelled(self) -> None:
        """Librdkafka has reported a loss after the sleep: slots that come now are new."""
        self._told = True

    def settle(self, assigned_slots: Sequence[AssignedSlot]) -> None:
        """Let go if everything that is held now is the member's for certain."""
        if self._told and all(_among(h, self._confirmed) for h in assigned_slots):
            self.held = False


def _among(assigned: AssignedSlot, assigned_slots: Sequence[AssignedSlot]) -> bool:
    return any(assigned is other for other in assigned_slots)


log = logging.getLogger(__name__)


class OwnershipGuard:
    """Holds records back after a sleep until the coordinator has confirmed the slots: see ``OwnershipCheck``.

    Owned by the engine's thread. The question is asked in the executor's thread.

    Args:
        known_for: how long it holds good that this member owns its slots, in seconds.
        slots: what is held, and the sink that hands out.
        membership: loses slots that others own.
        group: knows this member's id.
        executor: asks the coordinator.
        events: where trouble is noted.
    """

    def __init__(
        self,
        known_for: float,
        slots: AssignedSlots,
        membership: Membership,
        group: GroupConsumer,
        executor: BrokerExecutor[GroupOffsets],
        events: Events,
    ) -> None:
        self._slots = slots
        self._membership = membership
        self._group = group
        self._executor = executor
        self._events = events
        self.times_held = 0
        self._check = OwnershipCheck(known_for, monotonic())
        self._asked: tuple[OwnershipQuestion, Future[Members]] | None = None
        self._lost_before = 0
        self._trouble: KpsplitError | None = None

    @property
    def held(self) -> bool:
        """Return whether nothing is handed out until the coordinator has confirmed the slots."""
        return self._check.held

    @property
    def until(self) -> float:
        """Until when records may be handed out, unless the engine turns before."""
        return self._check.until

    def turned(self, now: float) -> None:
        """Note a turn of the engine: before it reads, after requests, which may change the sink."""
        if self._check.turned(now, shared=bool(self._membership.topics or self._shared_slots())):
            log.info("kpsplit: this member has not run for a while; it asks who owns its slots")
            self.times_held += 1
            self._lost_before = self._membership.lost_slots
        self._keep_open()

    def turn(self, *, nested: bool) -> None:
        """After a sleep: ask when it is time, take the answer when it is there. After the group was polled.

        Inside a rebalance (``nested``) nothing is lost by an answer: the rebalance decides.

        Raises:
            KpsplitError: the coordinator could not be asked; records are held back until it can.
        """
        if self.held:
            self._pursue(nested)
            self._keep_open()

    def _pursue(self, nested: bool) -> None:
        if self._asked is not None and self._asked[1].done():
            (question, answer), self._asked = self._asked, None
            self._take(question, answer, nested)
        if self._membership.lost_slots != self._lost_before:
            self._check.expelled()
        self._check.settle(self._shared_slots())
        if not self._check.held:
            self._forget_trouble()
        elif self._asked is None:
            self._ask()

    def _ask(self) -> None:
        question = self._check.question(monotonic(), self._shared_slots())
        if question is not None:
            self._asked = question, self._executor.ask(lambda offsets: offsets.members())

    def _take(self, question: OwnershipQuestion, answer: Future[Members], nested: bool) -> None:
        now = monotonic()
        try:
            members = answer.result()
        except KpsplitError as error:
            self._check.failed(now)
            self._trouble = KpsplitError(
                f"records are held back after a sleep: {error.message}", hint="the group is asked again"
            )
            raise self._trouble from error
        me = self._group.memberid()
        gone = self._check.answered(now, question, members.assigned, me, self._shared_slots())
        if gone and not nested:
            log.warning("kpsplit: %d slots were given to other members during a sleep", len(gone))
            self._membership.lose(gone)

    def _forget_trouble(self) -> None:
        if self._trouble is not None and self._events.trouble is self._trouble:
            self._events.trouble = None
        self._trouble = None

    def _keep_open(self) -> None:
        self._slots.sink.keep_open(self.until)

    def _shared_slots(self) -> list[AssignedSlot]:
        return [h for h in self._slots if not h.by_hand]


PEERS_AGAIN_SECONDS = 1.0
PEERS_EVERY_SECONDS = 60.0


class PeerAssignments:
    """Gives the group's assignment to the state store, which follows the slots of which it keeps warm copies.

    Only the coordinator knows the whole assignment. It is asked after each rebalance that this member
    notices, again while one is going on, and now and then besides: one that changes nothing here goes
    unnoticed.

    Owned by the engine's thread.
    """

    def __init__(
        self,
        slots: AssignedSlots,
        membership: Membership,
        group: GroupConsumer,
        executor: BrokerExecutor[GroupOffsets],
    ) -> None:
        self._slots = slots
        self._membership = membership
        self._group = group
        self._executor = executor
        self._seen: object = None
        self._at = 0.0
        self._answer: Future[Members] | None = None

    def turn(self) -> None:
        """Ask when it is time, take the answer when it is there."""
        store = self._slots.state_binding.store
        if store is None or not store.standbys or not self._membership.topics:
            return
        now, seen = monotonic(), self._rebalances()
        if self._answer is not None:
            if self._answer.done():
                self._take(self._answer, now)
        elif seen != self._seen or now >= self._at:
            self._seen = seen
            self._answer = self._executor.ask(lambda offsets: offsets.members())

    def _rebalances(self) -> object:
        return self._slots.rebalances, self._membership.handed_over, self._membership.lost_slots

    def _take(self, answer: Future[Members], now: float) -> None:
        self._answer = None
        self._at = now + PEERS_AGAIN_SECONDS
        try:
            members = answer.result()
        except KpsplitError as error:
            log.info("kpsplit: warm copies stay where they are: %s", error)
            return
        if members.settled and self._tell(members):
            self._at = now + PEERS_EVERY_SECONDS

    def _tell(self, members: Members) -> bool:
        """Give the assignment to the store; return False while this member does not know its own id."""
        store, me = self._slots.state_binding.store, self._group.memberid()
        if store is None or not me:
            return False
        owned: dict[str, list[OwnedSlot]] = defaultdict(list)
        for place, owner in members.assigned.items():
            slot = self._membership.slot_at(place)
            if slot is not None:
                owned[owner.member].append(slot)
        store.assigned(owned, me)
        return True
