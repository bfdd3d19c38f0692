"""Numbers and times as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil

_EIGHTHS = " ▏▎▍▌▋▊▉█"


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
