"""Records of the offset log ``__kpsplit.offsets`` (protocol, sections 4, 7 and 10).

Boundary records are of no group: one per key range that an operation opened, written in the transaction of
its commit, so that the offset log alone says where a range ends and where it goes on. Range commits are a
group's: "G has processed [lo, hi) of orders/3 up to these positions"; a key without a value withdraws one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kpsplit.errors import FutureVersionError, RecordError
from kpsplit.splitter.key_range import KeyRange
from kpsplit.splitter.lineage import PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.keys import offsets_partition, place_field
from kpsplit.splitter.records.strict_json import Fields, decode, decode_unversioned, encode, encode_readable

VERSION = 1

MAX_GROUP = 1000
"""The greatest length of a group's or member's name, in characters."""

NO_GENERATION = -1
"""The generation of a range commit that no member wrote: a seek."""


@dataclass(frozen=True, slots=True)
class BoundaryKey:
    parent: PhysicalPartition
    range: KeyRange

    def encode(self) -> bytes:
        return _key(None, self.parent, self.range)


@dataclass(frozen=True, slots=True)
class CommitKey:
    group: str
    parent: PhysicalPartition
    range: KeyRange

    def encode(self) -> bytes:
        return _key(self.group, self.parent, self.range)


@dataclass(frozen=True, slots=True)
class Position:
    """The next physical offset in a segment; the leader epoch of the record before it (None: not known)."""

    next: int
    leader_epoch: int | None = None


class Cause(StrEnum):
    """Why a range commit was written."""

    PROGRESS = "progress"
    """A member processed records: its positions never go back."""
    SEEK = "seek"
    """The group was moved, or a member sought back: its positions may be anything."""


@dataclass(frozen=True, slots=True)
class RangeCommit:
    """Group ``group`` has processed ``range`` of ``parent`` up to ``positions`` (by segment id).

    What the positions say of segments that are not listed: ``splitter.reading``. ``member`` and
    ``generation`` are those of the group's member that wrote it (of a seek: the operator, and
    NO_GENERATION), for people: the broker has checked them.
    """

    group: str
    parent: PhysicalPartition
    range: KeyRange
    positions: Mapping[int, Position]
    member: str
    generation: int
    cause: Cause = Cause.PROGRESS

    @property
    def key(self) -> bytes:
        """The record's key: (group, topic, partition, lo, hi)."""
        return CommitKey(self.group, self.parent, self.range).encode()

    def encode(self) -> bytes:
        """Raise RecordError if a field is over its limit, or the whole too large."""
        key = CommitKey(self.group, self.parent, self.range)
        return encode_readable(
            {
                "v": VERSION,
                **_range_fields(self.parent, self.range),
                "positions": [
                    {"segment": segment, "next": at.next, "leader_epoch": at.leader_epoch}
                    for segment, at in sorted(self.positions.items())
                ],
                "member": self.member,
                "generation": self.generation,
                "cause": self.cause.value,
            },
            lambda data: decode_range_commit(key, data),
        )


@dataclass(frozen=True, slots=True)
class NewerCommit:
    """A range commit of a newer version: whose it is and of which range its key says, the rest is unknown."""

    range: KeyRange


