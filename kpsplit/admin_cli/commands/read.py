"""``kpsplit read``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from kpsplit.admin_cli.call import Call, pass_call
from kpsplit.admin_cli.given import VerbCommand, global_options
from kpsplit.admin_cli.lookup import find_state
from kpsplit.admin_cli.param_types import COUNT, OFFSET, PARTITION
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState

if TYPE_CHECKING:
    from kpsplit.consumer.fetch.logical_record import LogicalRecord


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
@global_options
@pass_call
def command(call: Call, partition: PhysicalPartition, first: int, limit: int | None) -> None:
    """Print a partition's records in lineage order.

    Prints every record once, and each key's records in order, up to the present ends of the logs. Records
    that are skipped, for example strays, and gaps are counted on stderr.
    """
    from kpsplit.admin_cli.render.records import tally_lines
    from kpsplit.consumer.fetch.lineage_reader import LineageReader

    with call.operations() as operations:
        state = find_state(operations, call.connection, partition)

        def refresh() -> PartitionState:
            return operations.view().state(partition) or state

        with LineageReader(call.connection, state, refresh, call.given.timeout) as reader:
            _print(call, islice(reader.records(first), limit))
            for line in tally_lines(reader.tally):
                call.say(line)


def _print(call: Call, records: Iterator[LogicalRecord]) -> None:
    from kpsplit.admin_cli.render.console import stdout
    from kpsplit.admin_cli.render.records import header_line, record_json, record_line

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
