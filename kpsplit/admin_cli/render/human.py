"""Numbers and times as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil

_SECOND, _MINUTE, _HOUR, _DAY = 1.0, 60.0, 3600.0, 86_400.0
_FEW = 10.0
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def duration(seconds: float) -> str:
    """Return ``12 ms``, ``3.4 s``, ``2 min 5 s``, ``1 h 4 min`` or ``3 d 2 h``."""
    if seconds < _SECOND:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds < _FEW else f"{seconds:.0f} s"
    for unit, name, smaller, small in ((_HOUR, "min", _SECOND, "s"), (_DAY, "h", _MINUTE, "min")):
        if seconds < unit:
            big = {"min": _MINUTE, "h": _HOUR}[name]
            return _two(seconds, big, name, smaller, small)
    return _two(seconds, _DAY, "d", _HOUR, "h")


def _two(seconds: float, big: float, name: str, small: float, small_name: str) -> str:
    whole, rest = divmod(seconds, big)
    less = int(rest // small)
    return f"{whole:.0f} {name} {less} {small_name}" if less else f"{whole:.0f} {name}"


def count(number: int) -> str:
    """Return a number with separators: ``1,234,567``."""
    return f"{number:,}"


def utc(ms: int) -> str:
    """Return a time (ms since 1970) to the second."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def percent(share: float) -> str:
    """Return a share as ``61 %``; ``0.4 %`` where it is small."""
    return f"{share * 100:.1f} %" if 0 < share < 0.0995 else f"{share * 100:.0f} %"


def bar(share: float, width: int = 20) -> str:
    """Return a bar of at most ``width`` characters for a share."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def percentile(values: Sequence[int], share: float) -> int:
    """Return the nearest-rank percentile of some values, 0 if there are none."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0
