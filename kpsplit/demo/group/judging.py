"""Judges the group: was every record worked on, in its key's order, and why did some come twice? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from kpsplit.demo.group.worked import NO_KEY, Worked
from kpsplit.splitter.lineage import Lineage

IN_HAND_SECONDS = 20.0
"""What a member worked on earlier than this before it was killed or suspended is committed."""
MOST_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Victim:
    """What took slots from a member: how that is called, and since when its work may not be committed."""

    what: str
    since: float


Excuse = Callable[[str, float], str | None]
"""What explains that a member's work at a point in time is done again; None if nothing does."""


def excused_by(victims: Mapping[str, Victim]) -> Excuse:
    """Return what explains repetitions where so much befell members."""

    def excuse(member: str, at: float) -> str | None:
        victim = victims.get(member)
        return victim.what if victim is not None and at >= victim.since else None

    return excuse


@dataclass(slots=True)
class GroupVerdict:
    """What became of the records in the group.

    ``redelivered``: records that came twice, by what explains it; ``shares``: records per member, those that
    came twice with them; ``unknown``: records that nobody else read; ``examples`` of what is wrong.
    """

    records: int
    missing: int = 0
    unknown: int = 0
    out_of_order: int = 0
    unexplained: int = 0
    redelivered: Counter[str] = field(default_factory=Counter)
    shares: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Tell whether nothing was left out, put out of order or repeated without a reason."""
        return not (self.missing or self.unknown or self.out_of_order or self.unexplained)

    def note(self, example: str) -> None:
        """Keep an example of what is wrong, unless there are enough."""
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(example)

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
        self._ancestors: dict[tuple[int, int], frozenset[int]] = {}
        self._latest: dict[tuple[int, int], dict[int, int]] = {}
        for lineage in lineages:
            self._learn(lineage)

    def keeps(self, entry: Worked) -> bool:
        """Take a record that is worked on for the first time; tell whether it comes in its order."""
        if entry.key_hash == NO_KEY:
            return True
        seen = self._latest.setdefault((entry.partition, entry.key_hash), {})
        late = entry.offset < seen.get(entry.segment, -1)
        late |= any(entry.segment in self._ancestors[entry.partition, other] for other in seen)
        seen[entry.segment] = max(entry.offset, seen.get(entry.segment, -1))
        return not late

    def _learn(self, lineage: Lineage) -> None:
        """Segments come in the order of their ids, which puts each behind its predecessors."""
        partition = lineage.parent.partition
        for segment in lineage:
            direct = frozenset(segment.predecessors)
            further = (self._ancestors[partition, before] for before in direct)
            self._ancestors[partition, segment.id] = direct.union(*further)


def judge(
    journals: Mapping[str, Iterable[Worked]],
    read: Mapping[int, Set[int]],
    lineages: Iterable[Lineage],
    excuse: Excuse,
) -> GroupVerdict:
    """Look at all journals in the order of time.

    Args:
        journals: what each member worked on.
        read: the logical offsets that a fresh reader found, by logical partition.
        lineages: of all partitions.
        excuse: tells what may be worked on twice: only what somebody had in hand whom something befell.
    """
    verdict = GroupVerdict(sum(len(offsets) for offsets in read.values()))
    order = KeyOrder(lineages)
    first_by: dict[tuple[int, int], tuple[str, float]] = {}
    entries = [(entry, name) for name, journal in journals.items() for entry in journal]
    for entry, member in sorted(entries, key=lambda found: found[0].at):  # stable: batches keep their order
        verdict.shares[member] += 1
        place = (entry.partition, entry.offset)
        if place in first_by:
            _repeated(verdict, place, first_by[place], (member, entry.at), excuse)
            continue
        first_by[place] = member, entry.at
        verdict.unknown += entry.offset not in read.get(entry.partition, ())
        if not order.keeps(entry):
            verdict.out_of_order += 1
            verdict.note(f"{place} of segment {entry.segment} to {member} out of order")
    verdict.missing = verdict.records - (len(first_by) - verdict.unknown)
    return verdict


def _repeated(
    verdict: GroupVerdict,
    place: tuple[int, int],
    first: tuple[str, float],
    again: tuple[str, float],
    excuse: Excuse,
) -> None:
    """Count a record that came twice: who worked on it when, first and again."""
    why = excuse(*first) or excuse(*again)
    if why is None:
        verdict.unexplained += 1
        verdict.note(f"{place} to {first[0]} at {first[1]:.1f} and to {again[0]} at {again[1]:.1f}")
    else:
        verdict.redelivered[why] += 1
