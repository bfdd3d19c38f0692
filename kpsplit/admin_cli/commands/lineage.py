"""``kpsplit lineage``."""

from __future__ import annotations

import click

from kpsplit.admin_cli.call import Call, VerbCommand, find_state
from kpsplit.admin_cli.options import PARTITION
from kpsplit.admin_cli.render.status import lineage_json, show_lineage
from kpsplit.splitter.lineage import PhysicalPartition


@click.command("lineage", cls=VerbCommand)
@click.argument("partition", type=PARTITION, metavar="TOPIC/P")
def command(call: Call, partition: PhysicalPartition) -> None:
    """Show all segments of a partition.

    The picture shows the key space, one line per epoch; each cell is a segment with its id.
    """
    with call.operations() as operations:
        state = find_state(operations, partition)
    call.show(lineage_json(state), lambda console: show_lineage(state, console))
