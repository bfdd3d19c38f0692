"""``kpsplit merge``."""

from __future__ import annotations

from pathlib import Path

import click

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.operating import carry_out, check_current, load_plan
from kpsplit.admin_cli.options import (
    KEY_RANGES,
    PARTITION,
    dry_run_option,
    force_option,
    max_pause_option,
    plan_option,
    yes_option,
)
from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import KeyRange, union_of_adjacent
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import OperationKind


@click.command("merge", cls=VerbCommand)
@click.argument("partition", type=PARTITION, metavar="TOPIC/P")
@click.option(
    "--of",
    "of",
    type=KEY_RANGES,
    multiple=True,
    metavar="LO:HI[,LO:HI…]",
    help="Adjacent open ranges to merge into one. Without it, all are merged back into the partition.",
)
@plan_option
@max_pause_option
@force_option
@dry_run_option
@yes_option
def command(
    call: Call,
    partition: PhysicalPartition,
    of: tuple[tuple[KeyRange, ...], ...],
    plan_file: Path | None,
    max_pause: float,
    force: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Merge ranges, or all of them back into the partition.

    Emptied sub-topics accept no more writes; `kpsplit retire` deletes them later.
    """
    if plan_file is not None and of:
        raise click.UsageError("--of and --plan cannot be used together")
    wanted = _union(tuple(r for group in of for r in group))
    saved = None if plan_file is None else load_plan(plan_file, partition, OperationKind.MERGE)
    with call.operations() as operations:
        plan = check_current(operations, saved) if saved else operations.plan_merge(partition, wanted)
        carry_out(call, operations, plan, max_pause=max_pause, force=force, dry_run=dry_run, yes=yes)


def _union(ranges: tuple[KeyRange, ...]) -> KeyRange | None:
    if not ranges:
        return None
    union = union_of_adjacent(ranges)
    if union is None:
        raise UsageError(
            "the ranges are not adjacent", hint="see the open ranges with: kpsplit status TOPIC/P"
        )
    return union
