"""``kpsplit read``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click
from rich.cells import set_cell_size

from kpsplit.admin_cli.call import Call, VerbCommand, find_state
from kpsplit.admin_cli.options import COUNT, OFFSET, PARTITION
from kpsplit.admin_cli.render.console import stdout
from kpsplit.admin_cli.render.text import bytes_json, show_bytes
from kpsplit.consumer.fetch.lineage_reader import LineageReader, LineageTally, LogicalRecord
from kpsplit.errors import many
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.data import Stamp, instance_name


@click.command("read", cls=VerbCommand)
@click.argument("partition", type=PARTITION, metavar="TOPIC/P")
@click.option(
    "--from",
    "first",
    type=OFFSET,
    default=0,
    metavar="OFFSET",
    help="The first logical offset.  [default: the first one there is]",
)
@click.option("--limit", type=COUNT, metavar="N", help="Stop after N records.")
def command(call: Call, partition: PhysicalPartition, first: int, limit: int | None) -> None:
    """Print a partition's records in lineage order.

    Prints every record once, and each key's records in order, up to the present ends of the logs. Records
    that are skipped, for example strays, and gaps are counted on stderr.
    """
    with call.operations() as operations:
        state = find_state(operations, partition)

        def refresh() -> PartitionState:
            return operations.view().state(partition) or state

        with LineageReader(call.connection, state, refresh, call.given.timeout) as reader:
            _print(call, islice(reader.records(first), limit))
            for line in tally_lines(reader.tally):
                call.say(line)


def _print(call: Call, records: Iterator[LogicalRecord]) -> None:

    write = sys.stdout.write
    if call.as_json:
        for record in records:
            write(json.dumps(record_json(record)) + "\n")
    else:
        width = stdout().width
        write(header_line(width) + "\n")
        for record in records:
            write(record_line(record, width) + "\n")
    sys.stdout.flush()


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


def header_line(width: int) -> str:
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
