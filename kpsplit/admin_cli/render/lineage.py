"""How a lineage looks: its segments in a table, and the key space epoch by epoch as a picture."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kpsplit.admin_cli.render.console import plain_table
from kpsplit.admin_cli.render.human import count
from kpsplit.splitter.key_range import KEY_SPACE
from kpsplit.splitter.lineage import Lineage, Segment, SegmentKind
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.control import segment_to_json

_COLOURS = {SegmentKind.PARENT: "blue", SegmentKind.PHANTOM: "green", SegmentKind.OVERFLOW: "yellow"}
_WIDEST_PICTURE = 96
_MARGIN = 14
_WIDE = 100


def lineage_json(state: PartitionState) -> dict[str, Any]:
    """Return the lineage in the form that is part of the public interface."""
    return {
        "topic": state.parent.topic,
        "partition": state.parent.partition,
        "epoch": state.epoch,
        "segments": [segment_to_json(s) for s in state.lineage],
    }


def show_lineage(state: PartitionState, console: Console) -> None:
    """Print the picture and the table of a lineage."""
    console.print(Text(f"{state.parent}: epoch {state.epoch}, {state.phase}", style="bold"))
    console.print(Padding(_picture(state, console.width), (0, 0, 1, 2), expand=False))
    console.print(Padding(_segments(state.lineage, console.width >= _WIDE), (0, 0, 0, 2), expand=False))


def _picture(state: PartitionState, width: int) -> Table:
    """One line per epoch; each cell is a segment that accepts keys, as wide as its range."""
    columns = min(width - _MARGIN, _WIDEST_PICTURE)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    for epoch in sorted({s.opened_epoch for s in state.lineage}):
        table.add_row(f"epoch {epoch}", _bar(_alive(state.lineage, epoch), epoch, columns))
    return table


def _alive(lineage: Lineage, epoch: int) -> list[Segment]:
    return sorted(
        (
            s
            for s in lineage
            if s.kind is not SegmentKind.OVERFLOW
            and s.opened_epoch <= epoch
            and (s.closed_epoch is None or epoch < s.closed_epoch)
        ),
        key=lambda s: s.range,
    )


def _bar(segments: list[Segment], epoch: int, columns: int) -> Text:
    line = Text()
    for segment in segments:
        left = segment.range.lo * columns // KEY_SPACE
        width = segment.range.hi * columns // KEY_SPACE - left
        cell = f"▏{segment.id}"[:width].ljust(width)
        new = segment.opened_epoch == epoch
        line.append(cell, style=f"{'bold ' if new else 'dim '}{_COLOURS[segment.kind]}")
    line.append("▏")
    return line


def _segments(lineage: Lineage, wide: bool) -> Table:
    numbers = ("id", "start", "end")
    table = (
        plain_table(
            "id", "kind", "range", "place", "start", "end", "logical", "epochs", "after", right=numbers
        )
        if wide
        else plain_table("id", "kind", "stored at", "logical", "epochs", right=("id",))
    )
    for s in lineage:
        kind = Text(s.kind.value, style=_COLOURS[s.kind])
        end = "open" if s.end is None else count(s.end)
        closed = "" if s.closed_epoch is None else str(s.closed_epoch)
        epochs = f"{s.opened_epoch}–{closed}"
        logical = f"{count(s.progression.base)} + {count(s.progression.stride)}·n"
        after = ", ".join(map(str, s.predecessors))
        if wide:
            table.add_row(
                str(s.id),
                kind,
                str(s.range),
                Text(str(s.source)),
                count(s.start),
                end,
                logical,
                epochs,
                after,
            )
        else:
            stored = Text(f"{s.source}\n{s.range}\n{count(s.start)} to {end}")
            since = f"\nafter {after}" if after else ""
            table.add_row(str(s.id), kind, stored, f"{logical}", f"{epochs}{since}")
    return table
