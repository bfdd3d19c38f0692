"""The result as one HTML file with everything in it: figures, pictures over time, tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import floor, log10

from kpsplit import __version__
from kpsplit.demo.result import DemoResult, last_line
from kpsplit.demo.tables import all_tables
from kpsplit.demo.timeline import Series, TimeSpan, percentile
from kpsplit.pages import html
from kpsplit.pages.html import Html, element, legend, line, svg, text, tip
from kpsplit.pages.lineage import PARENT_COLOUR, lineage_picture

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
    """Maps [low, high] of the data to [start, end] of the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return where a value lies in the picture, rounded to what a screen can show."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True, slots=True)
class LogScale:
    """As Scale, by powers of ten; what is below ``low`` lies at the start."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return where a value lies in the picture."""
        return Scale(log10(self.low), log10(self.high), self.start, self.end)(log10(max(value, self.low)))


def ticks(high: float, most: int = 8) -> list[float]:
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
    y = LogScale(1, marks[-1], HEIGHT - BOTTOM, TOP)
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
    """Return the points of a line or polygon."""
    return " ".join(f"{x:g},{y:g}" for x, y in pairs)


def staircase(
    values: Sequence[float], width: float, x: Scale, y: Scale | LogScale, first: int = 0
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


def _axes(x: Scale, y: Scale | LogScale, marks: Sequence[float], unit: str) -> list[str]:
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
