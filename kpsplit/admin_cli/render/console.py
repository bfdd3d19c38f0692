"""The two consoles: data on stdout, everything else on stderr. Rich obeys NO_COLOR by itself."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn, Self, TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.status import Status
from rich.table import Table
from rich.text import Text

from kpsplit.admin_cli.failures import raise_if_lost
from kpsplit.admin_cli.render.text import one_line
from kpsplit.errors import duration
from kpsplit.splitter.driver import StepDone

WIDTH_OF_A_PIPE = 120
"""Tables that are piped somewhere are not squeezed into the 80 columns of a terminal that is not there."""


class QuietConsole(Console):
    """A console that hands a broken pipe to ``main`` and takes no text for markup."""

    def __init__(self, file: TextIO) -> None:
        piped = not file.isatty() and "COLUMNS" not in os.environ
        super().__init__(
            file=file,
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=False,
            width=WIDTH_OF_A_PIPE if piped else None,
        )

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def stdout() -> QuietConsole:
    return QuietConsole(sys.stdout)


def stderr() -> QuietConsole:
    return QuietConsole(sys.stderr)


def plain_table(*columns: str, right: Sequence[str]) -> Table:
    """Return a table in the style of all tables: no lines, and numbers are never broken."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for column in columns:
        whole = column == "range" or column in right
        table.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=whole
        )
    return table


def indented(what: RenderableType) -> Padding:
    return Padding(what, (0, 0, 0, 2), expand=False)


_UNLIMITED = 10_000


class FittingTable:
    """Rows with places and numbers: a table where it fits, else lines broken between words.

    Args:
        heads: the columns that begin a row's lines.
        named: the columns that are named in them.
        right: those of all columns that are numbers.
    """

    def __init__(self, heads: Sequence[str], named: Sequence[str], right: Sequence[str]) -> None:
        self._heads, self._named, self._right = heads, named, right
        self._rows: list[tuple[str | Text, ...]] = []

    def add_row(self, *cells: str | Text) -> None:
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = plain_table(*self._heads, *self._named, right=self._right)
        for row in self._rows:
            table.add_row(*row)
        if Measurement.get(console, options.update_width(_UNLIMITED), table).maximum <= options.max_width:
            yield table
            return
        count = len(self._heads)
        for row in self._rows:
            if heads := [Text.assemble(cell) for cell in row[:count] if cell]:
                yield Text("  ").join(heads)
            named = zip(self._named, row[count:], strict=True)
            yield indented(Text(", ".join(f"{name} {cell}".strip() for name, cell in named if cell)))


_DONE = {
    "Claim": "operation claimed",
    "Prepare": "intent recorded",
    "CreateSubTopic": "sub-topic created",
    "CoLocateLeaders": "leaders moved to one broker",
    "AwaitReady": "producers answered",
    "Fence": "fence on: producers hold",
    "AwaitAcknowledged": "fence acknowledged",
    "AppendMarkers": "cut",
    "Commit": "committed: new layout in force",
    "SealSubTopics": "emptied sub-topics sealed",
    "Finish": "finished",
    "Abort": "rolled back: old layout stays",
    "Leaders": "leaders checked",
    "Enrol": "enrolment recorded",
    "Slots": "slots created",
    "Change": "another number of slots recorded",
    "Settle": "enrolment known to every client",
    "Settled": "enrolment in force",
    "Return": "return to plain clients recorded",
    "ClaimAll": "partitions claimed: no split any more",
    "Lease": "a lease has passed",
    "Whole": "partitions shared as wholes",
    "Part": "groups stand at one offset each",
    "Leave": "topic left: plain clients only",
    "Release": "former slots released by all groups",
    "DeleteSlots": "former slots deleted",
    "Changed": "change of slots finished",
    "Withdraw": "old commits withdrawn",
    "Missing": "already gone",
    "Retire": "sub-topic retired",
    "Delete": "sub-topic deleted",
    "Freeze": "frozen",
    "Thaw": "thawed",
    "LeftOver": "left over",
    "Keep": "kept",
    "Wait": "waiting for a group",
    "Forced": "deleted, not drained",
    "Snapshot": "kpsplit's own topics read",
    "Spark": "Spark started",
    "Records": "records read",
    "Numbers": "sequence numbers checked",
    "Checks": "checks done",
    "Sizing": "boundaries found",
}
_NEXT = {
    "Claim": "recording the intent",
    "Prepare": "preparing: writers keep running",
    "CreateSubTopic": "waiting for the producers' answers",
    "CoLocateLeaders": "waiting for the producers' answers",
    "AwaitReady": "raising the fence",
    "Fence": "waiting for the producers to hold",
    "AwaitAcknowledged": "cutting",
    "AppendMarkers": "committing",
    "Commit": "finishing",
    "SealSubTopics": "finishing",
    "Change": "waiting for one lease",
    "Return": "claiming each partition",
    "ClaimAll": "waiting for one lease",
    "Whole": "waiting for groups to release the slots",
    "Part": "waiting for one lease",
    "Settled": "waiting for groups to release the former slots",
    "Snapshot": "starting Spark",
    "Spark": "reading the records: this takes the longest",
    "Records": "checking the sequence numbers",
    "Numbers": "checking order, certificates and range commits",
}
_LABEL_WIDTH = 32
_TIME_WIDTH = 9
_WARNINGS = {"Abort", "LeftOver", "Freeze", "Keep", "Wait", "Forced"}
"""These are shown whole. Others are cut at the end of a terminal's line, and never in a file."""


class StepProgress:
    """The driver's observer. On a terminal it also shows what is being waited for; a context manager."""

    def __init__(self, console: Console, first: str = "claiming the operation") -> None:
        self._console = console
        self._status: Status | None = None
        self._first = first
        self._since = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status(self._first, spinner="dots")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            with suppress(OSError):
                self._status.stop()

    def __call__(self, step: StepDone) -> None:
        """Print one finished step. A terminal that is gone must not stop the operation half-way."""
        with suppress(OSError):
            if self._console.is_terminal and step.name not in _WARNINGS:
                self._console.print(step_line(step), overflow="ellipsis", no_wrap=True)
            else:
                self._console.print(step_line(step), soft_wrap=True)
            if self._status is not None:
                self._status.update(_NEXT.get(step.name, "working"))
        raise_if_lost(step.name)

    def passed(self, name: str) -> None:
        """Print a step that ends now and began where the one before ended."""
        began, self._since = self._since, time.monotonic()
        self(StepDone(name, self._since - began))


def step_line(step: StepDone) -> Text:
    """Return the line of a finished step."""
    warning = step.name in _WARNINGS
    line = Text("! " if warning else "✓ ", style="yellow" if warning else "green")
    label = _DONE.get(step.name, one_line(step.name))
    line.append(f"{label:<{_LABEL_WIDTH}}", style="default")
    line.append(f"{duration(step.seconds):>{_TIME_WIDTH}}", style="cyan")
    if step.detail:
        line.append(f"  {one_line(step.detail)}", style="dim")
    return line
