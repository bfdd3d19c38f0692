"""Numbers with their nouns, as people read them."""

from __future__ import annotations


def many(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 record``, ``2,000 records``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
