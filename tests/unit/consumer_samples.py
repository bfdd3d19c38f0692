"""Messages and batches for the tests of the reading side."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Message

from kpsplit.consumer.fetch.batch import Batch, size_of
from kpsplit.splitter.group_slots import OwnedSlot
from kpsplit.splitter.key_range import key_hash
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.records.data import MARKER_HEADER, STAMP_HEADER, Marker, MarkerKind, Stamp
from tests.unit.samples import PARENT, UNSPLIT

LOW = next(k for k in (b"%d" % i for i in range(100)) if key_hash(k) < 1 << 31)
HIGH = next(k for k in (b"%d" % i for i in range(100)) if key_hash(k) >= 1 << 31)
FIRST, SECOND = OwnedSlot(PARENT, 0, 2), OwnedSlot(PARENT, 1, 2)
WHOLE_SLOT = OwnedSlot(PARENT, 0, 1)
ROOT = UNSPLIT.lineage.get(0)


def message(
    offset: int,
    key: bytes | None = LOW,
    *,
    source: PhysicalPartition = PARENT,
    epoch: int | None = None,
    home: int | None = None,
    marker: str | None = None,
    value: bytes = b"v",
) -> Message:
    """A record as it was read."""
    headers: list[tuple[str, str | bytes | None]] = []
    if epoch is not None:
        headers.append((STAMP_HEADER, Stamp(epoch, 1, 0, home).encode()))
    if marker is not None:
        headers.append((MARKER_HEADER, Marker(MarkerKind.SEAL, PARENT, marker).encode()))
    return Message(
        topic=source.topic,
        partition=source.partition,
        offset=offset,
        key=key,
        value=value,
        headers=headers or None,
    )


def batch(
    messages: Iterable[Message],
    start: int,
    end: int,
    slots: tuple[OwnedSlot, ...] = (FIRST, SECOND),
    segment: Segment = ROOT,
) -> Batch:
    """A batch of records."""
    given = list(messages)
    return Batch(PARENT, segment, slots, start, end, given, size_of(given))


def offsets(batches: Iterable[Batch]) -> list[int | None]:
    """The offsets of all records."""
    return [m.offset() for one in batches for m in one.messages]
