"""Groups whose topic gets another number of slots: random walks through what members and operators decide.

The members are of a classic cooperative group, whose coordinator tells least. Who may begin what is decided
by the real code. Each guard is needed: without it two members come to work on one key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kpsplit.consumer.commit.group_offsets import GroupOffsets
from kpsplit.consumer.slots.assigned import AssignedSlot, StartRequest
from kpsplit.consumer.slots.assigned_slots import AssignedSlots
from kpsplit.control.own_topics import changed
from kpsplit.control.returning import following
from kpsplit.kafka.groups import Members, Owner
from kpsplit.splitter.group_slots import Mode, OwnedSlot, Subscribed, subscribed
from kpsplit.splitter.key_range import KeyRange, slot_range
from kpsplit.splitter.lineage import Lineage, PhysicalPartition
from kpsplit.splitter.records.control import Enrolment, Partitioner

PARENT = PhysicalPartition("orders", 0)
LINEAGE = Lineage.unsplit(PARENT)
LEASE, MARGIN = 6, 1
NUMBERS = (1, 2, 1, 3, 2, 1, 2)
FIRST = Enrolment("orders", "id", Partitioner.EXPLICIT, settled=True, slots=NUMBERS[0])
MOST_STEPS = 400

Places = set[PhysicalPartition]


class Group(GroupOffsets):
    """What a member asks for a start: the log has commits of every range, the coordinator is the walk's."""

    def __init__(self, members: Members, names: set[str]) -> None:
        self._answer, self._names = members, names

    def _members(self, me: str | None) -> Members:
        return replace(self._answer, kept=frozenset()) if self._names == {me} else self._answer

    def _has_commits(self, lineage: Lineage) -> bool:
        return True

    def _not_read(self, parents: object) -> dict[PhysicalPartition, Any]:
        return {}


@dataclass
class Member:
    """A member: its view of the control topic, and its slots. It is its own ``Metadata``."""

    name: str
    world: Walk
    view: Enrolment = FIRST
    since: int = 0
    asked: int = 0
    topic: str = ""
    has: Places = field(default_factory=set)
    leaving: Places = field(default_factory=set)
    found: Places = field(default_factory=set)
    begun: Places = field(default_factory=set)
    modes: dict[PhysicalPartition, Mode] = field(default_factory=dict)
    joining: bool = False

    def fresh(self) -> bool:
        return "fresh" in self.world.without or self.world.now < self.asked + LEASE

    def subscribed(self, topic: str) -> Subscribed:
        over = not self.view.settled and self.world.now >= self.since + LEASE + MARGIN
        if "lease" in self.world.without:
            over = True
        found = subscribed(topic, None if self.view.left else self.view, lease_over=over)
        return replace(found, begins=True) if "begins" in self.world.without else found

    def may_begin(self, place: PhysicalPartition) -> bool:
        if place not in self.has - self.leaving - self.begun:
            return False
        slot = OwnedSlot(PARENT, place.partition, self.world.slots[place.topic])
        assigned = AssignedSlot(slot, place, self.modes.get(place, Mode.SLOTS))
        return AssignedSlots.may_begin(cast(Any, SimpleNamespace(metadata=self)), assigned)

    def refresh(self) -> None:
        self.asked = self.world.now
        if self.view != self.world.recorded:
            self.view, self.since = self.world.recorded, self.world.now

    def follow(self) -> None:
        """Subscribe to what stands for the topic now; what is subscribed to no more is handed over first."""
        wanted = self.subscribed("orders").group_topic
        if wanted != self.topic:
            self.topic = wanted
            self.leaving |= {place for place in self.has if place.topic != wanted}
            self.joining = not self.leaving
        now = self.subscribed("orders")
        shared = {place for place, mode in self.modes.items() if place.topic != wanted or mode is now.mode}
        if "over" not in self.world.without:
            self.begun &= shared
            self.found &= shared

    def leave(self) -> None:
        """Leave the group, to come back by what it knows then."""
        self.topic, self.leaving, self.joining = "", set(self.has), not self.has

    def release(self) -> None:
        self.has -= self.leaving
        self.found -= self.leaving
        self.begun -= self.leaving
        self.joining = self.joining or bool(self.leaving)
        self.leaving.clear()

    def look(self, place: PhysicalPartition) -> None:
        """Ask where a slot starts."""
        now = self.subscribed("orders")
        if place not in self.begun | self.found:
            self.modes[place] = now.mode if now.group_topic == place.topic else Mode.MOVING
        if self.may_begin(place) and self.modes[place] is not Mode.MOVING:
            before = self.subscribed("orders").predecessors(PARENT.partition)
            if "former" in self.world.without:
                before = frozenset({PARENT})
            wanted = StartRequest(LINEAGE, self.modes[place], self.world.range(place), predecessors=before)
            names = {member.name for member in self.world.group if member.topic or member.has}
            if not Group(self.world.members(), names)._worked_on([wanted], self.name):
                self.found.add(place)

    def begin(self, place: PhysicalPartition) -> None:
        if place in self.found and self.may_begin(place):
            self.begun.add(place)
            self.world.begins(self, place)


