"""Numbers and times as people read them, and text that is safe to show.

Keys, names and values may hold anything, also what controls a terminal.
"""

from __future__ import annotations

import base64
import unicodedata
from datetime import UTC, datetime
from typing import Any

from kpsplit.splitter.lineage import PhysicalPartition, Segment

_DANGEROUS = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: str) -> str:
    """Return the text with control, formatting and unassigned characters escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _DANGEROUS else c for c in text
    )


def one_line(text: str) -> str:
    return safe(" ".join(text.split()))


def show_bytes(data: bytes | None, longest: int = 60) -> str:
    """Return bytes as people read them: text where it is UTF-8, else hexadecimal; cut at ``longest``."""
    if data is None:
        return "null"
    try:
        return shorten(
            safe(data[: longest * 4].decode("utf-8", "strict" if len(data) <= longest * 4 else "ignore")),
            longest,
        )
    except UnicodeDecodeError:
        return shorten(f"0x{data[:longest].hex()}", longest)


def bytes_json(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as text under ``name``, or as base64 under ``name_b64`` where they are not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(data).decode("ascii")}


def place_json(place: PhysicalPartition) -> dict[str, Any]:
    return {"topic": place.topic, "partition": place.partition}


def segment_json(segment: Segment) -> dict[str, Any]:
    """Return a segment with what a client needs to find it."""
    return {
        "range": [segment.range.lo, segment.range.hi],
        "segment": segment.id,
        "source_topic": segment.source.topic,
        "source_partition": segment.source.partition,
    }


def shorten(text: str, longest: int) -> str:
    """Return the text cut to so many characters, an ellipsis at its end."""
    return text if len(text) <= longest else f"{text[: max(longest - 1, 0)]}…"


_EIGHTHS = " ▏▎▍▌▋▊▉█"


def utc(ms: int) -> str:
    """Return a time (ms since 1970) to the second."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def percent(share: float) -> str:
    """Return a share as ``61 %``; ``0.4 %`` where it is small."""
    return f"{share * 100:.1f} %" if 0 < share < 0.0995 else f"{share * 100:.0f} %"


def bar(share: float, width: int) -> str:
    """Return a bar of at most ``width`` characters for a share."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
