"""Who owns what in the group, as the coordinator says.

* After a sleep, after a commit that was refused as of no member, and while the coordinator is silent for
  too long, nothing is handed out until the coordinator has confirmed the member's slots: the decision (pure)
  and its shell.
* The state store is given every member's slots, so that it follows the slots it keeps warm copies of. It
  decides by them whether a member that has not joined yet joins now, or when its copies are warm.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf

from kpsplit.clock import monotonic
from kpsplit.consumer.broker_executor import BrokerExecutor, GroupMembers
from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.events import Events
from kpsplit.consumer.fetch.batch import SHUT
from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.consumer.slots.assigned import AssignedSlot
from kpsplit.consumer.slots.assigned_slots import AssignedSlots
from kpsplit.errors import AuthorizationError, KpsplitError
from kpsplit.kafka.error_map import COORDINATOR_REFUSES, is_one_of
from kpsplit.kafka.groups import Members
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.lineage import PhysicalPartition

ASLEEP_SECONDS = 2.0
"""The longest gap after which nothing is asked.

Sessions last longer; but heartbeats of before the gap may have been lost, and to ask costs little.
"""
AGAIN_SECONDS = 0.5

NO_DOUBT = 0

LOOKS = 4
"""So often the coordinator is asked in the time in which it may be silent."""


@dataclass(frozen=True, slots=True)
class OwnershipQuestion:
    """Who owns these slots? ``doubt`` numbers what it is asked after (or ``NO_DOUBT``), ``at`` is when."""

    doubt: int
    at: float
    assigned_slots: tuple[AssignedSlot, ...]


class OwnershipCheck:
    """Whether a member that may have slept, or was refused as none, still owns its slots; pure.

    A suspended process, a paused machine: a member that does not run sends no heartbeat, and when its session
    ends its slots are given to others. It cannot know that when it wakes up. So every turn of the engine is a
    sign that the member is awake, good for a moment; before a record is handed out, that moment is checked.
    After a longer gap nothing is handed out until the coordinator, asked after the gap, has named this member
    as the owner of every slot that it holds.

    A member that runs may be cut off from its coordinator alone. Then its session ends just so, and it goes
    on reading, because its slots' brokers answer. librdkafka knows of sessions in a stable classic group only
    (2.16; with KIP-848 it never gives up). So the coordinator is asked now and then, whatever its answer;
    when it has not answered for as long as the least session, that is a doubt as well. So is an answer that
    names another member for a slot, or this one for none though no rebalance goes on.

    A member that is inside a hand-over does not poll the group, so it does not learn that it was expelled.
    But its commits are refused then, or its client has no member id any more: that is a doubt as a gap is.

    =====================================  =================================================================
    the coordinator, asked after that      what follows
    =====================================  =================================================================
    names this member                      the slot is confirmed; when all are, records are handed out again
    names another member                   the slot is withdrawn
    names no member (a rebalance goes on,  it is asked again; where the member was expelled, librdkafka
    or the member was expelled)            learns of it with its next heartbeat
    cannot be asked, or refuses            it is asked again
    =====================================  =================================================================

    Only what was held when the question was asked, and is the same ``AssignedSlot`` still, is judged by its
    answer: a slot may have been lost and given back meanwhile.

    All times are seconds of one clock, which must also run while the member sleeps.

    Args:
        known_for: how long it holds good that the member owns its slots: half of the least session.
        now: the time.
    """

    def __init__(self, known_for: float, now: float) -> None:
        self.session = 2 * known_for
        """The least time in which a session can end."""
        self._heard = now
        self._bound = min(known_for, ASLEEP_SECONDS)
        self._turned = now
        self._shared = False
        self._doubts = NO_DOUBT
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
        return min(self._turned + self._bound, self._heard + self.session) if self._shared else inf

    def turned(self, now: float, *, shared: bool) -> bool:
        """Note a turn; return whether it is the first after a sleep.

        ``shared``: the member is in a group. Without one its slots cannot be given to another.
        """
        slept = shared and self._shared and now - self._turned > self._bound
        if not self._shared:
            self._heard = now
        self._turned, self._shared = now, shared
        self.held = shared and self.held
        if slept:
            self.doubt(now)
        return slept

    def silent(self, now: float) -> bool:
        """Return whether the coordinator's silence is a doubt that there was not yet."""
        return self._shared and not self.held and now - self._heard >= self.session

    def doubt(self, now: float, wait: float = 0.0) -> None:
        """The slots may be another member's: hold everything back, and ask, after a wait."""
        self._doubts += 1
        self._ask_at = now + wait
        self._told, self._confirmed = False, []
        self.held = self._shared

    def question(self, now: float, assigned_slots: Sequence[AssignedSlot]) -> OwnershipQuestion | None:
        """Return what to ask the coordinator now; None if nothing."""
        if not self.held and not assigned_slots:
            self._heard = now
        due = self._ask_at if self.held else max(self._ask_at, self._heard + self.session / LOOKS)
        if not self._shared or now < due:
            return None
        return OwnershipQuestion(self._doubts if self.held else NO_DOUBT, now, tuple(assigned_slots))

    def failed(self, now: float) -> None:
        """The coordinator could not be asked, or refused."""
        self._ask_at = now + (AGAIN_SECONDS if self.held else self.session / (2 * LOOKS))

    def heard(self, question: OwnershipQuestion) -> None:
        """The coordinator has answered, whatever it said: it is not silent."""
        self._heard = max(self._heard, question.at)

    def answered(
        self,
        now: float,
        question: OwnershipQuestion,
        members: Members,
        me: str | None,
        assigned_slots: Sequence[AssignedSlot],
    ) -> list[AssignedSlot]:
        """Take an answer; return the slots that it names for others. ``settle`` follows.

        To a question that was asked by the way, the slots that are in doubt: those that it names for others;
        all, where it leaves nothing to this member though no rebalance goes on. With them a doubt begins.

        Args:
            now: the time.
            question: what was asked.
            members: whom the coordinator names.
            me: this member's id, None or "" while it has none.
            assigned_slots: what the member holds now.
        """
        self.heard(question)
        asked = [h for h in assigned_slots if _among(h, question.assigned_slots)]
        owners = members.assigned
        named = [(h, owners[h.place].member) for h in asked if me and h.place in owners]
        others = [h for h, owner in named if owner != me]
        if question.doubt == NO_DOUBT:
            nothing_left = me and members.settled and len(others) == len(named)
            # It says nothing of a doubt that came since.
            doubtful = [] if self.held else asked if nothing_left else others
            if doubtful:
                self.doubt(now, AGAIN_SECONDS)
            return doubtful
        if question.doubt != self._doubts:
            return []  # however young it is: the session may have ended since then
        self._told, self._ask_at = True, now + AGAIN_SECONDS
        self._confirmed = [h for h, owner in named if owner == me]
        return others

    def expelled(self) -> None:
        """Librdkafka has reported a loss after the doubt: slots that come now are new."""
        self._told = True

    def settle(self, assigned_slots: Sequence[AssignedSlot]) -> None:
        """Let go if everything that is held now is the member's for certain."""
        if self._told and all(_among(h, self._confirmed) for h in assigned_slots):
            self.held = False


