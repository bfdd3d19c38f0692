"""The little that the demo's pictures need of SVG: scales, ticks, elements. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

_STEPS = (1, 2, 5, 10)


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


def element(name: str, content: str = "", **attributes: object) -> str:
    """Return an element; ``_`` in attribute names stands for ``-``, a trailing one is dropped."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{pairs}>{content}</{name}>" if content else f"<{name}{pairs}/>"


def text(content: str, x: float, y: float, **attributes: object) -> str:
    """Return a text element."""
    return element("text", escape(content), x=round(x, 1), y=round(y, 1), **attributes)


def title(content: str) -> str:
    """Return what a browser shows when the pointer rests on the element around it."""
    return element("title", escape(content))


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


def svg(width: float, height: float, parts: Iterable[str], label: str) -> str:
    """Return a whole picture that scales with the page."""
    return element("svg", "".join(parts), viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label)
