"""Records of the offset log ``__kpsplit.offsets`` (design, sections 4, 7 and 10).

Here: boundary records, of no group. One per key range that an operation opened, written in the transaction of
its commit, so that the offset log alone says where a range ends and where it goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.records.keys import place_field
from kpsplit.splitter.records.strict_json import Fields, decode, encode, encode_readable

VERSION = 1


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """A segment that the range was read from ends here."""

    segment: int
    source: PhysicalPartition
    end: int
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where one key range ended and where it goes on, as of an epoch."""

    parent: PhysicalPartition
    range: KeyRange
    epoch: int
    ends: tuple[SegmentEnd, ...]
    opened_segment: int
    opened: PhysicalPartition
    start: int

    @property
    def key(self) -> bytes:
        """The record's key: (no group, topic, partition, lo, hi)."""
        return encode(
            {
                "group": None,
                "topic": self.parent.topic,
                "partition": self.parent.partition,
                "lo": self.range.lo,
                "hi": self.range.hi,
            }
        )

    def encode(self) -> bytes:
        """Return the record's value.

        Raises:
            RecordError: the record is too large.
        """
        return encode_readable(
            {
                "v": VERSION,
                "topic": self.parent.topic,
                "partition": self.parent.partition,
                "lo": self.range.lo,
                "hi": self.range.hi,
                "epoch": self.epoch,
                "ends": [
                    {
                        "segment": e.segment,
                        "topic": e.source.topic,
                        "partition": e.source.partition,
                        "end": e.end,
                        "leader_epoch": e.leader_epoch,
                    }
                    for e in self.ends
                ],
                "opened_segment": self.opened_segment,
                "opened_topic": self.opened.topic,
                "opened_partition": self.opened.partition,
                "start": self.start,
            },
            decode_boundary,
        )


def boundaries(state: PartitionState) -> tuple[Boundary, ...]:
    """Return the boundary records of the epoch that a state has just reached."""
    opened = [s for s in state.lineage.open_segments() if s.opened_epoch == state.epoch]
    ends = [s for s in state.lineage if s.closed_epoch == state.epoch]
    return tuple(
        Boundary(
            parent=state.parent,
            range=new.range,
            epoch=state.epoch,
            ends=tuple(
                SegmentEnd(old.id, old.source, old.end, old.end_leader_epoch)
                for old in ends
                if old.end is not None and old.range.overlaps(new.range)
            ),
            opened_segment=new.id,
            opened=new.source,
            start=new.start,
        )
        for new in opened
    )


def decode_boundary(data: bytes | None) -> Boundary:
    """Read a boundary record.

    Raises:
        RecordError: malformed. FutureVersionError: written by a newer kpsplit.
    """
    fields = decode(data, "boundary", VERSION)
    lo, hi = fields.integer("lo"), fields.integer("hi")
    boundary = Boundary(
        parent=place_field(fields),
        range=fields.guard(lambda: KeyRange(lo, hi)),
        epoch=fields.integer("epoch"),
        ends=fields.objects("ends", _end),
        opened_segment=fields.integer("opened_segment"),
        opened=place_field(fields, "opened_"),
        start=fields.integer("start"),
    )
    fields.done()
    return boundary


def _end(fields: Fields) -> SegmentEnd:
    return SegmentEnd(
        fields.integer("segment"),
        place_field(fields),
        fields.integer("end"),
        fields.optional_integer("leader_epoch"),
    )
