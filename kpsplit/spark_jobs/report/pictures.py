"""The pictures of the report, as SVG. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import pairwise

from kpsplit.splitter.lineage import Lineage, Segment, SegmentKind

WIDTH, LEFT, TOP = 1100.0, 96.0, 30.0
ROW, OVERFLOW_ROW, GAP = 54.0, 26.0, 3.0
RIGHT, AXIS = 66.0, 32.0
LEAST_SHARE = 0.5
"""Half of the width is shared out evenly between the epochs, the other half by their time."""
_LETTER = 6.6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLOURS = {
    SegmentKind.PARENT: "#1f5fa8",
    SegmentKind.PHANTOM: "#f2b04c",
    SegmentKind.OVERFLOW: "#e3e8ee",
}


def lineage_picture(
    lineage: Lineage,
    records: Mapping[int, int],
    times: Mapping[int, int] | None = None,
    taken_ms: int | None = None,
) -> str:
    """Return the segments as boxes: time from left to right, key ranges from top to bottom in their order.

    Args:
        lineage: of one logical partition.
        records: how many records each segment holds.
        times: when epochs began, ms since 1970, as far as is known; those that no calendar has are left out.
        taken_ms: when the picture was taken.
    """
    epochs = sorted({s.opened_epoch for s in lineage})
    known = [_shown(at) for at in (*((times or {}).get(e) for e in epochs), taken_ms)]
    edges = columns(known, WIDTH - LEFT - RIGHT)
    axis = AXIS if any(at is not None for at in known[:-1]) else 0.0
    proper = [s for s in lineage if s.kind is not SegmentKind.OVERFLOW]
    overflows = [s for s in lineage if s.kind is SegmentKind.OVERFLOW]
    cuts = sorted({bound for s in proper for bound in (s.range.lo, s.range.hi)})
    bottom = TOP + ROW * (len(cuts) - 1)
    middles = [LEFT + (a + b) / 2 for a, b in pairwise(edges)]
    parts = [
        *(_text(f"epoch {e}", x, 18, "middle", "head") for e, x in zip(epochs, middles, strict=True)),
        *(_text(f"{cut:08x}", LEFT - 8, TOP + ROW * i + 4, "end", "mono") for i, cut in enumerate(cuts)),
    ]
    for s in lineage:
        first = epochs.index(s.opened_epoch)
        behind = len(epochs) if s.closed_epoch is None else epochs.index(s.closed_epoch)
        if s.kind is SegmentKind.OVERFLOW:
            top, height = bottom + 10 + OVERFLOW_ROW * overflows.index(s), OVERFLOW_ROW
        else:
            top = TOP + ROW * cuts.index(s.range.lo)
            height = TOP + ROW * cuts.index(s.range.hi) - top
        frame = (LEFT + edges[first], top, edges[behind] - edges[first] - GAP, height - GAP)
        parts += _box(s, records.get(s.id, 0), frame)
    bottom += 10 + OVERFLOW_ROW * len(overflows)
    if axis:
        parts += _axis(known, edges, bottom)
    return _svg(bottom + axis, parts, f"Lineage of {lineage.parent}")


def _shown(at: int | None) -> int | None:
    """Return a time if a calendar has it: what a record's timestamp says is its writer's word."""
    try:
        return at if at is None or _EPOCH + timedelta(milliseconds=at) else None
    except OverflowError:
        return None


def columns(times: Sequence[int | None], width: float) -> list[float]:
    """Return where each epoch begins, and where the last one ends, from 0 to ``width``.

    In proportion to the time if all of it is known, but none narrower than a part of an even column: an epoch
    of a second beside one of a day is still seen.

    Args:
        times: when each epoch began and the last one ended.
        width: of all together.
    """
    count = len(times) - 1
    known = [at for at in times if at is not None]
    spans = [max(0, b - a) for a, b in pairwise(known)]
    if len(known) <= count or not sum(spans):
        return [width * i / count for i in range(count + 1)]
    parts = [LEAST_SHARE / count + (1 - LEAST_SHARE) * span / sum(spans) for span in spans]
    return [width * sum(parts[:i]) for i in range(count + 1)]


def _axis(times: Sequence[int | None], edges: Sequence[float], top: float) -> list[str]:
    """Return a line with the clock times of its edges, as far as there is room; the day where it changes."""
    parts = [_line(LEFT, top + 6, LEFT + edges[-1], top + 6)]
    free, day = 0.0, ""
    for at, edge in zip(times, edges, strict=True):
        if at is None:
            continue
        x = LEFT + edge
        parts.append(_line(x, top + 2, x, top + 10))
        told = _EPOCH + timedelta(milliseconds=at)
        text = f"{told:%H:%M:%S}" if f"{told:%Y-%m-%d}" == day else f"{told:%Y-%m-%d %H:%M:%S}"
        half = len(text) * _LETTER / 2
        if x - half >= free:
            parts.append(_text(text, x, top + 24, "middle", "mono"))
            free, day = x + half + _LETTER, f"{told:%Y-%m-%d}"
    return [*parts, _text("UTC", 8, top + 24, "start", "head")]


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="#8a94a1" stroke-width="1"/>'


def bars(rows: Sequence[tuple[str, float, str]], label: str, colour: str = "#1f5fa8") -> str:
    """Return horizontal bars: name, length (any unit), what is written behind it."""
    most = max((value for _, value, _ in rows), default=0.0) or 1.0
    left, height = 330.0, 22.0
    parts = []
    for index, (name, value, told) in enumerate(rows):
        y = 6 + height * index
        width = max(1.0, (WIDTH - left - 190) * value / most) if value else 0.0
        parts.append(_text(name, left - 8, y + 13, "end", "mono"))
        parts.append(_rect((left, y, width, height - 6), colour, f"{name}: {told}"))
        parts.append(_text(told, left + width + 6, y + 13, "start", "unit"))
    return _svg(12 + height * len(rows), parts, label)


def _box(segment: Segment, records: int, frame: tuple[float, float, float, float]) -> list[str]:
    """Return a segment's box with as much text as fits."""
    x, y, width, height = frame
    stretch = f"offsets {segment.start:,} to {'…' if segment.end is None else format(segment.end, ',')}"
    numbers = f"logical {segment.progression.base:,} + {segment.progression.stride:,}·n"
    lines = [f"{segment.id}: {records:,} records", stretch, numbers]
    told = f"segment {segment.id}, {segment.kind} {segment.range}, {segment.source}; {'; '.join(lines)}"
    room = int((height - 4) // 15)
    fitting = [line for line in lines[: max(room, 1)] if len(line) * _LETTER < width]
    first = y + height / 2 - 7.5 * (len(fitting) - 1) + 4
    style = "light" if segment.kind is SegmentKind.PARENT else "box"
    texts = [_text(t, x + width / 2, first + 15 * i, "middle", style) for i, t in enumerate(fitting)]
    return [_rect(frame, _COLOURS[segment.kind], told), *texts]


def _rect(frame: tuple[float, float, float, float], colour: str, told: str) -> str:
    x, y, width, height = (f"{value:.1f}" for value in frame)
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{colour}" stroke="#8a94a1" '
        f'stroke-width=".6"><title>{escape(told)}</title></rect>'
    )


def _text(content: str, x: float, y: float, anchor: str, style: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} class="{style}">{escape(content)}</text>'


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    box = f'viewBox="0 0 {WIDTH:g} {height:g}"'
    return f'<svg {box} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