class Walk:
    """One topic with one partition, a group, its coordinator, and an operator that changes the slots.

    ``without``: which guards are left out. Each walk has its own haste in everything.
    """

    def __init__(self, seed: int, *without: str) -> None:
        self.without, self.now = without, 0
        self._random = Random(seed)
        self.recorded, self.recorded_at = FIRST, 0
        self.slots = {FIRST.slots_topic: NUMBERS[0], PARENT.topic: 1}
        self.returns = False
        """The operators lead the topic back to plain clients (protocol, section 10.16)."""
        self.group = [
            Member(name, self, topic=FIRST.slots_topic, joining=True)
            for name in self._random.choice(("a", "ab", "abc"))
        ]
        self._speeds = [self._random.choice((1, 3, 10)) for _ in self.group]
        self._weights = [self._random.choice((1, 3, 10)) for _ in range(8)] + [self._random.choice((1, 3)), 1]
        self._weights += [self._random.choice((1, 3)) for _ in range(2)]
        self._asleep: Enrolment | None = None
        self._plain = False
        """Somebody has begun the partition from the ordinary offsets, and maybe committed there."""
        self._kept: dict[str, frozenset[PhysicalPartition]] = {}
        self._assigned: dict[PhysicalPartition, str] = {}

    def members(self) -> Members:
        """What the coordinator says."""
        stable = not any(member.joining for member in self.group)
        assigned = {place: Owner(name, "", "") for place, name in self._assigned.items()}
        kept = frozenset() if "kept" in self.without else frozenset().union(*self._kept.values())
        return Members(True, stable, assigned, kept)

    def range(self, place: PhysicalPartition) -> KeyRange:
        return slot_range(place.partition, self.slots[place.topic])

    def rebalance(self) -> None:
        """Each member joins with what it has; what moves is assigned when its owner has released it."""
        if any(member.leaving for member in self.group):
            return
        self._kept = {member.name: frozenset(member.has) for member in self.group}
        self._assigned = {}
        for topic in sorted({member.topic for member in self.group} - {""}):
            able = [member for member in self.group if member.topic == topic]
            for number in range(self.slots[topic]):
                self._assign(PhysicalPartition(topic, number), able)
        for member in self.group:
            member.joining = False
            member.has |= {place for place, name in self._assigned.items() if name == member.name}
            member.leaving = {place for place in member.has if self._assigned.get(place) != member.name}

    def _assign(self, place: PhysicalPartition, able: list[Member]) -> None:
        owner = next((member for member in self.group if place in member.has), None)
        target = self._random.choice(able)
        if owner is not None and owner in able and self._random.random() < 0.5:
            target = owner
        if owner in (None, target):
            self._assigned[place] = target.name

    def operate(self) -> None:
        """An operator claims the topic and does the next step, or there is none: it may be gone for long."""
        step = self._next_step()
        if step is not None:
            if "fence" not in self.without:
                self._asleep = None
            self._record(step)

    def fall_asleep(self) -> None:
        """An operator claims the topic, decides the next step, and is suspended before it records it."""
        self._asleep = self._next_step()

    def wake(self) -> None:
        """The operator that sleeps records its step, unless another one has claimed the topic since."""
        if self._asleep is not None:
            self._record(self._asleep)
            self._asleep = None

    def _next_step(self) -> Enrolment | None:
        known, lease_over = self.recorded, self.now >= self.recorded_at + LEASE + MARGIN
        if not known.settled:
            if lease_over or "lease" in self.without:
                return replace(known, settled=True)
        elif known.former is not None:
            members = self.members()
            if "operator" in self.without:
                members = replace(members, kept=frozenset())
            if not members.on({known.former.topic}):
                return following(known) if known.returning else replace(known, former_slots=None)
        elif self.returns:
            return following(known)
        elif known.generation < len(NUMBERS):
            change = changed(known, NUMBERS[known.generation])
            assert change is not None and change.slots is not None
            self.slots[change.slots_topic] = change.slots
            return change
        return None

    def _record(self, enrolment: Enrolment) -> None:
        self.recorded, self.recorded_at = enrolment, self.now

    def step(self) -> None:
        member = self._random.choices(self.group, self._speeds)[0]
        places = sorted(member.has) or [PhysicalPartition(member.topic, 0)]
        place = self._random.choice(places)
        rebalances = self.rebalance if any(m.joining for m in self.group) else self._tick
        actions = [
            self._tick,
            self.operate,
            rebalances,
            member.refresh,
            member.follow,
            member.release,
            lambda: member.look(place),
            lambda: member.begin(place),
            member.leave,
            lambda: setattr(member, "joining", True),
            self.fall_asleep,
            self.wake,
        ]
        self._random.choices(actions, self._weights)[0]()
        self.check()

    def _tick(self) -> None:
        self.now += 1

    def begins(self, member: Member, place: PhysicalPartition) -> None:
        """A member begins; from the range commits only while nobody has committed without them."""
        if place.topic == PARENT.topic:
            self._plain = self._plain or member.modes[place] is Mode.PLAIN
            late = self._plain and member.modes[place] is not Mode.PLAIN
            assert not late, f"{member.name} works on {place} from old commits, at {self.now}"

    def check(self) -> None:
        """No two slots that are worked on have a key in common."""
        at_work = [(member.name, place) for member in self.group for place in sorted(member.begun)]
        for (one, place), (two, other) in combinations(at_work, 2):
            both = self.range(place).overlaps(self.range(other))
            assert not both, f"{one} works on {place}, {two} on {other}, at {self.now}"

    def come_to_rest(self) -> None:
        """Everybody goes on, and no operator comes: all keys are read by the number that is recorded."""
        for _ in range(2 * LEASE):
            self._tick()
            for member in self.group:
                member.refresh()
                member.follow()
                member.release()
            if any(member.joining for member in self.group):
                self.rebalance()
            for member in self.group:
                for place in sorted(member.has):
                    member.look(place)
                    member.begin(place)
            self.check()
        at_work = {place for member in self.group for place in member.begun}
        if self.recorded.slots is None:
            assert at_work == {PARENT}
            return
        wanted = {PhysicalPartition(self.recorded.slots_topic, n) for n in range(self.recorded.slots)}
        assert at_work == wanted


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_no_key_is_worked_on_twice_and_every_key_is_in_the_end_whatever_the_slots(first: int) -> None:
    generations = set()
    for seed in range(first, first + 100):
        world = Walk(seed)
        for _ in range(MOST_STEPS):
            world.step()
        generations.add(world.recorded.generation)
        world.come_to_rest()
    assert generations >= {2, 3, 4}, "the walks do not come far"


