"""Text that is safe to show: keys, names and values may hold anything, also what controls a terminal."""

from __future__ import annotations

import unicodedata

_DANGEROUS = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BYTE = 0xFF
_PLANE = 0xFFFF


def safe(text: str) -> str:
    """Return the text with control, formatting and unassigned characters escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _DANGEROUS else c for c in text)


def one_line(text: str) -> str:
    """Return the text in one line, safe to show."""
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


def shorten(text: str, longest: int) -> str:
    """Return the text cut to so many characters, an ellipsis at its end."""
    return text if len(text) <= longest else f"{text[: max(longest - 1, 0)]}…"


def _escape(character: str) -> str:
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if code <= _BYTE:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _PLANE else f"\\U{code:08x}"
