"""The local store: one RocksDB directory per process, in which each slot is one contiguous key range.

Keys: ``f`` the format, and the group whose state this is; ``m<slot>`` the slot's marker; ``s<slot><key>`` one
value of the slot's state. A marker is written in the same atomic batch as the values that it counts.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kpsplit.consumer.state.slots import SlotId
from kpsplit.errors import ConfigurationError, ConflictError, FutureVersionError, KpsplitError

if TYPE_CHECKING:
    from rocksdict import Rdict, WriteBatch

VERSION = 1
_FORMAT_KEY = b"f"
_MARKERS = b"m"
_STATE = b"s"
_MAX_LOG_BYTES = 1 << 20
_KEPT_LOGS = 2
_LOCKED = ("lock hold by", "While lock file")
_MARKER_FORM = struct.Struct(">BQQ")
_MARKER_VERSION = 1

Writes = Mapping[bytes, bytes | None]
"""Values by key; None: the key is deleted."""


@dataclass(frozen=True, slots=True)
class RestoreMarker:
    """What a slot's local state is a copy of.

    Attributes:
        topic_id: Kafka's id of the changelog topic; a topic made anew has another.
        position: every changelog record before this offset is in the local state, none after it.
        as_of_ms: wall-clock time of this machine. Everything that the changelog held then is in the local
            state; for a first copy that is not complete yet: when it was begun.
    """

    topic_id: str
    position: int
    as_of_ms: int

    def encode(self) -> bytes:
        return _MARKER_FORM.pack(_MARKER_VERSION, self.position, self.as_of_ms) + self.topic_id.encode(
            "ascii"
        )

    @classmethod
    def decode(cls, data: bytes) -> RestoreMarker | None:
        """Read stored bytes; None if they are none of ours, and then the state is worth nothing."""
        if len(data) <= _MARKER_FORM.size or data[0] != _MARKER_VERSION:
            return None
        _, position, as_of_ms = _MARKER_FORM.unpack(data[: _MARKER_FORM.size])
        topic_id = data[_MARKER_FORM.size :]
        return cls(topic_id.decode("ascii"), position, as_of_ms) if topic_id.isascii() else None


@dataclass(frozen=True, slots=True)
class ChangelogFacts:
    """A changelog partition as the brokers describe it: it holds [low, high).

    ``high`` also counts what belongs to transactions that are not decided yet. For a slot that is taken it is
    where this process wrote a record to learn it, for a warm copy the high watermark.
    """

    topic_id: str
    low: int
    high: int
    delete_retention_ms: int
    ends_written: bool = False
    """At ``high`` stands a record that this process wrote to learn it."""


class Wiped(StrEnum):
    """Why a slot's local state was thrown away."""

    OTHER_TOPIC = "other-topic"
    AHEAD = "ahead-of-changelog"
    LOG_START = "before-log-start"
    TOO_OLD = "older-than-tombstones"


def start_from(
    marker: RestoreMarker | None, changelog: ChangelogFacts, now_ms: int
) -> tuple[RestoreMarker, Wiped | None]:
    """Return from where a slot is restored, and why its local state counts for nothing, if it does."""
    wiped = None if marker is None else _reason_to_wipe(marker, changelog, now_ms)
    if marker is None or wiped is not None:
        return RestoreMarker(changelog.topic_id, changelog.low, now_ms), wiped
    return marker, None


def _reason_to_wipe(marker: RestoreMarker, changelog: ChangelogFacts, now_ms: int) -> Wiped | None:
    if marker.topic_id != changelog.topic_id:
        return Wiped.OTHER_TOPIC
    if marker.position > changelog.high:
        return Wiped.AHEAD
    if marker.position < changelog.low:
        return Wiped.LOG_START
    # Compaction removes tombstones after that time: a deleted key that we hold would never go away again.
    missed = marker.position < changelog.high
    if missed and not 0 <= now_ms - marker.as_of_ms < changelog.delete_retention_ms:
        return Wiped.TOO_OLD
    return None


