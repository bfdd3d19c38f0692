"""Judges the group: was every record worked on, in its key's order, and why did some come twice? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from kpsplit.demo.group.worked import NO_KEY, Worked
from kpsplit.splitter.lineage import Lineage

IN_HAND_SECONDS = 10.0
"""What a member worked on earlier than this before it was killed or suspended is committed."""


@dataclass(frozen=True, slots=True)
class Victim:
    """What took slots from a member: how that is called, and since when its work may not be committed."""

    what: str
    since: float


@dataclass(slots=True)
class GroupVerdict:
    """What became of the records in the group.

    ``redelivered``: records that came twice, by what explains it; ``shares``: records per member, those that
    came twice with them; ``unknown``: records that nobody else read.
    """

    records: int
    missing: int = 0
    unknown: int = 0
    out_of_order: int = 0
    unexplained: int = 0
    redelivered: Counter[str] = field(default_factory=Counter)
    shares: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        """Tell whether nothing was left out, put out of order or repeated without a reason."""
        return not (self.missing or self.unknown or self.out_of_order or self.unexplained)

    def __str__(self) -> str:
        """Return it in one line."""
        twice = ", ".join(f"{n:,} again after {why}" for why, n in sorted(self.redelivered.items()))
        told = (
            f"{self.records - self.missing:,} of {self.records:,} records worked on, "
            f"{self.out_of_order:,} out of order, {self.unexplained:,} repeated without a reason"
        )
        told += f", {self.unknown:,} that no reader saw" if self.unknown else ""
        return f"{told}; {twice}" if twice else told


class KeyOrder:
    """Knows which records of a key must come before which: along the lineage, and by offset in a segment.

    Siblings (a phantom, and the overflow into which a plain producer goes on writing) have no order.
    """

    def __init__(self, lineages: Iterable[Lineage]) -> None:
        self._ancestors = {
            (lineage.parent.partition, s.id): _ancestors(lineage, s.id)
            for lineage in lineages
            for s in lineage
        }
        self._latest: dict[tuple[int, int], dict[int, int]] = {}

    def keeps(self, entry: Worked) -> bool:
        """Take a record that is worked on for the first time; tell whether it comes in its order."""
        if entry.key_hash == NO_KEY:
            return True
        seen = self._latest.setdefault((entry.partition, entry.key_hash), {})
        late = entry.offset < seen.get(entry.segment, -1)
        late |= any(entry.segment in self._ancestors[entry.partition, other] for other in seen)
        seen[entry.segment] = max(entry.offset, seen.get(entry.segment, -1))
        return not late


def _ancestors(lineage: Lineage, segment: int) -> frozenset[int]:
    direct = lineage.get(segment).predecessors
    return frozenset(direct).union(*(_ancestors(lineage, before) for before in direct))


def judge(
    journals: Mapping[str, Iterable[Worked]],
    read: Mapping[int, Set[int]],
    lineages: Iterable[Lineage],
    victims: Mapping[str, Sequence[Victim]],
) -> GroupVerdict:
    """Look at all journals in the order of time.

    Args:
        journals: what each member worked on.
        read: the logical offsets that a fresh reader found, by logical partition.
        lineages: of all partitions.
        victims: what befell members: only what one of those had in hand may be worked on twice.
    """
    verdict = GroupVerdict(sum(len(offsets) for offsets in read.values()))
    order = KeyOrder(lineages)
    first_by: dict[tuple[int, int], tuple[str, float]] = {}
    entries = [(entry, name) for name, journal in journals.items() for entry in journal]
    for entry, member in sorted(entries, key=lambda found: found[0].at):  # stable: batches keep their order
        verdict.shares[member] += 1
        place = (entry.partition, entry.offset)
        if place in first_by:
            _repeated(verdict, (*first_by[place], member, entry.at), victims)
            continue
        first_by[place] = member, entry.at
        verdict.unknown += entry.offset not in read.get(entry.partition, ())
        verdict.out_of_order += not order.keeps(entry)
    verdict.missing = verdict.records - (len(first_by) - verdict.unknown)
    return verdict


def _repeated(
    verdict: GroupVerdict, both: tuple[str, float, str, float], victims: Mapping[str, Sequence[Victim]]
) -> None:
    """Count a record that came twice: who worked on it when, first and again."""
    first, first_at, again, again_at = both
    why = _excuse(victims.get(first, ()), first_at) or _excuse(victims.get(again, ()), again_at)
    if why is None:
        verdict.unexplained += 1
    else:
        verdict.redelivered[why] += 1


def _excuse(victims: Sequence[Victim], at: float) -> str | None:
    return next((victim.what for victim in victims if at >= victim.since), None)
