"""Slots: which key range of which partition one member of a group owns at a time (design, sections 1 and 10).

A slot is the r-th of R equal key ranges of partition p. The slots topic ``__kpsplit.slots.<topic>`` has one
partition per slot, numbered p * R + r: neighbouring numbers are neighbouring key ranges, so an assignor that
deals out contiguous numbers gives each member key ranges of few partitions. R is fixed per topic.
"""

from __future__ import annotations

from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import KEY_SPACE, KeyRange

MAX_SLOTS = 64
"""The greatest number of slots of one partition."""

_WANTED = 256
"""How many partitions a slots topic should have: enough to share, few enough for a coordinator."""

_POWERS = (1, 2, 4, 8, 16, 32, 64)


def default_slots(partitions: int) -> int:
    """Return the power of two, at most MAX_SLOTS, that brings ``partitions`` times it nearest to 256."""
    return min(_POWERS, key=lambda slots: _ratio(partitions * slots))


def check_slots(slots: int) -> int:
    """Return a number of slots per partition that is in bounds.

    Raises:
        UsageError: it is not between 1 and MAX_SLOTS.
    """
    if not 1 <= slots <= MAX_SLOTS:
        raise UsageError(f"{slots} slots per partition: not a number from 1 to {MAX_SLOTS}")
    return slots


def slot_range(index: int, slots: int) -> KeyRange:
    """Return the key range of the index-th of ``slots`` slots; their widths differ by at most one."""
    if not 0 <= index < slots:
        raise UsageError(f"there is no slot {index} among {slots}")
    return KeyRange(KEY_SPACE * index // slots, KEY_SPACE * (index + 1) // slots)


def slot_index(hash_: int, slots: int) -> int:
    """Return the index of the slot whose range holds a key hash."""
    return ((hash_ + 1) * slots - 1) // KEY_SPACE


def slot_number(partition: int, index: int, slots: int) -> int:
    """Return the partition of the slots topic that stands for a slot."""
    return partition * slots + index


def slot_at(number: int, slots: int) -> tuple[int, int]:
    """Return the logical partition's number and the slot's index for a partition of the slots topic."""
    return divmod(number, slots)


def without_slots(partitions: int, slots: int, slots_partitions: int) -> range:
    """Return the partitions of a topic that nobody can own: the topic has grown, its slots topic has not.

    Args:
        partitions: of the topic.
        slots: per partition.
        slots_partitions: how many partitions the slots topic has.
    """
    return range(min(partitions, slots_partitions // slots), partitions)


def unread_text(topic: str, partitions: range) -> str:
    """Say that partitions have no slots; there is at least one."""
    if len(partitions) == 1:
        return f"no group reads partition {partitions[0]} of topic {topic}: it has no slots"
    return (
        f"no group reads partitions {partitions[0]} to {partitions[-1]} of topic {topic}: they have no slots"
    )


def _ratio(total: int) -> float:
    return max(total / _WANTED, _WANTED / total)
