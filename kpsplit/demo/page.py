"""The result as one HTML file with everything in it. Pure."""

from __future__ import annotations

from kpsplit import __version__
from kpsplit.demo.charts import colours, slowness_chart, throughput_chart
from kpsplit.demo.result import DemoResult, last_line
from kpsplit.demo.tables import all_tables
from kpsplit.pages import html
from kpsplit.pages.lineage import lineage_picture


def page(result: DemoResult) -> str:
    """Return the whole page."""
    chronicle, parent = result.chronicle, result.state.parent
    affected = len(result.state.lineage.sources())
    paint = colours(result.throughput, affected)
    records = {i: seen.records for i, seen in result.back.segments[parent].items()}
    parts = [
        html.paragraph(
            "Split into four, one range split again, all merged back, while five producers kept writing: one "
            "of them suspended across the first cut, and one that knows nothing of kpsplit. "
            f"Made by kpsplit {__version__}."
        ),
        html.outcome("ok" if result.passed else "found", last_line(result), _cards(result)),
        html.section(
            "Throughput by physical partition",
            "Records reported as delivered, stacked. Grey: the partitions that were not touched. Colours: "
            "the split partition and its phantoms. Red bands: fences, the only time in which writers of the "
            "split partition hold their records; what was held comes at once after them.",
            throughput_chart(
                result.throughput, affected, chronicle.fences, chronicle.suspension, chronicle.began
            ),
        ),
        html.section(
            "What an application feels",
            "The slowest delivery report of each fifth of a second, from produce() to the report, nothing "
            "subtracted (kpsplit producers; the suspended one is left out until it has caught up). The plain "
            "writer is the control: no fence can hold it, so where it is slow as well the brokers are.",
            slowness_chart(result.slowness, chronicle.fences, chronicle.began),
        ),
        html.section(
            f"Lineage of {parent}",
            "Key ranges from top to bottom (in their order, not to scale), epochs from left to right. Every "
            "box is a segment: one stretch of one real partition, with logical offsets base + stride·n of "
            "its own.",
            lineage_picture(result.state.lineage, records, paint),
        ),
        *(html.section(t.heading, "", html.table(t.columns, t.rows)) for t in all_tables(result)),
    ]
    return html.page(f"kpsplit demo: {parent}", parts)


def _cards(result: DemoResult) -> html.Html:
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
    told = "".join(f"<div><b>{figure}</b><span>{name}</span></div>" for figure, name in cards)
    return html.Html(f'<div class="cards">{told}</div>')
