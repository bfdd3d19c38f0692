"""``kpsplit resume``."""

from __future__ import annotations

import click

from kpsplit.admin_cli.call import Call, VerbCommand, can_be_resumed, can_be_thawed, the_only_one
from kpsplit.admin_cli.operating import explained_interrupt, report_on
from kpsplit.admin_cli.options import PARTITION, PAUSE, yes_option
from kpsplit.admin_cli.render.console import StepProgress, stderr
from kpsplit.admin_cli.render.text import place_json
from kpsplit.splitter.lineage import PhysicalPartition


@click.command("resume", cls=VerbCommand)
@click.argument("partition", type=PARTITION, metavar="[TOPIC/P]", required=False)
@click.option("--thaw", is_flag=True, help="Continue with a frozen partition, after you have found out why.")
@click.option("--max-pause", type=PAUSE, help="As for split (at most 10m).  [default: that of the operation]")
@yes_option
def command(
    call: Call, partition: PhysicalPartition | None, thaw: bool, max_pause: float | None, yes: bool
) -> None:
    """Finish what a dead operator left.

    A committed operation is completed; any other is rolled back and started again. Without an argument: the
    only operation under way. If there are several, they are listed and nothing is done. Operations that were
    rolled back because their operator died are listed too; to start one again, name its partition.
    """
    if partition is None:
        verb, wanted = ("resume --thaw", can_be_thawed) if thaw else ("resume", can_be_resumed)
        partition = the_only_one(call, verb, wanted, yes)
    if partition is None:
        nothing = "no partition is frozen" if thaw else "no operation is under way"
        call.show({"result": None}, lambda console: console.print(nothing))
        return
    call.confirm(f"{'Thaw and resume' if thaw else 'Resume'} the operation on {partition} now?", yes)
    max_pause_ms = None if max_pause is None else round(max_pause * 1000)
    with (
        call.operations() as operations,
        explained_interrupt(call, operations, partition, resumes=True),
        StepProgress(stderr()) as progress,
    ):
        report = operations.resume(partition, max_pause_ms=max_pause_ms, observer=progress, thaw=thaw)
    if report is None:
        data = {**place_json(partition), "result": None}
        text = "it is no longer frozen" if thaw else "there is nothing to resume"
        call.show(data, lambda console: console.print(f"{partition}: {text}"))
    else:
        report_on(call, report)
