"""What the parts of the engine share. It belongs to the engine's thread, unless a part says otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kpsplit.consumer.broker_executor import BrokerExecutor, QueryClient
from kpsplit.consumer.commit.group_offsets import GroupOffsets
from kpsplit.consumer.commit.payload import TransactionParticipant
from kpsplit.consumer.commit.writes import CommitMember, LeaderEpochs
from kpsplit.consumer.config import ConsumerSettings
from kpsplit.consumer.events import Callback, Events
from kpsplit.consumer.fetch.batch import RecordSink
from kpsplit.consumer.fetch.gaps import Gap
from kpsplit.consumer.fetch.reader import SlotReader
from kpsplit.consumer.group.group_consumer import GroupConsumer
from kpsplit.consumer.group.states import Life
from kpsplit.consumer.metadata import Metadata
from kpsplit.consumer.slots.assigned import AssignedSlot, AssignedSlots
from kpsplit.consumer.slots.owned_slot import OwnedSlot
from kpsplit.consumer.slots.state_binding import StateBinding
from kpsplit.control.slots_topic import GrowingSlots
from kpsplit.errors import (
    KpsplitError,
)
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.lineage import Lineage, PhysicalPartition


@dataclass(frozen=True, slots=True)
class Notice:
    """A gap that the application is being told of; ``callback`` is None where it has no ``error_cb``.

    Then the log and the counts are all there is, and those were told at once.
    """

    parent: PhysicalPartition
    gap: Gap
    callback: Callback | None

    @property
    def told(self) -> bool:
        """Whether the application was told."""
        return self.callback is None or self.callback.done


@dataclass(slots=True)
class Context:
    """See the module. ``rebalances`` counts assignments; ``counts`` is what ``Consumer.stats()`` tells."""

    settings: ConsumerSettings
    group: GroupConsumer
    metadata: Metadata
    reader: SlotReader
    sink: RecordSink
    events: Events
    executor: BrokerExecutor
    query_client: QueryClient
    group_offsets: GroupOffsets
    growing: GrowingSlots
    state_binding: StateBinding = field(default_factory=StateBinding)
    life: Life = field(default_factory=Life)
    assigned_slots: AssignedSlots = field(default_factory=AssignedSlots)
    counts: Counter[str] = field(default_factory=Counter)
    assignment_epochs: Counter[OwnedSlot] = field(default_factory=Counter)
    """How often what was read and done of a slot was taken back: a commit asked for before that is void."""
    ends: dict[PhysicalPartition, int] = field(default_factory=dict)
    """Logical partitions that were read to their ends, with the offset there, until the application knows."""
    commit_metadata: dict[PhysicalPartition, tuple[int, str]] = field(default_factory=dict)
    """What the application gave along with an offset: it is committed with that offset, and no other."""
    notices: list[Notice] = field(default_factory=list)
    """Gaps after which reading has not gone on yet."""
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    torn: bool = False
    """Whether what is read and what is handed out may differ: an exception came between, or may do so now."""
    trouble: KpsplitError | None = None
    rebalances: int = 0
    participant: TransactionParticipant | None = None
    """What commits take along, while ``run(transactional=True)`` is under way."""
    run_stats: Callable[[], Mapping[str, Any] | None] = lambda: None
    """What ``run()`` has done, None while none is under way."""

    def internal_error(self) -> None:
        """Note that an exception that nobody expected ended something halfway."""
        self.torn = True
        self.counts["internal_errors"] += 1

    def lineage(self, parent: PhysicalPartition) -> Lineage:
        """Return the lineage of a logical partition in the view."""
        return self.metadata.state(parent).lineage

    def member(self) -> CommitMember:
        """Return who we are, for range commits."""
        return CommitMember(self.settings.group, self.group.memberid() or "", self.rebalances)

    def processed(self, assigned: AssignedSlot) -> tuple[Cursor, ...]:
        """Return how far a slot is processed, in the form that is committed."""
        if self.settings.auto_store:
            lineage = self.lineage(assigned.parent)
            return self.settled(assigned, self.sink.cursor(assigned.slot), lineage)
        return assigned.committed if assigned.stored is None else assigned.stored

    def settled(self, assigned: AssignedSlot, cursors: Any, lineage: Lineage) -> tuple[Cursor, ...]:
        """Return cursors of a slot in the form that is committed; never behind the pieces it began with."""
        ahead = assigned.ahead
        if ahead is None:
            return tuple(c.settled(lineage) for c in cursors)
        if ahead.caught_up(cursors, lineage):
            assigned.ahead = None
        return tuple(ahead.furthest(cursors, lineage))

    def forget(self, assigned_slots: list[AssignedSlot]) -> None:
        """Hold slots no more: everybody forgets them."""
        self.take_back(assigned_slots)
        self.assigned_slots.remove(assigned_slots)
        self.epochs.forget(self.assigned_slots.parents())
        for parent in {h.parent for h in assigned_slots}:
            self.commit_metadata.pop(parent, None)

    def metadata_of(self, offsets: Mapping[PhysicalPartition, int]) -> dict[PhysicalPartition, str]:
        """Return what the application gave along with these offsets."""
        given = self.commit_metadata
        return {p: given[p][1] for p, offset in offsets.items() if p in given and given[p][0] == offset}

    def take_back(self, assigned_slots: list[AssignedSlot]) -> None:
        """Forget what was read and done of slots since their last commit.

        The sink before the state, so that no record counts as processed whose state is gone.
        """
        slots = [h.slot for h in assigned_slots]
        self.reader.disown(slots)
        self.sink.dropped(slots)
        self.state_binding.left(slots)
        for assigned in assigned_slots:
            assigned.ahead = assigned.stored = None
            self.assignment_epochs[assigned.slot] += 1

    def unsaved(self, assigned: AssignedSlot, cursors: tuple[Cursor, ...]) -> bool:
        """Tell whether there is anything to commit of a slot that is processed up to there."""
        return bool(cursors) and (cursors != assigned.committed or self.state_binding.waits(assigned.slot))
