"""``kpsplit unenroll``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.options import DURATION, TOPIC, dry_run_option, yes_option
from kpsplit.admin_cli.render.text import one_line
from kpsplit.errors import CheckFailedError, after_a_change

if TYPE_CHECKING:
    from rich.console import Console

    from kpsplit.admin import Admin, Check, Observer, PhysicalPartition

_ACTS = {
    "record": "record how far the return is",
    "claim": "claim each partition, so that no operator splits it any more",
    "lease": "wait one lease, so that every client knows it",
    "release": "wait until no group has a member on the slots topic",
    "delete": "delete the slots topic",
    "await": "wait until each group stands at one ordinary offset in each partition",
    "withdraw": "withdraw the range commits of all groups",
}


@click.command("unenroll", cls=VerbCommand)
@click.argument("topic", type=TOPIC)
@click.option(
    "--merge",
    is_flag=True,
    help="First merge what is split, and retire the sub-topics. Without it, you are asked.",
)
@click.option(
    "--wait",
    type=DURATION,
    metavar="DURATION",
    default=0.0,
    help="Wait so long, before anything is recorded, until groups have read on far enough.",
)
@dry_run_option
@yes_option
def command(call: Call, topic: str, merge: bool, wait: float, dry_run: bool, yes: bool) -> None:
    """Lead a topic back to plain clients.

    Groups and producers that use kpsplit go on meanwhile: members change from slots to partitions, producers
    stop stamping. Then the slots topic and the range commits are gone, and each group has right ordinary
    offsets. Waits for two leases, and until each group has followed. If it is broken off, run it again: it
    goes on.

    A split partition is merged and its sub-topics are retired first. It is refused while a group keeps state
    of the topic, stands before the latest merge, or has stopped with its key ranges apart. It takes the right
    to describe every group.
    """
    from kpsplit.admin_cli.render.console import StepProgress, stderr

    with call.operations() as operations:
        obstacles = operations.plan_unenrol(topic)
        if dry_run:
            _show_plan(call, operations, topic, obstacles)
            return
        parents = _to_merge(operations, topic) if obstacles else []
        if parents and not merge and not yes:
            names = ", ".join(map(str, parents))
            call.confirm(f"Merge {names} and retire the sub-topics first?", yes=False)
            merge = True
        call.confirm(f"Lead {topic} back to plain clients?", yes)
        with StepProgress(stderr(), "looking at partitions and groups") as progress:
            for number, parent in enumerate(parents if merge else ()):
                with after_a_change(done=number > 0):
                    _merge_and_retire(operations, parent, progress, wait)
            with after_a_change(done=merge and bool(parents)):
                enrolment = operations.unenrol(topic, progress, wait_seconds=wait)
    data = {"topic": topic, "left": enrolment.left, "generation": enrolment.generation}
    call.show(data, lambda console: console.print(f"{topic} is back with plain clients"))


def _to_merge(operations: Admin, topic: str) -> list[PhysicalPartition]:
    """Return the partitions that are not merged, or whose sub-topics are not retired."""
    from kpsplit.control.returning import MERGED, partition_obstacle

    found = [(s.state.parent, partition_obstacle(s.state)) for s in operations.status(topic)]
    return [parent for parent, check in found if check is not None and check.name == MERGED]


def _merge_and_retire(operations: Admin, parent: PhysicalPartition, observer: Observer, wait: float) -> None:
    from kpsplit.admin import MAX_PAUSE_MS

    merged = [segment.source for segment in operations.lineage(parent).open_segments()] == [parent]
    if not merged:
        try:
            operations.merge(parent, max_pause_ms=MAX_PAUSE_MS, observer=observer)
        except CheckFailedError as error:
            error.hint = (
                f"run: kpsplit merge {parent}; it shows all checks, and which of them --force passes over"
            )
            raise
    with after_a_change(done=not merged):
        operations.retire(parent, observer=observer, wait_seconds=wait)


def _show_plan(call: Call, operations: Admin, topic: str, obstacles: list[Check]) -> None:
    from kpsplit.control.returning import acts_left

    recorded = operations.view().recorded(topic)
    acts = () if recorded is None else acts_left(recorded)
    data = {
        "topic": topic,
        "obstacles": [{"name": o.name, "message": o.message, "remedy": o.remedy} for o in obstacles],
        "steps": [str(act) for act in acts],
    }

    def render(console: Console) -> None:
        for check in obstacles:
            console.print(f"{one_line(check.message)}; {check.remedy}", soft_wrap=True, markup=False)
        for act in acts:
            console.print(f"would {_ACTS[str(act)]}", soft_wrap=True, markup=False)

    call.show(data, render)
    call.say("dry run: nothing was changed")
