"""``kpsplit plan``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from kpsplit.admin_cli.call import Call, VerbCommand, find_state
from kpsplit.admin_cli.operating import check_runnable, plan_json
from kpsplit.admin_cli.options import (
    KEY_RANGE,
    PARTITION,
    RANGES,
    SINCE,
    force_option,
    require_spark,
    spark_size_options,
)
from kpsplit.admin_cli.render.console import StepProgress, stderr
from kpsplit.admin_cli.render.plan import show_plan
from kpsplit.control.planning import segment_to_split
from kpsplit.control.plans import Stretch
from kpsplit.files import check_writable, write_whole
from kpsplit.splitter.key_range import KeyRange, Sizing
from kpsplit.splitter.lineage import PhysicalPartition

SAMPLE, SPARK = "sample", "spark"


@click.command("plan", cls=VerbCommand)
@click.argument("partition", type=PARTITION, metavar="TOPIC/P")
@click.option("--ranges", type=RANGES, metavar="N", help="Plan a split into N ranges.")
@click.option("--merge", is_flag=True, help="Plan a merge instead.")
@click.option(
    "--of", type=KEY_RANGE, metavar="LO:HI", help="The open range to split, or the whole range to merge."
)
@click.option("--even", is_flag=True, help="Make ranges of equal width; do not look at keys.")
@click.option(
    "--engine",
    type=click.Choice([SAMPLE, SPARK]),
    default=SAMPLE,
    show_default=True,
    help="Where boundaries come from: the newest records, or all records since a time (spark).",
)
@click.option(
    "--since",
    type=SINCE,
    metavar="TIME",
    help="With spark: first time to read, with a zone, or an age (6h).  [default: the earliest record]",
)
@click.option(
    "--weight", type=click.Choice(["bytes", "records"]), help="With spark: what to balance.  [default: bytes]"
)
@spark_size_options
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Save the plan, to be run with --plan FILE.",
)
@force_option
def command(
    call: Call,
    partition: PhysicalPartition,
    ranges: int | None,
    merge: bool,
    of: KeyRange | None,
    even: bool,
    engine: str,
    since: int | None,
    weight: str | None,
    master: str | None,
    cores: int | None,
    memory: str,
    save: Path | None,
    force: bool,
) -> None:
    """Show what a split or merge would do.

    Boundaries follow the keys of the newest records, or with --engine spark of all records since a time.
    Changes nothing. Exits with 3 if a check fails, with 1 if a right is missing, with 5 on a conflict.
    """
    if merge == (ranges is not None) or (merge and even):
        raise click.UsageError("pass either --ranges N or --merge")
    if engine == SPARK and (merge or even):
        raise click.UsageError("--engine spark needs --ranges N, without --merge and --even")
    default = click.get_current_context().get_parameter_source("memory") is ParameterSource.DEFAULT
    sized = None if default else memory
    if engine != SPARK and any(given is not None for given in (since, weight, master, cores, sized)):
        raise click.UsageError("--since, --weight, --master, --cores and --memory need --engine spark")
    if engine == SPARK:  # before brokers are asked: Spark may be missing
        require_spark(memory, cores, master)
    if save is not None:  # not after an hour of reading
        check_writable(save, "choose another --save")
    with call.operations() as operations:
        if ranges is None:
            plan = operations.plan_merge(partition, of)
        else:
            sizing, stretch = None, None
            if engine == SPARK:
                stretch = Stretch.until_now(since)
                session = (cores, memory, master)
                within = segment_to_split(find_state(operations, partition), of).range
                sizing = _sized_by_spark(call, partition, within, ranges, since, weight or "bytes", session)
            plan = operations.plan_split(partition, ranges, of=of, even=even, sizing=sizing)
            plan = replace(plan, stretch=stretch)
    if save is not None:
        write_whole(save, plan.encode())
    # A plan that may not be run is saved and shown all the same: it says why.
    call.show(plan_json(plan), lambda console: show_plan(plan, console))
    check_runnable(plan, force)


def _sized_by_spark(
    call: Call,
    partition: PhysicalPartition,
    within: KeyRange,
    ranges: int,
    since: int | None,
    weight: str,
    session: tuple[int | None, str, str | None],
) -> Sizing:
    """Return boundaries by all records of an open range. ``session``: cores, memory, master of Spark."""
    from kpsplit.spark_jobs.plan import Weight, size_partition
    from kpsplit.spark_jobs.session import running_session

    begin = "earliest" if since is None else since
    with StepProgress(stderr(), "starting Spark") as progress, running_session(*session) as spark:
        progress.passed("Spark")
        by = Weight(weight)
        sizing = size_partition(spark, call.connection, partition, within, ranges, begin, by)
        progress.passed("Sizing")
    return sizing
