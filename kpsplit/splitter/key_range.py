"""Key hash and key ranges (protocol, section 2).

Integers and half-open intervals only: ``hi`` of the last range is the number 2**32, never "" or -1.

Slots: which key range of which partition one member of a group owns at a time (protocol, sections 1 and 10).

A slot is the r-th of R equal key ranges of partition p. The slots topic ``__kpsplit.slots.<topic>`` has one
partition per slot, numbered p * R + r: neighbouring numbers are neighbouring key ranges, so an assignor that
deals out contiguous numbers gives each member key ranges of few partitions. R is fixed per topic.

Boundaries from an observed distribution of keys (protocol, section 7.1, step 0), by ``balanced``.

The boundaries are the best there are for the sample: no other ones have a smaller greatest share. Within that
share each range is then brought near to the even share, from the left to the right. A cut lies half-way
between the two observed hashes beside it, so that keys that were not seen are shared fairly.

When a split is *useful*. One key hash cannot be divided, so the range that takes a hot one stays hot. A split
is not useful when its most loaded range keeps more than half of the load, because then it stays more loaded
than all other ranges together and less than half was gained. With two ranges half is the even share already,
so there the limit is 60 % (``usefulness_limit``). The reason names the heaviest hash of that range.

With fewer than ``MIN_SAMPLES_PER_RANGE`` samples per range the observation says nothing: the ranges are even,
the reason says so, and the split is not called useless.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from zlib import crc32

from kpsplit.errors import UsageError

KEY_SPACE = 1 << 32
"""The size of the key space: key hashes are the integers in [0, KEY_SPACE)."""

MULTIPLIER = 1640531527
"""Odd, so the product is a permutation of the key space; moves CRC-32's low bits into the high ones."""

_SHOWN = 60
_RANGE = re.compile(r"(0[xX])?([0-9a-fA-F]{1,9}):(0[xX])?([0-9a-fA-F]{1,9})")


def key_hash(key: bytes) -> int:
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
    """Return a number of slots per partition; UsageError if it is not from 1 to MAX_SLOTS."""
    if not 1 <= slots <= MAX_SLOTS:
        raise UsageError(f"{slots} slots per partition: not a number from 1 to {MAX_SLOTS}")
    return slots


