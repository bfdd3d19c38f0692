"""The numbers of the result as rows of text: the summary and the page show the same ones. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kpsplit.demo.figures import Spread
from kpsplit.demo.group_tables import group_tables
from kpsplit.demo.result import DemoResult
from kpsplit.demo.rows import Rows


def all_tables(result: DemoResult) -> Sequence[Rows]:
    """Return every table in the order in which they are shown."""
    return (
        records_table(result),
        writers_table(result),
        pauses_table(result),
        latencies_table(result),
        offsets_table(result),
        starts_table(result),
        *group_tables(result.group, result.chronicle.began),
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
        (o for o in result.chronicle.operations if o.fence is not None), result.longest_waits, strict=True
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