def _among(assigned: AssignedSlot, assigned_slots: Sequence[AssignedSlot]) -> bool:
    return any(assigned is other for other in assigned_slots)


log = logging.getLogger(__name__)


class OwnershipGuard:
    """Holds records back in doubt until the coordinator has confirmed the slots: see ``OwnershipCheck``.

    Owned by the engine's thread. The question is asked in a thread of its own.

    No answer loses a slot: it may be that of a broker that was frozen until it coordinated the group no more.
    A slot that is named for another member is withdrawn: read, handed out and committed no more. It is lost
    when the client says so. When a later answer, of a group that has settled, names this member, it starts
    again from the log. If neither comes within a session the group is left: nothing is held by then for which
    the client and the coordinator agree.

    Args:
        known_for: how long it holds good that this member owns its slots, in seconds.
        slots: what is held, and the sink that hands out.
        group: knows this member's id.
        executor: asks the coordinator.
        events: where trouble is noted.
        give_up: has the member leave its group, and says why.
        refusals: how often a commit was refused as of no member of the group.
    """

    def __init__(
        self,
        known_for: float,
        slots: AssignedSlots,
        group: GroupConsumer,
        executor: BrokerExecutor[GroupMembers],
        events: Events,
        give_up: Callable[[str], None],
        refusals: Callable[[], int],
    ) -> None:
        self._slots = slots
        self._give_up = give_up
        self._refusals = refusals
        self._refusals_seen = 0
        self._withdrawn: list[tuple[float, AssignedSlot]] = []
        """What was named for others, and since which turn outside a hand-over; inf: there was none since."""
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
        refusals = self._refusals()
        refused, self._refusals_seen = refusals != self._refusals_seen, refusals
        if self._check.turned(now, shared=bool(self._group.topics or self._shared_slots())):
            log.info("kpsplit: this member has not run for a while; it asks who owns its slots")
            self.times_held += 1
            self._lost_before = self._slots.lost
        elif refused:
            self._doubt("a commit was refused as of no member")
        elif self._check.silent(now):
            self._doubt("the group's coordinator does not answer")
        self._keep_open()

    def turn(self, *, nested: bool) -> None:
        """In doubt: ask when it is time, take the answer when it is there. After the group was polled.

        ``nested``: inside a rebalance.

        Raises:
            KpsplitError: the coordinator could not be asked; records are held back until it can.
        """
        if nested and not self.held and self._group.expelled():
            self._doubt("this member is not in its group any more")
        try:
            self._pursue(nested)
            if nested:  # on_lost cannot come before it ends
                self._withdrawn = [(inf, h) for _, h in self._withdrawn]
            else:
                self._leave_in_time()
        finally:
            self._keep_open()

    def _leave_in_time(self) -> None:
        now = monotonic()
        self._withdrawn = [(min(since, now), h) for since, h in self._withdrawn if self._slots.still([h])]
        if any(now - since >= self._check.session for since, _ in self._withdrawn):
            self._give_up("the group has named another member for slots of this one, and nothing followed")

    def _doubt(self, why: str) -> None:
        self._check.doubt(monotonic())
        self._doubt_began(why)

    def _doubt_began(self, why: str) -> None:
        """Say so; a loss that is reported from now on ends it."""
        log.info("kpsplit: %s; nothing is handed out before the group has confirmed the slots", why)
        self._lost_before = self._slots.lost

    def _pursue(self, nested: bool) -> None:
        if self._asked is not None and self._asked[1].done():
            (question, answer), self._asked = self._asked, None
            self._take(question, answer, nested)
        if self.held:
            if self._slots.lost != self._lost_before:
                self._check.expelled()
            self._check.settle(self._shared_slots())
        if not self.held:
            self._forget_trouble()
        if self._asked is None:
            self._ask()

    def _ask(self) -> None:
        withdrawn = [h for _, h in self._withdrawn]
        question = self._check.question(monotonic(), [*self._shared_slots(), *withdrawn])
        if question is not None:
            self._asked = question, self._executor.ask(lambda group: group.members())

    def _take(self, question: OwnershipQuestion, answer: Future[Members], nested: bool) -> None:
        now = monotonic()
        try:
            members = answer.result()
        except KpsplitError as error:
            if is_one_of(error.__cause__ or error, COORDINATOR_REFUSES):
                self._check.heard(question)
            self._check.failed(now)
            if not self.held:
                return
            self._trouble = KpsplitError(
                f"records are held back, the slots may be others': {error.message}",
                hint="the group is asked again",
            )
            raise self._trouble from error
        me = self._group.memberid()
        if me and members.settled and not nested:
            self._read_again(members, me)
        gone = self._check.answered(now, question, members, me, self._shared_slots())
        if not gone:
            return
        if question.doubt == NO_DOUBT:
            self._doubt_began("the group does not name this member for slots that it has")
            return
        log.warning("kpsplit: the group names other members for %d slots of this one", len(gone))
        self._slots.withdraw(gone)
        self._withdrawn += [(inf, h) for h in gone]

    def _read_again(self, members: Members, me: str) -> None:
        """Read slots again that were named for others, where the group has settled on this member."""
        mine = {place for place, owner in members.assigned.items() if owner.member == me}
        self._slots.read_again(self._slots.still(h for _, h in self._withdrawn if h.place in mine))
        self._withdrawn = [(since, h) for since, h in self._withdrawn if h.place not in mine]

    def _forget_trouble(self) -> None:
        if self._trouble is not None and self._events.trouble is self._trouble:
            self._events.trouble = None
        self._trouble = None

    def _keep_open(self) -> None:
        self._slots.sink.keep_open(self.until)

    def _shared_slots(self) -> list[AssignedSlot]:
        others = [h for _, h in self._withdrawn]
        return [h for h in self._slots if not h.by_hand and not _among(h, others)]


