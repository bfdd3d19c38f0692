"""How the result looks: rows of text, and one HTML file with figures, pictures over time, tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import floor, log10
from typing import TextIO

from kpsplit import __version__
from kpsplit import pages as html
from kpsplit.control.status import Spread, percentile
from kpsplit.demo.result import DemoResult, GroupOutcome, last_line
from kpsplit.demo.timeline import Series, TimeSpan
from kpsplit.pages import PARENT_COLOUR, Html, element, legend, line, lineage_picture, svg, text, tip


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
        Rows(
            "Checks",
            ("", "check", "found"),
            tuple(("ok" if v.ok else "FAILED", v.question, v.answer) for v in result.verdicts),
        ),
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


# -- the consumer group ----------------------------------------------------------------------------


def _group(group: GroupOutcome) -> Rows:
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
            left.stage,
        )
        for range_ in ranges
        for left in range_.left
    )
    columns = ("range", "owner", "segment", "next offset", "next logical", "lag", "")
    return Rows("Range commits of the group after the second split", columns, rows)


# -- tables as text --------------------------------------------------------------------------------


LONGEST_CELL = 90


def write_summary(result: DemoResult, stream: TextIO) -> None:
    for table in all_tables(result):
        stream.write("\n".join(table_lines(table)) + "\n\n")


def table_lines(table: Rows) -> list[str]:
    """Return a table as aligned text: columns of numbers to the right, others to the left."""
    body = [
        [cell if len(cell) <= LONGEST_CELL else f"{cell[: LONGEST_CELL - 1]}…" for cell in row]
        for row in table.rows
    ]
    cells = [list(table.columns), *body]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    right = [all(html.is_number(row[i]) for row in body) for i in range(len(table.columns))]
    lines = [table.heading]
    for row in cells:
        line = "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        lines.append(f"  {line}".rstrip())
    return [line for line in lines if line]


# -- the pictures over time ------------------------------------------------------------------------


WIDTH, HEIGHT = 1120.0, 370.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 16.0, 40.0, 44.0
_NARROWEST_BAND = 3.0
_USUAL_SHARE, _HEADROOM = 0.95, 1.35
_STEPS = (1, 2, 5, 10)

PHANTOM_COLOURS = ("#e08214", "#f2b04c", "#c4551b", "#f6cf8f", "#7b3294", "#b58ac9", "#9e4fa5", "#d6bfe0")
OTHER_COLOURS = ("#9aa5b3", "#b9c2cd", "#8995a4", "#cdd4dc", "#7b8898")
LINE_COLOURS = ("#d9661f", "#7f8b9a", "#2f8f9d")
FENCE_COLOUR, SUSPENSION_COLOUR = "#d6224680", "var(--pale)"


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps [low, high] of the data to [start, end] of the picture; ``log``: by powers of ten, from low on."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return where a value lies in the picture, rounded to what a screen can show."""
        if self.log:
            return Scale(log10(self.low), log10(self.high), self.start, self.end)(log10(max(value, self.low)))
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return round(self.start + share * (self.end - self.start), 1)


def ticks(high: float, most: int) -> list[float]:
    """Return round numbers from 0 to beyond ``high``, at most so many steps."""
    if high <= 0:
        return [0.0, 1.0]
    power = 10.0 ** floor(log10(high / most))
    step = next(s * power for s in (*_STEPS, 20) if s * power * most >= high)
    count = 0
    while count * step < high:
        count += 1
    return [round(i * step, 10) for i in range(count + 1)]


def powers(high: float) -> list[float]:
    """Return 1, 10, 100 … up to the first that is not below ``high``; at least two."""
    found = [1.0, 10.0]
    while found[-1] < high:
        found.append(found[-1] * 10)
    return found


def colours(series: Sequence[Series], affected: int) -> dict[str, str]:
    """Return a colour per physical partition; the first ``affected`` ones belong to the split partition."""
    phantoms, others = cycle(PHANTOM_COLOURS), cycle(OTHER_COLOURS)
    found = {}
    for index, one in enumerate(series):
        found[one.name] = PARENT_COLOUR if index == 0 else next(phantoms if index < affected else others)
    return found


