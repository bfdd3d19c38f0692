"""Judges a run, and tabulates what was done at which step of an operation and how it ended. Pure.

A record may be handed out twice only if a fault struck shortly before its first or its second time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from kpsplit.demo.judge import GroupVerdict, Turn, judge
from kpsplit.demo.records import Worked
from kpsplit.splitter.lineage import Lineage
from kpsplit.testing import HistoryReport
from tests.fault.chaos.faults import CUT, FENCED, PREPARING, Kind

EVERYBODY = ""
"""Stands for all members: a fault of the brokers hurts them all."""
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
    ``removed``: records that retention took; ``told_gone``: those of them that the group did not work on
    because their removal was reported to it. ``missed``: the aims of a long run that it did not reach.
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


class Column(StrEnum):
    """Where an operation stood: protocol, sections 5.1 and 7."""

    REST = "no operation"
    PLAN = "plan"
    PREPARE = "PREPARE"
    FENCE = "FENCE"
    CUT = "CUT"
    COMMIT = "COMMIT"
    AFTER = "after it"


class Ending(StrEnum):
    """How the operation ended that a fault struck."""

    WENT_ON = "R"
    """Its operator brought it to its end."""
    ROLLED_BACK = "RB"
    """The old layout stayed."""
    ROLLED_FORWARD = "RF"
    """It had taken effect, and somebody else brought it to its end, or its operator after an error."""
    UNKNOWN = "?"
    """The run ended before."""


def column_of(last_step: str | None) -> Column:
    """Return where an operation stands whose latest step is this; None: none is done yet."""
    if last_step is None:
        return Column.PLAN
    if last_step in PREPARING[:-1]:
        return Column.PREPARE
    if last_step in (PREPARING[-1], *FENCED[:-1]):
        return Column.FENCE
    if last_step in FENCED[-1:]:
        return Column.CUT
    return Column.COMMIT if last_step in CUT else Column.AFTER


@dataclass(slots=True)
class Operation:
    """One operation as it was seen from outside: epochs before and after it, and its latest step."""

    verb: str
    partition: int
    before: int
    last_step: str | None = None
    after: int | None = None
    finished: bool = False

    @property
    def ending(self) -> Ending:
        """How it ended."""
        if self.after is None:
            return Ending.UNKNOWN
        if self.after == self.before:
            return Ending.ROLLED_BACK
        return Ending.WENT_ON if self.finished else Ending.ROLLED_FORWARD


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that was done: where the operation under way stood, if there was one."""

    kind: Kind
    column: Column
    operation: Operation | None


def tabulate(strikes: Iterable[Strike]) -> dict[Kind, dict[Column, Counter[str]]]:
    """Count the endings of what was struck, by fault and step."""
    found: dict[Kind, dict[Column, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for strike in strikes:
        ending = "" if strike.operation is None else str(strike.operation.ending)
        found[strike.kind][strike.column][ending] += 1
    return found


def rendered(strikes: Iterable[Strike]) -> str:
    """Return the table in Markdown, with all that happened."""
    table = tabulate(strikes)
    lines = ["| fault | " + " | ".join(Column) + " | all |", "|---" * (len(Column) + 2) + "|"]
    for kind in Kind:
        if kind in table:
            row = table[kind]
            total = sum(counts.total() for counts in row.values())
            lines.append(f"| {kind} | " + " | ".join(_cell(row[c]) for c in Column) + f" | {total} |")
    return "\n".join(lines)


def _cell(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {ending}".strip() for ending, number in sorted(counts.items())) or "–"
