"""Key hash and key ranges (protocol, section 2).

Integers and half-open intervals only: ``hi`` of the last range is the number 2**32, never "" or -1.

Slots: which key range of which partition one member of a group owns at a time (protocol, sections 1 and 10).

A slot is the r-th of R equal key ranges of partition p. The slots topic ``__kpsplit.slots.<topic>`` has one
partition per slot, numbered p * R + r: neighbouring numbers are neighbouring key ranges, so an assignor that
deals out contiguous numbers gives each member key ranges of few partitions. R is fixed per topic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

from kpsplit.errors import UsageError

KEY_SPACE = 1 << 32
"""The size of the key space: key hashes are the integers in [0, KEY_SPACE)."""

MULTIPLIER = 1640531527
"""Odd, so the product is a permutation of the key space; moves CRC-32's low bits into the high ones."""

_SHOWN = 60
_RANGE = re.compile(r"(0[xX])?([0-9a-fA-F]{1,9}):(0[xX])?([0-9a-fA-F]{1,9})")


def key_hash(key: bytes) -> int:
    """Return the key hash of a key: ``crc32(key) * 1640531527 mod 2**32``."""
    return crc32(key) * MULTIPLIER & 0xFFFFFFFF


def keyless_hash(physical_offset: int) -> int:
    """Return the key hash by which a *reader* places a record that has no key: that of its offset."""
    return key_hash(physical_offset.to_bytes(8, "big"))


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """The half-open interval [lo, hi) of the key space, never empty."""

    lo: int
    hi: int

    def __post_init__(self) -> None:
        """Refuse what is not an interval of the key space."""
        if not 0 <= self.lo < self.hi <= KEY_SPACE:
            raise UsageError(
                f"{self.lo:x}:{self.hi:x} is not a range of the key space",
                hint="a range lies between 0 and 100000000, and lo is less than hi",
            )

    def __contains__(self, hash_: int) -> bool:
        """Return whether a key hash lies in the range."""
        return self.lo <= hash_ < self.hi

    def __str__(self) -> str:
        """Return the form that people read and type: ``00000000:40000000``."""
        return f"{self.lo:08x}:{self.hi:08x}"

    @property
    def width(self) -> int:
        """How many key hashes the range holds."""
        return self.hi - self.lo

    def covers(self, other: KeyRange) -> bool:
        """Return whether the other range lies wholly inside this one."""
        return self.lo <= other.lo and other.hi <= self.hi

    def overlaps(self, other: KeyRange) -> bool:
        """Return whether the ranges share a key hash."""
        return self.lo < other.hi and other.lo < self.hi

    def split_evenly(self, parts: int) -> tuple[KeyRange, ...]:
        """Divide the range into ``parts`` ranges whose widths differ by at most one."""
        if not 1 <= parts <= self.width:
            raise UsageError(f"cannot divide {self} into {parts} ranges")
        cuts = [self.lo + self.width * i // parts for i in range(parts + 1)]
        return ranges_between(cuts)

    @classmethod
    def parse(cls, text: str) -> KeyRange:
        """Read ``lo:hi`` in hexadecimal, with or without 0x (``40000000:80000000``).

        Raises:
            UsageError: the text is not such a range.
        """
        match = _RANGE.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"{text[:_SHOWN]!r} is not a key range",
                hint="write lo:hi in hexadecimal, e.g. 40000000:80000000",
            )
        return cls(int(match[2], 16), int(match[4], 16))


WHOLE = KeyRange(0, KEY_SPACE)
"""The whole key space."""


def ranges_between(cuts: Sequence[int]) -> tuple[KeyRange, ...]:
    """Return the ranges between consecutive cuts."""
    return tuple(KeyRange(a, b) for a, b in pairwise(cuts))


def is_row(ranges: Sequence[KeyRange]) -> bool:
    """Return whether each range begins where the one before it ends."""
    return all(a.hi == b.lo for a, b in pairwise(ranges))


def uncovered(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Return what ranges, overlapping or not, leave of the key space, in order."""
    left: list[KeyRange] = []
    at = WHOLE.lo
    for range_ in sorted(ranges):
        if at < range_.lo:
            left.append(KeyRange(at, range_.lo))
        at = max(at, range_.hi)
    if at < WHOLE.hi:
        left.append(KeyRange(at, WHOLE.hi))
    return left


def union_of_adjacent(ranges: Iterable[KeyRange]) -> KeyRange | None:
    """Return the one range that the given ones tile without hole or overlap, or None if they do not."""
    ordered = sorted(ranges)
    if not ordered or not is_row(ordered):
        return None
    return KeyRange(ordered[0].lo, ordered[-1].hi)


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
