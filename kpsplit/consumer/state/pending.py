"""A slot's writes that are not in the changelog yet (pure): read first, cut for a commit, put back after it.

Writes become visible to other workers when the unit of work that made them is finished. Each belongs to the
record at a place, or to none; a commit takes those of the records that it calls processed. Of one key it
takes the latest, and what is older than that is dropped when the commit succeeds: the last writer wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kpsplit.consumer.commit.writes import RecordPlace
from kpsplit.errors import ConflictError

Writes = Mapping[bytes, bytes | None]
"""Values by key; None: the key is deleted."""

Covers = Callable[[RecordPlace], bool]
"""Tells whether a commit calls the record at a place processed."""


@dataclass(slots=True)
class _Version:
    sequence: int
    place: RecordPlace | None
    value: bytes | None


class Pending:
    """The uncommitted writes of one slot. Not thread safe: the slot's lock guards it.

    Attributes:
        bytes: of keys and values that wait.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._versions: dict[bytes, list[_Version]] = {}
        self._sequence = 0
        self._cut: dict[bytes, _Version] | None = None

    def __len__(self) -> int:
        """How many keys have writes that wait."""
        return len(self._versions)

    def find(self, key: bytes) -> tuple[bool, bytes | None]:
        """Return whether the key was written, and its latest value."""
        versions = self._versions.get(key)
        return (True, versions[-1].value) if versions else (False, None)

    def within(self, lo: bytes, hi: bytes | None) -> dict[bytes, bytes | None]:
        """Return the latest writes to keys in [lo, hi), None: without end."""
        return {
            key: versions[-1].value
            for key, versions in self._versions.items()
            if lo <= key and (hi is None or key < hi)
        }

    def add(self, writes: Writes, place: RecordPlace | None = None) -> None:
        """Take writes that belong to the record at a place; None: that belong to no record."""
        self._sequence += 1
        for key, value in writes.items():
            versions = self._versions.setdefault(key, [])
            last = versions[-1] if versions else None
            if last and last.place == place:
                self.bytes -= _size(key, last)
                versions.pop()
            version = _Version(self._sequence, place, value)
            versions.append(version)
            self.bytes += _size(key, version)

    def cut(self, covers: Covers | None = None) -> dict[bytes, bytes | None]:
        """Return the writes that a commit takes: all, or those of covered records and of none.

        Raises:
            ConflictError: a commit is under way already.
        """
        if self._cut is not None:
            raise ConflictError("a commit of this slot's state is under way", hint="end that one first")
        self._cut = {}
        for key, versions in self._versions.items():
            taken = _latest(versions, covers)
            if taken is not None:
                self._cut[key] = taken
        return {key: version.value for key, version in self._cut.items()}

    def committed(self) -> None:
        """The writes that were cut are in the local store and in the changelog."""
        for key, taken in (self._cut or {}).items():
            for version in self._forget_up_to(key, taken.sequence):
                self.bytes -= _size(key, version)
        self._cut = None

    def aborted(self) -> None:
        """The commit came to nothing: its writes wait again."""
        self._cut = None

    def clear(self) -> None:
        """Forget everything, a commit under way as well."""
        self._versions.clear()
        self._cut = None
        self.bytes = 0

    def _forget_up_to(self, key: bytes, sequence: int) -> Iterable[_Version]:
        versions = self._versions.get(key, [])
        kept = [v for v in versions if v.sequence > sequence]
        if kept:
            self._versions[key] = kept
        else:
            self._versions.pop(key, None)
        return [v for v in versions if v.sequence <= sequence]


def _latest(versions: list[_Version], covers: Covers | None) -> _Version | None:
    for version in reversed(versions):
        if covers is None or version.place is None or covers(version.place):
            return version
    return None


def _size(key: bytes, version: _Version) -> int:
    return len(key) + len(version.value or b"")
