"""Judges a run: what the writers were told against what a fresh reader finds, and what the group was handed.

A record may be handed out twice only if a fault struck shortly before its first or its second time. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from kpsplit.demo.group.worked import NO_KEY, Worked
from kpsplit.splitter.lineage import Lineage
from kpsplit.testing import HistoryReport

EVERYBODY = ""
"""Who is hurt by a fault of the brokers."""
IN_HAND_SECONDS = 15.0
"""What was worked on earlier than this before a fault is committed."""
SETTLING_SECONDS = 30.0
"""How long after a fault's end its consequences may come: sessions end, members join again."""


@dataclass(frozen=True, slots=True)
class Hurt:
    """From when to when a fault may have kept a member from committing. Monotonic seconds."""

    member: str
    what: str
    since: float
    until: float

    def explains(self, member: str, at: float) -> bool:
        """Tell whether what a member worked on at a point in time may come twice because of this."""
        early, late = self.since - IN_HAND_SECONDS, self.until + SETTLING_SECONDS
        return self.member in (EVERYBODY, member) and early <= at <= late


@dataclass(slots=True)
class GroupVerdict:
    """What became of the records in the group. ``repeated``: by the fault that explains it."""

    records: int
    missing: int = 0
    unknown: int = 0
    out_of_order: int = 0
    unexplained: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Tell whether nothing was left out, put out of order or repeated without a reason."""
        return not (self.missing or self.unknown or self.out_of_order or self.unexplained)

    def __str__(self) -> str:
        """Return it in one line."""
        told = (
            f"{self.records - self.missing:,} of {self.records:,} handed out, "
            f"{self.out_of_order:,} out of order, {self.unexplained:,} repeated without a reason, "
            f"{self.repeated.total():,} with one"
        )
        return told + (f", {self.unknown:,} that no reader saw" if self.unknown else "")


class Order:
    """Knows which records of a key must come before which: along the lineage, and by offset in a segment."""

    def __init__(self, lineages: Iterable[Lineage]) -> None:
        self._ancestors: dict[tuple[int, int], frozenset[int]] = {}
        self._seen: dict[tuple[int, int], dict[int, int]] = {}
        for lineage in lineages:
            self._learn(lineage)

    def keeps(self, entry: Worked) -> bool:
        """Take a record that is handed out for the first time; tell whether it comes in its order."""
        if entry.key_hash == NO_KEY:
            return True
        seen = self._seen.setdefault((entry.partition, entry.key_hash), {})
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


def judge_group(
    journals: Mapping[str, Iterable[Worked]],
    read: Mapping[int, Set[int]],
    lineages: Iterable[Lineage],
    hurts: Sequence[Hurt],
) -> GroupVerdict:
    """Look at all journals in the order of time.

    Args:
        journals: what each member was handed.
        read: the logical offsets that a fresh reader found, by logical partition.
        lineages: of all partitions.
        hurts: what befell members.
    """
    verdict = GroupVerdict(sum(len(offsets) for offsets in read.values()))
    order = Order(lineages)
    first: dict[tuple[int, int], tuple[str, float]] = {}
    entries = [(entry, member) for member, journal in journals.items() for entry in journal]
    for entry, member in sorted(entries, key=lambda found: found[0].at):  # stable: batches keep their order
        place = (entry.partition, entry.offset)
        if place in first:
            _repeat(verdict, first[place], (member, entry.at), hurts, place)
            continue
        first[place] = member, entry.at
        verdict.unknown += entry.offset not in read.get(entry.partition, ())
        if not order.keeps(entry):
            verdict.out_of_order += 1
            _note(verdict, f"{place} of segment {entry.segment} to {member} out of order")
    verdict.missing = verdict.records - (len(first) - verdict.unknown)
    return verdict


def _repeat(
    verdict: GroupVerdict,
    first: tuple[str, float],
    again: tuple[str, float],
    hurts: Sequence[Hurt],
    place: tuple[int, int],
) -> None:
    why = next((h.what for h in hurts if h.explains(*first) or h.explains(*again)), None)
    if why is not None:
        verdict.repeated[why] += 1
        return
    verdict.unexplained += 1
    _note(verdict, f"{place} to {first[0]} at {first[1]:.1f} and to {again[0]} at {again[1]:.1f}")


def _note(verdict: GroupVerdict, example: str) -> None:
    if len(verdict.examples) < 5:
        verdict.examples.append(example)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything that was found.

    ``gaps``: stretches that the reader could not read; ``troubles``: processes that ended by themselves, and
    whatever else nobody did on purpose.
    """

    history: HistoryReport
    group: GroupVerdict
    strays: int
    gaps: tuple[str, ...]
    troubles: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Tell whether everything is as it must be."""
        return self.history.clean and self.group.good and not self.gaps and not self.troubles

    def __str__(self) -> str:
        """Return the last line of a run."""
        h = self.history
        return (
            f"{'PASS' if self.good else 'FAIL'} sent={h.sent} acknowledged={h.ok} failed={h.failed} "
            f"unknown={h.unknown} read={h.read} lost={h.lost} doubled={h.duplicated} "
            f"out_of_order={h.out_of_order} library_duplicates={h.library_duplicates} "
            f"library_gaps={h.library_gaps} strays={self.strays} group_missing={self.group.missing} "
            f"group_out_of_order={self.group.out_of_order} group_unexplained={self.group.unexplained} "
            f"group_repeated={self.group.repeated.total()} gaps={len(self.gaps)} "
            f"troubles={len(self.troubles)}"
        )
