"""How a plan looks: ranges with their predicted load, the top keys, each check with its answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kpsplit.admin_cli.render.console import plain_table
from kpsplit.admin_cli.render.human import bar, count, percent, utc
from kpsplit.admin_cli.render.text import one_line, shorten
from kpsplit.control.plans import Check, Drain, HotKey, Plan, Stretch
from kpsplit.errors import duration, many
from kpsplit.splitter.partition_state import OperationKind

TOP_KEYS = 5
MOST_GROUPS = 10
_WIDE = 100
_BAR, _SHORT_BAR = 30, 16
_LONGEST_KEY = 40


def show_plan(plan: Plan, console: Console, brief: bool = False) -> None:
    """Print a plan; ``brief``: the checks that passed are only counted."""
    console.print(Text(headline(plan), style="bold"))
    console.print(_indented(_ranges(plan, _BAR if console.width >= _WIDE else _SHORT_BAR)))
    if plan.shares:
        predicted = f"predicted from {many(plan.sampled, 'record')}{_stretch(plan.stretch)}"
        console.print(Text(predicted, style="dim"))
    if plan.heaviest:
        console.print(Text("\nTop keys", style="bold"))
        console.print(_indented(_top_keys(plan.heaviest[:TOP_KEYS])))
    if plan.drains:
        console.print(Text("\nGroups that drain the closing segments first", style="bold"))
        console.print(_indented(_drains(plan.drains)))
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
    """Return what the plan does, in one line."""
    where = f"new sub-topic {plan.subtopic}" if plan.subtopic else str(plan.parent)
    into = many(len(plan.ranges), "range")
    if plan.kind is OperationKind.SPLIT:
        what = f"split into {into}, stored in {where}"
    else:
        what = f"merge {many(len(plan.sources), 'segment')} into {into}, stored in {where}"
    return f"{plan.parent} at epoch {plan.epoch}: {what}"


def show_checks(checks: Sequence[Check], console: Console, brief: bool = False) -> None:
    """Print checks, failed ones with what to do about them."""
    shown = [check for check in checks if not (brief and check.ok)]
    if shown:
        console.print(_indented(check_table(shown)))
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
        table.add_row(Text(shorten(one_line(drain.group), _LONGEST_KEY)), count(drain.left), takes)
    if len(drains) > MOST_GROUPS:
        table.add_row(Text(f"and {len(drains) - MOST_GROUPS} more"), "", "")
    return table


def _indented(table: Table) -> Padding:
    return Padding(table, (0, 0, 0, 2), expand=False)
