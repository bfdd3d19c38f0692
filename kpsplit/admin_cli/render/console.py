"""The two consoles: data on stdout, everything else on stderr. Rich obeys NO_COLOR by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

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
        """Let ``main`` end quietly."""
        raise BrokenPipeError


def stdout() -> QuietConsole:
    """Return the console for data."""
    return QuietConsole(sys.stdout)


def stderr() -> QuietConsole:
    """Return the console for progress and questions."""
    return QuietConsole(sys.stderr)


def plain_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return a table in the style of all tables: no lines, and numbers are never broken."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for column in columns:
        whole = column == "range" or column in right
        table.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=whole
        )
    return table


_UNLIMITED = 10_000


def fits(table: Table, console: Console, width: int) -> bool:
    """Return whether a table can be drawn in that width without breaking any of its words."""
    return Measurement.get(console, console.options.update_width(_UNLIMITED), table).maximum <= width


class RangeTable:
    """Ranges with their places and numbers: a table where it fits, else lines broken between words."""

    def __init__(self, *numbers: str) -> None:
        self._numbers = numbers
        self._rows: list[tuple[Text, str, Sequence[str]]] = []

    def add_row(self, label: Text, place: str, *numbers: str) -> None:
        """Add a range, or an overflow, with where it is stored."""
        self._rows.append((label, place, numbers))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it for the width that there is."""
        table = plain_table("range", "place", *self._numbers, right=self._numbers)
        for label, place, numbers in self._rows:
            table.add_row(label, Text(place), *numbers)
        if fits(table, console, options.max_width):
            yield table
            return
        for label, place, numbers in self._rows:
            yield Text.assemble(label, f"  {place}")
            parts = (
                f"{name} {number}" for name, number in zip(self._numbers, numbers, strict=True) if number
            )
            yield Padding(Text(", ".join(parts)), (0, 0, 0, 2), expand=False)
