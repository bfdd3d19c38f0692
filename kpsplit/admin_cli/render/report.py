"""How the end of an operation looks, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kpsplit.admin_cli.render.console import RangeTable, plain_table
from kpsplit.admin_cli.render.human import count, percentile
from kpsplit.admin_cli.render.text import one_line
from kpsplit.errors import duration, many
from kpsplit.splitter.partition_state import Outcome, PartitionState, Result
from kpsplit.splitter.records.producers import PauseReport

MEDIAN, TAIL = 0.5, 0.99


def report_json(
    outcome: Outcome, state: PartitionState, pauses: Mapping[str, PauseReport], seconds: float
) -> dict[str, Any]:
    """Return an operation's report as JSON data."""
    return {
        **outcome_json(outcome, state),
        "seconds": round(seconds, 3),
        "pause_ms": _pause_summary(pauses),
        "producers": {
            name: {"pause_ms": p.pause_ms, "held": p.held, "strays": p.strays}
            for name, p in sorted(pauses.items())
        },
    }


def outcome_json(outcome: Outcome, state: PartitionState) -> dict[str, Any]:
    """Return how an attempt ended as JSON data."""
    return {
        "topic": state.parent.topic,
        "partition": state.parent.partition,
        "epoch": state.epoch,
        "kind": outcome.attempt.kind.value,
        "attempt": outcome.attempt.id,
        "result": outcome.result.value,
        "ended_by": outcome.ended_by.value,
        "reason": outcome.reason,
        "ranges": [
            {
                "range": [s.range.lo, s.range.hi],
                "segment": s.id,
                "source_topic": s.source.topic,
                "source_partition": s.source.partition,
                "base": s.progression.base,
                "stride": s.progression.stride,
            }
            for s in state.lineage.open_segments()
        ],
    }


def show_report(
    outcome: Outcome,
    state: PartitionState,
    pauses: Mapping[str, PauseReport],
    seconds: float,
    console: Console,
) -> None:
    """Print an operation's report."""
    show_outcome(outcome, state, console, duration(seconds))
    if outcome.result is Result.COMMITTED:
        console.print(Padding(open_ranges(state), (0, 0, 0, 2), expand=False))
    if pauses:
        console.print(Text(_pause_line(pauses)))
        console.print(Padding(_pause_table(pauses), (0, 0, 0, 2), expand=False))


def show_outcome(outcome: Outcome, state: PartitionState, console: Console, took: str = "") -> None:
    """Print how an attempt ended, in one line."""
    committed = outcome.result is Result.COMMITTED
    what = f"{outcome.attempt.kind} {'took effect' if committed else 'was rolled back'}"
    reason = f" ({one_line(outcome.reason)})" if outcome.reason else ""
    timing = f" after {took}" if took else ""
    text = f"{state.parent}: {what}{timing}; epoch {state.epoch}{reason}"
    console.print(Text(text, style="bold green" if committed else "bold yellow"))


def open_ranges(state: PartitionState) -> RangeTable:
    """Return the open ranges and where they are stored."""
    table = RangeTable("segment", "logical offsets")
    for segment in state.lineage.open_segments():
        numbers = f"{count(segment.progression.base)} + {count(segment.progression.stride)}·n"
        table.add_row(Text(str(segment.range)), str(segment.source), str(segment.id), numbers)
    return table


def _pause_summary(pauses: Mapping[str, PauseReport]) -> dict[str, int] | None:
    values = [p.pause_ms for p in pauses.values()]
    if not values:
        return None
    return {"p50": percentile(values, MEDIAN), "p99": percentile(values, TAIL), "max": max(values)}


def _pause_line(pauses: Mapping[str, PauseReport]) -> str:
    summary = _pause_summary(pauses) or {}
    parts = ", ".join(f"{name} {value} ms" for name, value in summary.items())
    return f"\nPause of {many(len(pauses), 'producer')}: {parts}"


def _pause_table(pauses: Mapping[str, PauseReport]) -> Table:
    numbers = ("pause", "records held", "strays sent again")
    table = plain_table("producer", *numbers, right=numbers)
    for name, pause in sorted(pauses.items()):
        table.add_row(Text(one_line(name)), f"{pause.pause_ms} ms", count(pause.held), count(pause.strays))
    return table
