"""``kpsplit split``."""

from __future__ import annotations

from pathlib import Path

import click

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.operating import carry_out, check_current, load_plan
from kpsplit.admin_cli.options import (
    KEY_RANGE,
    PARTITION,
    RANGES,
    dry_run_option,
    force_option,
    max_pause_option,
    plan_option,
    yes_option,
)
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import OperationKind


@click.command("split", cls=VerbCommand)
@click.argument("partition", type=PARTITION, metavar="TOPIC/P")
@click.option("--ranges", type=RANGES, metavar="N", help="Number of ranges.")
@click.option(
    "--of", type=KEY_RANGE, metavar="LO:HI", help="The open range to split; needed if there are several."
)
@click.option("--even", is_flag=True, help="Make ranges of equal width; do not look at keys.")
@plan_option
@max_pause_option
@force_option
@dry_run_option
@yes_option
def command(
    call: Call,
    partition: PhysicalPartition,
    ranges: int | None,
    of: KeyRange | None,
    even: bool,
    plan_file: Path | None,
    max_pause: float,
    force: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Split a partition, or one of its ranges, by key range.

    Boundaries follow the keys of the newest records. Writers of this partition pause for a moment; writers of
    other partitions do not. Ctrl-C rolls the operation back.
    """
    if (plan_file is None) == (ranges is None):
        raise click.UsageError("pass either --ranges N or --plan FILE")
    if plan_file is not None and (of is not None or even):
        raise click.UsageError("--of and --even cannot be used with --plan")
    saved = None if plan_file is None else load_plan(plan_file, partition, OperationKind.SPLIT)
    with call.operations() as operations:
        plan = (
            check_current(operations, saved)
            if saved
            else operations.plan_split(partition, ranges or 0, of=of, even=even)
        )
        carry_out(call, operations, plan, max_pause=max_pause, force=force, dry_run=dry_run, yes=yes)
