"""The report's page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from kpsplit.spark_jobs.report.drain import drained
from kpsplit.spark_jobs.report.pictures import bars, lineage_picture
from kpsplit.spark_jobs.report.times import Times
from kpsplit.spark_jobs.verification.findings import MEANINGS, Check, Finding, Severity, Verdict
from kpsplit.spark_jobs.verification.summary import result_line
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.stamp import instance_name

MOST_FINDINGS = 200
MOST_PARTITIONS = 24

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1c232b; background: #f6f8fa; margin: 0; }
main { max-width: 1160px; margin: 0 auto; padding: 24px; }
h1 { font-size: 25px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 0 0 4px; }
p { margin: 2px 0 10px; color: #4a5562; }
section { background: #fff; border: 1px solid #dde3e9; border-radius: 10px; padding: 16px 20px;
  margin: 16px 0; }
.ok { border-left: 8px solid #2e8b57; } .found { border-left: 8px solid #c0392b; }
.unproven { border-left: 8px solid #d9a400; }
table { border-collapse: collapse; font-size: 13.5px; } .scroll { overflow-x: auto; }
th, td { padding: 4px 14px 4px 0; text-align: left; border-bottom: 1px solid #eef1f4; vertical-align: top; }
th { color: #5b6673; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 12px; fill: #4a5562; } svg .head { font-weight: 600; fill: #1c232b; }
svg .mono { font-family: ui-monospace, monospace; font-size: 11.5px; }
svg .box { fill: #1c232b; font-size: 11.5px; } svg .light { fill: #fff; font-size: 11.5px; }
"""


def report_page(verdict: Verdict, times: Times | None = None) -> str:
    """Return the page: verdict, checks, lineage, records per segment, pauses, drain, findings.

    ``times``: when the epochs began; without them the lineage has no clock times.
    """
    split = [s for s in verdict.snapshot.states if len(s.lineage.segments) > 1]
    outcome = "found" if verdict.defects else "unproven" if verdict.unproven else "ok"
    parts = [
        f"<h1>Verification of {escape(verdict.topic)}</h1>",
        f'<section class="{outcome}"><b>{escape(result_line(verdict))}</b>{_counts(verdict)}</section>',
        _section("Checks", "What was proven or refuted.", _checks(verdict)),
        *(_lineage(verdict, state, times) for state in split[:MOST_PARTITIONS]),
        _segments(verdict),
        _pauses(verdict),
        _drain(verdict),
        _findings(verdict),
    ]
    if len(split) > MOST_PARTITIONS:
        parts.append(f"<p>{len(split) - MOST_PARTITIONS} more partitions were split; they are not drawn.</p>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>kpsplit verify: {escape(verdict.topic)}</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _checks(verdict: Verdict) -> str:
    rows = [(verdict.outcome(c), str(c), MEANINGS[c], str(len(verdict.of(c)))) for c in Check]
    return _table(("outcome", "check", "meaning", "rows"), rows)


def _counts(verdict: Verdict) -> str:
    names = sorted({name for counts in verdict.counts.values() for name in counts})
    rows = [
        (parent, *(f"{counts.get(name, 0):,}" for name in names)) for parent, counts in verdict.counts.items()
    ]
    return _table(("partition", *(name.replace("_", " ") for name in names)), rows)


def _lineage(verdict: Verdict, state: PartitionState, times: Times | None) -> str:
    records = {s.segment: s.data for s in verdict.segments if s.parent == state.parent}
    told = "Time from left to right, key ranges from top to bottom in their order, overflows below them."
    known = times.epochs.get(state.parent) if times else None
    drawn = lineage_picture(state.lineage, records, known, times.taken_ms if times else None)
    return _section(f"Lineage of {state.parent}", told, drawn)


def _segments(verdict: Verdict) -> str:
    places = {(state.parent, s.id): s for state in verdict.snapshot.states for s in state.lineage}
    rows = [
        (
            f"{t.parent} {t.segment} ({places[t.parent, t.segment].kind})",
            float(t.data),
            f"{t.data:,}" + (f", {t.strays:,} strays" if t.strays else ""),
        )
        for t in verdict.segments
    ]
    return _section("Records per segment", "Delivered records; strays are skipped.", bars(rows, "Records"))


def _pauses(verdict: Verdict) -> str:
    wanted = {str(state.parent) for state in verdict.snapshot.states}
    rows = [
        (f"{instance_name(record.instance)} {name}", float(p.pause_ms), f"{p.pause_ms} ms, {p.held:,} held")
        for record in verdict.snapshot.producers
        for name, p in sorted(record.pauses.items())
        if name in wanted
    ]
    told = "What the latest operation on each partition cost each producer."
    return _section("Pauses", told, bars(rows, "Pauses", "#c4551b")) if rows else ""


def _drain(verdict: Verdict) -> str:
    rows = [
        (f"{d.group} {d.parent}", d.share, f"{d.share:.0%} of the key space, {d.left:,} offsets left")
        for d in drained(verdict.snapshot)
        if d.group in verdict.groups
    ]
    told = "How much of the key space has finished everything that splits and merges closed."
    return _section("Drain of the groups", told, bars(rows, "Drain", "#2e8b57")) if rows else ""


def _findings(verdict: Verdict) -> str:
    order = list(Severity)
    found = sorted(verdict.findings, key=lambda f: order.index(f.severity))
    if not found:
        return ""
    columns = (
        "severity",
        "check",
        "partition",
        "segment",
        "producer",
        "group",
        "first",
        "last",
        "count",
        "what",
    )
    content = _table(columns, (_row(f) for f in found[:MOST_FINDINGS]))
    more = f"<p>{len(found) - MOST_FINDINGS:,} more.</p>" if len(found) > MOST_FINDINGS else ""
    return _section("Findings", "Notes are no defects.", content + more)


def _row(f: Finding) -> tuple[str, ...]:
    cells = (
        f.severity,
        f.check,
        f.parent,
        f.segment,
        f.producer,
        f.group,
        f.first,
        f.last,
        f.count,
        f.message,
    )
    return tuple("" if cell is None else str(cell) for cell in cells)


def _section(heading: str, told: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2><p>{escape(told)}</p>{content}</section>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    body = "".join("<tr>" + "".join(_cell(c) for c in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _cell(content: str) -> str:
    number = content.replace(",", "").isdigit()
    return f"<td{' class=n' if number else ''}>{escape(content)}</td>"