@pytest.mark.parametrize("first", range(0, 200, 100))
def test_a_group_goes_over_to_partitions_and_goes_on_plainly_and_no_key_is_worked_on_twice(
    first: int,
) -> None:
    left = 0
    for seed in range(first, first + 100):
        world = Walk(seed)
        world.returns = True
        for _ in range(MOST_STEPS):
            world.step()
        left += world.recorded.left
        world.come_to_rest()
    assert 10 < left < 90, "the walks do not come far, or no operator is ever gone"


class Trace(Walk):
    """One walk, step by step. The topic has one slot first, and ``a`` works on it; ``b`` is away."""

    def __init__(self, *without: str) -> None:
        super().__init__(0, *without)
        self.a, self.b, self.c = self.group = [Member(name, self) for name in "abc"]
        self.joins(self.a)
        self.works(self.a)

    def _assign(self, place: PhysicalPartition, able: list[Member]) -> None:
        """Give everything to whoever joined first; what ``a`` has moves to ``b`` where that can have it."""
        owner = next((member for member in self.group if place in member.has), None)
        if owner is None or (owner in able and not (owner is self.a and self.b in able)):
            self._assigned[place] = (owner or able[0]).name

    def joins(self, member: Member) -> None:
        member.follow()
        member.release()
        self.rebalance()

    def works(self, member: Member) -> None:
        for place in sorted(member.has):
            member.look(place)
            member.begin(place)
        self.check()

    def changes(self, *known_to: Member, settled: bool = True) -> None:
        """The number of slots is changed, and these see each of the records at once."""
        self.operate()
        for member in known_to:
            member.refresh()
        self.now += LEASE + MARGIN
        for _ in range(settled):
            self.operate()
            for member in known_to:
                member.refresh()