def throughput_chart(
    series: Sequence[Series],
    affected: int,
    fences: Sequence[TimeSpan],
    suspension: TimeSpan | None,
    began: float,
    seconds: float,
) -> Html:
    """Return the stacked picture: other partitions below, the affected one and its phantoms above them."""
    order = [*series[affected:], *series[:affected]]
    totals = [sum(v or 0.0 for v in values) for values in zip(*(s.values for s in series), strict=True)]
    x = Scale(0, seconds, LEFT, WIDTH - RIGHT)
    marks = ticks(usual_height(totals), 6)
    y = Scale(0, marks[-1], HEIGHT - BOTTOM, TOP)
    paint = colours(series, affected)
    level = [0.0] * len(totals)
    areas = []
    for one in order:
        top = [a + (b or 0.0) for a, b in zip(level, one.values, strict=True)]
        upper, lower = (
            staircase([min(v, marks[-1]) for v in edge], one.width, x, y) for edge in (top, level)
        )
        corners = points([*upper, *reversed(lower)])
        areas.append(element("polygon", tip(one.name), points=corners, fill=paint[one.name]))
        level = top
    cut = [total if total > marks[-1] else None for total in totals]
    parts = [
        *_axes(x, y, marks, "records/s"),
        *_suspended(x, suspension, began),
        *areas,
        *_bands(x, fences, began),
        *(_peak(x((first + len(run) / 2) * series[0].width), max(run)) for first, run in runs(cut)),
    ]
    named = [(paint[one.name], one.name) for one in reversed(order)]
    if suspension:
        named.append((SUSPENSION_COLOUR, f"{suspension.label}, {suspension.seconds:.1f} s"))
    if any(cut):
        named.append(("none", f"▲ higher than the picture, at most {max(totals):,.0f} records/s"))
    return _chart(parts, "Throughput by physical partition over time", named, fences)


def slowness_chart(
    series: Sequence[Series], fences: Sequence[TimeSpan], began: float, seconds: float
) -> Html:
    """Return the slowest report by time, on a logarithmic scale."""
    x = Scale(0, seconds, LEFT, WIDTH - RIGHT)
    marks = powers(max((v for s in series for v in s.values if v is not None), default=0.0))
    y = Scale(1, marks[-1], HEIGHT - BOTTOM, TOP, log=True)
    paint = {s.name: c for s, c in zip(series, LINE_COLOURS, strict=True)}
    lines = [
        element(
            "polyline",
            tip(one.name),
            points=points(staircase(run, one.width, x, y, first)),
            fill="none",
            stroke=paint[one.name],
            stroke_width=1.6,
            stroke_linejoin="round",
        )
        for one in reversed(series)
        for first, run in runs(one.values)
    ]
    parts = [*_axes(x, y, marks, "ms (log)"), *_bands(x, fences, began), *lines]
    named = [(colour, name) for name, colour in paint.items()]
    return _chart(parts, "Slowest delivery report over time", named, fences)


def usual_height(totals: Sequence[float]) -> float:
    """Return the height of nearly everything: what was held comes all at once and would dwarf the rest."""
    usual = percentile(sorted(totals), _USUAL_SHARE)
    return min(max(totals, default=0.0), usual * _HEADROOM)


def runs(values: Sequence[float | None]) -> list[tuple[int, list[float]]]:
    """Return the stretches without gaps: the index of the first bin, and the values."""
    found: list[tuple[int, list[float]]] = []
    for index, value in enumerate(values):
        if value is None:
            continue
        if found and found[-1][0] + len(found[-1][1]) == index:
            found[-1][1].append(value)
        else:
            found.append((index, [value]))
    return found


def points(pairs: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in pairs)


