"""``kpsplit retire``."""

from __future__ import annotations

import click
from rich.console import Console

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.options import DURATION, PARTITION, yes_option
from kpsplit.admin_cli.render.console import StepProgress, stderr
from kpsplit.admin_cli.render.text import one_line, place_json
from kpsplit.errors import CheckFailedError, UsageError
from kpsplit.splitter.driver import StepDone
from kpsplit.splitter.lineage import PhysicalPartition

KEEP, CHANGES = "Keep", ("Retire", "Delete")
"""Names of steps."""


@click.command("retire", cls=VerbCommand)
@click.argument("partition", type=PARTITION, metavar="[TOPIC/P]", required=False)
@click.option("--force", is_flag=True, help="Delete them even if groups have not drained them: DATA IS LOST.")
@click.option(
    "--dry-run", is_flag=True, help="Show what would be deleted, what kept, and why; change nothing."
)
@click.option(
    "--wait",
    type=DURATION,
    metavar="DURATION",
    default=0.0,
    help="Wait so long until groups have drained them. Before the wait is over nothing is changed.",
)
@yes_option
def command(
    call: Call, partition: PhysicalPartition | None, force: bool, dry_run: bool, wait: float, yes: bool
) -> None:
    """Delete sub-topics that every group has drained.

    Only sealed or abandoned sub-topics are deleted. One that a known group has not read to its end is kept,
    and the exit code is 3. Without an argument nothing is deleted, and all sealed or abandoned sub-topics are
    listed.
    """
    if partition is None:
        if force or yes or wait:  # the caller wants to delete, and a list is no deletion
            raise UsageError("no partition is named", hint="name one: kpsplit retire TOPIC/P")
        _list(call)
        return
    if dry_run:
        _show_plan(call, partition, force)
        return
    warning = " even if they are not drained" if force else ""
    call.confirm(f"Delete the emptied sub-topics of {partition}{warning}?", yes)
    kept: dict[str, str] = {}
    changed = False

    def observe(step: StepDone) -> None:
        nonlocal changed
        changed = changed or step.name in CHANGES
        if step.name == KEEP:
            name, _, reason = step.detail.partition(": ")
            kept[name] = reason
        progress(step)

    with call.operations() as operations, StepProgress(stderr(), "checking consumer groups") as progress:
        deleted = operations.retire(partition, observer=observe, force=force, wait_seconds=wait)
    data = {**place_json(partition), "deleted": deleted, "kept": kept}
    nothing = f"{partition}: {'nothing was deleted' if kept else 'there is nothing to retire'}"
    text = f"deleted {', '.join(deleted)}" if deleted else nothing
    call.show(data, lambda console: console.print(text, soft_wrap=True))
    if kept:
        raise CheckFailedError(
            f"{len(kept)} of {len(kept) + len(deleted)} sub-topics of {partition} had to be kept",
            hint="let the groups read on, or move them with kpsplit seek; then run it again",
            changed=changed,  # some may be retired although others were kept
        )


def _list(call: Call) -> None:
    with call.operations() as operations:
        states = sorted(operations.view().states.values(), key=lambda state: state.parent)
    found = [(state.parent, left) for state in states if (left := state.to_retire())]
    data = [
        {
            **place_json(parent),
            "subtopics": [{"name": t.name, "state": str(t.state)} for t in left],
        }
        for parent, left in found
    ]

    def render(console: Console) -> None:
        for parent, left in found:
            names = ", ".join(f"{t.name} ({t.state})" for t in left)
            console.print(f"kpsplit retire {parent}    # {names}", soft_wrap=True, markup=False)
        if not found:
            console.print("there is nothing to retire")

    call.show(data, render)


def _show_plan(call: Call, partition: PhysicalPartition, force: bool) -> None:

    with call.operations() as operations, StepProgress(stderr(), "checking consumer groups") as progress:
        found = operations.plan_retire(partition, observer=progress, force=force)
    data = {
        **place_json(partition),
        "would_delete": list(found.going),
        "would_keep": dict(found.kept),
    }

    def render(console: Console) -> None:
        for name in found.going:
            console.print(f"would delete {name}", soft_wrap=True)
        for name, reason in found.kept.items():
            console.print(f"would keep {name}: {one_line(reason)}", soft_wrap=True, markup=False)
        if not found.going and not found.kept:
            console.print(f"{partition}: there is nothing to retire")

    call.show(data, render)
