"""How the status and the lineage of partitions look, and the progress of a group: tables, pictures, JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kpsplit.admin_cli.render.console import FittingTable, indented, plain_table
from kpsplit.admin_cli.render.text import one_line, place_json, segment_json, utc
from kpsplit.control.seeking import Seek, SeekTarget, Whence
from kpsplit.control.status import (
    Basis,
    GroupDrain,
    PartitionProgress,
    PartitionStatus,
    RangeProgress,
    SegmentLeft,
)
from kpsplit.errors import KpsplitError, duration, many
from kpsplit.kafka.groups import Owner
from kpsplit.splitter.key_range import KEY_SPACE
from kpsplit.splitter.lineage import Lineage, Segment, SegmentKind
from kpsplit.splitter.partition_state import PartitionState, Phase, Result
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


Drains = Sequence[GroupDrain] | KpsplitError
"""What groups still have to read of closed segments, or why that is not known."""


def statuses_json(statuses: Sequence[PartitionStatus], drains: Drains | None = None) -> dict[str, Any]:
    """Return where partitions stand. ``drains``: those of the only one."""
    data: dict[str, Any] = {"partitions": [_status_json(status) for status in statuses]}
    if drains is not None:
        known = None if isinstance(drains, KpsplitError) else [_drain_json(one) for one in drains]
        data["partitions"][0]["drains"] = known
    return data


def draw_statuses(statuses: Sequence[PartitionStatus], drains: Drains | None = None) -> RenderableType:
    """Return a line for each partition; with ``drains``, the details of the only one."""
    return _overview(statuses) if drains is None else _details(statuses[0], drains)


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
            Text("; ".join(part for part in (_to_enroll(status), _operation(status)) if part)),
        )
    return table


def _details(status: PartitionStatus, drains: Drains) -> RenderableType:
    state = status.state
    head = Text(str(state.parent), style="bold")
    head.append(": ", style="bold")
    head.append(state.phase, style=_PHASE_STYLE[state.phase])
    head.append(f", epoch {state.epoch}, partitioner {status.enrolment.partitioner}", style="not bold")
    if status.enrolment.slots is not None:
        slots, generation = many(status.enrolment.slots, "slot"), status.enrolment.generation
        head.append(f", {slots} (generation {generation})", style="not bold")
    lines: list[RenderableType] = [head]
    if trouble := _to_enroll(status):
        lines.append(indented(Text(trouble, style="yellow")))
    operation = _operation(status)
    if operation:
        style = "dim" if state.phase is Phase.STEADY else "yellow"
        lines.append(indented(Text(operation, style=style)))
    lines.append(indented(_ranges(status)))
    lines.append(indented(Text(_writers(status))))
    leftovers = _subtopics(status)
    if leftovers:
        lines.append(indented(Text(leftovers)))
    if isinstance(drains, KpsplitError):
        text = f"what groups still drain is not known: {one_line(drains.message)}"
        lines.append(indented(Text(text, style="yellow")))
    else:
        lines.extend(indented(Text(_drain(one))) for one in drains[:_MOST_DRAINS])
        if len(drains) > _MOST_DRAINS:
            lines.append(indented(Text(f"and {len(drains) - _MOST_DRAINS} more to drain")))
    return Group(*lines)


_MOST_DRAINS = 20


def _drain(one: GroupDrain) -> str:
    seconds = one.left.seconds
    takes = "not moving" if seconds is None else f"about {duration(seconds)}"
    return (
        f"segment {one.segment.id} of {one.segment.source} drains: group {one_line(one.group)} has "
        f"{one.left.offsets:,} offsets to read, {takes}; slowest: {one.range}, {_owner(one)}"
    )


def _drain_json(one: GroupDrain) -> dict[str, Any]:
    owner = one.owner
    return {
        "segment": one.segment.id,
        **place_json(one.segment.source),
        "group": one.group,
        "left": one.left.offsets,
        "seconds": one.left.seconds,
        "range": [one.range.lo, one.range.hi],
        "owner": owner and _owner_json(owner),
    }


def _ranges(status: PartitionStatus) -> FittingTable:
    numbers = ("segment", "log end", "logical end")
    table = FittingTable(("range", "place"), numbers, right=numbers)
    for segment in _shown(status):
        end = status.ends.get(segment.id)
        logical = "" if end is None else f"{segment.logical(max(end, segment.start)):,}"
        label = "overflow" if segment.kind is SegmentKind.OVERFLOW else str(segment.range)
        table.add_row(
            Text(label, style="yellow" if segment.kind is SegmentKind.OVERFLOW else ""),
            str(segment.source),
            str(segment.id),
            "missing" if end is None else f"{end:,}",
            logical,
        )
    return table


def _shown(status: PartitionStatus) -> list[Segment]:
    lineage = status.state.lineage
    return [*lineage.open_segments(), *lineage.open_overflows()]


def _to_enroll(status: PartitionStatus) -> str:
    """Return what the enrolment lacks."""
    known, again = status.enrolment, f"run: kpsplit enroll {status.enrolment.topic}"
    if status.unread:
        return f"no group reads it: it has no slots; {again}"
    if known.returning:
        return f"{known.change_text}; run: kpsplit unenroll {known.topic}"
    return "" if known.former is None else f"{known.change_text}; {again}"


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
    waiting = [f"{t.name} ({t.state})" for t in status.state.to_retire()]
    return f"to retire: {', '.join(waiting)}" if waiting else ""


def _status_json(status: PartitionStatus) -> dict[str, Any]:
    state = status.state
    return {
        **place_json(state.parent),
        "epoch": state.epoch,
        "phase": state.phase.value,
        "partitioner": status.enrolment.partitioner.value,
        "slots": status.enrolment.slots,
        "generation": status.enrolment.generation,
        "former_slots": status.enrolment.former_slots,
        "returning": status.enrolment.returning,
        "without_slots": status.unread,
        "frozen_reason": state.frozen_reason,
        "attempt": None if state.attempt is None else attempt_to_json(state.attempt),
        "attempt_age_seconds": status.attempt_age_seconds,
        "last": _last_json(status),
        "ranges": [_range_json(status, segment) for segment in _shown(status)],
        "subtopics": [
            {"name": t.name, "partitions": t.partitions, "state": t.state.value} for t in state.subtopics
        ],
        "writers": [
            {"instance": instance_name(w.instance), "client_id": w.client_id} for w in status.writers
        ],
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
        **segment_json(segment),
        "kind": segment.kind.value,
        "start": segment.start,
        "log_end": end,
        "logical_end": None if end is None else segment.logical(max(end, segment.start)),
    }


_COLOURS = {SegmentKind.PARENT: "blue", SegmentKind.PHANTOM: "green", SegmentKind.OVERFLOW: "yellow"}
_WIDEST_PICTURE = 96
_MARGIN = 14


def lineage_json(state: PartitionState) -> dict[str, Any]:
    """Return the lineage in the form that is part of the public interface."""
    return {
        **place_json(state.parent),
        "epoch": state.epoch,
        "segments": [segment_to_json(s) for s in state.lineage],
    }


def show_lineage(state: PartitionState, console: Console) -> None:
    console.print(Text(f"{state.parent}: epoch {state.epoch}, {state.phase}", style="bold"))
    console.print(Padding(_picture(state, console.width), (0, 0, 1, 2), expand=False))
    console.print(indented(_segments(state.lineage)))


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


def _segments(lineage: Lineage) -> FittingTable:
    named = ("start", "end", "logical", "epochs", "after")
    table = FittingTable(("id", "kind", "range", "place"), named, right=("id", "start", "end"))
    for s in lineage:
        closed = "" if s.closed_epoch is None else str(s.closed_epoch)
        table.add_row(
            str(s.id),
            Text(s.kind.value, style=_COLOURS[s.kind]),
            str(s.range),
            str(s.source),
            f"{s.start:,}",
            "open" if s.end is None else f"{s.end:,}",
            f"{s.progression.base:,} + {s.progression.stride:,}·n",
            f"{s.opened_epoch}–{closed}",
            ", ".join(map(str, s.predecessors)),
        )
    return table


NUMBERS = ("segment", "offset", "logical", "lag")
UNKNOWN = "-"


def progress_json(group: str, found: Sequence[PartitionProgress]) -> dict[str, Any]:
    return {"group": group, "partitions": [_partition_json(p) for p in found]}


def show_progress(found: Sequence[PartitionProgress], console: Console) -> None:
    for progress in found:
        state = progress.state
        head = f"{state.parent}: epoch {state.epoch}, lag {_lag(progress.lag)}, group {progress.group_state}"
        console.print(Text(head, style="bold"))
        console.print(indented(_table(progress)))


def draw_groups(groups: Mapping[str, Sequence[PartitionProgress]]) -> Table:
    """Return a line for each group and partition: members with key ranges, lag, segments still drained.

    How many members have key ranges is not known while the group is in rebalance.
    """
    table = plain_table("group", "partition", "members", "lag", "drains", right=("members", "lag"))
    for group, found in groups.items():
        for progress in found:
            owners = {range_.owner for range_ in progress.ranges if range_.owner is not None}
            drains = sorted({segment for range_ in progress.ranges for segment in range_.to_drain})
            state = progress.group_state
            members = state if state == "in rebalance" else str(len(owners))
            text = f"segment {', '.join(map(str, drains))}" if drains else ""
            table.add_row(one_line(group), str(progress.state.parent), members, _lag(progress.lag), text)
    return table


def seek_json(seek: Seek, *, written: bool) -> dict[str, Any]:
    return {
        "group": seek.group,
        **place_json(seek.state.parent),
        "range": [seek.cursor.range.lo, seek.cursor.range.hi],
        "to": seek.target.whence.value,
        "at_end": seek.at_end,
        "positions": [
            {
                "segment": segment.id,
                **place_json(segment.source),
                "offset": next_,
                "logical_offset": segment.logical(next_),
            }
            for segment, next_ in _positions(seek)
        ],
        "written": written,
    }


def show_seek(seek: Seek, console: Console) -> None:
    table = plain_table("place", "segment", "offset", "logical", right=("segment", "offset", "logical"))
    for segment, next_ in _positions(seek):
        table.add_row(str(segment.source), str(segment.id), str(next_), str(segment.logical(next_)))
    console.print(
        Text(f"{seek.state.parent} {seek.cursor.range}, group {one_line(seek.group)}:", style="bold")
    )
    console.print(indented(table))
    if seek.at_end:
        target = target_text(seek.target)
        console.print(Text(f"! there is no record at or after {target}: same as --to latest", style="yellow"))


def _positions(seek: Seek) -> list[tuple[Segment, int]]:
    return [(seek.state.lineage.get(i), next_) for i, next_ in sorted(seek.cursor.positions.items())]


def target_text(target: SeekTarget) -> str:
    if target.whence is Whence.OFFSET:
        return f"offset {target.number}"
    return utc(target.number) if target.whence is Whence.TIMESTAMP else target.whence.value


def _table(progress: PartitionProgress) -> FittingTable:
    table = FittingTable(("range", "owner", "place"), (*NUMBERS, ""), right=NUMBERS)
    for range_ in progress.ranges:
        rows = [_segment_cells(left) for left in range_.left] or [("", "", "", "", "", range_.basis.value)]
        for number, (place, *cells) in enumerate(rows):
            head = (str(range_.range), _owner(range_)) if number == 0 else ("", "")
            table.add_row(*head, place, *cells)
    return table


def _lag(offsets: int | None) -> str:
    return UNKNOWN if offsets is None else f"{offsets:,}"


def _segment_cells(left: SegmentLeft) -> tuple[str, str, str, str, str, str]:
    lag = _lag(left.lag)
    place, number = str(left.segment.source), str(left.segment.id)
    return place, number, str(left.next), str(left.logical), lag, left.stage


def _owner(range_: RangeProgress | GroupDrain) -> str:
    return UNKNOWN if range_.owner is None else one_line(str(range_.owner))


def _owner_json(owner: Owner) -> dict[str, str]:
    return {"member": owner.member, "client_id": owner.client_id, "host": owner.host}


def _partition_json(progress: PartitionProgress) -> dict[str, Any]:
    return {
        **place_json(progress.state.parent),
        "epoch": progress.state.epoch,
        "group_state": progress.group_state.replace(" ", "_"),
        "lag": progress.lag,
        "ranges": [_progress_of(r) for r in progress.ranges],
    }


def _progress_of(range_: RangeProgress) -> dict[str, Any]:
    owner, commit = range_.owner, range_.commit
    return {
        "range": [range_.range.lo, range_.range.hi],
        "owner": owner and _owner_json(owner),
        "basis": range_.basis.value.replace(" ", "_"),
        "committed_by": commit
        and {"member": commit.member, "generation": commit.generation, "cause": commit.cause.value},
        "lag": range_.lag,
        "to_drain": None if range_.basis is Basis.NOTHING else list(range_.to_drain),
        "positions": [
            {
                "segment": left.segment.id,
                **place_json(left.segment.source),
                "offset": left.next,
                "logical_offset": left.logical,
                "lag": left.lag,
                "readable": left.ready,
                "closed": left.draining,
            }
            for left in range_.left
        ],
    }
