"""Which slot a member owns: a value that every part of the consumer names slots by."""

from __future__ import annotations

from dataclasses import dataclass

from kpsplit.splitter.key_range import KeyRange, slot_range
from kpsplit.splitter.lineage import PhysicalPartition


@dataclass(frozen=True, slots=True, order=True)
class OwnedSlot:
    """The ``index``-th of ``slots`` equal key ranges of a logical partition, owned by this member."""

    parent: PhysicalPartition
    index: int
    slots: int

    def __str__(self) -> str:
        """Return ``topic/partition`` with the key range."""
        return f"{self.parent} {self.range}"

    @property
    def range(self) -> KeyRange:
        """The slot's key range."""
        return slot_range(self.index, self.slots)
