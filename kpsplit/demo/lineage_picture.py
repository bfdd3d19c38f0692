"""The lineage as a picture: key ranges from top to bottom, epochs from left to right. Pure.

Every segment is a box over the epochs in which it was open and the key ranges that it took. Ranges are drawn
in their order, not to scale: a narrow range with a hot key would not be seen. Overflows have rows of their
own below the key space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kpsplit.demo.svg import element, svg, text, title
from kpsplit.splitter.lineage import Lineage, Segment, SegmentKind

WIDTH = 1120.0
LEFT, TOP = 92.0, 34.0
ROW, OVERFLOW_ROW, GAP = 62.0, 34.0, 3.0
_OVERFLOW_COLOUR = "#eef1f4"


def lineage_picture(lineage: Lineage, records: Mapping[int, int], paint: Mapping[str, str]) -> str:
    """Return the picture; ``records``: how many were read per segment, ``paint``: colour per place."""
    epochs = sorted({s.opened_epoch for s in lineage})
    column = (WIDTH - LEFT) / len(epochs)
    cuts = sorted({bound for s in _proper(lineage) for bound in (s.range.lo, s.range.hi)})
    overflows = [s for s in lineage if s.kind is SegmentKind.OVERFLOW]
    bottom = TOP + ROW * (len(cuts) - 1)
    parts = []
    for index, epoch in enumerate(epochs):
        parts.append(
            text(f"epoch {epoch}", LEFT + column * (index + 0.5), 20, text_anchor="middle", class_="head")
        )
    for index, cut in enumerate(cuts):
        parts.append(text(f"{cut:08x}", LEFT - 10, TOP + ROW * index + 4, text_anchor="end", class_="mono"))
    if overflows:
        parts.append(text("overflow", LEFT - 10, bottom + GAP * 4 + OVERFLOW_ROW / 2, text_anchor="end"))
    for segment in lineage:
        x, width = _columns(segment, epochs, column)
        if segment.kind is SegmentKind.OVERFLOW:
            y = bottom + GAP * 4 + OVERFLOW_ROW * overflows.index(segment)
            height, colour = OVERFLOW_ROW - GAP, _OVERFLOW_COLOUR
        else:
            y = TOP + ROW * cuts.index(segment.range.lo)
            height = TOP + ROW * cuts.index(segment.range.hi) - y - GAP
            colour = paint.get(str(segment.source), "#cccccc")
        place = "parent" if segment.source == lineage.parent else _short(segment)
        parts += _box(segment, place, records.get(segment.id, 0), x, y, width - GAP, height, colour)
    whole = bottom + GAP * 4 + OVERFLOW_ROW * len(overflows) + 4
    return svg(WIDTH, whole, parts, "Lineage of the split partition")


def _proper(lineage: Lineage) -> Sequence[Segment]:
    return [s for s in lineage if s.kind is not SegmentKind.OVERFLOW]


def _short(segment: Segment) -> str:
    return f"{segment.source.topic.rpartition('.')[2]}/{segment.source.partition}"


def _columns(segment: Segment, epochs: Sequence[int], column: float) -> tuple[float, float]:
    first = epochs.index(segment.opened_epoch)
    behind = len(epochs) if segment.closed_epoch is None else epochs.index(segment.closed_epoch)
    return LEFT + column * first, column * (behind - first)


def _box(
    segment: Segment, place: str, records: int, x: float, y: float, width: float, height: float, colour: str
) -> list[str]:
    """Return a segment's box with as many lines of text as fit."""
    numbers = segment.progression
    stretch = f"offsets {segment.start:,} to {'…' if segment.end is None else format(segment.end, ',')}"
    lines = [
        f"{segment.id}: {place}  {records:,} records",
        f"{stretch}",
        f"logical {numbers.base:,} + {numbers.stride:,}·n",
    ]
    fitting = lines[: max(1, int((height - 6) // 16))]
    if len(fitting) == 1 and width > 420:
        fitting = ["   ".join(lines)]
    first = y + height / 2 - 8 * (len(fitting) - 1) + 4
    dark = segment.kind is SegmentKind.PARENT
    rect = element(
        "rect",
        title(f"segment {segment.id}, {segment.kind} {segment.range}, {segment.source}; " + "; ".join(lines)),
        x=round(x, 1),
        y=round(y, 1),
        width=round(width, 1),
        height=round(height, 1),
        rx=4,
        fill=colour,
        fill_opacity=1 if dark or segment.kind is SegmentKind.OVERFLOW else 0.55,
        stroke="#8a94a1",
        stroke_width=0.6,
    )
    style = "box light" if dark else "box"
    return [
        rect,
        *(
            text(line, x + width / 2, first + 16 * i, text_anchor="middle", class_=style)
            for i, line in enumerate(fitting)
        ),
    ]
