"""What was done at which step of an operation, and how the operation ended: the table of a run. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tests.fault.chaos.faults import CUT, FENCED, PREPARING, Kind


class Column(StrEnum):
    """Where an operation stood: protocol, sections 5.1 and 7."""

    REST = "no operation"
    PLAN = "plan"
    PREPARE = "PREPARE"
    FENCE = "FENCE"
    CUT = "CUT"
    COMMIT = "COMMIT"
    BEHIND = "behind it"


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
    return Column.COMMIT if last_step in CUT else Column.BEHIND


@dataclass(slots=True)
class Operation:
    """One operation as it was seen from outside: epochs before and behind it, and its latest step."""

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