def an_old_view_comes_back(world: Trace) -> None:
    """``a`` has gone over to the new slots. ``b`` has not seen the control topic since before the change."""
    world.changes(world.a)
    world.joins(world.a)
    world.works(world.a)
    world.joins(world.b)
    world.works(world.b)


def the_change_is_seen_late(world: Trace) -> None:
    """No operator settles it. ``a`` has known it for a lease, ``b`` sees it only now."""
    world.changes(world.a, settled=False)
    world.a.refresh()
    world.joins(world.a)
    world.works(world.a)
    world.b.refresh()
    world.joins(world.b)
    world.works(world.b)


def a_view_is_fresh_and_has_not_got_the_change(world: Trace) -> None:
    """``b`` has read the control topic just before the change."""
    world.b.refresh()
    world.operate()
    world.a.refresh()
    world.joins(world.a)
    world.works(world.a)
    world.joins(world.b)
    world.works(world.b)


def another_is_not_that_far(world: Trace) -> None:
    """``a`` works on a former slot when ``c`` has new ones."""
    world.changes(world.c)
    world.joins(world.c)
    world.works(world.c)


def a_former_slot_moves(world: Trace) -> None:
    """Between two rebalances nobody is named for it, and ``a`` works on it still; ``c`` has new ones."""
    world.changes(world.c)
    for member in (world.b, world.c):
        member.follow()
    world.rebalance()
    assert world.a.leaving and not world.members().assigned.keys() & world.a.leaving
    world.operate()
    world.c.refresh()
    world.works(world.c)


def an_operator_sleeps_before_its_record(world: Trace) -> None:
    """It would settle the change. Others do that, finish it and change the number again; ``a`` goes along."""
    world.changes(world.a, settled=False)
    world.fall_asleep()
    world.operate()
    world.a.refresh()
    world.joins(world.a)
    world.works(world.a)
    world.operate()
    world.changes(world.a)
    world.joins(world.a)
    world.works(world.a)
    assert world.recorded.generation == 3 and world.a.begun
    world.wake()
    world.b.refresh()
    world.joins(world.b)
    world.works(world.b)


def the_group_is_plain_when_an_old_view_comes_back(world: Trace) -> None:
    """``a`` has gone over to the partition, and commits plainly. ``b`` knows only that it is shared whole."""
    world.returns = True
    world.changes(world.a, world.b)
    world.joins(world.a)
    world.works(world.a)
    world.operate()
    world.a.refresh()
    world.now += LEASE + MARGIN
    world.operate()
    world.a.refresh()
    world.joins(world.a)
    world.works(world.a)
    assert world.recorded.left and world.a.modes[PARENT] is Mode.PLAIN and world.a.begun
    world.a.leave()
    world.a.release()
    world.joins(world.b)
    assert PARENT in world.b.has
    world.works(world.b)


def nothing_takes_the_partition_away(world: Trace) -> None:
    """The topic that is subscribed to stays the same when the topic is shared plainly."""
    world.returns = True
    world.changes(world.a)
    world.joins(world.a)
    world.works(world.a)
    assert world.a.modes[PARENT] is Mode.WHOLE
    world.changes(world.a)
    world.joins(world.a)
    world.works(world.a)
    assert world.a.modes[PARENT] is Mode.PLAIN and world.a.begun, "it works on with commits of before"


@pytest.mark.parametrize(
    ("guard", "trace"),
    [
        ("fresh", an_old_view_comes_back),
        ("begins", the_change_is_seen_late),
        ("lease", a_view_is_fresh_and_has_not_got_the_change),
        ("former", another_is_not_that_far),
        ("kept", a_former_slot_moves),
        ("operator", a_former_slot_moves),
        ("fence", an_operator_sleeps_before_its_record),
        ("fresh", the_group_is_plain_when_an_old_view_comes_back),
        ("over", nothing_takes_the_partition_away),
    ],
)
def test_each_guard_is_needed(guard: str, trace: Callable[[Trace], None]) -> None:
    trace(Trace())
    with pytest.raises(AssertionError, match="works on"):
        trace(Trace(guard))