@dataclass(frozen=True, slots=True)
class Bookmark:
    """How far keys of a logical partition were handed out: a text that a program keeps in its own store.

    ``topic_id``: Kafka's id of the topic, "" where it was not enrolled. What the cursors say of segments that
    are not listed: ``splitter.reading``.
    """

    parent: PhysicalPartition
    topic_id: str
    cursors: tuple[Cursor, ...]

    def encode(self) -> str:
        pieces = [
            {
                "lo": c.range.lo,
                "hi": c.range.hi,
                "positions": [{"segment": s, "next": at} for s, at in sorted(c.positions.items())],
            }
            for c in self.cursors
        ]
        place = {"topic": self.parent.topic, "partition": self.parent.partition, "topic_id": self.topic_id}
        return encode({"v": VERSION, **place, "pieces": pieces}).decode()


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
        return BoundaryKey(self.parent, self.range).encode()

    def encode(self) -> bytes:
        """Return the record's value.

        Raises:
            RecordError: the record is too large.
        """
        return encode_readable(
            {
                "v": VERSION,
                **_range_fields(self.parent, self.range),
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


def parse_offset_key(data: bytes | None) -> BoundaryKey | CommitKey:
    """Read a key of the offset log: its canonical form, for compaction goes by the bytes.

    Raises:
        RecordError: it is none that kpsplit writes. Nor is that of a group that cannot be named: nobody could
            have it forgotten.
    """
    fields = decode_unversioned(data, "offset log key")
    group = fields.optional_text("group", MAX_GROUP)
    parent, range_ = place_field(fields), _range(fields)
    fields.done()
    if group is not None and (not group or "\0" in group):
        fields.fail("no group has such a name")
    if data != encode(_key_fields(group, parent, range_)):
        fields.fail("not in canonical form")
    return BoundaryKey(parent, range_) if group is None else CommitKey(group, parent, range_)


_KEY_START = b'{"group":'


def key_start(group: str) -> bytes:
    """Return what the keys of a group's commits begin with."""
    return encode({"group": group})[:-1] + b","


def is_of_others(key: bytes, own: bytes) -> bool:
    """Return whether a key cannot be of the group with this ``key_start``, by its first bytes.

    A log is of many groups, and a new owner reads all of it: to parse every key would take seconds.
    """
    return key.startswith(_KEY_START) and not key.startswith(own)


def check_partition(key: BoundaryKey | CommitKey, partition: int | None, count: int) -> None:
    """Raise RecordError for a record in another partition of the log than its key's."""
    if partition != offsets_partition(key.parent, count):
        raise RecordError(f"{key.parent}: in a partition of the topic that is not for it")


def decode_range_commit(key: CommitKey, data: bytes | None) -> RangeCommit:
    """Read the range commit that stands under a key.

    Raises:
        RecordError: malformed, or of another range than its key.
        FutureVersionError: written by a newer kpsplit.
    """
    fields = decode(data, "range commit", VERSION)
    parent, range_ = place_field(fields), _range(fields)
    if (parent, range_) != (key.parent, key.range):
        fields.fail("key and value name different ranges")
    listed = fields.objects("positions", _position)
    positions = dict(listed)
    if len(positions) != len(listed):
        fields.fail("a segment is listed twice")
    commit = RangeCommit(
        group=key.group,
        parent=parent,
        range=range_,
        positions=positions,
        member=fields.text("member", MAX_GROUP),
        generation=fields.integer("generation", NO_GENERATION),
        cause=fields.choice("cause", Cause),
    )
    fields.done()
    return commit


def read_commit(key: CommitKey, data: bytes) -> RangeCommit | NewerCommit:
    """Read what stands under the key of a range commit, of this version or a newer one.

    Raises:
        RecordError: malformed, or of another range than its key.
    """
    try:
        return decode_range_commit(key, data)
    except FutureVersionError:
        return NewerCommit(key.range)


def decode_bookmark(text: str) -> Bookmark:
    """Raise RecordError if malformed, FutureVersionError if a newer kpsplit made it."""
    if not isinstance(text, str):
        raise RecordError(f"a bookmark is a text, not {type(text).__name__}")
    fields = decode(text.encode(errors="replace"), "bookmark", VERSION)
    parent, topic_id = place_field(fields), fields.text("topic_id", 100)
    cursors = fields.objects("pieces", _piece)
    fields.done()
    return Bookmark(parent, topic_id, cursors)


def _piece(fields: Fields) -> Cursor:
    listed = fields.objects("positions", _next)
    if len(dict(listed)) != len(listed):
        fields.fail("a segment is listed twice")
    return Cursor(_range(fields), dict(listed))


def _next(fields: Fields) -> tuple[int, int]:
    return fields.integer("segment"), fields.integer("next")


def decode_boundary(data: bytes | None) -> Boundary:
    """Raise RecordError if malformed, FutureVersionError if a newer kpsplit wrote it."""
    fields = decode(data, "boundary", VERSION)
    boundary = Boundary(
        parent=place_field(fields),
        range=_range(fields),
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


def _key(group: str | None, parent: PhysicalPartition, range_: KeyRange) -> bytes:
    return encode_readable(_key_fields(group, parent, range_), parse_offset_key)


def _key_fields(group: str | None, parent: PhysicalPartition, range_: KeyRange) -> dict[str, Any]:
    return {"group": group, **_range_fields(parent, range_)}


def _range_fields(parent: PhysicalPartition, range_: KeyRange) -> dict[str, Any]:
    return {"topic": parent.topic, "partition": parent.partition, "lo": range_.lo, "hi": range_.hi}


def _range(fields: Fields) -> KeyRange:
    lo, hi = fields.integer("lo"), fields.integer("hi")
    return fields.guard(lambda: KeyRange(lo, hi))


def _position(fields: Fields) -> tuple[int, Position]:
    return fields.integer("segment"), Position(
        fields.integer("next"), fields.optional_integer("leader_epoch")
    )
