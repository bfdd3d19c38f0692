"""What is known of one producer's sequence numbers in one logical partition when a run ends. Pure.

Numbers below ``next`` are accounted for (there as data, failed, of an aborted transaction), save the open and
the gone ones. Open numbers are decided by a later run: they arrive, or the producer's certificate says that
they failed, or it says that they did not: then they are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kpsplit.spark_jobs.verification.numbers import BUCKET, Run, bits_of, size, united

_ALL = (1 << BUCKET) - 1


@dataclass(frozen=True, slots=True)
class Held:
    """A producer's data in one segment: how many records, their least and greatest number."""

    records: int
    first: int
    last: int

    def with_more(self, other: Held) -> Held:
        """Return both together."""
        return Held(self.records + other.records, min(self.first, other.first), max(self.last, other.last))


@dataclass(frozen=True, slots=True)
class Ledger:
    """One producer in one partition. Runs of numbers rise.

    Attributes:
        next: the number behind the greatest that is known to be given.
        fresh: open since the last run: they may have been under way.
        doubted: open for longer, and told as not provable.
        gone: told as lost, or as not to be judged any more.
        strays: open numbers that went astray.
        doubtful: its certificate's counts cannot be compared: numbers were lost, there more than once, or of
            aborted transactions.
        closed: judged with its certificate.
        segments: its data by segment id.
        open: what a later run has to decide: fresh, doubted and strays.
    """

    next: int = 0
    fresh: tuple[Run, ...] = ()
    doubted: tuple[Run, ...] = ()
    gone: tuple[Run, ...] = ()
    strays: tuple[Run, ...] = ()
    doubtful: bool = False
    closed: bool = False
    segments: Mapping[int, Held] = field(default_factory=dict)
    open: tuple[Run, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Sort the open numbers once: they are asked for bucket by bucket."""
        object.__setattr__(self, "open", tuple(united(self.fresh, self.doubted, self.strays)))

    def accounted(self, first: int, behind: int) -> int:
        """Return how many numbers in [first, behind) need not be looked for."""
        end = min(behind, self.next)
        return max(0, end - first) - size(self.open, first, end)

    def accounted_bits(self, bucket: int) -> int:
        """Return the numbers of a bucket that need not be looked for."""
        return self._below_next(bucket) & ~bits_of(self.open, bucket)

    def present_bits(self, bucket: int) -> int:
        """Return the numbers of a bucket that must not come again."""
        return self.accounted_bits(bucket) & ~bits_of(self.gone, bucket)

    def _below_next(self, bucket: int) -> int:
        there = min(max(self.next - bucket * BUCKET, 0), BUCKET)
        return _ALL >> (BUCKET - there)


def together(known: Ledger, more: Mapping[int, Held]) -> dict[int, Held]:
    """Return a producer's data by segment, with those that came since."""
    found = dict(known.segments)
    for segment, data in more.items():
        found[segment] = found[segment].with_more(data) if segment in found else data
    return found
