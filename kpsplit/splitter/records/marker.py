"""Markers: the records that a split or merge appends to data partitions (docs/wire-format.md, "the marker").

Readers in Python and in Spark must take the same headers for markers. So two regular
expressions that both use decide what a marker is. Two parsers of JSON never agree on everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import MAX_PARTITION
from kpsplit.splitter.records.strict_json import MAX_BYTES, encode_readable

VERSION = 1
HEADER = "kpsplit.marker"
"""A record with this header is a marker; its value is the same JSON, for people who read the raw log."""

FORM = (
    '[{]"attempt":"([a-zA-Z0-9._-]{1,64})","marker":"(seal|unseal)","partition":(0|[1-9][0-9]{0,9}),'
    '"topic":"((?![.]{1,2}")[a-zA-Z0-9._-]{1,249})","v":1[}]'
)
"""The whole header, for Python and Java alike. Groups: attempt, kind, partition, topic."""
NEWER = '[{]([ -~]*,)?"v":([1-9][0-9]{0,4})[}]'
"""The whole header of another version, which is the second group and stands last in every version."""
MAX_VERSION = 0xFFFF

_FORM = re.compile(FORM)
_NEWER = re.compile(NEWER)


class MarkerKind(StrEnum):
    """SEAL ends a segment; UNSEAL ends the parent's overflow and reopens the parent after it."""

    SEAL = "seal"
    UNSEAL = "unseal"


@dataclass(frozen=True, slots=True)
class Marker:
    """What a marker says. It counts only if its attempt committed, at the offset that the lineage names."""

    kind: MarkerKind
    parent: PhysicalPartition
    attempt_id: str

    def encode(self) -> bytes:
        """Return the header's (and the record's) value.

        Raises:
            RecordError: a field is over its limit.
        """
        return encode_readable(
            {
                "v": VERSION,
                "marker": self.kind.value,
                "topic": self.parent.topic,
                "partition": self.parent.partition,
                "attempt": self.attempt_id,
            },
            Marker.decode,
        )

    @classmethod
    def decode(cls, data: bytes | None) -> Marker:
        """Read a marker.

        Raises:
            RecordError: malformed. FutureVersionError: written by a newer kpsplit.
        """
        if data is not None and len(data) > MAX_BYTES:
            raise RecordError(f"marker: {len(data)} bytes are over the limit of {MAX_BYTES}")
        text = (data or b"").decode("latin-1")
        found = _FORM.fullmatch(text)
        if found is not None and int(found[3]) <= MAX_PARTITION:
            return cls(MarkerKind(found[2]), PhysicalPartition(found[4], int(found[3])), found[1])
        newer = _NEWER.fullmatch(text)
        if newer is not None and VERSION < int(newer[2]) <= MAX_VERSION:
            raise FutureVersionError(
                f"marker: format version {newer[2]} is newer than {VERSION}, the newest that is read here",
                hint="upgrade kpsplit",
            )
        raise RecordError("marker: malformed")


def marker_among(headers: Iterable[tuple[str, bytes | None]]) -> Marker | None:
    """Return the last marker among a record's headers, None if there is none that can be read.

    Raises:
        FutureVersionError: a newer kpsplit wrote one.
    """
    found = None
    for name, value in headers:
        if name == HEADER:
            try:
                found = Marker.decode(value)
            except FutureVersionError:
                raise
            except RecordError:
                continue
    return found


def newest_of(found: Iterable[tuple[int, Marker | None]], marker: Marker) -> int | None:
    """Return the offset of the last record of a log that is this marker, None if there is none.

    The last one: a client that may write data could have put one like it before records that count, but after
    the fence never before any. What stands before the end is delivered, so a later end loses nothing.

    Args:
        found: the log's offsets, rising, each with the marker that stands there.
        marker: the one that is looked for.
    """
    newest = None
    for offset, there in found:
        if there == marker:
            newest = offset
    return newest
