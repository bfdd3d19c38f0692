"""The result as text on stdout."""

from __future__ import annotations

from typing import TextIO

from kpsplit.demo.result import DemoResult
from kpsplit.demo.rows import Rows
from kpsplit.demo.tables import all_tables

LONGEST_CELL = 90


def write_summary(result: DemoResult, stream: TextIO) -> None:
    """Write all tables."""
    for table in all_tables(result):
        stream.write("\n".join(table_lines(table)) + "\n\n")


def table_lines(table: Rows) -> list[str]:
    """Return a table as aligned text: columns of numbers to the right, others to the left."""
    body = [[_shortened(cell) for cell in row] for row in table.rows]
    cells = [list(table.columns), *body]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    right = [all(_is_number(row[i]) for row in body) for i in range(len(table.columns))]
    lines = [table.heading]
    for row in cells:
        line = "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        lines.append(f"  {line}".rstrip())
    return [line for line in lines if line]


def _is_number(cell: str) -> bool:
    return cell in ("", "–", "open", "no record") or cell.replace(",", "").replace(".", "").isdigit()


def _shortened(cell: str) -> str:
    return cell if len(cell) <= LONGEST_CELL else cell[: LONGEST_CELL - 1] + "…"
