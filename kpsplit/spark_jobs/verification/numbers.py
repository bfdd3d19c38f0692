"""Sets of sequence numbers as bits, and runs of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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


def minus(runs: Iterable[Run], others: Iterable[Run]) -> list[Run]:
    """Return the rising runs of numbers that are in the first ones and not in the others, which rise too."""
    found: list[Run] = []
    rest = list(others)
    at = 0
    for first, last in runs:
        while at < len(rest) and rest[at][1] < first:
            at += 1
        begin, i = first, at
        while i < len(rest) and rest[i][0] <= last:
            if begin < rest[i][0]:
                found.append((begin, rest[i][0] - 1))
            begin, i = rest[i][1] + 1, i + 1
        if begin <= last:
            found.append((begin, last))
    return found


def split_at(runs: Iterable[Run], number: int) -> tuple[list[Run], list[Run]]:
    """Return what of runs is below a number, and what is not."""
    below, rest = [], []
    for first, last in runs:
        if first < number:
            below.append((first, min(last, number - 1)))
        if last >= number:
            rest.append((max(first, number), last))
    return below, rest
