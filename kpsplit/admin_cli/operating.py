"""What split, merge and resume share: show the plan, ask, run it, report the outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kpsplit.admin import Admin
from kpsplit.admin_cli.call import Call
from kpsplit.admin_cli.failures import UNCHANGED, Interrupted, is_interrupt
from kpsplit.admin_cli.render.console import StepProgress, stderr
from kpsplit.admin_cli.render.plan import report_json, show_plan, show_report
from kpsplit.control.planning import refuse_moved_on
from kpsplit.control.plans import Plan
from kpsplit.control.preconditions import refusal
from kpsplit.control.status import Report
from kpsplit.errors import KpsplitError, RecordError, UsageError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import OperationKind, PartitionState, Phase
from kpsplit.splitter.steps import took_effect

LARGEST_PLAN_FILE = 1 << 20
_SAVE = "save one with: kpsplit plan TOPIC/P --save FILE"


def plan_json(plan: Plan) -> Any:
    """Return a plan as JSON data: the content of a plan file."""
    return json.loads(plan.encode())


def load_plan(path: Path, parent: PhysicalPartition, kind: OperationKind) -> Plan:
    """Read a saved plan. Raises UsageError: it cannot be read, or is one for something else."""
    try:
        with path.open("rb") as file:
            plan = Plan.decode(file.read(LARGEST_PLAN_FILE))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=_SAVE) from None
    except RecordError as error:
        raise UsageError(f"{path} is not a plan file: {error.message}", hint=_SAVE) from None
    if plan.parent != parent or plan.kind is not kind:
        raise UsageError(f"{path} is a plan to {plan.kind} {plan.parent}, not to {kind} {parent}", hint=_SAVE)
    return plan


def carry_out(
    call: Call, operations: Admin, plan: Plan, *, max_pause: float, force: bool, dry_run: bool, yes: bool
) -> None:
    """Show a plan; unless it is a dry run, ask, run it and report. Raises Declined, or as check_runnable."""
    if dry_run:
        call.show(plan_json(plan), lambda console: show_plan(plan, console))
        check_runnable(plan, force)
        call.say("dry run: nothing was changed")
        return
    # On stderr: stdout has the report only, as JSON where that is asked for.
    show_plan(plan, stderr(), brief=True)
    check_runnable(plan, force)
    call.confirm(f"{plan.kind.capitalize()} {plan.parent} now?", yes)
    max_pause_ms = round(max_pause * 1000)
    with explained_interrupt(call, operations, plan.parent), StepProgress(stderr()) as progress:
        report = operations.run(plan, max_pause_ms=max_pause_ms, observer=progress, force=force)
    report_on(call, report)


def check_runnable(plan: Plan, force: bool) -> None:
    """Raise the error of the first failed check, with its exit code, if a plan may not be run."""
    problems = plan.problems(force)
    if not problems:
        return
    error = refusal(problems[0])
    if len(problems) > 1:
        error.message += f" (and {len(problems) - 1} more failed)"
    if problems[0].forceable and "--force" not in (error.hint or ""):
        error.hint = f"{error.hint}, or pass --force" if error.hint else "pass --force"
    raise error


def check_current(operations: Admin, plan: Plan) -> Plan:
    """Raises ConflictError: the partition is no longer as it was when the plan was made."""
    refuse_moved_on(plan, operations.view().enrolled_state(plan.parent))
    return plan


def report_on(call: Call, report: Report) -> None:

    call.show(report_json(report), lambda console: show_report(report, console))


@contextmanager
def explained_interrupt(
    call: Call, operations: Admin, parent: PhysicalPartition, *, resumes: bool = False
) -> Iterator[None]:
    """Turn an interruption into Interrupted, with what became of the operation: rolled back if possible.

    ``resumes``: the operation is the one that is under way now, if there is one.
    """
    before = operations.view().state(parent)
    left = before.attempt.id if resumes and before is not None and before.attempt is not None else None
    try:
        yield
    except BaseException as error:  # C code turns a Ctrl-C into other errors: is_interrupt knows them
        if not is_interrupt(error):
            raise
        what = _what_became_of(call, parent, before, operations.begun(parent), left)
        raise Interrupted(what) from None


def _what_became_of(
    call: Call, parent: PhysicalPartition, before: PartitionState | None, begun: str | None, left: str | None
) -> str:
    """Read back how a partition stands, roll back what the driver could not; never raises."""
    state = None
    try:
        # New clients: the interruption may have hit the old ones in the middle of a call.
        with call.operations() as operations:
            state = operations.view().state(parent)
            if state is not None and _can_be_rolled_back(state, begun):
                with suppress(KpsplitError):
                    operations.abort(parent, "interrupted")
                state = operations.view().state(parent)
    except (KpsplitError, KeyboardInterrupt):
        pass
    return _unknown(parent) if state is None or before is None else standing(before, state, begun, left)


def _can_be_rolled_back(state: PartitionState, attempt_id: str | None) -> bool:
    attempt = state.attempt
    return attempt is not None and attempt.id == attempt_id and state.phase is not Phase.COMMITTED


def standing(
    before: PartitionState, state: PartitionState, begun: str | None, left: str | None = None
) -> str:
    """Say what became of a run's operation between two states of a partition; others may have changed it too.

    ``begun``: the id of the attempt that the run began, if it did. ``left``: of the one that it resumed.
    """
    parent = state.parent
    on_record = (i for i in (begun, left) if i is not None and took_effect(state, i) is not None)
    ours = next(on_record, None)
    under_way = ours is not None and state.attempt is not None and state.attempt.id == ours
    if ours is not None and took_effect(state, ours):
        follow = f"; finish with: kpsplit resume {parent}" if under_way else ""
        return f"the operation took effect, {parent} is at epoch {state.epoch}{follow}"
    what = UNCHANGED
    if state.revision != before.revision:
        if under_way:
            return f"{parent} is still {state.phase}; roll it back with: kpsplit abort {parent}"
        if ours is not None:
            what = "the operation was rolled back"
        elif begun is not None:  # others have ended an operation since: the record says nothing of ours
            return _unknown(parent)
        elif (before.phase is Phase.FROZEN) != (state.phase is Phase.FROZEN):
            what = "the partition was frozen" if state.phase is Phase.FROZEN else "the partition was thawed"
    return f"{what}, {parent} is {state.phase} at epoch {state.epoch}"


def _unknown(parent: PhysicalPartition) -> str:
    return f"the outcome of the operation is unknown; see: kpsplit status {parent}"