def slot_range(index: int, slots: int) -> KeyRange:
    """Return the key range of the index-th of ``slots`` slots; their widths differ by at most one."""
    if not 0 <= index < slots:
        raise UsageError(f"there is no slot {index} among {slots}")
    return KeyRange(KEY_SPACE * index // slots, KEY_SPACE * (index + 1) // slots)


def slot_index(hash_: int, slots: int) -> int:
    return ((hash_ + 1) * slots - 1) // KEY_SPACE


def slot_number(partition: int, index: int, slots: int) -> int:
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


MIN_RANGES, MAX_RANGES = 2, 64
"""Into how few and how many ranges one split divides a segment."""

MIN_SAMPLES_PER_RANGE = 10
"""Fewer samples than this, times the number of ranges, are no basis for boundaries."""

HEAVIEST_SHOWN = 10
"""How many of the heaviest hashes a sizing names."""


@dataclass(frozen=True, slots=True)
class HeavyHash:
    """A key hash, its share of the load in the divided range (0..1), and the key as people know it."""

    hash: int
    share: float
    label: str | None = None

    def __str__(self) -> str:
        """Return ``8d3c2a11 (customer-17)``, or the hash alone where the key is not known."""
        return f"{self.hash:08x} ({self.label})" if self.label else f"{self.hash:08x}"


@dataclass(frozen=True, slots=True)
class Sizing:
    """How a key range is divided, and what that is predicted to do.

    ``shares`` has the predicted share of the load of each range (0..1, they add up to 1). ``heaviest`` has
    the heaviest hashes, heaviest first. ``samples`` is how many samples lay in the range. ``reason`` says why
    the split is not useful, or that the sample is too small; empty otherwise.
    """

    ranges: tuple[KeyRange, ...]
    shares: tuple[float, ...]
    heaviest: tuple[HeavyHash, ...]
    samples: int
    useful: bool
    reason: str = ""

    @property
    def balance(self) -> float:
        """The greatest share in units of the even share: 1.0 is perfect, ``len(ranges)`` the worst."""
        return max(self.shares) * len(self.ranges)


def even_ranges(whole: KeyRange, parts: int) -> tuple[KeyRange, ...]:
    """Divide a range into 2 to 64 ranges of equal width; UsageError if there are too many for it."""
    if not MIN_RANGES <= parts <= MAX_RANGES:
        raise UsageError(f"cannot split into {parts} ranges", hint=f"choose {MIN_RANGES} to {MAX_RANGES}")
    return whole.split_evenly(parts)


def usefulness_limit(parts: int) -> float:
    return max(0.5, 1.2 / parts)


def balanced(
    samples: Iterable[tuple[int, int]],
    whole: KeyRange,
    parts: int,
    labels: Mapping[int, str] | None = None,
) -> Sizing:
    """Divide a range so that the greatest predicted share is as small as it can be.

    Args:
        samples: key hash and weight (records or bytes) of each sample; those outside the range, or without
            weight, do not count. Leave records that have no key out: they go to any range.
        whole: the range to divide.
        parts: into how many ranges, 2 to 64.
        labels: the keys of hashes, as text for people.

    Raises:
        UsageError: the number of ranges is out of bounds, the range too narrow, or a weight negative.
    """
    by_width = even_ranges(whole, parts)
    observed = _Histogram.of(samples, whole)
    if observed.samples < MIN_SAMPLES_PER_RANGE * parts:
        return _sizing(by_width, observed, labels)
    cuts = _best_cuts(observed, min(parts, len(observed.hashes)))
    bounds = [whole.lo, *(observed.halfway(i) for i in cuts), whole.hi]
    return _sizing(_padded(ranges_between(bounds), parts), observed, labels)


def assess(
    samples: Iterable[tuple[int, int]], ranges: Sequence[KeyRange], labels: Mapping[int, str] | None = None
) -> Sizing:
    """Predict what given ranges would do, e.g. even ones.

    Raises:
        UsageError: the ranges do not tile one range in rising order, or a weight is negative.
    """
    whole = union_of_adjacent(ranges)
    if whole is None or list(ranges) != sorted(ranges):
        raise UsageError("the ranges do not follow each other without hole or overlap")
    return _sizing(tuple(ranges), _Histogram.of(samples, whole), labels)


@dataclass(frozen=True, slots=True)
class _Histogram:
    """Observed weight per hash: rising hashes; ``before[i]`` is the weight of all hashes before the i-th."""

    hashes: tuple[int, ...]
    before: tuple[int, ...]
    samples: int

    @classmethod
    def of(cls, samples: Iterable[tuple[int, int]], whole: KeyRange) -> _Histogram:
        weights: dict[int, int] = {}
        count = 0
        for hash_, weight in samples:
            if weight < 0:
                raise UsageError(f"a sample has the weight {weight}")
            if weight and hash_ in whole:
                weights[hash_] = weights.get(hash_, 0) + weight
                count += 1
        hashes = tuple(sorted(weights))
        return cls(hashes, tuple(accumulate((weights[h] for h in hashes), initial=0)), count)

    @property
    def total(self) -> int:
        return self.before[-1]

    def weight(self, index: int) -> int:
        return self.before[index + 1] - self.before[index]

    def halfway(self, index: int) -> int:
        return (self.hashes[index - 1] + self.hashes[index] + 1) // 2

    def load(self, range_: KeyRange) -> int:
        first, end = (bisect_right(self.hashes, bound - 1) for bound in (range_.lo, range_.hi))
        return self.before[end] - self.before[first]


def _reach(observed: _Histogram, start: int, limit: int) -> int:
    """Return the index after the last hash that a group from ``start`` takes without passing the limit."""
    return bisect_right(observed.before, observed.before[start] + limit) - 1


def _fits(observed: _Histogram, parts: int, limit: int) -> bool:
    """Return whether so many groups, none above the limit, take all hashes."""
    at = 0
    for _ in range(parts):
        at = _reach(observed, at, limit)
    return at == len(observed.hashes)


def _least_greatest_load(observed: _Histogram, parts: int) -> int:
    """Return the smallest limit that so many groups can keep (binary search; integers, so exact)."""
    low = max(observed.weight(i) for i in range(len(observed.hashes)))
    high = observed.total
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(observed, parts, middle) else (middle + 1, high)
    return low


def _best_cuts(observed: _Histogram, parts: int) -> list[int]:
    """Return the indexes of the hashes that begin the second and each later of ``parts`` non-empty groups."""
    limit = _least_greatest_load(observed, parts)
    earliest = _earliest_starts(observed, parts, limit)
    cuts: list[int] = []
    start = 0
    for left in range(parts - 1, 0, -1):
        low = max(start + 1, earliest[left])
        high = min(_reach(observed, start, limit), len(observed.hashes) - left)
        start = _nearest_to_even(observed, start, left + 1, low, high)
        cuts.append(start)
    return cuts


def _earliest_starts(observed: _Histogram, parts: int, limit: int) -> list[int]:
    """Return for each number of groups the first index from which they can take the rest within the limit."""
    starts = [len(observed.hashes)]
    for _ in range(parts):
        needed = observed.before[starts[-1]] - limit
        starts.append(max(0, bisect_right(observed.before, needed - 1)))
    return starts


def _nearest_to_even(observed: _Histogram, start: int, groups: int, low: int, high: int) -> int:
    """Return the end of a group, from low to high, that comes nearest to its even share of what is left."""
    wanted = observed.before[start] + (observed.total - observed.before[start]) / groups
    above = min(max(bisect_right(observed.before, wanted), low), high)
    below = max(above - 1, low)
    return min((below, above), key=lambda i: abs(observed.before[i] - wanted))


def _padded(ranges: Sequence[KeyRange], parts: int) -> tuple[KeyRange, ...]:
    """Halve the widest range until there are enough: fewer hashes than ranges were seen."""
    padded = list(ranges)
    while len(padded) < parts:
        widest = max(range(len(padded)), key=lambda i: padded[i].width)
        padded[widest : widest + 1] = padded[widest].split_evenly(2)
    return tuple(padded)


def _sizing(ranges: tuple[KeyRange, ...], observed: _Histogram, labels: Mapping[int, str] | None) -> Sizing:
    useful, reason = _verdict(ranges, observed, labels)
    top = sorted(range(len(observed.hashes)), key=lambda i: (-observed.weight(i), observed.hashes[i]))
    return Sizing(
        ranges=ranges,
        shares=_shares(ranges, observed),
        heaviest=tuple(_heavy(observed, i, labels) for i in top[:HEAVIEST_SHOWN]),
        samples=observed.samples,
        useful=useful,
        reason=reason,
    )


def _shares(ranges: Sequence[KeyRange], observed: _Histogram) -> tuple[float, ...]:
    """Return the observed shares; with nothing observed, keys are taken to be spread evenly."""
    if not observed.total:
        width = sum(r.width for r in ranges)
        return tuple(r.width / width for r in ranges)
    return tuple(observed.load(r) / observed.total for r in ranges)


def _verdict(
    ranges: Sequence[KeyRange], observed: _Histogram, labels: Mapping[int, str] | None
) -> tuple[bool, str]:
    parts = len(ranges)
    if observed.samples < MIN_SAMPLES_PER_RANGE * parts:
        found = (
            f"only {observed.samples} samples for {parts} ranges" if observed.samples else "no records yet"
        )
        return True, f"{found}: too few to show how the load is spread; boundaries do not follow it"
    hottest = max(ranges, key=observed.load)
    if observed.load(hottest) <= usefulness_limit(parts) * observed.total:
        return True, ""
    inside = (i for i, h in enumerate(observed.hashes) if h in hottest)
    heavy = _heavy(observed, max(inside, key=observed.weight), labels)
    kept = observed.load(hottest) / observed.total * 100
    reason = f"cannot be split usefully: key hash {heavy} has {heavy.share * 100:.0f} %"
    return False, f"{reason}, its range keeps {kept:.0f} %"


def _heavy(observed: _Histogram, index: int, labels: Mapping[int, str] | None) -> HeavyHash:
    hash_ = observed.hashes[index]
    return HeavyHash(hash_, observed.weight(index) / observed.total, (labels or {}).get(hash_))
