"""The stamp: a small header on every record that kpsplit writes to an enrolled topic (docs/wire-format.md).

Version 2, 29 bytes, big-endian: format version, epoch (4), producer instance (8), home (8), sequence number
(8). The sequence number counts per producer instance and logical partition from 0; a record that is sent
again because its first copy went astray carries the *same* number with the newer epoch, so (instance, number)
names one send.

The home names the physical partition that the record was written to. Other programs copy records with all
their headers (MirrorMaker, a dead-letter re-drive): in any other place the stamp counts as none, because it
says nothing about that place. Version 1 (21 bytes) had no home; it counts wherever it stands.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from kpsplit.errors import FutureVersionError, RecordError

VERSION = 2
HEADER = "kps"
"""The header's key; short, because it travels with every record."""

_FORM_1 = struct.Struct(">BIQQ")
_FORM = struct.Struct(">BIQQQ")
SIZES = {1: _FORM_1.size, VERSION: _FORM.size}
"""How many bytes a stamp of each version has."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who sent a record, in which epoch, as which of its records, and to where.

    ``home``: as ``home_of``; None in a stamp of version 1.
    """

    epoch: int
    instance: int
    sequence: int
    home: int | None = None

    def encode(self) -> bytes:
        """Return the header's value; in version 1 where no home is known."""
        if self.home is None:
            return _FORM_1.pack(1, self.epoch, self.instance, self.sequence)
        return _FORM.pack(VERSION, self.epoch, self.instance, self.home, self.sequence)

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
        if not data or len(data) != SIZES.get(data[0]):
            raise RecordError("stamp: malformed")
        if data[0] == 1:
            _, epoch, instance, sequence = _FORM_1.unpack(data)
            return cls(epoch, instance, sequence)
        _, epoch, instance, home, sequence = _FORM.unpack(data)
        return cls(epoch, instance, sequence, home)

    def is_at(self, home: int) -> bool:
        """Return whether the record stands where its producer wrote it, as far as the stamp says."""
        return self.home is None or self.home == home


def prefix(epoch: int, instance: int, home: int) -> bytes:
    """Return the first 21 bytes of a stamp; the sequence number in 8 bytes completes it (the hot path)."""
    return Stamp(epoch, instance, 0, home).encode()[:-8]


@lru_cache(maxsize=4096)
def home_of(topic_id: str, partition: int, source_topic: str, source_partition: int) -> int:
    """Return the number of a physical partition in stamps.

    Args:
        topic_id: Kafka's id of the logical partition's topic: a topic of the same name in another cluster, or
            one that was made again, has another.
        partition: the logical partition.
        source_topic: the topic that the records are written to: that topic or a sub-topic.
        source_partition: its partition.
    """
    text = f"{topic_id}/{partition}/{source_topic}/{source_partition}"
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


def instance_name(instance: int) -> str:
    """Return the form of a producer instance in keys and output: 16 hexadecimal digits."""
    return f"{instance:016x}"


def note_own(
    found: dict[int, int], offset: int, stamp: Stamp | None, home: int, instance: int, wanted: Container[int]
) -> None:
    """Note where a record stands if it is a producer's own and is looked for; of its copies the first counts.

    Args:
        found: offsets by sequence number, of what was read before in the order of the log.
        offset: where the record stands.
        stamp: what its stamp says, None if it has none.
        home: of the log.
        instance: the producer's.
        wanted: the sequence numbers that are looked for.
    """
    if stamp is not None and stamp.home == home and stamp.instance == instance and stamp.sequence in wanted:
        found.setdefault(stamp.sequence, offset)
