"""How the status and the lineage of partitions look, as tables, pictures and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kpsplit.admin_cli.render.console import RangeTable, plain_table
from kpsplit.admin_cli.render.text import count, one_line
from kpsplit.control.status import PartitionStatus
from kpsplit.errors import duration, many
from kpsplit.splitter.key_range import KEY_SPACE
from kpsplit.splitter.lineage import Lineage, Segment, SegmentKind
from kpsplit.splitter.partition_state import PartitionState, Phase, Result, SubTopicState
from kpsplit.splitter.records.control import attempt_to_json, segment_to_json
from kpsplit.splitter.records.data import instance_name
from kpsplit.splitter.records.producers import ProducerRegistration

_PHASE_STYLE = {
    Phase.STEADY: "green",
    Phase.PREPARING: "cyan",
    Phase.FENCED: "yellow bold",
    Phase.COMMITTED: "cyan",
    Phase.FROZEN: "red bold",
}


def statuses_json(statuses: Sequence[PartitionStatus]) -> dict[str, Any]:
    """Return the status of partitions as JSON data."""
    return {"partitions": [_status_json(status) for status in statuses]}


def draw_statuses(statuses: Sequence[PartitionStatus], details: bool) -> RenderableType:
    """Return one table of all partitions, or every detail of each."""
    if details:
        return Group(*(_details(status) for status in statuses))
    return _overview(statuses)


def show_statuses(statuses: Sequence[PartitionStatus], details: bool, console: Console) -> None:
    """Print the status of partitions."""
    console.print(draw_statuses(statuses, details))


def _overview(statuses: Sequence[PartitionStatus]) -> Table:
    numbers = ("epoch", "ranges", "writers")
    table = plain_table("partition", "phase", *numbers, "operation", right=numbers)
    for status in statuses:
        state = status.state
        table.add_row(
            Text(str(state.parent)),
            Text(state.phase, style=_PHASE_STYLE[state.phase]),
            str(state.epoch),
            str(len(state.lineage.open_segments())),
            str(len(status.writers)),
            Text("; ".join(part for part in (_unread(status), _operation(status)) if part)),
        )
    return table


def _details(status: PartitionStatus) -> RenderableType:
    state = status.state
    head = Text(str(state.parent), style="bold")
    head.append(": ", style="bold")
    head.append(state.phase, style=_PHASE_STYLE[state.phase])
    head.append(f", epoch {state.epoch}, partitioner {status.enrolment.partitioner}", style="not bold")
    if status.enrolment.slots is not None:
        head.append(f", {many(status.enrolment.slots, 'slot')}", style="not bold")
    lines: list[RenderableType] = [head]
    if status.unread:
        lines.append(Padding(Text(_unread(status), style="yellow"), (0, 0, 0, 2), expand=False))
    operation = _operation(status)
    if operation:
        style = "dim" if state.phase is Phase.STEADY else "yellow"
        lines.append(Padding(Text(operation, style=style), (0, 0, 0, 2), expand=False))
    lines.append(Padding(_ranges(status), (0, 0, 0, 2), expand=False))
    lines.append(Padding(Text(_writers(status)), (0, 0, 0, 2), expand=False))
    leftovers = _subtopics(status)
    if leftovers:
        lines.append(Padding(Text(leftovers), (0, 0, 0, 2), expand=False))
    return Group(*lines)


def _ranges(status: PartitionStatus) -> RangeTable:
    table = RangeTable("segment", "log end", "logical end")
    for segment in _shown(status):
        end = status.ends.get(segment.id)
        logical = "" if end is None else count(segment.logical(max(end, segment.start)))
        label = "overflow" if segment.kind is SegmentKind.OVERFLOW else str(segment.range)
        table.add_row(
            Text(label, style="yellow" if segment.kind is SegmentKind.OVERFLOW else ""),
            str(segment.source),
            str(segment.id),
            "missing" if end is None else count(end),
            logical,
        )
    return table


def _shown(status: PartitionStatus) -> list[Segment]:
    lineage = status.state.lineage
    return [*lineage.open_segments(), *lineage.open_overflows()]


def _unread(status: PartitionStatus) -> str:
    topic = status.state.parent.topic
    return f"no group reads it: it has no slots; run: kpsplit enroll {topic}" if status.unread else ""


def _operation(status: PartitionStatus) -> str:
    state = status.state
    if state.frozen_reason is not None:
        return f"frozen: {one_line(state.frozen_reason)}"
    if state.attempt is not None:
        age = status.attempt_age_seconds
        began = "" if age is None else f", begun {duration(max(age, 0.0))} ago"
        return f"{state.attempt.kind} by {one_line(state.attempt.operator)}{began}"
    if state.last is None:
        return ""
    if state.last.result is Result.COMMITTED:
        return f"last: {state.last.attempt.kind} took effect"
    reason = one_line(state.last.reason) or str(state.last.ended_by)
    return f"last: {state.last.attempt.kind} rolled back ({reason})"


def _writers(status: PartitionStatus) -> str:
    names = ", ".join(_writer_name(w) for w in status.writers[:5])
    more = f" and {len(status.writers) - 5} more" if len(status.writers) > 5 else ""
    return f"{many(len(status.writers), 'writer')}{f': {names}{more}' if names else ''}"


def _writer_name(writer: ProducerRegistration) -> str:
    name = instance_name(writer.instance)
    return f"{one_line(writer.client_id)} ({name})" if writer.client_id else name


def _subtopics(status: PartitionStatus) -> str:
    waiting = [
        f"{t.name} ({t.state})"
        for t in status.state.subtopics
        if t.state in (SubTopicState.SEALED, SubTopicState.ABANDONED)
    ]
    return f"to retire: {', '.join(waiting)}" if waiting else ""


def _status_json(status: PartitionStatus) -> dict[str, Any]:
    state = status.state
    return {
        "topic": state.parent.topic,
        "partition": state.parent.partition,
        "epoch": state.epoch,
        "phase": state.phase.value,
        "partitioner": status.enrolment.partitioner.value,
        "slots": status.enrolment.slots,
        "without_slots": status.unread,
        "frozen_reason": state.frozen_reason,
        "attempt": None if state.attempt is None else attempt_to_json(state.attempt),
        "attempt_age_seconds": status.attempt_age_seconds,
        "last": _last_json(status),
        "ranges": [_range_json(status, segment) for segment in _shown(status)],
        "subtopics": [
            {"name": t.name, "partitions": t.partitions, "state": t.state.value} for t in state.subtopics
        ],
        "writers": [_writer_json(w) for w in status.writers],
    }


def _last_json(status: PartitionStatus) -> dict[str, Any] | None:
    last = status.state.last
    if last is None:
        return None
    return {
        "attempt": last.attempt.id,
        "kind": last.attempt.kind.value,
        "operator": last.attempt.operator,
        "result": last.result.value,
        "ended_by": last.ended_by.value,
        "reason": last.reason,
    }


def _range_json(status: PartitionStatus, segment: Segment) -> dict[str, Any]:
    end = status.ends.get(segment.id)
    return {
        "range": [segment.range.lo, segment.range.hi],
        "kind": segment.kind.value,
        "segment": segment.id,
        "source_topic": segment.source.topic,
        "source_partition": segment.source.partition,
        "start": segment.start,
        "log_end": end,
        "logical_end": None if end is None else segment.logical(max(end, segment.start)),
    }


def _writer_json(writer: ProducerRegistration) -> dict[str, Any]:
    return {"instance": instance_name(writer.instance), "client_id": writer.client_id}


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
