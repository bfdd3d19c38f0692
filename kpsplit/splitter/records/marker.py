"""Markers: the records that a split or merge appends to data partitions (design, sections 7 and 8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import place_field
from kpsplit.splitter.records.strict_json import decode, encode_readable

VERSION = 1
HEADER = "kpsplit.marker"
"""A record with this header is a marker; its value is the same JSON, for people who read the raw log."""


class MarkerKind(StrEnum):
    """SEAL ends a segment; UNSEAL ends the parent's overflow and reopens the parent behind it."""

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
        fields = decode(data, "marker", VERSION)
        marker = cls(
            fields.choice("marker", MarkerKind),
            place_field(fields),
            fields.text("attempt", 64),
        )
        fields.done()
        return marker


def newest_of(found: Iterable[tuple[int, Marker | None]], marker: Marker) -> int | None:
    """Return the offset of the last record of a log that is this marker, None if there is none.

    The last one: whoever may write data could have put one like it before records that count, never behind
    the fence before any. What stands before the end is delivered, so a later end loses nothing.

    Args:
        found: the log's offsets, rising, each with the marker that stands there.
        marker: the one that is looked for.
    """
    newest = None
    for offset, there in found:
        if there == marker:
            newest = offset
    return newest
