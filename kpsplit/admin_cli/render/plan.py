"""How a plan looks, and the end of an operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kpsplit.admin_cli.render.console import FittingTable, indented, plain_table
from kpsplit.admin_cli.render.text import (
    bar,
    one_line,
    percent,
    place_json,
    segment_json,
    shorten,
    utc,
)
from kpsplit.control.plans import Check, Drain, HotKey, Plan, Stretch
from kpsplit.control.status import Report, Spread
from kpsplit.errors import duration, many
from kpsplit.splitter.partition_state import OperationKind, Outcome, PartitionState, Result
from kpsplit.splitter.records.producers import PauseReport

TOP_KEYS = 5
MOST_GROUPS = 10
_WIDE = 100
_BAR, _SHORT_BAR = 30, 16
_LONGEST_KEY = 40


def show_plan(plan: Plan, console: Console, brief: bool = False) -> None:
    """Print a plan; ``brief``: the checks that passed are only counted."""
    console.print(Text(headline(plan), style="bold"))
    console.print(indented(_ranges(plan, _BAR if console.width >= _WIDE else _SHORT_BAR)))
    if plan.shares:
        predicted = f"predicted from {many(plan.sampled, 'record')}{_stretch(plan.stretch)}"
        console.print(Text(predicted, style="dim"))
    if plan.heaviest:
        console.print(Text("\nTop keys", style="bold"))
        console.print(indented(_top_keys(plan.heaviest[:TOP_KEYS])))
    if plan.drains:
        console.print(Text("\nGroups that drain the closing segments first", style="bold"))
        console.print(indented(_drains(plan.drains)))
    console.print(Text("\nChecks", style="bold"))
    show_checks(plan.checks, console, brief)
    said = [check.message for check in plan.checks if not (brief and check.ok)]
    if plan.note and plan.note not in said:
        console.print(Text(f"\n! {one_line(plan.note)}", style="yellow"))


def _stretch(stretch: Stretch | None) -> str:
    if stretch is None:
        return ""
    since = "the earliest" if stretch.since_ms is None else utc(stretch.since_ms)
    return f", all from {since} to {utc(stretch.until_ms)}"


def headline(plan: Plan) -> str:
    where = f"new sub-topic {plan.subtopic}" if plan.subtopic else str(plan.parent)
    into = many(len(plan.ranges), "range")
    if plan.kind is OperationKind.SPLIT:
        what = f"split into {into}, stored in {where}"
    else:
        what = f"merge {many(len(plan.sources), 'segment')} into {into}, stored in {where}"
    return f"{plan.parent} at epoch {plan.epoch}: {what}"


def show_checks(checks: Sequence[Check], console: Console, brief: bool = False) -> None:
    shown = [check for check in checks if not (brief and check.ok)]
    if shown:
        console.print(indented(check_table(shown)))
    if len(shown) < len(checks):
        line = Text("  ✓", style="green")
        console.print(line.append(f"  {many(len(checks) - len(shown), 'check')} passed", style="default"))


def check_table(checks: Iterable[Check]) -> Table:
    """Return the table of some checks."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=28)
    table.add_column(overflow="fold")
    for check in checks:
        message = Text(one_line(check.message))
        if not check.ok and check.remedy:
            message.append(f"\n→ {one_line(check.remedy)}", style="yellow")
        table.add_row(_mark(check), Text(one_line(check.name)), message)
    return table


def _mark(check: Check) -> Text:
    if check.ok:
        return Text("✓", style="green")
    return Text("!", style="yellow") if check.forceable else Text("✗", style="red bold")


def _ranges(plan: Plan, width: int) -> Table:
    table = plain_table("range", *(("load", "") if plan.shares else ()), right=("load",))
    for i, range_ in enumerate(plan.ranges):
        if plan.shares:
            share = plan.shares[i]
            table.add_row(str(range_), percent(share), Text(bar(share, width), style="cyan"))
        else:
            table.add_row(str(range_))
    return table


