"""The marker: up to which changelog offset a slot's local state is valid, and if that still counts (pure).

It is written in the same atomic batch as the state itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum

_FORM = struct.Struct(">BQQ")
_VERSION = 1


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
        """Return the bytes that are stored."""
        return _FORM.pack(_VERSION, self.position, self.as_of_ms) + self.topic_id.encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> RestoreMarker | None:
        """Read stored bytes; None if they are none of ours, and then the state is worth nothing."""
        if len(data) <= _FORM.size or data[0] != _VERSION:
            return None
        _, position, as_of_ms = _FORM.unpack(data[: _FORM.size])
        topic_id = data[_FORM.size :]
        return cls(topic_id.decode("ascii"), position, as_of_ms) if topic_id.isascii() else None


@dataclass(frozen=True, slots=True)
class ChangelogFacts:
    """A changelog partition as the brokers describe it: it holds [low, high).

    ``high`` is the high watermark: it also counts what belongs to transactions that are not decided yet.
    """

    topic_id: str
    low: int
    high: int
    delete_retention_ms: int


class Wiped(StrEnum):
    """Why a slot's local state was thrown away."""

    OTHER_TOPIC = "other-topic"
    AHEAD = "ahead-of-changelog"
    LOG_START = "before-log-start"
    TOO_OLD = "older-than-tombstones"


@dataclass(frozen=True, slots=True)
class RestoreStart:
    """From where a slot is restored; ``wiped``: its local state counts for nothing, and why."""

    marker: RestoreMarker
    wiped: Wiped | None


def start_from(marker: RestoreMarker | None, changelog: ChangelogFacts, now_ms: int) -> RestoreStart:
    """Decide whether a slot's local state is a copy of the changelog that may be continued."""
    fresh = RestoreMarker(changelog.topic_id, changelog.low, now_ms)
    if marker is None:
        return RestoreStart(fresh, None)
    reason = _reason_to_wipe(marker, changelog, now_ms)
    return RestoreStart(fresh, reason) if reason else RestoreStart(marker, None)


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
