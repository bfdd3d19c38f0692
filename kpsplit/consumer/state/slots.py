"""Names a slot for the state store: in the local store's keys, and among the changelog's partitions."""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from typing import Protocol

from kpsplit.errors import UsageError
from kpsplit.splitter.key_range import MAX_SLOTS, slot_number
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.records.keys import MAX_TOPIC_NAME

_PLACE = struct.Struct(">IHH")
_PLAIN_GROUP = re.compile(r"[a-zA-Z0-9_-]{1,120}")
_PREFIX = "__kpsplit.changelog."


class Slot(Protocol):
    """What the engine calls an owned slot: slot ``index`` of ``slots`` of a logical partition."""

    @property
    def parent(self) -> PhysicalPartition:
        """The logical partition."""

    @property
    def index(self) -> int:
        """Which of the partition's slots, from 0."""

    @property
    def slots(self) -> int:
        """How many slots each partition of the topic has."""


@dataclass(frozen=True, slots=True, order=True)
class SlotId:
    """One slot, by value: slot ``index`` of ``slots`` of a logical partition."""

    topic: str
    partition: int
    index: int
    slots: int

    def __post_init__(self) -> None:
        """Refuse what is no slot."""
        if not 0 <= self.index < self.slots <= MAX_SLOTS or self.partition < 0:
            raise UsageError(f"{self} is not a slot")

    @classmethod
    def of(cls, slot: Slot) -> SlotId:
        """Return the name of a slot of the engine's."""
        return cls(slot.parent.topic, slot.parent.partition, slot.index, slot.slots)

    def __str__(self) -> str:
        """Return the form used in messages: ``orders/3#2of4``."""
        return f"{self.topic}/{self.partition}#{self.index}of{self.slots}"

    @property
    def parent(self) -> PhysicalPartition:
        """The logical partition."""
        return PhysicalPartition(self.topic, self.partition)

    @property
    def number(self) -> int:
        """The slot's number in its topic, which is its partition of the slots topic and of the changelog."""
        return slot_number(self.partition, self.index, self.slots)

    @property
    def place(self) -> bytes:
        """8 bytes that name the slot within its topic; they are in every changelog record."""
        return _PLACE.pack(self.partition, self.slots, self.index)

    @property
    def prefix(self) -> bytes:
        """What the slot's keys begin with in the local store; no slot's prefix begins another's."""
        topic = self.topic.encode("ascii")
        return len(topic).to_bytes(2, "big") + topic + self.place

    @classmethod
    def from_prefix(cls, data: bytes) -> SlotId:
        """Return the slot of a prefix.

        Raises:
            ValueError: these bytes are no prefix.
        """
        length = int.from_bytes(data[:2], "big")
        if len(data) != 2 + length + _PLACE.size:
            raise ValueError("not a slot's prefix")
        partition, slots, index = _PLACE.unpack(data[2 + length :])
        return cls(data[2 : 2 + length].decode("ascii"), partition, index, slots)


def place_of(data: bytes) -> tuple[int, int, int]:
    """Return partition, slots and index of a ``SlotId.place``.

    Raises:
        ValueError: these bytes are no place.
    """
    if len(data) != _PLACE.size:
        raise ValueError("not a slot's place")
    partition, slots, index = _PLACE.unpack(data)
    return partition, slots, index


def changelog_topic(group: str, topic: str) -> str:
    """Return the name of a group's changelog for a topic: ``__kpsplit.changelog.<group>.<topic>``.

    A group whose name has a dot, or what no topic's name may have, is written with a hash, so that two
    pairs of group and topic never share a changelog. A name that gets too long ends in a hash.
    """
    name = group
    if not _PLAIN_GROUP.fullmatch(group):
        readable = re.sub(r"[^a-zA-Z0-9_-]", "_", group)[:100]
        name = f"{readable}-{_digest(group)}"
    whole = f"{_PREFIX}{name}.{topic}"
    if len(whole) <= MAX_TOPIC_NAME:
        return whole
    return f"{whole[: MAX_TOPIC_NAME - 17]}-{_digest(whole)}"


def successor(prefix: bytes) -> bytes | None:
    """Return the least bytes greater than all that begin with ``prefix``; None: there are none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