def _top_keys(keys: Iterable[HotKey]) -> Table:
    table = plain_table("key hash", "load", "key", right=("load",))
    for key in keys:
        label = Text(shorten(one_line(key.label), _LONGEST_KEY))
        table.add_row(f"{key.key_hash:08x}", percent(key.share), label)
    return table


def _drains(drains: Sequence[Drain]) -> Table:
    table = plain_table("group", "records to read", "takes about", right=("records to read",))
    for drain in drains[:MOST_GROUPS]:
        takes = Text("not moving", style="yellow") if drain.seconds is None else Text(duration(drain.seconds))
        table.add_row(Text(shorten(one_line(drain.group), _LONGEST_KEY)), f"{drain.left:,}", takes)
    if len(drains) > MOST_GROUPS:
        table.add_row(Text(f"and {len(drains) - MOST_GROUPS} more"), "", "")
    return table


def report_json(report: Report) -> dict[str, Any]:
    return {
        **outcome_json(report.outcome, report.state),
        "seconds": round(report.seconds, 3),
        "pause_ms": _pause_summary(report.pauses),
        "producers": {
            name: {"pause_ms": p.pause_ms, "held": p.held, "strays": p.strays}
            for name, p in sorted(report.pauses.items())
        },
    }


def outcome_json(outcome: Outcome, state: PartitionState) -> dict[str, Any]:
    return {
        **place_json(state.parent),
        "epoch": state.epoch,
        "kind": outcome.attempt.kind.value,
        "attempt": outcome.attempt.id,
        "result": outcome.result.value,
        "ended_by": outcome.ended_by.value,
        "reason": outcome.reason,
        "ranges": [
            {
                **segment_json(s),
                "base": s.progression.base,
                "stride": s.progression.stride,
            }
            for s in state.lineage.open_segments()
        ],
    }


def show_report(report: Report, console: Console) -> None:
    show_outcome(report.outcome, report.state, console, duration(report.seconds))
    if report.outcome.result is Result.COMMITTED:
        console.print(indented(_open_ranges(report.state)))
    if report.pauses:
        summary = _pause_summary(report.pauses) or {}
        parts = ", ".join(f"{name} {value} ms" for name, value in summary.items())
        console.print(Text(f"\nPause of {many(len(report.pauses), 'producer')}: {parts}"))
        console.print(indented(_pause_table(report.pauses)))


def show_outcome(outcome: Outcome, state: PartitionState, console: Console, took: str = "") -> None:
    committed = outcome.result is Result.COMMITTED
    what = f"{outcome.attempt.kind} {'took effect' if committed else 'was rolled back'}"
    reason = f" ({one_line(outcome.reason)})" if outcome.reason else ""
    timing = f" after {took}" if took else ""
    text = f"{state.parent}: {what}{timing}; epoch {state.epoch}{reason}"
    console.print(Text(text, style="bold green" if committed else "bold yellow"))


def _open_ranges(state: PartitionState) -> FittingTable:
    numbers = ("segment", "logical offsets")
    table = FittingTable(("range", "place"), numbers, right=numbers)
    for segment in state.lineage.open_segments():
        logical = f"{segment.progression.base:,} + {segment.progression.stride:,}·n"
        table.add_row(str(segment.range), str(segment.source), str(segment.id), logical)
    return table


def _pause_summary(pauses: Mapping[str, PauseReport]) -> dict[str, float] | None:
    if not pauses:
        return None
    spread = Spread.of(p.pause_ms for p in pauses.values())
    return {"p50": spread.p50, "p99": spread.p99, "max": spread.most}


def _pause_table(pauses: Mapping[str, PauseReport]) -> Table:
    numbers = ("pause", "records held", "strays sent again")
    table = plain_table("producer", *numbers, right=numbers)
    for name, pause in sorted(pauses.items()):
        table.add_row(Text(one_line(name)), f"{pause.pause_ms} ms", f"{pause.held:,}", f"{pause.strays:,}")
    return table
