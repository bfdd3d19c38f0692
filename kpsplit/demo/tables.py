"""The numbers of the result as rows of text: the summary and the page show the same ones. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from kpsplit.control.group_progress import RangeProgress, SegmentLeft
from kpsplit.demo.result import DemoResult, GroupOutcome
from kpsplit.demo.timeline import SegmentDrain, Spread


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: its heading, its columns (the first is text, the others numbers), its rows."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def all_tables(result: DemoResult) -> Sequence[Rows]:
    """Return every table in the order in which they are shown."""
    return (
        records_table(result),
        writers_table(result),
        pauses_table(result),
        latencies_table(result),
        offsets_table(result),
        starts_table(result),
        *group_tables(result.group, result.timeline.began),
        verdicts_table(result),
    )


def records_table(result: DemoResult) -> Rows:
    """Return what became of the records."""
    history = result.back.history
    strays_told = sum(news.strays for news in result.news.values())
    rows = (
        ("sent", f"{history.sent:,}"),
        ("reported as delivered", f"{history.ok:,}"),
        ("read back", f"{history.delivered:,}"),
        ("lost", f"{history.lost:,}"),
        ("doubled", f"{history.duplicated:,}"),
        ("out of order", f"{history.out_of_order:,}"),
        ("strays skipped by the reader", f"{result.back.strays:,}"),
        ("strays sent again by producers", f"{strays_told:,}"),
    )
    return Rows("Records", ("", "records"), rows)


def writers_table(result: DemoResult) -> Rows:
    """Return what each writer did."""
    rows = tuple(
        (
            name,
            f"{news.sent:,}",
            f"{news.ok:,}",
            f"{news.failed:,}",
            f"{news.held:,}",
            f"{news.strays:,}",
            ", ".join(f"{ms}" for ms in news.pauses_ms) or "–",
        )
        for name, news in result.news.items()
    )
    return Rows("Writers", ("writer", "sent", "delivered", "failed", "held", "strays", "pauses ms"), rows)


def pauses_table(result: DemoResult) -> Rows:
    """Return what each fence cost."""
    rows = []
    for operation, longest in zip(
        (o for o in result.timeline.operations if o.fence is not None), result.longest_waits, strict=True
    ):
        reports = operation.report.pauses.values() if operation.report is not None else ()
        spread = Spread.of(p.pause_ms for p in reports)
        held = sum(p.held for p in reports)
        fence = operation.fence
        rows.append(
            (
                f"{operation.label} {operation.detail}",
                f"{fence.seconds * 1000:.0f}" if fence else "–",
                f"{spread.count}",
                f"{spread.p50:.0f}",
                f"{spread.p99:.0f}",
                f"{spread.most:.0f}",
                f"{held:,}",
                f"{longest:.0f}",
            )
        )
    every = result.pauses
    percentiles = (f"{every.p50:.0f}", f"{every.p99:.0f}", f"{every.most:.0f}")
    total = ("all fences", "", f"{every.count}", *percentiles, "", "")
    columns = ("fence", "fence ms", "writers", "pause p50", "p99", "max", "held", "slowest report ms")
    return Rows("Pauses of the affected partition's writers", columns, (*rows, total))


def latencies_table(result: DemoResult) -> Rows:
    """Return latencies from produce() to report, inside and outside the fences."""
    found, control = result.latencies, result.control
    rows = tuple(
        (name, f"{s.count:,}", f"{s.p50:.1f}", f"{s.p99:.1f}", f"{s.most:.1f}")
        for name, s in (
            ("affected partition, under way in a fence", found.affected_in),
            ("affected partition, otherwise", found.affected_outside),
            ("other partitions, under way in a fence", found.others_in),
            ("other partitions, otherwise", found.others_outside),
            ("plain writer: other partitions, under way in a fence", control.others_in),
            ("plain writer: other partitions, otherwise", control.others_outside),
        )
    )
    held = ("records of other partitions that were held", f"{result.held_elsewhere:,}", "", "", "")
    late = ("the suspended writer, until it had caught up", "", "", "", f"{result.catching_up * 1000:.1f}")
    return Rows(
        "From produce() to the delivery report, in ms",
        ("kpsplit producers", "records", "p50", "p99", "max"),
        (*rows, held, late),
    )


def offsets_table(result: DemoResult) -> Rows:
    """Return the segments with their logical offsets."""
    seen = result.back.segments[result.state.parent]
    rows = tuple(
        (
            f"{s.id} {s.kind}",
            str(s.range),
            str(s.source),
            f"{s.opened_epoch}",
            f"{s.start:,}",
            "open" if s.end is None else f"{s.end:,}",
            f"{seen[s.id].records:,}",
            "–" if seen[s.id].first is None else f"{seen[s.id].first:,}",
            "–" if seen[s.id].last is None else f"{seen[s.id].last:,}",
        )
        for s in result.state.lineage
    )
    columns = (
        "segment",
        "range",
        "place",
        "epoch",
        "start",
        "end",
        "records",
        "first logical",
        "last logical",
    )
    return Rows(f"Logical offsets of {result.state.parent}", columns, rows)


def starts_table(result: DemoResult) -> Rows:
    """Return every phantom's smallest logical offset beside what it must be above."""
    rows = tuple(
        (
            f"{s.segment}  {s.place}",
            "no record" if s.first is None else f"{s.first:,}",
            f"{s.parent_end:,}",
            f"{s.above:,}",
            "yes" if s.ok else "NO",
        )
        for s in result.starts
    )
    columns = ("phantom", "smallest logical offset", "parent's log end", "end of the range split", "greater")
    return Rows("Phantoms begin above the parent's log end at the split", columns, rows)