PEERS_AGAIN_SECONDS = 1.0
PEERS_EVERY_SECONDS = 60.0


class PeerAssignments:
    """Gives the group's assignment to the state store, which follows the slots of which it keeps warm copies.

    Only the coordinator knows the whole assignment. It is asked after each rebalance that this member
    notices, again while one is going on, and now and then besides: one that changes nothing here goes
    unnoticed. A member that is to have its copies warm before it joins asks already then.

    Owned by the engine's thread.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        slots: AssignedSlots,
        group: GroupConsumer,
        executor: BrokerExecutor[GroupMembers],
        slot_at: Callable[[PhysicalPartition], OwnedSlot | None],
    ) -> None:
        self._instance = settings.instance
        self._slots = slots
        self._slot_at = slot_at
        self._group = group
        self._executor = executor
        self._seen: object = None
        self._at = 0.0
        self._answer: Future[Members] | None = None
        self._waiting_since: float | None = None
        self._others: list[OwnedSlot] | None = None
        """The slots that members go on with while this one waits; None: not known yet."""
        self._keeps_until = -inf
        """Until then a member that has joined is given slots, and follows what it followed before."""

    def wait_anew(self) -> None:
        """There is another subscription: what was waited for before it does not count."""
        self._waiting_since = None

    def may_join(self, topics: frozenset[str]) -> bool:
        """Return whether the group is joined with these topics now; else when copies of state are warm."""
        store, now = self._slots.state_binding.store, monotonic()
        if store is None or not store.warm_seconds or self._group.topics:
            return True
        if self._waiting_since is None:
            self._waiting_since, self._others, self._answer, self._at = now, None, None, now
        if self._answer is None and now >= self._at:
            self._answer = self._executor.ask(lambda group: group.members())
        elif self._answer is not None and self._answer.done():
            self._note_others(self._answer, topics, now)
        if not store.joins(self._others, now - self._waiting_since):
            return False
        self._waiting_since, self._answer, self._seen = None, None, None
        self._keeps_until = now + PEERS_EVERY_SECONDS
        return True

    def _note_others(self, answer: Future[Members], topics: frozenset[str], now: float) -> None:
        """Note who goes on with which slots; nobody, where the coordinator keeps this member's own for it."""
        members = self._result(answer, now)
        if members is None:
            if isinstance(answer.exception(), AuthorizationError):
                self._others = []  # it will not be known in time either
        elif members.settled:
            mine = self._instance and any(o.instance == self._instance for o in members.assigned.values())
            places = () if mine else sorted(p for p in members.assigned if p.topic in topics)
            self._others = [slot for slot in map(self._slot_at, places) if slot is not None]

    def turn(self) -> None:
        """Ask when it is time, take the answer when it is there."""
        store = self._slots.state_binding.store
        if store is None or not (store.standbys or store.warm_seconds) or not self._group.topics:
            return
        now, seen = monotonic(), self._rebalances()
        if self._answer is not None:
            if self._answer.done():
                self._take(self._answer, now)
        elif seen != self._seen or now >= self._at:
            self._seen = seen
            self._answer = self._executor.ask(lambda group: group.members())

    def _rebalances(self) -> object:
        return self._slots.rebalances, self._slots.handed_over, self._slots.lost

    def _take(self, answer: Future[Members], now: float) -> None:
        members = self._result(answer, now)
        if members is not None and members.settled and self._tell(members, now):
            self._at = now + PEERS_EVERY_SECONDS

    def _result(self, answer: Future[Members], now: float) -> Members | None:
        """Return the answer, None if there is none; the next question follows soon."""
        self._answer = None
        self._at = now + PEERS_AGAIN_SECONDS
        try:
            return answer.result()
        except KpsplitError as error:
            log.info("kpsplit: warm copies stay where they are: %s", error)
            return None

    def _tell(self, members: Members, now: float) -> bool:
        """Give the assignment to the store; return False while this member does not know its place in it."""
        store, me = self._slots.state_binding.store, self._group.memberid()
        if store is None or not me:
            return False
        owned: dict[str, list[OwnedSlot]] = defaultdict(list)
        for place, owner in members.assigned.items():
            slot = self._slot_at(place)
            if slot is not None:
                owned[owner.name].append(slot)
        name = self._instance or me
        if not owned[name] and now < self._keeps_until:
            return False
        store.assigned(owned, name)
        return True