def successor(prefix: bytes) -> bytes | None:
    """Return the least bytes greater than all that begin with ``prefix``; None: there are none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


class Storage:
    """The state of all slots in one directory. Thread safe; each slot has one writer at a time.

    What is written survives the death of the process. When the machine dies the last writes may be lost,
    together with the marker that counts them; they are restored from the changelog.

    Args:
        directory: made if it is missing, readable by its owner only; used by one process at a time.
        group: the consumer group whose state this is.

    Raises:
        ConflictError: another process (or store) uses the directory.
        ConfigurationError: it belongs to another group, or cannot be used; rocksdict is missing.
        FutureVersionError: a newer kpsplit wrote it.
    """

    def __init__(self, directory: Path, group: str) -> None:
        self.directory = directory
        self._closed = False
        self._db = _open(directory)
        try:
            self._check_format(group)
        except KpsplitError:
            self._db.close()
            raise

    def close(self) -> None:
        """Write what is in memory to disk and let go of the directory; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        with _explained("close the local store"):
            self._db.close()

    def get(self, slot: SlotId, key: bytes) -> bytes | None:
        with _explained("read the local store"):
            found: bytes | None = self._db.get(_STATE + slot.prefix + key)
        return found

    def items(self, slot: SlotId, lo: bytes, hi: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Return a slot's values with keys in [lo, hi), in order, as they are at the call."""
        prefix = _STATE + slot.prefix
        end = successor(prefix) if hi is None else prefix + hi
        with _explained("read the local store"):
            found = self._db.items(from_key=prefix + lo)
        return _stripped(prefix, end, found)

    def apply(self, slot: SlotId, writes: Writes, marker: RestoreMarker) -> None:
        """Write values and the marker that counts them, all or nothing."""
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        prefix = _STATE + slot.prefix
        for key, value in writes.items():
            if value is None:
                batch.delete(prefix + key)
            else:
                batch.put(prefix + key, value)
        self._write(batch, slot, marker)

    def marker(self, slot: SlotId) -> RestoreMarker | None:
        """Return a slot's marker, None if it has none that can be read."""
        with _explained("read the local store"):
            found = self._db.get(_MARKERS + slot.prefix)
        return None if found is None else RestoreMarker.decode(found)

    def markers(self) -> dict[SlotId, RestoreMarker | None]:
        """Return the marker of every slot that the store has something of."""
        with _explained("read the local store"):
            found = _stripped(_MARKERS, successor(_MARKERS), self._db.items(from_key=_MARKERS))
            return {SlotId.from_prefix(prefix): RestoreMarker.decode(value) for prefix, value in found}

    def wipe(self, slot: SlotId, marker: RestoreMarker | None = None) -> None:
        """Throw a slot's state away, by one range delete; ``marker``: of the copy that begins now."""
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        prefix = _STATE + slot.prefix
        batch.delete_range(prefix, successor(prefix) or prefix)
        self._write(batch, slot, marker)

    def _write(self, batch: WriteBatch, slot: SlotId, marker: RestoreMarker | None) -> None:
        if marker is None:
            batch.delete(_MARKERS + slot.prefix)
        else:
            batch.put(_MARKERS + slot.prefix, marker.encode())
        with _explained("write the local store"):
            self._db.write(batch)

    def forget_older(self, as_of_ms: int) -> None:
        """Throw away the state of slots that was last known to be complete before that time."""
        for slot, marker in self.markers().items():
            if marker is None or marker.as_of_ms < as_of_ms:
                self.wipe(slot)

    def _check_format(self, group: str) -> None:
        with _explained("read the local store"):
            found = self._db.get(_FORMAT_KEY)
        if found is None:
            with _explained("write the local store"):
                self._db.put(_FORMAT_KEY, json.dumps({"v": VERSION, "group": group}).encode())
            return
        version, theirs = _read_format(found, self.directory)
        if version > VERSION:
            raise FutureVersionError(
                f"{self.directory} was written by a newer kpsplit (format {version})",
                hint="upgrade kpsplit, or give another directory: the state is restored from the changelog",
            )
        if theirs != group:
            raise ConfigurationError(
                f"{self.directory} holds the state of group {theirs!r}, not of {group!r}",
                hint="give each group a directory of its own",
            )


def _open(directory: Path) -> Rdict:
    try:
        from rocksdict import DBCompressionType, Options, Rdict
    except ImportError:
        raise ConfigurationError(
            "the state store needs rocksdict", hint="install it: pip install 'kpsplit[state]'"
        ) from None
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(_KEPT_LOGS)
    options.set_max_log_file_size(_MAX_LOG_BYTES)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Rdict(str(directory), options)
    except OSError as error:
        raise _unusable(directory, error.strerror or type(error).__name__) from None
    except Exception as error:  # rocksdict raises nothing narrower
        if any(words in str(error) for words in _LOCKED):
            raise ConflictError(
                f"{directory} is in use by another process",
                hint="a state store belongs to one process: share it, or give another directory",
            ) from None
        raise _unusable(directory, str(error)) from error


def _unusable(directory: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{directory} cannot be used as a state store: {why}",
        hint="give an empty or missing directory: the state is restored from the changelog",
    )


def _read_format(data: bytes, directory: Path) -> tuple[int, str]:
    try:
        found = json.loads(data)
        return int(found["v"]), str(found["group"])
    except (ValueError, KeyError, TypeError):
        raise _unusable(directory, "it was not written by kpsplit") from None


def _stripped(
    prefix: bytes, end: bytes | None, found: Iterator[tuple[Any, Any]]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield what comes before ``end``, without the prefix.

    Not by RocksDB's own upper bound: its bytes must outlive the iterator, and rocksdict frees them before.
    """
    cut = len(prefix)
    for key, value in found:
        if end is not None and key >= end:
            return
        yield key[cut:], value


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except KpsplitError:
        raise
    except Exception as error:  # rocksdict raises nothing narrower
        raise KpsplitError(f"could not {what}: {error}", hint="check the disk", changed=None) from error
