"""Rebalances: what happens between the coordinator, the slots and the application (protocol, section 10).

A member begins UNSUBSCRIBED. With a subscription it joins its group and waits in PREPARING_REBALANCE for the
coordinator; before it joins, for copies of state, where it is to have them warm. Slots that arrive are looked
up in the offset log and on_assign is called (ASSIGNING_PARTITIONS); then the member is STABLE. Slots that are
taken away pass through three states: their records are withheld and what is being worked on is finished
(PREPARE_REVOCATION), on_revoke runs in the application's thread (REVOKING_PARTITION), what was processed is
committed and the slots are released (PARTITION_REVOKED). Slots that stay are read and handed out all the
time. A member that gave its slots up is LOST until it has left the group, and UNSUBSCRIBED until the
application polls. Partitions that are assigned by hand have no group: the member is ASSIGNING_PARTITIONS and
STABLE only. CLOSING hands everything over in the same order.

A revocation runs inside the group consumer's callback: when that returns, another member may have the
slots. So the callback waits, by turning the engine: slots that stay are read, handed out and committed
meanwhile, and so are the application's own calls served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException

from kpsplit.clock import monotonic
from kpsplit.consumer.commit.committer import COMMIT_SECONDS, Committer
from kpsplit.consumer.config import ConsumerSettings, RevocationPolicy
from kpsplit.consumer.events import Callback, Events, RebalanceCallbacks, explained, kafka_error
from kpsplit.consumer.group.group_consumer import GroupConsumer, Places
from kpsplit.consumer.group.ownership import PeerAssignments
from kpsplit.consumer.metadata import ClusterTopics
from kpsplit.consumer.slots.assigned import STARTING, AssignedSlot
from kpsplit.consumer.slots.assigned_slots import AssignedSlots
from kpsplit.splitter.group_slots import Mode, OwnedSlot, Subscribed, resolve, subtopics
from kpsplit.splitter.key_range import slot_at
from kpsplit.splitter.lineage import PhysicalPartition

log = logging.getLogger(__name__)

COMMIT_TRIES = 3
COMMIT_REST_SECONDS = 0.25
"""Between tries to commit what is handed over; none begins where there might not be time for it."""
CONNECT_SECONDS = 2.0
"""While a group is joined. What is not connected by then goes on connecting when slots start."""
LAST_COMMIT_SECONDS = 5.0
"""How long a member that gives up tries to commit what it has processed."""


class State(StrEnum):
    """What a member does now, as ``Consumer.stats()`` shows it; see the module."""

    UNSUBSCRIBED = "unsubscribed"
    PREPARING_REBALANCE = "preparing_rebalance"
    ASSIGNING_PARTITIONS = "assigning_partitions"
    STABLE = "stable"
    PREPARE_REVOCATION = "prepare_revocation"
    REVOKING_PARTITION = "revoking_partition"
    PARTITION_REVOKED = "partition_revoked"
    LOST = "lost"
    CLOSING = "closing"
    CLOSED = "closed"


_HANDING_OVER = KafkaError(KafkaError._STATE, "slots are being handed over now; call again when that is done")


class Patience:
    """How long a revocation may take under a policy; ``over`` once the member has to leave."""

    def __init__(self, policy: RevocationPolicy, seconds: float) -> None:
        self._policy = policy
        self._seconds = seconds
        self._until = monotonic() + seconds
        self._tries = 2 if policy is RevocationPolicy.RETRY_THEN_LEAVE else 1

    def left(self) -> float:
        """Return how many seconds are left before the first warning, or the next."""
        return self._until - monotonic()

    def over(self) -> bool:
        """Return whether the policy's time is over."""
        if monotonic() < self._until:
            return False
        if self._policy is not RevocationPolicy.RETRY:
            self._tries -= 1
        if self._tries:
            log.warning("kpsplit: a revocation takes longer than %.1f s, waiting on", self._seconds)
            self._until = monotonic() + self._seconds
        return not self._tries


