"""The parts of a page: style, sections, tables with bars, legends, SVG elements. Every text is escaped here.

A page follows the reader's light or dark mode. What is too wide for a screen scrolls by itself: a picture is
never shrunk until nobody can read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import pairwise

from kpsplit.splitter.lineage import Lineage, Segment, SegmentKind

_STYLE = """
:root { color-scheme: light dark; --ink: #1c232b; --dim: #4a5562; --page: #f6f8fa; --card: #fff;
  --line: #dde3e9; --axis: #8a94a1; --pale: #fff3cd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebef; --dim: #b1bbc7; --page: #12161b;
  --card: #1b2128; --line: #39424d; --axis: #77828f; --pale: #4d4320; } }
body { font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: var(--ink);
  background: var(--page); margin: 0; overflow-wrap: anywhere; }
main { max-width: 1180px; margin: 0 auto; padding: 24px clamp(10px, 3vw, 24px) 48px; }
h1 { font-size: 25px; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 0 0 2px; }
p { margin: 2px 0 10px; color: var(--dim); max-width: 76em; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 16px clamp(12px, 3vw, 22px); margin: 18px 0; }
.ok, .found, .unproven { border-left: 8px solid #2e8b57; }
.found { border-left-color: #c0392b; } .unproven { border-left-color: #d9a400; }
.cards { display: flex; flex-wrap: wrap; gap: 10px; margin-top: 14px; }
.cards div { flex: 1 0 86px; min-width: max-content; padding: 8px 10px; border-radius: 8px;
  border: 1px solid var(--line); }
.cards b { display: block; white-space: nowrap; font-size: 21px; font-variant-numeric: tabular-nums; }
.cards span { color: var(--dim); font-size: 12.5px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 12.5px; color: var(--dim);
  margin-top: 6px; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; margin-top: 8px; overflow-wrap: normal; }
th, td { padding: 4px 14px 4px 0; text-align: left; white-space: nowrap; vertical-align: top;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
th { color: var(--dim); }
.n { text-align: right; }
.wrap { white-space: normal; min-width: 20em; overflow-wrap: anywhere; }
.bar { display: block; height: 12px; width: 12em; margin-top: 4px; background: var(--line); }
.bar i { display: block; height: 100%; }
svg { width: 100%; min-width: 860px; height: auto; display: block; }
svg text { font-size: 12px; fill: var(--dim); }
svg .head { font-weight: 600; fill: var(--ink); }
svg .mono { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 11.5px; }
svg .dark { fill: #1c232b; } svg .light { fill: #fff; }
svg .frame { stroke: var(--axis); stroke-width: .6; }
svg .grid { stroke: var(--line); } svg .axis { stroke: var(--axis); }
"""


class Html(str):
    """Markup: anything else is text, and is escaped."""

    __slots__ = ()


def page(heading: str, parts: Iterable[Html]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(heading)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(heading)}</h1>{''.join(parts)}</main></body></html>\n"
    )


def paragraph(text: str) -> Html:
    return Html(f"<p>{escape(text)}</p>")


def section(heading: str, explanation: str, *content: Html) -> Html:
    """Return a card with a heading, what it shows in words (may be empty), and its content."""
    words = paragraph(explanation) if explanation else ""
    return Html(f"<section><h2>{escape(heading)}</h2>{words}{''.join(content)}</section>")


def outcome(kind: str, line: str, *content: Html) -> Html:
    """Return the card with the result; ``kind``: ``ok``, ``found`` or ``unproven``."""
    return Html(f'<section class="{kind}"><b>{escape(line)}</b>{"".join(content)}</section>')


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """Return a table; columns of numbers stand to the right."""
    rows = list(rows)
    kinds = ["n" if all(is_number(row[i]) for row in rows) else "" for i in range(len(columns))]
    head = "".join(_cell("th", name, kind) for name, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(_cell("td", c, kind) for c, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return Html(f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>')


def bar(value: float, most: float, colour: str) -> Html:
    """Return a table's cell with a bar from 0 to ``most``; the column's name says the unit."""
    share = 100 * value / most if most else 0.0
    return Html(f'<span class="bar"><i style="width:{share:.1f}%;background:{colour}"></i></span>')


def legend(items: Iterable[tuple[str, str]]) -> Html:
    """Return what colours mean: (colour, meaning)."""
    shown = (f'<span><i style="background:{colour}"></i>{escape(text)}</span>' for colour, text in items)
    return Html(f'<div class="legend">{"".join(shown)}</div>')


def _cell(tag: str, content: str, kind: str) -> str:
    if isinstance(content, Html):
        return f"<{tag}>{content}</{tag}>"
    name = kind or ("wrap" if len(content) > 60 else "")
    return f"<{tag}{f' class={name!r}' if name else ''}>{escape(content)}</{tag}>"


def is_number(cell: str) -> bool:
    if isinstance(cell, Html):
        return False
    return cell in ("", "–", "open", "no record") or cell.replace(",", "").replace(".", "").isdigit()


def svg(width: float, height: float, parts: Iterable[str], label: str) -> Html:
    """Return a whole picture that scales with the page."""
    box = f"0 0 {width:g} {height:g}"
    drawn = element("svg", "".join(parts), viewBox=box, role="img", aria_label=label)
    return Html(f'<div class="scroll">{drawn}</div>')


def element(name: str, content: str = "", **attributes: object) -> str:
    """Return an element; ``_`` in attribute names stands for ``-``, a trailing one is dropped."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{pairs}>{content}</{name}>" if content else f"<{name}{pairs}/>"


def text(content: str, x: float, y: float, anchor: str = "start", style: str = "") -> str:
    """Return a text element; ``anchor``: which part of it stands at x."""
    kind = {"class_": style} if style else {}
    return element("text", escape(content), x=round(x, 1), y=round(y, 1), text_anchor=anchor, **kind)


def line(x: float, y: float, to_x: float, to_y: float, style: str) -> str:
    """Return a line of ``grid`` or ``axis``."""
    return element("line", x1=round(x, 1), y1=round(y, 1), x2=round(to_x, 1), y2=round(to_y, 1), class_=style)


def tip(content: str) -> str:
    """Return what a browser shows when the pointer rests on the element around it."""
    return element("title", escape(content))


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
    """Draw the lineage of a partition: key ranges from top to bottom, epochs from left to right.

    Every segment is a box over the epochs in which it was open and the key ranges that it took. Ranges are
    drawn in their order, not to scale: a narrow range with a hot key would not be seen. Overflows have rows
    of their own below the key space. What cannot be read any more has a dashed frame and no filling.

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
