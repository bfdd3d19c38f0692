"""A member's journal: every record that it worked on, and when. Written at once: a kill loses nothing.

Entries, little-endian: time (8, seconds of the monotonic clock), key hash (8, -1: no key), logical offset
(8), logical partition (2), segment (4). A torn entry at the end (the member was killed) is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kpsplit.splitter.key_range import key_hash

_ENTRY = struct.Struct("<dqqHI")
NO_KEY = -1


class Worked(NamedTuple):
    """One record that a member worked on."""

    at: float
    key_hash: int
    offset: int
    partition: int
    segment: int


def pack(at: float, key: bytes | None, offset: int, partition: int, segment: int) -> bytes:
    """Return one entry."""
    return _ENTRY.pack(at, NO_KEY if key is None else key_hash(key), offset, partition, segment)


def read_worked(path: Path) -> Iterator[Worked]:
    """Yield the entries of a journal; none if there is no file."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = len(data) - len(data) % _ENTRY.size
    yield from _unpacked(_ENTRY.iter_unpack(data[:whole]))


def _unpacked(entries: Iterable[tuple[float, int, int, int, int]]) -> Iterator[Worked]:
    return (Worked(*fields) for fields in entries)
