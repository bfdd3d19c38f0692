"""The slots that a member holds, and how far each has come. Owned by the engine's thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from kpsplit.consumer.group.subscriptions import Mode
from kpsplit.consumer.slots.owned_slot import OwnedSlot
from kpsplit.consumer.slots.pieces import PieceProgress
from kpsplit.splitter.cursor import Cursor
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import Lineage, PhysicalPartition

EARLIEST: Literal["earliest"] = "earliest"
AssignedOffset = Cursor | Literal["earliest"]
"""A place, or wherever the partition begins when it is asked for: retention moves that."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A slot whose start is asked for; ``given``: where its partition begins if the group has no commit.

    ``shared``: other members of the group may have read the partition as a whole until now. ``reset``: its
    committed offset is of no use, it begins at ``auto.offset.reset``.
    """

    lineage: Lineage
    mode: Mode
    range: KeyRange
    given: AssignedOffset | None = None
    shared: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True)
class SlotStart:
    """Where a slot starts: one cursor per piece that was committed on its own.

    ``stale``: the commits are of a newer lineage than the view's. ``committed``: the log says so already.
    """

    pieces: tuple[Cursor, ...]
    stale: bool = False
    committed: bool = False


class SlotStage(StrEnum):
    """What is done for a slot."""

    WANTED = "wanted"
    """Its start is not asked for yet."""
    ASKED = "asked"
    """Its start is being looked up."""
    FOUND = "found"
    """Its start is known; the application is told first."""
    READING = "reading"
    HELD = "held"
    """Nothing is handed out: its topic is not shared by partition any more, or that is not known yet."""
    LEAVING = "leaving"
    """It is taken away: nothing more is handed out."""
    STOPPED = "stopped"
    """It has no start, and the application has not given one."""


STARTING = frozenset({SlotStage.WANTED, SlotStage.ASKED, SlotStage.FOUND})
"""The sink does not know these yet."""

IN_SINK = frozenset({SlotStage.READING, SlotStage.HELD, SlotStage.LEAVING})


@dataclass(slots=True)
class AssignedSlot:
    """One slot of this member.

    ``place`` is the partition of the group's topic that stands for it. ``committed``: what the group's log
    says of it, as far as this member knows; empty while nothing was committed. ``final``: it is taken away,
    its last commit was asked for, and none begins after that. ``moves``: how often the application moved it
    to where the group may have been before; ``sought``: which of these moves was the last seek;
    ``moves_told``: how many of them commits tell of. ``reset``: its offset is outside the log, and it begins
    anew at ``auto.offset.reset`` when what was read of it is processed. ``ahead``: what its pieces had
    processed, until reading has caught up with the furthest. ``stored``: what ``store_offsets`` said, where
    records do not count as processed by themselves.
    """

    slot: OwnedSlot
    place: PhysicalPartition
    mode: Mode
    stage: SlotStage = SlotStage.WANTED
    start: SlotStart | None = None
    committed: tuple[Cursor, ...] = ()
    by_hand: bool = False
    final: bool = False
    moves: int = 0
    sought: int = 0
    moves_told: int = 0
    reset: bool = False
    ahead: PieceProgress | None = None
    stored: tuple[Cursor, ...] | None = None

    @property
    def parent(self) -> PhysicalPartition:
        """The logical partition."""
        return self.slot.parent


class AssignedSlots:
    """All slots of this member."""

    def __init__(self) -> None:
        self._by_slot: dict[OwnedSlot, AssignedSlot] = {}
        self._ordered: tuple[AssignedSlot, ...] = ()

    def __iter__(self) -> Iterator[AssignedSlot]:
        """Iterate over a snapshot, in the order of the slots."""
        return iter(self._ordered)

    def __len__(self) -> int:
        """Return how many slots are held."""
        return len(self._by_slot)

    def __contains__(self, slot: object) -> bool:
        """Tell whether a slot is held."""
        return slot in self._by_slot

    def __getitem__(self, slot: OwnedSlot) -> AssignedSlot:
        """Return an assigned slot."""
        return self._by_slot[slot]

    def among(self, slots: Iterable[OwnedSlot]) -> Iterator[AssignedSlot]:
        """Iterate over those of some slots that are assigned."""
        return (self._by_slot[slot] for slot in slots if slot in self._by_slot)

    def add(self, assigned_slots: Iterable[AssignedSlot]) -> None:
        """Hold slots."""
        self._by_slot.update({h.slot: h for h in assigned_slots})
        self._order()

    def remove(self, assigned_slots: Iterable[AssignedSlot]) -> None:
        """Hold them no more."""
        for assigned in assigned_slots:
            self._by_slot.pop(assigned.slot, None)
        self._order()

    def _order(self) -> None:
        self._ordered = tuple(self._by_slot[slot] for slot in sorted(self._by_slot))

    def at(self, places: Iterable[PhysicalPartition]) -> list[AssignedSlot]:
        """Return the slots that stand at partitions of the group's topics."""
        wanted = set(places)
        return [h for h in self if h.place in wanted]

    def of(self, parent: PhysicalPartition) -> list[AssignedSlot]:
        """Return the slots of a logical partition."""
        return [h for h in self if h.parent == parent]

    def on(self, stages: Iterable[SlotStage]) -> list[AssignedSlot]:
        """Return the slots in some stages."""
        wanted = frozenset(stages)
        return [h for h in self._ordered if h.stage in wanted]

    def any_on(self, stages: frozenset[SlotStage]) -> bool:
        """Tell whether a slot is in one of some stages."""
        return any(h.stage in stages for h in self._ordered)

    def parents(self) -> tuple[PhysicalPartition, ...]:
        """Return the logical partitions of which a slot is held, in order."""
        return tuple(sorted({h.parent for h in self._by_slot.values()}))


class AssignedOffsets:
    """Where partitions begin for a program that keeps its positions itself and gives them in on_assign. Pure.

    What it gave is of the whole logical partition, whichever of its slots were there. So it holds for slots
    that arrive later too, for which on_assign is not called, where the group has no commit of them: in the
    place of ``auto.offset.reset``, which might pass over what nobody has read. (A commit is somebody's
    progress since then, and never goes back.) A program that is asked again gives anew.

    Owned by the engine's thread.
    """

    def __init__(self) -> None:
        self._starts: dict[PhysicalPartition, AssignedOffset] = {}

    def take(self, starts: Mapping[PhysicalPartition, AssignedOffset | None]) -> None:
        """Keep what on_assign gave; None leaves a partition to the group's commits."""
        self.forget(starts)
        self._starts.update({parent: start for parent, start in starts.items() if start is not None})

    def forget(self, parents: Iterable[PhysicalPartition]) -> None:
        """The program is asked again."""
        for parent in parents:
            self._starts.pop(parent, None)

    def start(self, parent: PhysicalPartition) -> AssignedOffset | None:
        """Return where a partition begins, None if the program gave nothing for it."""
        return self._starts.get(parent)
