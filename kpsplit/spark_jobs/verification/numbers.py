"""Sets of sequence numbers as bits, and runs of them. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

BUCKET = 64
_ALL = (1 << BUCKET) - 1

Run = tuple[int, int]
"""Numbers from the first to the last, both included."""


def unsigned(bits: int) -> int:
    """Return a signed 64-bit integer's bits as a number that is not negative."""
    return bits & _ALL


def members(bucket: int, bits: int) -> Iterator[int]:
    """Yield the numbers of a bucket that the bits name, rising."""
    rest = unsigned(bits)
    while rest:
        lowest = rest & -rest
        yield bucket * BUCKET + lowest.bit_length() - 1
        rest ^= lowest


def missing(first: int, behind: int, present: Mapping[int, int], excused: frozenset[int]) -> list[Run]:
    """Return the runs of numbers in [first, behind) that are neither present nor excused.

    Args:
        first: the first number.
        behind: the number behind the last.
        present: bits by bucket; a bucket that is not named is empty.
        excused: numbers that need not be there.
    """
    found: list[Run] = []
    for bucket in range(first // BUCKET, -(-behind // BUCKET)):
        begin, end = max(first, bucket * BUCKET), min(behind, (bucket + 1) * BUCKET)
        bits = unsigned(present.get(bucket, 0))
        if bits == 0 and excused.isdisjoint(range(begin, end)):
            found.append((begin, end - 1))
        elif bits != _ALL:
            absent = members(bucket, ~bits & _ALL)
            found.extend((n, n) for n in absent if begin <= n < end and n not in excused)
    return joined(found)


def joined(runs: Iterable[Run]) -> list[Run]:
    """Return rising runs with neighbours made one."""
    found: list[Run] = []
    for first, last in runs:
        if found and found[-1][1] + 1 >= first:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def common(runs: Iterable[Run], others: Iterable[Run]) -> list[Run]:
    """Return the rising runs of numbers that are in both."""
    return _sweep(runs, others, inside=True)


def minus(runs: Iterable[Run], others: Iterable[Run]) -> list[Run]:
    """Return the rising runs of numbers that are in the first ones and not in the others."""
    return _sweep(runs, others, inside=False)


def united(*several: Iterable[Run]) -> list[Run]:
    """Return the rising runs of numbers that are in any of them."""
    return joined(sorted(run for runs in several for run in runs))


def _sweep(runs: Iterable[Run], others: Iterable[Run], inside: bool) -> list[Run]:
    found: list[Run] = []
    rest = list(others)
    at = 0
    for first, last in runs:
        while at < len(rest) and rest[at][1] < first:
            at += 1
        begin, i = first, at
        while i < len(rest) and rest[i][0] <= last:
            low, high = max(rest[i][0], first), min(rest[i][1], last)
            if inside:
                found.append((low, high))
            elif begin < low:
                found.append((begin, low - 1))
            begin, i = high + 1, i + 1
        if not inside and begin <= last:
            found.append((begin, last))
    return found


def within(runs: Sequence[Run], first: int, behind: int) -> Iterator[Run]:
    """Yield what of rising runs lies in [first, behind), without a look at what lies before or behind it."""
    for i in range(bisect_left(runs, first, key=itemgetter(1)), len(runs)):
        low, high = runs[i]
        if low >= behind:
            return
        yield max(low, first), min(high, behind - 1)


def size(runs: Sequence[Run], first: int, behind: int) -> int:
    """Return how many numbers of the rising runs lie in [first, behind)."""
    return sum(high - low + 1 for low, high in within(runs, first, behind))


def bits_of(runs: Sequence[Run], bucket: int) -> int:
    """Return the numbers of the rising runs that lie in a bucket, as bits."""
    low = bucket * BUCKET
    bits = 0
    for first, last in within(runs, low, low + BUCKET):
        bits |= ((1 << (last - first + 1)) - 1) << (first - low)
    return bits
