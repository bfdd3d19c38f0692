"""Headers in data partitions: the stamp and the marker (docs/wire-format.md).

The stamp is a small header on every record that kpsplit writes to an enrolled topic. Version 2, 29 bytes,
big-endian: format version, epoch (4), producer instance (8), home (8), sequence number (8). The sequence
number counts per producer instance and logical partition from 0; a record that is sent again because its
first copy went astray carries the *same* number with the newer epoch, so (instance, number) names one send.

The home names the physical partition that the record was written to. Other programs copy records with all
their headers (MirrorMaker, a dead-letter re-drive): in any other place the stamp counts as none, because it
says nothing about that place. Version 1 (21 bytes) had no home; it counts wherever it stands.

Markers are the records that a split or merge appends. Readers in Python and in Spark must take the same
headers for markers. So two regular expressions that both use decide what a marker is. Two parsers of JSON
never agree on everything.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Container, Iterable
from dataclasses import dataclass
from enum import StrEnum

from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import MAX_PARTITION
from kpsplit.splitter.records.strict_json import ANY_VERSION, MAX_BYTES, encode_readable

STAMP_VERSION = 2
STAMP_HEADER = "kps"
"""The header's key; short, because it travels with every record."""

_STAMP_1 = struct.Struct(">BIQQ")
_STAMP = struct.Struct(">BIQQQ")
STAMP_SIZES = {1: _STAMP_1.size, STAMP_VERSION: _STAMP.size}
"""How many bytes a stamp of each version has."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who sent a record, in which epoch, as which of its records, and to where.

    ``home``: as ``PartitionState.home``; None in a stamp of version 1.
    """

    epoch: int
    instance: int
    sequence: int
    home: int | None = None

    def encode(self) -> bytes:
        """Return the header's value; in version 1 where no home is known."""
        if self.home is None:
            return _STAMP_1.pack(1, self.epoch, self.instance, self.sequence)
        return _STAMP.pack(STAMP_VERSION, self.epoch, self.instance, self.home, self.sequence)

    @classmethod
    def decode(cls, data: bytes | None) -> Stamp:
        """Raise RecordError if malformed, FutureVersionError if a newer kpsplit wrote it."""
        if data and data[0] > STAMP_VERSION:
            raise FutureVersionError(
                f"stamp: format version {data[0]} is newer than {STAMP_VERSION}", hint="upgrade kpsplit"
            )
        if not data or len(data) != STAMP_SIZES.get(data[0]):
            raise RecordError("stamp: malformed")
        if data[0] == 1:
            _, epoch, instance, sequence = _STAMP_1.unpack(data)
            return cls(epoch, instance, sequence)
        _, epoch, instance, home, sequence = _STAMP.unpack(data)
        return cls(epoch, instance, sequence, home)

    def is_at(self, home: int) -> bool:
        """Return whether the record stands where its producer wrote it, as far as the stamp says."""
        return self.home is None or self.home == home


def prefix(epoch: int, instance: int, home: int) -> bytes:
    """Return the first 21 bytes of a stamp; the sequence number in 8 bytes completes it (the hot path)."""
    return Stamp(epoch, instance, 0, home).encode()[:-8]


def instance_name(instance: int) -> str:
    """Return the form of a producer instance in keys and output: 16 hexadecimal digits."""
    return f"{instance:016x}"


def note_own(
    found: dict[int, int],
    offset: int,
    stamp: Stamp | None,
    home: int,
    opened_epoch: int,
    instance: int,
    wanted: Container[int],
) -> None:
    """Note where a record stands if it is a producer's own and is looked for; of its copies the first counts.

    A stray is none of its copies: readers skip it, so what was sent again for it has still to be found.

    Args:
        found: offsets by sequence number, of what was read before in the order of the log.
        offset: where the record stands.
        stamp: what its stamp says, None if it has none.
        home: of the log.
        opened_epoch: of the segment in which the record stands.
        instance: the producer's.
        wanted: the sequence numbers that are looked for.
    """
    if stamp is None or stamp.epoch < opened_epoch:
        return
    if stamp.home == home and stamp.instance == instance and stamp.sequence in wanted:
        found.setdefault(stamp.sequence, offset)


MARKER_VERSION = 1
MARKER_HEADER = "kpsplit.marker"
"""A record with this header is a marker; its value is the same JSON, for people who read the raw log."""

MARKER_FORM = (
    '[{]"attempt":"([a-zA-Z0-9._-]{1,64})","marker":"(seal|unseal)","partition":(0|[1-9][0-9]{0,9}),'
    '"topic":"((?![.]{1,2}")[a-zA-Z0-9._-]{1,249})","v":1[}]'
)
"""The whole header, for Python and Java alike. Groups: attempt, kind, partition, topic."""
NEWER_MARKER = '[{]([ -~]*,)?"v":([1-9][0-9]{0,4})[}]'
"""The whole header of another version, which is the second group and stands last in every version."""

_MARKER = re.compile(MARKER_FORM)
_NEWER = re.compile(NEWER_MARKER)


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
        """Return the header's (and the record's) value; RecordError if a field is over its limit."""
        return encode_readable(
            {
                "v": MARKER_VERSION,
                "marker": self.kind.value,
                "topic": self.parent.topic,
                "partition": self.parent.partition,
                "attempt": self.attempt_id,
            },
            Marker.decode,
        )

    @classmethod
    def decode(cls, data: bytes | None) -> Marker:
        """Raise RecordError if malformed, FutureVersionError if a newer kpsplit wrote it."""
        if data is not None and len(data) > MAX_BYTES:
            raise RecordError(f"marker: {len(data)} bytes are over the limit of {MAX_BYTES}")
        text = (data or b"").decode("latin-1")
        found = _MARKER.fullmatch(text)
        if found is not None and int(found[3]) <= MAX_PARTITION:
            return cls(MarkerKind(found[2]), PhysicalPartition(found[4], int(found[3])), found[1])
        newer = _NEWER.fullmatch(text)
        if newer is not None and MARKER_VERSION < int(newer[2]) <= ANY_VERSION:
            raise FutureVersionError(
                f"marker: format version {newer[2]} is newer than {MARKER_VERSION}, the newest read here",
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
        if name == MARKER_HEADER:
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
    return max((offset for offset, there in found if there == marker), default=None)
