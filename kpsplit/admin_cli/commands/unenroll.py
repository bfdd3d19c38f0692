"""``kpsplit unenroll``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console

from kpsplit.admin import MAX_PAUSE_MS, Admin, Check, Enrolment, Observer, PhysicalPartition
from kpsplit.admin_cli.call import Call, VerbCommand
from kpsplit.admin_cli.failures import Interrupted, is_interrupt
from kpsplit.admin_cli.operating import explained_interrupt
from kpsplit.admin_cli.options import DURATION, TOPIC, dry_run_option, yes_option
from kpsplit.admin_cli.render.console import StepProgress, stderr
from kpsplit.admin_cli.render.text import one_line
from kpsplit.control.returning import GROUPS, MERGED, acts_left, partition_obstacle
from kpsplit.errors import CheckFailedError, KpsplitError, after_a_change

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
    help="First merge what is split, and retire the sub-topics. Without it, you are asked. A merge that "
    "needs --force is refused: run kpsplit merge for it, which shows why.",
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
    with call.operations() as operations:
        obstacles = operations.plan_unenrol(topic)
        if dry_run:
            _show_plan(call, operations, topic, obstacles)
            return
        parents = _to_merge(operations, topic, obstacles)
        if parents and not merge and not yes:
            names = ", ".join(map(str, parents))
            call.ask(f"Merge {names} and retire the sub-topics first?", yes=False)
            merge = True
        call.confirm(f"Lead {topic} back to plain clients?", yes)
        merged: dict[PhysicalPartition, str] = {}
        with (
            _explained_interrupt(call, topic, merged),
            StepProgress(stderr(), "looking at partitions and groups") as progress,
        ):
            for parent in parents if merge else ():
                with after_a_change(done=bool(merged)):
                    _merge_and_retire(call, operations, parent, progress, wait, merged)
            with after_a_change(done=bool(merged)):
                enrolment = operations.unenrol(topic, progress, wait_seconds=wait)
    data = {"topic": topic, "left": enrolment.left, "generation": enrolment.generation}
    call.show(data, lambda console: console.print(f"{topic} is back with plain clients"))


@contextmanager
def _explained_interrupt(call: Call, topic: str, merged: dict[PhysicalPartition, str]) -> Iterator[None]:
    """Turn an interruption into Interrupted, with how far the return is.

    ``merged``: the partitions that were merged for it, and how far each is.
    """
    try:
        yield
    except BaseException as error:  # C code turns a Ctrl-C into other errors: is_interrupt knows them
        if not isinstance(error, Interrupted) and not is_interrupt(error):
            raise
        said = [f"{parent} {stage}" for parent, stage in merged.items()]
        said += [error.outcome] if isinstance(error, Interrupted) else []
        try:
            # New clients: the interruption may have hit the old ones in the middle of a call.
            with call.operations() as operations:
                said.append(how_far(topic, operations.view().recorded(topic)))
        except (KpsplitError, KeyboardInterrupt):
            said.append(f"how far the return is, is not known; see: kpsplit unenroll {topic} --dry-run")
        raise Interrupted("; ".join(said)) from None


def how_far(topic: str, recorded: Enrolment | None) -> str:
    """Say how far the return of a topic is by its latest record, and what is next."""
    if recorded is None or not recorded.returning:
        return f"the return of {topic} was not begun"
    if recorded.left:
        return (
            f"{topic} is back with plain clients; to withdraw what may be left of range commits run: "
            f"kpsplit unenroll {topic}"
        )
    following = _ACTS[str(acts_left(recorded)[0])]
    return (
        f"{topic} is being returned to plain clients, groups and producers go on; next: {following}; "
        f"to go on run: kpsplit unenroll {topic}"
    )


def _to_merge(operations: Admin, topic: str, obstacles: list[Check]) -> list[PhysicalPartition]:
    """Return the partitions that are not merged, or whose sub-topics are not retired.

    None where something else forbids the return too, which a merge does not end: then that is said first.
    """
    if not obstacles or any(check.name not in (MERGED, GROUPS) for check in obstacles):
        return []
    found = [(s.state.parent, partition_obstacle(s.state)) for s in operations.status(topic)]
    return [parent for parent, check in found if check is not None and check.name == MERGED]


def _merge_and_retire(
    call: Call,
    operations: Admin,
    parent: PhysicalPartition,
    observer: Observer,
    wait: float,
    stages: dict[PhysicalPartition, str],
) -> None:
    """Merge a partition unless it is merged, and retire its sub-topics; ``stages``: how far that is."""
    merged = [segment.source for segment in operations.lineage(parent).open_segments()] == [parent]
    if not merged:
        try:
            with explained_interrupt(call, operations, parent):
                operations.merge(parent, max_pause_ms=MAX_PAUSE_MS, observer=observer)
        except CheckFailedError as error:
            error.hint = (
                f"run: kpsplit merge {parent}; it shows all checks, and which of them --force passes over"
            )
            raise
    stages[parent] = "merged, its sub-topics perhaps retired"
    with after_a_change(done=not merged):
        operations.retire(parent, observer=observer, wait_seconds=wait)
    stages[parent] = "merged and retired"


def _show_plan(call: Call, operations: Admin, topic: str, obstacles: list[Check]) -> None:

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