def verdicts_table(result: DemoResult) -> Rows:
    """Return the questions and answers."""
    rows = tuple(("ok" if v.ok else "FAILED", v.question, v.answer) for v in result.verdicts)
    return Rows("Checks", ("", "check", "found"), rows)


# -- the consumer group ----------------------------------------------------------------------------


def group_tables(group: GroupOutcome, began: float) -> tuple[Rows, ...]:
    """Return the group's tables; times count from ``began``."""
    return members_table(group), drain_table(group.drains, began), commits_table(group)


def members_table(group: GroupOutcome) -> Rows:
    """Return how the records were shared, and which came twice."""
    shares = [(name, f"{number:,}") for name, number in sorted(group.verdict.shares.items())]
    again = [(f"again after {why}", f"{n:,}") for why, n in sorted(group.verdict.redelivered.items())]
    return Rows("Consumer group", ("", "records"), (*shares, *again))


def drain_table(drains: tuple[SegmentDrain, ...], began: float) -> Rows:
    """Return when each closed segment had been read by the whole group."""
    rows = tuple(
        (
            f"{d.segment.id} {d.segment.source}",
            f"{d.segment.length():,}",
            f"{d.closed_at - began:.1f}",
            "–" if d.seconds is None else f"{d.seconds:.1f}",
        )
        for d in drains
    )
    return Rows(
        "Drain of closed segments by the group",
        ("segment", "offsets", "closed at s", "drained after s"),
        rows,
    )


def commits_table(group: GroupOutcome) -> Rows:
    """Return the range commits in the affected partition, in the middle of the scenario."""
    ranges = () if group.progress is None else group.progress.ranges
    rows = tuple(_row(range_, left) for range_ in ranges for left in range_.left)
    columns = ("range", "owner", "segment", "next offset", "next logical", "lag", "")
    return Rows("Range commits of the group after the second split", columns, rows)


def _row(range_: RangeProgress, left: SegmentLeft) -> tuple[str, ...]:
    return (
        str(range_.range),
        str(range_.owner or "–"),
        f"{left.segment.id} {left.segment.source}",
        f"{left.next:,}",
        f"{left.logical:,}",
        "–" if left.lag is None else f"{left.lag:,}",
        "waits" if not left.ready else "drains" if left.draining else "",
    )


# -- tables as text --------------------------------------------------------------------------------


LONGEST_CELL = 90


def write_summary(result: DemoResult, stream: TextIO) -> None:
    """Write all tables."""
    for table in all_tables(result):
        stream.write("\n".join(table_lines(table)) + "\n\n")


def table_lines(table: Rows) -> list[str]:
    """Return a table as aligned text: columns of numbers to the right, others to the left."""
    body = [[_shortened(cell) for cell in row] for row in table.rows]
    cells = [list(table.columns), *body]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    right = [all(_is_number(row[i]) for row in body) for i in range(len(table.columns))]
    lines = [table.heading]
    for row in cells:
        line = "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        lines.append(f"  {line}".rstrip())
    return [line for line in lines if line]


def _is_number(cell: str) -> bool:
    return cell in ("", "–", "open", "no record") or cell.replace(",", "").replace(".", "").isdigit()


def _shortened(cell: str) -> str:
    return cell if len(cell) <= LONGEST_CELL else cell[: LONGEST_CELL - 1] + "…"