def staircase(
    values: Sequence[float], width: float, x: Scale, y: Scale, first: int = 0
) -> list[tuple[float, float]]:
    """Return the corners of a line that is level within each bin; ``first``: the first bin's index."""
    corners = []
    for index, value in enumerate(values, first):
        level = y(value)
        corners += [(x(min(index * width, x.high)), level), (x(min((index + 1) * width, x.high)), level)]
    return corners


def _chart(
    parts: Iterable[str], label: str, named: Iterable[tuple[str, str]], fences: Sequence[TimeSpan]
) -> Html:
    """Return a picture with its legend: fences have numbers in the picture, and names only below it."""
    numbered = [
        (FENCE_COLOUR, f"{number}: {fence.label}, fence of {fence.seconds * 1000:.0f} ms")
        for number, fence in enumerate(fences, 1)
    ]
    return Html(svg(WIDTH, HEIGHT, parts, label) + legend([*named, *numbered]))


def _axes(x: Scale, y: Scale, marks: Sequence[float], unit: str) -> list[str]:
    bottom = HEIGHT - BOTTOM
    parts = [
        text(unit, LEFT - 8, TOP - 18, "end"),
        text("seconds since the writers started", WIDTH - RIGHT, HEIGHT - 6, "end"),
    ]
    for mark in marks:
        parts.append(line(LEFT, y(mark), WIDTH - RIGHT, y(mark), "grid"))
        parts.append(text(f"{mark:,.0f}", LEFT - 8, y(mark) + 4, "end"))
    for second in ticks(x.high, 12):
        if second <= x.high:
            parts.append(line(x(second), bottom, x(second), bottom + 5, "axis"))
            parts.append(text(f"{second:g} s", x(second), bottom + 19, "middle"))
    return [*parts, line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis")]


def _bands(x: Scale, fences: Sequence[TimeSpan], began: float) -> list[str]:
    """Return the fences as bands with their numbers above the picture."""
    parts = []
    for number, fence in enumerate(fences, 1):
        left = x(fence.began - began)
        width = max(_NARROWEST_BAND, x(fence.ended - began) - left)
        parts.append(_band(left, width, FENCE_COLOUR, f"{fence.label}: {fence.seconds * 1000:.0f} ms"))
        parts.append(text(f"{number}", left + width / 2, TOP - 18, "middle", "head"))
    return parts


def _suspended(x: Scale, suspension: TimeSpan | None, began: float) -> list[str]:
    if suspension is None:
        return []
    left, right = x(suspension.began - began), x(suspension.ended - began)
    return [_band(left, right - left, SUSPENSION_COLOUR, f"{suspension.label}: {suspension.seconds:.1f} s")]


def _band(left: float, width: float, colour: str, label: str) -> str:
    return element(
        "rect", tip(label), x=left, y=TOP, width=round(width, 1), height=HEIGHT - BOTTOM - TOP, fill=colour
    )


def _peak(at: float, height: float) -> str:
    """Mark bins that are higher than the picture."""
    return element("text", f"{tip(f'{height:,.0f} records/s')}▲", x=at, y=TOP - 2, text_anchor="middle")


# -- the page --------------------------------------------------------------------------------------


def page(result: DemoResult) -> str:
    """Return the whole page."""
    timeline, parent = result.timeline, result.state.parent
    affected = len(result.state.lineage.sources())
    seconds = timeline.ended - timeline.began
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
                result.throughput, affected, timeline.fences, timeline.suspension, timeline.began, seconds
            ),
        ),
        html.section(
            "What an application feels",
            "The slowest delivery report of each fifth of a second, from produce() to the report, nothing "
            "subtracted (kpsplit producers; the suspended one is left out until it has caught up). The plain "
            "writer is the control: no fence can hold it, so where it is slow as well the brokers are.",
            slowness_chart(result.slowness, timeline.fences, timeline.began, seconds),
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
    content = "".join(f"<div><b>{figure}</b><span>{name}</span></div>" for figure, name in cards)
    return html.Html(f'<div class="cards">{content}</div>')
