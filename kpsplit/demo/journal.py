"""Journals of writers and of members of the group. Compact, appended to, read by the parent.

A writer's: what it sent, when, and what became of it. Entries, little-endian, each begins with a byte that
says what it is:

    K  number of the key (4), length (4), the key's bytes         a key, before its first use
    S  sequence (8), key (4), logical partition (2), time (8)     a record is about to be given to produce()
    O  sequence (8), outcome (1), partition (2), offset (8), time (8)     its delivery report arrived

Times are seconds of the monotonic clock that all processes of a machine share. A record that has an S and no
O has an unknown outcome.

A member's: every record that it worked on, and when. Written at once: a kill loses nothing. Entries,
little-endian: time (8), key hash (8, -1: no key), logical offset (8), logical partition (2), segment (4).

A torn entry at the end (the process was killed) is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from kpsplit.errors import RecordError
from kpsplit.splitter.key_range import key_hash
from kpsplit.testing import SendOutcome

_KEY = struct.Struct("<cII")
_SENT = struct.Struct("<cQIHd")
_OUTCOME = struct.Struct("<cQBHqd")
_NO_KEY = 0xFFFFFFFF
_NO_PARTITION = 0xFFFF
_NO_OFFSET = -1
_BUFFER_BYTES = 1 << 20
_OK, _FAILED = 0, 1


class JournalEntry(NamedTuple):
    """One record's life. ``offset`` and ``reported_at`` are None where no report (or no place) was given."""

    sequence: int
    key: bytes | None
    partition: int
    sent_at: float
    outcome: SendOutcome
    reported_partition: int | None
    offset: int | None
    reported_at: float | None

    @property
    def latency(self) -> float | None:
        """Seconds from produce() to its report."""
        return None if self.reported_at is None else self.reported_at - self.sent_at


class JournalWriter:
    """Appends to a journal; a context manager. Nothing is certain to be in the file before ``close``."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=_BUFFER_BYTES)
        self._keys: dict[bytes, int] = {}

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Write out what is buffered."""
        self._file.close()

    def sent(self, sequence: int, key: bytes | None, partition: int, at: float) -> None:
        """Note that a record is about to be sent."""
        number = _NO_KEY if key is None else self._number(key)
        self._file.write(_SENT.pack(b"S", sequence, number, partition, at))

    def reported(self, sequence: int, ok: bool, partition: int | None, offset: int | None, at: float) -> None:
        """Note a delivery report."""
        where = _NO_PARTITION if partition is None or partition < 0 else partition
        place = _NO_OFFSET if offset is None or offset < 0 else offset
        self._file.write(_OUTCOME.pack(b"O", sequence, _OK if ok else _FAILED, where, place, at))

    def _number(self, key: bytes) -> int:
        number = self._keys.get(key)
        if number is None:
            number = self._keys[key] = len(self._keys)
            self._file.write(_KEY.pack(b"K", number, len(key)) + key)
        return number


def read_journal(path: Path) -> list[JournalEntry]:
    """Return every record of a journal in the order of sending.

    Raises:
        RecordError: the file is no journal.
    """
    data = path.read_bytes()
    keys: dict[int, bytes | None] = {_NO_KEY: None}
    entries: dict[int, JournalEntry] = {}
    for fields in _parts(data):
        match fields:
            case (b"K", number, key):
                keys[number] = key
            case (b"S", sequence, key, partition, at):
                entries[sequence] = JournalEntry(
                    sequence, keys[key], partition, at, SendOutcome.UNKNOWN, None, None, None
                )
            case (b"O", sequence, status, partition, offset, at):
                entries[sequence] = entries[sequence]._replace(
                    outcome=SendOutcome.OK if status == _OK else SendOutcome.FAILED,
                    reported_partition=None if partition == _NO_PARTITION else partition,
                    offset=None if offset == _NO_OFFSET else offset,
                    reported_at=at,
                )
    return list(entries.values())


def _parts(data: bytes) -> Iterator[tuple[Any, ...]]:
    """Yield the entries as tuples."""
    forms = {b"K": _KEY, b"S": _SENT, b"O": _OUTCOME}
    at = 0
    while at < len(data):
        form = forms.get(data[at : at + 1])
        if form is None:
            raise RecordError(f"journal: unknown entry at byte {at}")
        if at + form.size > len(data):
            return
        fields = form.unpack_from(data, at)
        at += form.size
        if form is _KEY:
            length = fields[2]
            fields = (b"K", fields[1], data[at : at + length])
            at += length
            if at > len(data):
                return
        yield fields


# -- a member's journal ----------------------------------------------------------------------------


_WORKED = struct.Struct("<dqqHI")
NO_KEY_HASH = -1


class Worked(NamedTuple):
    """One record that a member worked on."""

    at: float
    key_hash: int
    offset: int
    partition: int
    segment: int


def pack(at: float, key: bytes | None, offset: int, partition: int, segment: int) -> bytes:
    """Return one entry."""
    return _WORKED.pack(at, NO_KEY_HASH if key is None else key_hash(key), offset, partition, segment)


def read_worked(path: Path) -> Iterator[Worked]:
    """Yield the entries of a journal; none if there is no file."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = len(data) - len(data) % _WORKED.size
    yield from _unpacked(_WORKED.iter_unpack(data[:whole]))


def _unpacked(entries: Iterable[tuple[float, int, int, int, int]]) -> Iterator[Worked]:
    return (Worked(*fields) for fields in entries)
