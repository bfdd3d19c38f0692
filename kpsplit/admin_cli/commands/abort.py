"""``kpsplit abort``."""

from __future__ import annotations

import click

from kpsplit.admin_cli.call import Call, VerbCommand, can_be_aborted, the_only_one
from kpsplit.admin_cli.options import NAME, PARTITION, yes_option
from kpsplit.admin_cli.render.console import StepProgress, stderr
from kpsplit.admin_cli.render.plan import outcome_json, show_outcome
from kpsplit.admin_cli.render.text import place_json
from kpsplit.errors import after_a_change
from kpsplit.splitter.lineage import PhysicalPartition


@click.command("abort", cls=VerbCommand)
@click.argument("partition", type=PARTITION, metavar="[TOPIC/P]", required=False)
@click.option(
    "--reason",
    type=NAME,
    metavar="TEXT",
    default="aborted by hand",
    show_default=True,
    help="Recorded in the control topic.",
)
@yes_option
def command(call: Call, partition: PhysicalPartition | None, reason: str, yes: bool) -> None:
    """Roll back the operation under way.

    If its operator is still alive, it is fenced. A committed operation cannot be rolled back: use resume.
    Without an argument: the only operation that can be rolled back. If there are several, they are listed and
    nothing is done.
    """
    if partition is None:
        partition = the_only_one(call, "abort", can_be_aborted, yes)
    if partition is None:
        nothing = "no operation is under way that can be rolled back"
        call.show({"result": None}, lambda console: console.print(nothing))
        return
    call.confirm(f"Abort the operation on {partition}?", yes)
    with call.operations() as operations:
        with StepProgress(stderr()) as progress:
            outcome = operations.abort(partition, reason[:1000], progress)
        with after_a_change(f"look at: kpsplit status {partition}", done=outcome is not None):
            state = operations.view().state(partition)
    if outcome is None or state is None:
        data = {**place_json(partition), "result": None}
        call.show(data, lambda console: console.print(f"{partition}: no operation is under way"))
    else:
        call.show(outcome_json(outcome, state), lambda console: show_outcome(outcome, state, console))
