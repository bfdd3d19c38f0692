"""The two pictures over time: throughput by physical partition, and the slowest delivery report. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import cycle

from kpsplit.demo.chronicle import Span
from kpsplit.demo.figures import Series, percentile
from kpsplit.demo.svg import LogScale, Scale, element, points, powers, staircase, svg, text, ticks, title

WIDTH, HEIGHT = 1120.0, 380.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 16.0, 64.0, 44.0
_NARROWEST_BAND = 3.0
_LABEL_ROWS = 3
_ROW = 15.0
_PER_CHARACTER = 6.4
_USUAL_SHARE, _HEADROOM = 0.95, 1.35

PARENT_COLOUR = "#1f5fa8"
PHANTOM_COLOURS = ("#e08214", "#f2b04c", "#c4551b", "#f6cf8f", "#7b3294", "#b58ac9", "#9e4fa5", "#d6bfe0")
OTHER_COLOURS = ("#c3cad3", "#d2d8df", "#b4bdc8", "#dfe3e8", "#a6b0bd")
AFFECTED_LINE, OTHER_LINE = "#c4551b", "#6b7685"


def colours(series: Sequence[Series], affected: int) -> dict[str, str]:
    """Return a colour per physical partition; the first ``affected`` ones belong to the split partition."""
    phantoms, others = cycle(PHANTOM_COLOURS), cycle(OTHER_COLOURS)
    found = {}
    for index, one in enumerate(series):
        found[one.name] = PARENT_COLOUR if index == 0 else next(phantoms if index < affected else others)
    return found


def throughput_chart(
    series: Sequence[Series], affected: int, fences: Sequence[Span], suspension: Span | None, began: float
) -> str:
    """Return the stacked picture: other partitions below, the affected one and its phantoms above them."""
    order = [*series[affected:], *series[:affected]]
    totals = [sum(v or 0.0 for v in values) for values in zip(*(s.values for s in series), strict=True)]
    x = Scale(0, _seconds(series), LEFT, WIDTH - RIGHT)
    marks = ticks(usual_height(totals), 6)
    y = Scale(0, marks[-1], HEIGHT - BOTTOM, TOP)
    paint = colours(series, affected)
    floor = [0.0] * len(totals)
    areas = []
    for one in order:
        top = [a + (b or 0.0) for a, b in zip(floor, one.values, strict=True)]
        upper, lower = (
            staircase([min(v, marks[-1]) for v in edge], one.width, x, y) for edge in (top, floor)
        )
        areas.append(
            element(
                "polygon",
                title(one.name),
                points=points([*upper, *reversed(lower)]),
                fill=paint[one.name],
                stroke="white",
                stroke_width=0.3,
            )
        )
        floor = top
    parts = [
        *_axes(x, y, marks, "records/s"),
        *_suspension(x, suspension, began),
        *areas,
        *_clipped(totals, series[0].width, x, y),
        *_bands(x, fences, began),
    ]
    return svg(WIDTH, HEIGHT, parts, "Throughput by physical partition over time") + legend(
        order[::-1], paint
    )


def slowness_chart(series: Sequence[Series], fences: Sequence[Span], began: float) -> str:
    """Return the slowest report by time, on a logarithmic scale: affected partition and others."""
    x = Scale(0, _seconds(series), LEFT, WIDTH - RIGHT)
    marks = powers(max((v for s in series for v in s.values if v is not None), default=0.0))
    y = LogScale(1, marks[-1], HEIGHT - BOTTOM, TOP)
    paint = {s.name: c for s, c in zip(series, (AFFECTED_LINE, OTHER_LINE), strict=True)}
    lines = [
        element(
            "polyline",
            title(one.name),
            points=points(staircase(run, one.width, x, y, first)),
            fill="none",
            stroke=paint[one.name],
            stroke_width=1.6,
            stroke_linejoin="round",
        )
        for one in reversed(series)
        for first, run in runs(one.values)
    ]
    parts = [
        *_axes(x, y, marks, "ms (log)"),
        *_bands(x, fences, began),
        *lines,
    ]
    return svg(WIDTH, HEIGHT, parts, "Slowest delivery report over time") + legend(series, paint)


def legend(series: Sequence[Series], paint: dict[str, str]) -> str:
    """Return the legend as HTML."""
    items = (f'<span><i style="background:{paint[one.name]}"></i>{escape(one.name)}</span>' for one in series)
    return f'<div class="legend">{"".join(items)}</div>'


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


def label_rows(places: Sequence[tuple[float, float]]) -> list[int]:
    """Return a row for each label (its start and its width), so that no two in a row overlap."""
    ends = [float("-inf")] * _LABEL_ROWS
    rows = []
    for start, width in places:
        row = next((r for r in range(_LABEL_ROWS) if ends[r] <= start), _LABEL_ROWS - 1)
        ends[row] = start + width
        rows.append(row)
    return rows


def _seconds(series: Sequence[Series]) -> float:
    return max((len(s.values) * s.width for s in series), default=1.0)


def _axes(x: Scale, y: Scale | LogScale, marks: Sequence[float], unit: str) -> list[str]:
    parts = []
    for mark in marks:
        at = y(mark)
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        parts.append(text(f"{mark:,.0f}", LEFT - 8, at + 4, text_anchor="end"))
    for second in ticks(x.high, 12):
        if second <= x.high:
            at = x(second)
            parts.append(
                element("line", x1=at, x2=at, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 5, class_="axis")
            )
            parts.append(text(f"{second:g} s", at, HEIGHT - BOTTOM + 19, text_anchor="middle"))
    parts.append(
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM, class_="axis")
    )
    parts.append(text(unit, LEFT - 8, TOP - 12, text_anchor="end", class_="unit"))
    parts.append(
        text("seconds since the writers started", WIDTH - RIGHT, HEIGHT - 6, text_anchor="end", class_="unit")
    )
    return parts


def _bands(x: Scale, fences: Sequence[Span], began: float) -> list[str]:
    """Return the fences as bands with labels above the picture."""
    labels = [f"{fence.label}: fence {fence.seconds * 1000:.0f} ms" for fence in fences]
    starts = []
    for fence, label in zip(fences, labels, strict=True):
        width = len(label) * _PER_CHARACTER
        starts.append((min(x(fence.began - began) + 4, WIDTH - RIGHT - width), width))
    parts = []
    for fence, label, (at, _), row in zip(fences, labels, starts, label_rows(starts), strict=True):
        left = x(fence.began - began)
        width = max(_NARROWEST_BAND, x(fence.ended - began) - left)
        top = TOP - _ROW * (row + 1)
        parts.append(
            element(
                "rect",
                title(label),
                x=left,
                y=top,
                width=round(width, 1),
                height=HEIGHT - BOTTOM - top,
                class_="fence",
            )
        )
        parts.append(text(label, at + width, top + 11, class_="label"))
    return parts


def _clipped(totals: Sequence[float], width: float, x: Scale, y: Scale) -> list[str]:
    """Return the heights of bins that are higher than the picture, one label for neighbours."""
    high = runs([total if total > y.high else None for total in totals])
    return [
        text(
            f"▲{max(peak):,.0f}",
            x((first + len(peak) / 2) * width),
            TOP - 2,
            text_anchor="middle",
            class_="clipped",
        )
        for first, peak in high
    ]


def _suspension(x: Scale, suspension: Span | None, began: float) -> list[str]:
    if suspension is None:
        return []
    left, right = x(suspension.began - began), x(suspension.ended - began)
    return [
        element(
            "rect",
            title(f"{suspension.label}: {suspension.seconds:.1f} s"),
            x=left,
            y=TOP,
            width=round(right - left, 1),
            height=HEIGHT - BOTTOM - TOP,
            class_="suspended",
        ),
        text(suspension.label, (left + right) / 2, TOP + 14, text_anchor="middle", class_="label"),
    ]
