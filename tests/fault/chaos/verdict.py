"""Judges a run: what the writers were told against what a fresh reader finds, and what the group was handed.

A record may be handed out twice only if a fault struck shortly before its first or its second time. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from kpsplit.demo.judge import GroupVerdict, Turn, judge
from kpsplit.demo.records import Worked
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


def judge_group(
    journals: Mapping[str, Iterable[Worked]],
    read: Mapping[int, Set[int]],
    lineages: Iterable[Lineage],
    hurts: Sequence[Hurt],
) -> GroupVerdict:
    """Judge the members' journals as the demo does, with what befell these members."""

    def excuse(*turns: Turn) -> str | None:
        found = (hurt.what for t in turns for hurt in hurts if hurt.explains(t.member, t.entry.at))
        return next(found, None)

    return judge(journals, read, lineages, excuse)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything that was found.

    ``gaps``: stretches that the reader could not read; ``troubles``: processes that ended by themselves, and
    whatever else nobody did on purpose.
    ``removed``: records that retention took; ``told_gone``: those of them that the group did not work on and
    was told that they are gone. ``missed``: the aims of a long run that it did not reach.
    """

    history: HistoryReport
    group: GroupVerdict
    strays: int
    gaps: tuple[str, ...]
    troubles: tuple[str, ...]
    removed: int = 0
    told_gone: int = 0
    missed: tuple[str, ...] = ()

    @property
    def harmed(self) -> bool:
        """Tell whether anything is not as it must be."""
        return bool(not self.history.clean or not self.group.good or self.gaps or self.troubles)

    @property
    def good(self) -> bool:
        """Tell whether everything is as it must be, and the run was as long and as rough as it had to be."""
        return not self.harmed and not self.missed

    def __str__(self) -> str:
        """Return the last line of a run."""
        h = self.history
        word = "FAIL" if self.harmed else "PASS" if self.good else "MISSED"
        return (
            f"{word} sent={h.sent} acknowledged={h.ok} failed={h.failed} "
            f"unknown={h.unknown} read={h.read} lost={h.lost} doubled={h.duplicated} "
            f"out_of_order={h.out_of_order} library_duplicates={h.library_duplicates} "
            f"library_gaps={h.library_gaps} "
            f"strays={self.strays} group_missing={self.group.missing} "
            f"group_out_of_order={self.group.out_of_order} group_unexplained={self.group.unexplained} "
            f"group_repeated={self.group.redelivered.total()} removed={self.removed} "
            f"told_gone={self.told_gone} gaps={len(self.gaps)} "
            f"troubles={len(self.troubles)}"
        )