class Turning(Protocol):
    """What a rebalance needs of the engine."""

    def turn_on(self) -> None:
        """Do one turn without polling the group consumer."""

    def internal_error(self) -> None:
        """Count an exception that ended something halfway, and begin to read anew."""


class Membership:
    """This member of the group. Implements ``Assignments``; owned by the engine's thread."""

    def __init__(
        self,
        settings: ConsumerSettings,
        slots: AssignedSlots,
        group: GroupConsumer,
        committer: Committer,
        events: Events,
        engine: Turning,
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._group = group
        self._committer = committer
        self._events = events
        self._engine = engine
        self.times_left = 0
        self._subscribed: dict[str, Subscribed] = {}
        self.callbacks = RebalanceCallbacks(events)
        self.away = False
        """The slots were given up; the group is left until the application polls again."""
        self.closing = self.closed = False
        self._joined = False
        """The group consumer has a subscription, or will have one, or what is left of one."""
        self._given = False
        """The coordinator has given this member its slots, maybe none, and has not taken all of them."""
        self._let_go: set[PhysicalPartition] = set()
        """What was handed over for another subscription. The coordinator has not heard of that yet."""
        self._revoking: State | None = None
        """How far the hand-over that is under way has come."""

    @property
    def state(self) -> State:
        """What this member does now: it follows from what the member holds, and nothing follows from it."""
        if self.closing:
            return State.CLOSED if self.closed else State.CLOSING
        if self._revoking is not None:
            return self._revoking
        if self._slots.any_on(STARTING):
            return State.ASSIGNING_PARTITIONS
        if len(self._slots) or self._given:
            return State.STABLE
        if not self._joined:
            return State.UNSUBSCRIBED
        return State.LOST if self.away else State.PREPARING_REBALANCE

    # -- subscription ------------------------------------------------------------------------------

    def prepare(self, topics: Sequence[Subscribed]) -> None:
        """Know topics that the group is joined with: now, or when copies of their state are warm."""
        self._subscribed.update({s.group_topic: s for s in topics})
        self._joined = True

    def subscribe(self, topics: Sequence[Subscribed]) -> None:
        """Join the group with topics that ``prepare`` was given, or change to them."""
        if any(not s.mode.plain for s in topics):
            self._committer.executor.ask(lambda offsets: offsets.connect(CONNECT_SECONDS))
        self._group.subscribe([s.group_topic for s in topics], self)

    def hand_over_all_but(self, topics: frozenset[str]) -> bool:
        """Hand over the slots that other topics stand for, before the subscription changes; were there any?

        When it has changed, librdkafka takes them away inside a join too, without a generation to commit by.
        """
        return self._let_go_of([h for h in self._slots if h.place.topic not in topics and not h.by_hand])

    def take_back(self, topics: frozenset[str]) -> None:
        """Hold again what was handed over for another subscription, where its topics are wanted once more.

        By the coordinator it is this member's still: nobody else would read it, and it is not given again.
        """
        self._let_go &= self._group.assignment
        back = {place for place in self._let_go if place.topic in topics & self._group.topics}
        if back:
            self._let_go -= back
            held = {h.place for h in self._slots}
            self.assigned(sorted(back - held))

    @property
    def topics(self) -> frozenset[str]:
        """The group's topics that are subscribed to; empty without a group."""
        return self._group.topics

    def leave_group(self) -> bool:
        """Return whether there is a group; leave it: a revocation of everything follows."""
        subscribed = bool(self._group.topics)
        if subscribed:
            self._group.unsubscribe()
        return subscribed

    def out(self, *, by_hand: bool = True) -> bool:
        """Return whether nothing is left of the membership; ``by_hand``: nor of what was assigned by hand."""
        held = [h for h in self._slots if by_hand or not h.by_hand]
        return not self._group.topics and not self._group.assignment and not held

    def follow_modes(self, topics: Sequence[Subscribed]) -> None:
        """Share slots that are not started yet as their topics are shared now.

        Partitions that were read as wholes and are not any more are handed over to this member itself: it
        commits in their present way, and begins in the new one (protocol, section 10.16). Workers do first
        what was read: a plain partition has one place, and what they have done beyond it would come again.
        """
        modes = {t.group_topic: t.mode for t in topics}
        self._slots.share(modes)
        whole = [h for h in self._slots if h.mode is Mode.WHOLE and not h.by_hand]
        over = [h for h in whole if modes.get(h.place.topic, h.mode) is not h.mode]
        sink = self._slots.sink
        self._let_go_of([h for h in over if not h.in_sink or sink.level(h.slot)])

    def _let_go_of(self, leaving: list[AssignedSlot]) -> bool:
        """Hand over slots that the coordinator takes not away, nor names for others; were there any?"""
        ours = [h for h in leaving if not h.gone]
        self._let_go.update(h.place for h in ours)
        self.hand_over(ours)
        return bool(ours)

    def slot_at(self, place: PhysicalPartition) -> OwnedSlot | None:
        """Return the slot that stands at a partition of the group's topics, None for other topics."""
        return self._holding(place).slot if place.topic in self._subscribed else None

    def left(self) -> None:
        """Everything is handed over, and there is no subscription."""
        self._joined = self._given = False

    # -- what the coordinator does -----------------------------------------------------------------

    def assigned(self, places: Places) -> None:
        """Slots arrive: they are held, and the initializer takes them on."""
        if self.closing or self.away:
            return
        try:
            self.hold([self._holding(place) for place in places])
        except Exception as error:  # noqa: BLE001 - nothing may come out of a rebalance
            self._note(error)
            everything = list(self._slots)
            self._surely(everything, lambda: self.give_up("slots that arrived could not be taken"))

    def hold(self, assigned_slots: list[AssignedSlot]) -> None:
        """Hold slots, those of the coordinator or those assigned by hand."""
        self._given = True
        self._slots.add(assigned_slots)

    def revoked(self, places: Places) -> None:
        """Slots are taken away: hand them over, then let the coordinator go on."""
        self.hand_over(self._slots.at(places))

    def lost(self, places: Places) -> None:
        """Slots are another member's: drop them."""
        gone = self._slots.at(places)
        if gone:
            self._surely(gone, lambda: self.lose(gone))

    # -- handing over ------------------------------------------------------------------------------

    def hand_over(self, leaving: list[AssignedSlot], *, call_back: bool = True) -> None:
        """Pause, finish what is being worked on, commit, release; lose what cannot be handed over.

        Without ``call_back`` the application has asked for it, and on_revoke is not called.

        Raises:
            KafkaException: the application has asked for it inside another hand-over, which may be of the
                same slots.
        """
        if self._revoking is not None and not call_back:
            raise KafkaException(_HANDING_OVER)
        if leaving:
            with self._group.unpolled():
                try:
                    self._hand_over(leaving, call_back)
                except Exception as error:  # noqa: BLE001 - nothing may come out of a rebalance
                    self._note(error)
                    self._surely(leaving, lambda: self.lose(leaving))
                finally:
                    self._revoking = None

    def _hand_over(self, leaving: list[AssignedSlot], call_back: bool) -> None:
        patience = Patience(self._settings.revocation_policy, self._settings.revocation_timeout)
        self._committer.put_off()
        self._revoking = State.PREPARE_REVOCATION
        working = self._slots.stop(leaving)
        if not self._wait(lambda: self._slots.sink.release(working), patience):
            self.give_up("records of slots that are taken away are still being worked on")
            return
        self._revoking = State.REVOKING_PARTITION
        callback = self._call_on_revoke(leaving) if call_back else None
        if not call_back:
            self.callbacks.forget({h.parent for h in leaving})  # on_assign names them again if they come back
        if callback is not None and not self._wait(lambda: callback.done, patience):
            self.give_up("on_revoke has not returned in time")
            return
        self._revoking = State.PARTITION_REVOKED
        if not self._commit(leaving, patience):
            self.give_up("the commit of slots that are taken away was not answered in time")
            return
        self._committer.put_off()
        self._drop(leaving)
        self._slots.handed_over += len(leaving)

    def _call_on_revoke(self, leaving: list[AssignedSlot]) -> Callback | None:
        gone = {h.slot for h in leaving}
        staying = {h.parent for h in self._slots if h.slot not in gone}
        return self.callbacks.revoke({h.parent for h in leaving}, staying)

    def lose(self, gone: list[AssignedSlot]) -> None:
        """Drop slots without a commit, call on_lost; the member stays in the group unless it is away."""
        call_on_lost = self.callbacks.lose({h.parent for h in gone})
        self._drop(gone)
        self._slots.lost += len(gone)  # nothing of them is handed out from here on
        call_on_lost()

    def give_up(self, why: str) -> None:
        """Commit what is processed, drop every slot, be away from the group until the application polls."""
        log.warning("kpsplit: leaving the group: %s", why)
        self.away = True
        self.times_left += 1
        with self._group.unpolled():
            self._commit(list(self._slots), Patience(RevocationPolicy.LEAVE, LAST_COMMIT_SECONDS))
        self.lose(list(self._slots))
        self._events.tell(KafkaError(KafkaError._MAX_POLL_EXCEEDED, f"left the group: {why}"))

    def _drop(self, gone: list[AssignedSlot]) -> None:
        self._slots.drop(gone)
        self._committer.forget(gone)
        self._given = self._given and bool(len(self._slots))

    def _surely(self, gone: list[AssignedSlot], drop: Callable[[], None]) -> None:
        """Drop slots; if that fails hold them no more all the same, and be away.

        An exception that came out of a rebalance callback would leave the slots held for ever: librdkafka
        lets them go, and automatic commits would overwrite those of their new owner.
        """
        try:
            drop()
        except Exception as error:  # noqa: BLE001 - nothing may come out of a rebalance
            self._note(error)
            self.away = True
            self._slots.remove(gone)

    def _note(self, error: Exception) -> None:
        self._engine.internal_error()
        log.error("kpsplit: internal error in a rebalance", exc_info=error)
        self._events.warn(kafka_error(error))

    def _commit(self, leaving: list[AssignedSlot], patience: Patience) -> bool:
        """Commit what slots have processed, again where that fails early; return whether there was an answer.

        What is not committed is processed again by the next owner.
        """
        for assigned in leaving:
            assigned.final = True
        if not self._committer.settings.auto_commit:
            return self._wait(self._committer.answered(), patience)
        left = self._slots.changed(h for h in leaving if h.in_sink)
        self._committer.fenced = False
        for _ in range(COMMIT_TRIES):
            self._committer.ask(left)
            if not self._wait(self._committer.answered(), patience):
                return False
            left = self._slots.changed(h for h in leaving if h.in_sink)
            if not left or self._committer.fenced or patience.left() <= COMMIT_SECONDS:
                break
            until = monotonic() + COMMIT_REST_SECONDS
            self._wait(lambda until=until: monotonic() >= until, patience)  # type: ignore[misc]
        return True

    def _wait(self, condition: Callable[[], bool], patience: Patience) -> bool:
        while not condition():
            if patience.over():
                return False
            self._engine.turn_on()
        return True

    def _holding(self, place: PhysicalPartition) -> AssignedSlot:
        known = self._subscribed[place.topic]
        partition, index = slot_at(place.partition, known.slots)
        slot = OwnedSlot(PhysicalPartition(known.topic, partition), index, known.slots)
        return AssignedSlot(slot, place, known.mode)


class Subscribing:
    """What the application has subscribed to, and what was done for it. Owned by the engine's thread."""

    def __init__(
        self,
        settings: ConsumerSettings,
        membership: Membership,
        slots: AssignedSlots,
        topics: ClusterTopics,
        events: Events,
        peers: PeerAssignments,
    ) -> None:
        self._settings = settings
        self._membership, self._peers = membership, peers
        self._metadata = slots.metadata
        self.topics = topics
        self._events = events
        self.wanted: tuple[str, ...] | None = None
        self._resolved: tuple[tuple[tuple[str, ...], frozenset[str], int], frozenset[str]] | None = None
        self._shared: Sequence[Subscribed] = ()
        self._leaving = False

    def subscribe(self, names: Sequence[str]) -> None:
        """Take a new subscription of the application; an empty one is none."""
        resolve(names, (), ())  # a pattern that is none is refused at once
        self.wanted = tuple(names) or None
        self._peers.wait_anew()
        self.topics.list_anew()
        if self.wanted is None:
            self.leave()

    def is_wanted(self) -> bool:
        return self.wanted is not None

    def leave(self) -> None:
        """Leave the group: a revocation of everything follows."""
        self.wanted = None
        self._leaving = True
        self._membership.leave_group()

    def come_back(self) -> None:
        """The application polls again after its slots were given up; the group has to be left before.

        A member that gave up a part of its slots would otherwise stay in the group with the others, and
        would not be given them again.
        """
        if self._membership.out(by_hand=False):
            self._membership.away = False

    def turn(self, *, nested: bool) -> None:
        """Follow the view and the cluster's topics; nothing is changed from inside a rebalance."""
        if nested:
            return
        if self._membership.away or self.wanted is None:
            self._leave_for_now()
            return
        metadata = self._metadata
        if not metadata.may_subscribe(self.wanted) or (listed := self._listed(self.wanted)) is None:
            return
        names = self._names(self.wanted, listed)
        topics = self._shared = [metadata.subscribed(name) for name in sorted(names)]
        wanted = frozenset(t.group_topic for t in topics)
        self._membership.take_back(wanted)
        self._membership.follow_modes(topics)
        self._follow_growth(topics)
        if wanted == self._membership.topics:
            self.topics.known(frozenset())
        elif self._may_change(wanted) and not self._membership.hand_over_all_but(wanted):
            self._leaving = False
            self._membership.prepare(topics)
            if self._peers.may_join(wanted):
                self._membership.subscribe(topics)

    def _names(self, wanted: tuple[str, ...], listed: frozenset[str]) -> frozenset[str]:
        """Return the topics that are subscribed to; made anew only where something of it has changed."""
        by = wanted, listed, self._metadata.position
        if self._resolved is None or self._resolved[0] != by:
            self._resolved = by, resolve(wanted, listed, subtopics(self._metadata.view.states.values()))
        return self._resolved[1]

    def explain(self, error: KafkaError) -> None:
        """Report an error of the group consumer in terms of the application's topics and settings."""
        self._events.tell(explained(error, self._settings, self._shared))

    def _may_change(self, wanted: frozenset[str]) -> bool:
        """Return whether the group's topics may be changed to these now; slots are read on until then.

        The group is left where brokers keep the client from knowing them (a right is missing): one that joins
        anew hears what is wrong. And where there are none: a client refuses to subscribe to nothing.
        """
        if not self._membership.topics:
            return self._membership.out(by_hand=False)
        known = bool(wanted) and self.topics.known(wanted - self._membership.topics)
        if known is False:
            self._membership.leave_group()
        return known is True

    def _leave_for_now(self) -> None:
        if self._membership.leave_group():
            self._leaving = True
        elif self._leaving and self._membership.out():
            self._leaving = False
            self._membership.left()

    def _follow_growth(self, topics: Sequence[Subscribed]) -> None:
        """Have slots added where topics have grown; report partitions that cannot be read."""
        for error in self.topics.add_slots({t.topic: t.division for t in topics if t.mode is Mode.SLOTS}):
            log.warning("kpsplit: %s", error)
            self._events.warn(kafka_error(error))

    def _listed(self, wanted: Sequence[str]) -> frozenset[str] | None:
        """Return the cluster's topics, none where no pattern asks for them; None while they are not known."""
        if not any(name.startswith("^") for name in wanted):
            return frozenset()
        return self.topics.listed()
