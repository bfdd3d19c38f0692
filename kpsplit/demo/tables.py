"""The numbers of the result as rows of text: the summary and the page show the same ones. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from kpsplit.demo.result import DemoResult, GroupOutcome
from kpsplit.demo.timeline import Spread


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: its heading, its columns (the first is text, the others numbers), its rows."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def all_tables(result: DemoResult) -> Sequence[Rows]:
    """Return every table in the order in which they are shown."""
    return (
        _records(result),
        _writers(result),
        _pauses(result),
        _latencies(result),
        _offsets(result),
        _phantom_starts(result),
        _group(result.group),
        _drains(result.group, result.timeline.began),
        _commits(result.group),
        _verdicts(result),
    )


def _cells(*values: object) -> tuple[str, ...]:
    """Return a row: whole numbers with thousands separators, a dash for None."""
    return tuple("–" if v is None else f"{v:,}" if isinstance(v, int) else str(v) for v in values)


def _records(result: DemoResult) -> Rows:
    history = result.back.history
    rows = (
        ("sent", history.sent),
        ("reported as delivered", history.ok),
        ("read back", history.delivered),
        ("lost", history.lost),
        ("doubled", history.duplicated),
        ("out of order", history.out_of_order),
        ("strays skipped by the reader", result.back.strays),
        ("strays sent again by producers", sum(news.strays for news in result.news.values())),
    )
    return Rows("Records", ("", "records"), tuple(_cells(*row) for row in rows))


def _writers(result: DemoResult) -> Rows:
    rows = tuple(
        _cells(name, n.sent, n.ok, n.failed, n.held, n.strays, ", ".join(map(str, n.pauses_ms)) or None)
        for name, n in result.news.items()
    )
    return Rows("Writers", ("writer", "sent", "delivered", "failed", "held", "strays", "pauses ms"), rows)


def _pauses(result: DemoResult) -> Rows:
    """Return what each fence cost."""
    rows = []
    operations = (o for o in result.timeline.operations if o.fence is not None)
    for operation, longest in zip(operations, result.longest_waits, strict=True):
        reports = operation.report.pauses.values() if operation.report is not None else ()
        fence = f"{operation.fence.seconds * 1000:.0f}" if operation.fence else None
        spread = _milliseconds(Spread.of(p.pause_ms for p in reports))
        held = sum(p.held for p in reports)
        rows.append(_cells(f"{operation.label} {operation.detail}", fence, *spread, held, f"{longest:.0f}"))
    columns = ("fence", "fence ms", "writers", "pause p50", "p99", "max", "held", "slowest report ms")
    total = _cells("all fences", "", *_milliseconds(result.pauses), "", "")
    return Rows("Pauses of the affected partition's writers", columns, (*rows, total))


def _milliseconds(spread: Spread) -> tuple[object, ...]:
    return spread.count, f"{spread.p50:.0f}", f"{spread.p99:.0f}", f"{spread.most:.0f}"


def _latencies(result: DemoResult) -> Rows:
    """Return latencies from produce() to report, inside and outside the fences."""
    found, control = result.latencies, result.control
    rows = tuple(
        _cells(name, s.count, f"{s.p50:.1f}", f"{s.p99:.1f}", f"{s.most:.1f}")
        for name, s in (
            ("affected partition, under way in a fence", found.affected_in),
            ("affected partition, otherwise", found.affected_outside),
            ("other partitions, under way in a fence", found.others_in),
            ("other partitions, otherwise", found.others_outside),
            ("plain writer: other partitions, under way in a fence", control.others_in),
            ("plain writer: other partitions, otherwise", control.others_outside),
        )
    )
    held = _cells("records of other partitions that were held", result.held_elsewhere, "", "", "")
    late = ("the suspended writer, until it had caught up", "", "", "", f"{result.catching_up * 1000:.1f}")
    columns = ("kpsplit producers", "records", "p50", "p99", "max")
    return Rows("From produce() to the delivery report, in ms", columns, (*rows, held, late))


def _offsets(result: DemoResult) -> Rows:
    """Return the segments with their logical offsets."""
    parent = result.state.parent
    rows = []
    for s in result.state.lineage:
        seen = result.back.segments[parent][s.id]
        end = "open" if s.end is None else s.end
        place = f"{s.id} {s.kind}", s.range, s.source, s.opened_epoch, s.start, end
        rows.append(_cells(*place, seen.records, seen.first, seen.last))
    columns = "segment", "range", "place", "epoch", "start", "end", "records", "first logical", "last logical"
    return Rows(f"Logical offsets of {parent}", columns, tuple(rows))


def _phantom_starts(result: DemoResult) -> Rows:
    """Return every phantom's smallest logical offset beside what it must be above."""
    rows = tuple(
        _cells(
            f"{s.segment}  {s.place}",
            "no record" if s.first is None else s.first,
            s.parent_end,
            s.above,
            "yes" if s.ok else "NO",
        )
        for s in result.starts
    )
    columns = ("phantom", "smallest logical offset", "parent's log end", "end of the range split", "greater")
    return Rows("Phantoms begin above the parent's log end at the split", columns, rows)


def _verdicts(result: DemoResult) -> Rows:
    rows = tuple(("ok" if v.ok else "FAILED", v.question, v.answer) for v in result.verdicts)
    return Rows("Checks", ("", "check", "found"), rows)


# -- the consumer group ----------------------------------------------------------------------------


def _group(group: GroupOutcome) -> Rows:
    """Return how the records were shared, and which came twice."""
    shares = (_cells(name, number) for name, number in sorted(group.verdict.shares.items()))
    again = (_cells(f"again after {why}", n) for why, n in sorted(group.verdict.redelivered.items()))
    return Rows("Consumer group", ("", "records"), (*shares, *again))


def _drains(group: GroupOutcome, began: float) -> Rows:
    """Return when the whole group had read each closed segment; times count from ``began``."""
    rows = tuple(
        _cells(
            f"{d.segment.id} {d.segment.source}",
            d.segment.length(),
            f"{d.closed_at - began:.1f}",
            None if d.seconds is None else f"{d.seconds:.1f}",
        )
        for d in group.drains
    )
    columns = ("segment", "offsets", "closed at s", "drained after s")
    return Rows("Drain of closed segments by the group", columns, rows)


def _commits(group: GroupOutcome) -> Rows:
    """Return the range commits in the affected partition, in the middle of the scenario."""
    ranges = () if group.progress is None else group.progress.ranges
    rows = tuple(
        _cells(
            range_.range,
            range_.owner,
            f"{left.segment.id} {left.segment.source}",
            left.next,
            left.logical,
            left.lag,
            "waits" if not left.ready else "drains" if left.draining else "",
        )
        for range_ in ranges
        for left in range_.left
    )
    columns = ("range", "owner", "segment", "next offset", "next logical", "lag", "")
    return Rows("Range commits of the group after the second split", columns, rows)


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
