"""The stamp: a small header on every record that kpsplit writes to an enrolled topic (design, section 6).

21 bytes, big-endian: format version (1), epoch (4), producer instance (8), sequence number (8). The sequence
number counts per producer instance and logical partition from 0; a record that is sent again because its
first copy went astray carries the *same* number with the newer epoch, so (instance, number) names one send.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from dataclasses import dataclass

from kpsplit.errors import FutureVersionError, RecordError

VERSION = 1
HEADER = "kps"
"""The header's key; short, because it travels with every record."""

_FORM = struct.Struct(">BIQQ")
SIZE = _FORM.size


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who sent a record, in which epoch, as which of its records."""

    epoch: int
    instance: int
    sequence: int

    def encode(self) -> bytes:
        """Return the header's value."""
        return _FORM.pack(VERSION, self.epoch, self.instance, self.sequence)

    @classmethod
    def decode(cls, data: bytes | None) -> Stamp:
        """Read a header's value.

        Raises:
            RecordError: malformed. FutureVersionError: written by a newer kpsplit.
        """
        if data and data[0] > VERSION:
            raise FutureVersionError(
                f"stamp: format version {data[0]} is newer than {VERSION}", hint="upgrade kpsplit"
            )
        if data is None or len(data) != SIZE or data[0] != VERSION:
            raise RecordError("stamp: malformed")
        _, epoch, instance, sequence = _FORM.unpack(data)
        return cls(epoch, instance, sequence)


def prefix(epoch: int, instance: int) -> bytes:
    """Return the first 13 bytes of a stamp; the sequence number in 8 bytes completes it (the hot path)."""
    return Stamp(epoch, instance, 0).encode()[:-8]


def instance_name(instance: int) -> str:
    """Return the form of a producer instance in keys and output: 16 hexadecimal digits."""
    return f"{instance:016x}"


def note_own(
    found: dict[int, int], offset: int, stamp: Stamp | None, instance: int, wanted: Container[int]
) -> None:
    """Note where a record stands if it is a producer's own and is looked for; of its copies the first counts.

    Args:
        found: offsets by sequence number, of what was read before in the order of the log.
        offset: where the record stands.
        stamp: what its stamp says, None if it has none.
        instance: the producer's.
        wanted: the sequence numbers that are looked for.
    """
    if stamp is not None and stamp.instance == instance and stamp.sequence in wanted:
        found.setdefault(stamp.sequence, offset)
