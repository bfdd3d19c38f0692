"""How a group shares topics: what stands for the application's topics, and slots (protocol, section 10).

A topic that is not enrolled is subscribed to itself: each of its partitions is one slot, the whole key
space. Of an enrolled topic the *slots topic* is subscribed to, whose partitions are the slots. In between,
while an enrolment is not settled, the topic is subscribed to and nothing of it is handed out. The first owner
of a slot waits until no member has the partition itself any more (``GroupOffsets.starts``).
An enrolment is settled when its record says so, or when a member has known it for a lease: so no member
waits for an operator that died in between.

Another number of slots has a slots topic of its own. While that is not settled the former one is subscribed
to: what is read of it is read on, and nothing of it begins. Then an owner of a slot waits until no member has
one of the former slots of the partition. A topic that returns to plain clients takes the same way: each
partition as a whole is its new slot, until all that is committed is one ordinary offset.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import KeyRange, slot_range
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import Enrolment, SlotDivision

_OWN = "__kpsplit."


class Mode(StrEnum):
    """How a topic is shared among the members of a group."""

    PLAIN = "plain"
    """Not enrolled: by partition; ordinary commits are all there is."""
    MOVING = "moving"
    """The enrolment is not settled: nothing is handed out."""
    WHOLE = "whole"
    """Enrolled, and there is no slots topic: by partition, along the lineage, with range commits."""
    SLOTS = "slots"
    """Enrolled: by slot."""

    @property
    def plain(self) -> bool:
        return self is Mode.PLAIN


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A topic of the group. ``slots``: how many of its partitions make one logical partition.

    ``begins``: slots of it may begin. ``former``: the slots before these, which members may still have.
    """

    topic: str
    group_topic: str
    mode: Mode
    slots: int
    begins: bool = True
    former: SlotDivision | None = None

    @property
    def division(self) -> SlotDivision:
        return SlotDivision(self.group_topic, self.slots)

    def predecessors(self, partition: int) -> frozenset[PhysicalPartition]:
        """Return by what members may have read a partition until its slots, or it as a whole, began."""
        former = () if self.former is None else self.former.places(partition)
        if self.mode is not Mode.SLOTS:
            return frozenset(former)
        return frozenset({PhysicalPartition(self.topic, partition), *former})


@dataclass(frozen=True, slots=True, order=True)
class OwnedSlot:
    """The ``index``-th of ``slots`` equal key ranges of a logical partition, owned by a member."""

    parent: PhysicalPartition
    index: int
    slots: int

    def __str__(self) -> str:
        return f"{self.parent} {self.range}"

    @property
    def range(self) -> KeyRange:
        return slot_range(self.index, self.slots)


def subscribed(topic: str, enrolment: Enrolment | None, *, lease_over: bool = False) -> Subscribed:
    """Return what a member subscribes to; ``lease_over``: it has known the topic's enrolment for a lease."""
    if enrolment is None:
        return Subscribed(topic, topic, Mode.PLAIN, 1)
    former = enrolment.former
    if enrolment.slots is not None and (enrolment.settled or lease_over):
        return Subscribed(topic, enrolment.slots_topic, Mode.SLOTS, enrolment.slots, former=former)
    if enrolment.returning and (enrolment.settled or lease_over):
        return Subscribed(topic, topic, Mode.PLAIN if former is None else Mode.WHOLE, 1, former=former)
    if former is not None:
        return Subscribed(topic, former.topic, Mode.SLOTS, former.slots, begins=False)
    return Subscribed(topic, topic, Mode.WHOLE if enrolment.settled else Mode.MOVING, 1)


def group_topics(topic: str, enrolment: Enrolment | None) -> frozenset[str]:
    """Return the topics of which a group has partitions if its members read a topic."""
    divisions = () if enrolment is None else enrolment.divisions
    return frozenset({topic, *(division.topic for division in divisions)})


def resolve(wanted: Iterable[str], existing: Collection[str], hidden: Collection[str]) -> frozenset[str]:
    """Return the topics that names and ``^patterns`` stand for.

    Args:
        wanted: what the application subscribed to.
        existing: the cluster's topics; looked at for patterns only.
        hidden: sub-topics: a pattern never means them, or their records would be read twice.

    Raises:
        UsageError: a pattern is no regular expression, or an internal topic of kpsplit is named.
    """
    found: set[str] = set()
    for name in wanted:
        if name.startswith("^"):
            pattern = compiled(name)
            found |= {t for t in existing if pattern.match(t) and not t.startswith(_OWN) and t not in hidden}
        elif name.startswith(_OWN):
            raise UsageError(
                f"{name} is an internal topic of kpsplit", hint="subscribe to the application's topic"
            )
        else:
            found.add(name)
    return frozenset(found)


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a subscription's pattern; UsageError if it is not a regular expression."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"subscription pattern {pattern!r}: {error}") from None


def subtopics(states: Iterable[PartitionState]) -> frozenset[str]:
    return frozenset(t.name for s in states for t in s.subtopics)
