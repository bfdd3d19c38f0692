"""The result as one HTML file with everything in it. Pure."""

from __future__ import annotations

from html import escape

from kpsplit.demo.charts import colours, slowness_chart, throughput_chart
from kpsplit.demo.lineage_picture import lineage_picture
from kpsplit.demo.result import DemoResult, last_line
from kpsplit.demo.rows import Rows
from kpsplit.demo.tables import all_tables

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: #1c232b;
  background: #f6f8fa; margin: 0; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 0 0 2px; }
p { margin: 2px 0 10px; color: #4a5562; max-width: 76em; }
section { background: #fff; border: 1px solid #dde3e9; border-radius: 10px; padding: 18px 22px;
  margin: 18px 0; }
.verdict { border-left: 8px solid #2e8b57; }
.verdict.failed { border-left-color: #c0392b; }
.verdict code { font-size: 13.5px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(96px, 1fr)); gap: 10px;
  margin-top: 14px; }
.card { border: 1px solid #dde3e9; border-radius: 8px; padding: 8px 10px; }
.card b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
.card span { color: #5b6673; font-size: 12.5px; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 12px; fill: #4a5562; }
svg .unit { fill: #5b6673; font-size: 11.5px; }
svg .label { fill: #1c232b; font-size: 11.5px; }
svg .head { font-weight: 600; fill: #1c232b; font-size: 13px; }
svg .mono { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 11.5px; }
svg text.box { fill: #1c232b; }
svg text.light { fill: #fff; }
svg .grid { stroke: #e6eaee; }
svg .axis { stroke: #8a94a1; }
svg .fence { fill: #d62246; fill-opacity: .42; }
svg .suspended { fill: #fff3cd; }
svg .clipped { fill: #1c232b; font-size: 10.5px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 12.5px; color: #3c4652;
  margin-top: 6px; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; margin-top: 8px; }
th, td { padding: 4px 14px 4px 0; text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
th { color: #5b6673; font-weight: 600; border-bottom: 1px solid #c9d1d9; }
td { border-bottom: 1px solid #eef1f4; }
th.text, td.text { text-align: left; }
td.wrap { white-space: normal; }
"""


def page(result: DemoResult) -> str:
    """Return the whole page."""
    chronicle = result.chronicle
    affected = len(result.state.lineage.sources())
    paint = colours(result.throughput, affected)
    records = {i: seen.records for i, seen in result.back.segments[result.state.parent].items()}
    parts = [
        _head(result),
        _section(
            "Throughput by physical partition",
            "Records reported as delivered, stacked. Grey: the partitions that were not touched. Colours: "
            "the split partition and its phantoms. Red bands: fences, the only time in which writers of the "
            "split partition hold their records; what was held comes at once behind them.",
            throughput_chart(
                result.throughput, affected, chronicle.fences, chronicle.suspension, chronicle.began
            ),
        ),
        _section(
            "What an application feels",
            "The slowest delivery report of each fifth of a second, from produce() to the report, nothing "
            "subtracted (kpsplit producers; the suspended one is left out until it has caught up).",
            slowness_chart(result.slowness, chronicle.fences, chronicle.began),
        ),
        _section(
            f"Lineage of {result.state.parent}",
            "Key ranges from top to bottom (in their order, not to scale), epochs from left to right. Every "
            "box is a segment: one stretch of one real partition, with logical offsets base + stride·n of "
            "its own.",
            lineage_picture(result.state.lineage, records, paint),
        ),
        *(_table(table) for table in all_tables(result)),
    ]
    name = escape(str(result.state.parent))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>kpsplit demo: {name}</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _head(result: DemoResult) -> str:
    history, pauses = result.back.history, result.pauses
    cards = (
        (f"{history.sent:,}", "records sent"),
        (f"{history.delivered:,}", "read back"),
        (f"{history.lost:,}", "lost"),
        (f"{history.duplicated:,}", "doubled"),
        (f"{history.out_of_order:,}", "out of order"),
        (f"{result.back.strays:,}", "strays skipped"),
        (f"{pauses.p50:.0f} ms", "pause p50"),
        (f"{pauses.p99:.0f} ms", "pause p99"),
        (f"{pauses.most:.0f} ms", "pause max"),
    )
    told = "".join(f'<div class="card"><b>{a}</b><span>{b}</span></div>' for a, b in cards)
    outcome = "" if result.passed else " failed"
    return (
        f"<h1>kpsplit demo: {escape(str(result.state.parent))}</h1>"
        "<p>Split into four, one range split again, all merged back, while five producers kept writing: one "
        "of them suspended across the first cut, and one that knows nothing of kpsplit.</p>"
        f'<section class="verdict{outcome}"><code>{escape(last_line(result))}</code>'
        f'<div class="cards">{told}</div></section>'
    )


def _section(heading: str, explanation: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2><p>{escape(explanation)}</p>{content}</section>"


def _table(table: Rows) -> str:
    texts = [not all(_is_number(row[i]) for row in table.rows) for i in range(len(table.columns))]
    head = "".join(_cell("th", name, is_text) for name, is_text in zip(table.columns, texts, strict=True))
    body = "".join(
        "<tr>" + "".join(_cell("td", c, t) for c, t in zip(row, texts, strict=True)) + "</tr>"
        for row in table.rows
    )
    return (
        f"<section><h2>{escape(table.heading)}</h2>"
        f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div></section>'
    )


def _cell(tag: str, content: str, is_text: bool) -> str:
    kind = "text wrap" if len(content) > 80 else "text"
    return f"<{tag}{f' class={kind!r}' if is_text else ''}>{escape(content)}</{tag}>"


def _is_number(cell: str) -> bool:
    return cell in ("", "–", "open", "no record") or cell.replace(",", "").replace(".", "").isdigit()
