"""``kpsplit plan``."""

from __future__ import annotations

from pathlib import Path

import click

from kpsplit.admin_cli.call import Call, pass_call
from kpsplit.admin_cli.given import VerbCommand, global_options
from kpsplit.admin_cli.operating import check_runnable, force_option, plan_json
from kpsplit.admin_cli.param_types import KEY_RANGE, PARTITION, RANGES
from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition


@click.command("plan", cls=VerbCommand)
@click.argument("partition", type=PARTITION, metavar="TOPIC/P")
@click.option("--ranges", type=RANGES, metavar="N", help="Plan a split into N ranges.")
@click.option("--merge", is_flag=True, help="Plan a merge instead.")
@click.option(
    "--of", type=KEY_RANGE, metavar="LO:HI", help="The open range to split, or the ranges to merge."
)
@click.option("--even", is_flag=True, help="Ranges of equal width, whatever the keys are.")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Save the plan for --plan.")
@force_option
@global_options
@pass_call
def command(
    call: Call,
    partition: PhysicalPartition,
    ranges: int | None,
    merge: bool,
    of: KeyRange | None,
    even: bool,
    save: Path | None,
    force: bool,
) -> None:
    """Show what a split or merge would do.

    Boundaries follow the keys in the tail of the log. Nothing is changed. Exits with 3 if a check fails.
    """
    from kpsplit.admin_cli.render.plan import show_plan

    if merge == (ranges is not None) or (merge and even):
        raise click.UsageError("give either --ranges N or --merge")
    with call.operations() as operations:
        if ranges is None:
            plan = operations.plan_merge(partition, of)
        else:
            plan = operations.plan_split(partition, ranges, of=of, even=even)
    if save is not None:
        _save(save, plan.encode())
    call.show(plan_json(plan), lambda console: show_plan(plan, console))
    check_runnable(plan, force)


def _save(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
