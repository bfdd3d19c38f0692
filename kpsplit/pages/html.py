"""The parts of a page: style, sections, tables with bars, legends, SVG elements. Every text is escaped here.

A page follows the reader's light or dark mode. What is too wide for a screen scrolls by itself: a picture is
never shrunk until nobody can read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

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
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(108px, 1fr)); gap: 10px;
  margin-top: 14px; }
.cards div { border: 1px solid var(--line); border-radius: 8px; padding: 8px 10px; }
.cards b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
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
    """Return a whole page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(heading)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(heading)}</h1>{''.join(parts)}</main></body></html>\n"
    )


def paragraph(text: str) -> Html:
    """Return a paragraph."""
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
    kinds = ["n" if all(_is_number(row[i]) for row in rows) else "" for i in range(len(columns))]
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


def _is_number(cell: str) -> bool:
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
