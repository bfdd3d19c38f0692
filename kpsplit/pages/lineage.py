"""The lineage of a partition as a picture: key ranges from top to bottom, epochs from left to right.

Every segment is a box over the epochs in which it was open and the key ranges that it took. Ranges are drawn
in their order, not to scale: a narrow range with a hot key would not be seen. Overflows have rows of their
own below the key space. What cannot be read any more has a dashed frame and no filling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from kpsplit.pages.html import Html, element, line, svg, text, tip
from kpsplit.splitter.lineage import Lineage, Segment, SegmentKind

WIDTH, LEFT, RIGHT, TOP = 1120.0, 96.0, 76.0, 30.0
ROW, OVERFLOW_ROW, GAP, AXIS = 62.0, 32.0, 3.0, 32.0
LEAST_SHARE = 0.5
"""Half of the width is shared out evenly between the epochs, the other half by their time."""
PARENT_COLOUR, OVERFLOW_COLOUR, PHANTOM_COLOUR = "#1f5fa8", "#d5dbe2", "#f2b04c"
_LETTER, _LINE = 7.0, 16.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LIGHT = 140
"""So bright (0 to 255) is a colour on which dark letters can be read."""


def lineage_picture(
    lineage: Lineage,
    records: Mapping[int, int],
    paint: Mapping[str, str] | None = None,
    *,
    gone: Mapping[int, str] | None = None,
    times: Mapping[int, int] | None = None,
    taken_ms: int | None = None,
) -> Html:
    """Return the picture.

    Args:
        lineage: of one logical partition.
        records: how many records each segment holds.
        paint: a colour per physical partition.
        gone: why a segment cannot be read any more, by its id; those that cannot.
        times: when epochs began, ms since 1970, as far as is known; those that no calendar has are left out.
        taken_ms: when the picture was taken.
    """
    epochs = sorted({s.opened_epoch for s in lineage})
    known = [_shown(at) for at in (*((times or {}).get(e) for e in epochs), taken_ms)]
    axis = AXIS if any(at is not None for at in known[:-1]) else 0.0
    edges = [LEFT + edge for edge in columns(known, WIDTH - LEFT - (RIGHT if axis else 0.0))]
    overflows = [s for s in lineage if s.kind is SegmentKind.OVERFLOW]
    proper = [s for s in lineage if s.kind is not SegmentKind.OVERFLOW]
    cuts = sorted({bound for s in proper for bound in (s.range.lo, s.range.hi)})
    bottom = TOP + ROW * (len(cuts) - 1)
    parts = [text(f"{cut:08x}", LEFT - 8, TOP + ROW * i + 4, "end", "mono") for i, cut in enumerate(cuts)]
    for epoch, (left, right) in zip(epochs, pairwise(edges), strict=True):
        name = next((t for t in (f"epoch {epoch}", f"{epoch}") if len(t) * _LETTER < right - left), "")
        parts.append(text(name, (left + right) / 2, 18, "middle", "head"))
    if overflows:
        parts.append(text("overflow", LEFT - 8, bottom + 10 + OVERFLOW_ROW / 2, "end"))
    for s in lineage:
        first = epochs.index(s.opened_epoch)
        end = len(epochs) if s.closed_epoch is None else epochs.index(s.closed_epoch)
        if s.kind is SegmentKind.OVERFLOW:
            top, height = bottom + 10 + OVERFLOW_ROW * overflows.index(s), OVERFLOW_ROW
            colour = OVERFLOW_COLOUR
        else:
            top = TOP + ROW * cuts.index(s.range.lo)
            height = TOP + ROW * cuts.index(s.range.hi) - top
            usual = PARENT_COLOUR if s.kind is SegmentKind.PARENT else PHANTOM_COLOUR
            colour = (paint or {}).get(str(s.source), usual)
        frame = (edges[first], top, edges[end] - edges[first] - GAP, height - GAP)
        parts += _box(s, records.get(s.id, 0), (gone or {}).get(s.id), frame, colour)
    bottom += 10 + OVERFLOW_ROW * len(overflows)
    if axis:
        parts += _axis(known, edges, bottom)
    return svg(WIDTH, bottom + axis, parts, f"Lineage of {lineage.parent}")


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


def _shown(at: int | None) -> int | None:
    """Return a time if a calendar has it: what a record's timestamp says is its writer's word."""
    try:
        return at if at is None or _EPOCH + timedelta(milliseconds=at) else None
    except OverflowError:
        return None


def _box(
    segment: Segment, records: int, gone: str | None, frame: tuple[float, float, float, float], colour: str
) -> list[str]:
    """Return a segment's box with as much text as fits."""
    x, y, width, height = frame
    source, numbers = segment.source, segment.progression
    short = f"{source.topic.rpartition('.')[2]}/{source.partition}"
    stretch = f"offsets {segment.start:,} to {'…' if segment.end is None else format(segment.end, ',')}"
    lines = [
        f"{segment.id}: {'parent' if segment.kind is SegmentKind.PARENT else short}",
        f"{records:,} records" if gone is None else gone if _fits(gone, width) else "gone",
        stretch,
        f"logical {numbers.base:,} + {numbers.stride:,}·n",
    ]
    details = "; ".join((gone or lines[1], *lines[2:]))
    whole = f"segment {segment.id}, {segment.kind} {segment.range}, {source}; {details}"
    joined = [", ".join(lines[i : i + 2]) for i in (0, 2)]
    room = max(1, int((height - 4) // _LINE))
    apart = room >= len(lines) or not _fits(joined[0], width)
    fitting = [t for t in (lines if apart else joined) if _fits(t, width)][:room]
    first = y + height / 2 - _LINE / 2 * (len(fitting) - 1) + 4
    fill = {"fill": "none", "stroke_dasharray": "5 4"} if gone else {"fill": colour}
    letters = "" if gone else "dark" if _is_light(colour) else "light"
    box = element(
        "rect", tip(whole), x=round(x, 1), y=round(y, 1), width=round(max(width, 1.0), 1),
        height=round(height, 1), rx=4, class_="frame", **fill,
    )  # fmt: skip
    return [
        box,
        *(text(t, x + width / 2, first + _LINE * i, "middle", letters) for i, t in enumerate(fitting)),
    ]


def _fits(content: str, width: float) -> bool:
    return len(content) * _LETTER < width


def _is_light(colour: str) -> bool:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue > _LIGHT


def _axis(times: Sequence[int | None], edges: Sequence[float], top: float) -> list[str]:
    """Return a line with the clock times of its edges, as far as there is room; the day where it changes."""
    parts = [line(LEFT, top + 6, edges[-1], top + 6, "axis"), text("UTC", LEFT - 8, top + 24, "end", "head")]
    free, day = LEFT, ""
    for at, x in zip(times, edges, strict=True):
        if at is None:
            continue
        parts.append(line(x, top + 2, x, top + 10, "axis"))
        clock = _EPOCH + timedelta(milliseconds=at)
        label = f"{clock:%H:%M:%S}" if f"{clock:%Y-%m-%d}" == day else f"{clock:%Y-%m-%d %H:%M:%S}"
        width = len(label) * _LETTER
        start = LEFT if x == LEFT else x - width / 2
        if start >= free:
            parts.append(text(label, start, top + 24, style="mono"))
            free, day = start + width + _LETTER, f"{clock:%Y-%m-%d}"
    return parts
