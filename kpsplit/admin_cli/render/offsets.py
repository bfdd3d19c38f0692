"""How the progress of a consumer group looks, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kpsplit.admin_cli.render.console import fits, plain_table
from kpsplit.admin_cli.render.text import count, one_line, utc
from kpsplit.control.seeking import Seek, SeekTarget, Whence
from kpsplit.control.status import Basis, PartitionProgress, RangeProgress, SegmentLeft
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor

NUMBERS = ("segment", "offset", "logical", "lag")
UNKNOWN = "-"
_INDENT = 2


def progress_json(group: str, found: Sequence[PartitionProgress]) -> dict[str, Any]:
    """Return the progress of a group as JSON data."""
    return {"group": group, "partitions": [_partition_json(p) for p in found]}


def show_progress(found: Sequence[PartitionProgress], console: Console) -> None:
    """Print the progress of a group."""
    for progress in found:
        state = progress.state
        lag = UNKNOWN if progress.lag is None else count(progress.lag)
        console.print(Text(f"{state.parent}: epoch {state.epoch}, lag {lag}", style="bold"))
        table = _table(progress)
        if fits(table, console, console.width - _INDENT):
            console.print(Padding(table, (0, 0, 0, _INDENT), expand=False))
        else:
            console.print(Group(*_lines(progress)))


def seek_json(seek: Seek, *, written: bool) -> dict[str, Any]:
    """Return a seek as JSON data."""
    return {
        "group": seek.group,
        "topic": seek.state.parent.topic,
        "partition": seek.state.parent.partition,
        "range": [seek.cursor.range.lo, seek.cursor.range.hi],
        "to": seek.target.whence.value,
        "at_end": seek.at_end,
        "positions": _positions_json(seek.state, seek.cursor),
        "written": written,
    }


def show_seek(seek: Seek, console: Console) -> None:
    """Print where a range stands after a seek."""
    table = plain_table("place", "segment", "offset", "logical", right=("segment", "offset", "logical"))
    for segment_id, next_ in sorted(seek.cursor.positions.items()):
        segment = seek.state.lineage.get(segment_id)
        table.add_row(str(segment.source), str(segment_id), str(next_), str(segment.logical(next_)))
    console.print(
        Text(f"{seek.state.parent} {seek.cursor.range}, group {one_line(seek.group)}:", style="bold")
    )
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    if seek.at_end:
        target = target_text(seek.target)
        console.print(Text(f"! there is no record at or after {target}: same as --to latest", style="yellow"))


def target_text(target: SeekTarget) -> str:
    """Return where a seek goes, in words."""
    if target.whence is Whence.OFFSET:
        return f"offset {target.number}"
    return utc(target.number) if target.whence is Whence.TIMESTAMP else target.whence.value


def _lines(progress: PartitionProgress) -> Iterator[RenderableType]:
    """Yield what ``_table`` shows in lines, for a narrow terminal: they are broken between words only."""
    for range_ in progress.ranges:
        owner = "" if range_.owner is None else f" {_owner(range_)}"
        basis = "" if range_.left else f" {range_.basis.value}"
        yield Padding(Text(f"{range_.range}{owner}{basis}"), (0, 0, 0, 2), expand=False)
        for left in range_.left:
            place, _, offset, logical, lag, what = _segment_cells(left)
            text = f"{place} offset {offset} logical {logical} lag {lag} {what}"
            yield Padding(Text(text.rstrip()), (0, 0, 0, 4), expand=False)


def _table(progress: PartitionProgress) -> Table:
    table = plain_table("range", "owner", "place", *NUMBERS, "", right=NUMBERS)
    for range_ in progress.ranges:
        rows = [_segment_cells(left) for left in range_.left] or [("", "", "", "", "", range_.basis.value)]
        for number, (place, *cells) in enumerate(rows):
            head = (str(range_.range), _owner(range_)) if number == 0 else ("", "")
            table.add_row(*head, place, *cells)
    return table


def _segment_cells(left: SegmentLeft) -> tuple[str, str, str, str, str, str]:
    lag = UNKNOWN if left.lag is None else count(left.lag)
    what = "" if left.ready else "waits"
    if left.ready and left.draining:
        what = "drains"
    return (str(left.segment.source), str(left.segment.id), str(left.next), str(left.logical), lag, what)


def _owner(range_: RangeProgress) -> str:
    return UNKNOWN if range_.owner is None else one_line(str(range_.owner))


def _partition_json(progress: PartitionProgress) -> dict[str, Any]:
    return {
        "topic": progress.state.parent.topic,
        "partition": progress.state.parent.partition,
        "epoch": progress.state.epoch,
        "lag": progress.lag,
        "ranges": [_range_json(r) for r in progress.ranges],
    }


def _range_json(range_: RangeProgress) -> dict[str, Any]:
    owner, commit = range_.owner, range_.commit
    return {
        "range": [range_.range.lo, range_.range.hi],
        "owner": owner and {"member": owner.member, "client_id": owner.client_id, "host": owner.host},
        "basis": range_.basis.value.replace(" ", "_"),
        "committed_by": commit
        and {"member": commit.member, "generation": commit.generation, "cause": commit.cause.value},
        "lag": range_.lag,
        "to_drain": None if range_.basis is Basis.NOTHING else list(range_.to_drain),
        "positions": [
            {
                "segment": left.segment.id,
                "topic": left.segment.source.topic,
                "partition": left.segment.source.partition,
                "offset": left.next,
                "logical_offset": left.logical,
                "lag": left.lag,
                "readable": left.ready,
                "closed": left.draining,
            }
            for left in range_.left
        ],
    }


def _positions_json(state: PartitionState, cursor: Cursor) -> list[dict[str, Any]]:
    segments = [(state.lineage.get(i), next_) for i, next_ in sorted(cursor.positions.items())]
    return [
        {
            "segment": s.id,
            "topic": s.source.topic,
            "partition": s.source.partition,
            "offset": next_,
            "logical_offset": s.logical(next_),
        }
        for s, next_ in segments
    ]
