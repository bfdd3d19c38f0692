"""How records look: one JSON object a line, or one line of columns."""

from __future__ import annotations

import base64
from typing import Any

from rich.cells import set_cell_size

from kpsplit.admin_cli.render.text import show_bytes
from kpsplit.consumer.fetch.lineage_reader import LineageTally
from kpsplit.consumer.fetch.logical_record import LogicalRecord
from kpsplit.errors import many
from kpsplit.splitter.records.stamp import Stamp, instance_name

_OFFSET, _SEGMENT, _KEY = 14, 4, 24
_LEAST_VALUE = 12


def record_json(record: LogicalRecord) -> dict[str, Any]:
    """Return a record in the form that is part of the public interface."""
    return {
        "logical_offset": record.logical_offset,
        "segment": record.segment,
        "epoch": record.epoch,
        **bytes_json("key", record.key),
        **bytes_json("value", record.value),
        "source_topic": record.source_topic,
        "source_partition": record.source_partition,
        "source_offset": record.source_offset,
        "timestamp": record.timestamp,
        "stamp": None if record.stamp is None else _stamp_json(record.stamp),
    }


def bytes_json(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as text under ``name``, or as base64 under ``name_b64`` where they are not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(data).decode("ascii")}


def header_line(width: int) -> str:
    """Return the head of the columns."""
    head = f"{'logical offset':>{_OFFSET}}  {'seg':>{_SEGMENT}}  {'key':<{_KEY}}  value"
    return head[:width]


def record_line(record: LogicalRecord, width: int) -> str:
    """Return a record in one line of columns, cut at the width."""
    left = f"{record.logical_offset:>{_OFFSET}}  {record.segment:>{_SEGMENT}}  "
    key = set_cell_size(show_bytes(record.key, _KEY), _KEY)
    room = max(width - len(left) - _KEY - 2, _LEAST_VALUE)
    return f"{left}{key}  {set_cell_size(show_bytes(record.value, room), room).rstrip()}"


def tally_lines(tally: LineageTally) -> list[str]:
    """Return what was not delivered, for stderr."""
    lines = [f"gap: {gap}" for gap in tally.gaps]
    skipped = ", ".join(f"{many(n, reason.replace('_', ' '))}" for reason, n in tally.skipped.items() if n)
    foreign = ", ".join(f"{reason.replace('_', ' ')}: {n}" for reason, n in tally.foreign.items() if n)
    lines.append(many(tally.delivered, "record") + (f"; skipped: {skipped}" if skipped else ""))
    if foreign:
        lines.append(f"not delivered, outside every segment: {foreign}")
    if tally.malformed_headers:
        lines.append(f"{many(tally.malformed_headers, 'header')} with kpsplit's name and invalid content")
    return lines


def _stamp_json(stamp: Stamp) -> dict[str, Any]:
    return {"epoch": stamp.epoch, "instance": instance_name(stamp.instance), "sequence": stamp.sequence}
