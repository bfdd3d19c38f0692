"""What a reader does with a record: deliver, skip, wait, or report (protocol, section 9.1).

Decided by the record's place and its stamp alone, so that every reader decides alike:

1. Where a segment ends there is its marker: skipped. A record of another kind there contradicts the lineage
   (the log was truncated and written anew): reported.
2. Any other marker belongs to an attempt that opened nothing here, or not yet. Under way: wait for its
   outcome. Known to be over: skipped. Not known: the view may be older than the marker, so it is
   refreshed first.
3. A stamp that was made for another physical partition counts as none: another program copied the record.
4. A stamp of an epoch that the view has not reached: the view is old and is refreshed first.
5. Behind every end that the partition has: stamped, a stray; unstamped, foreign and reported.
6. Inside a segment: a stamp older than the segment is a stray; everything else is delivered. (No producer
   stamps a record for an overflow, so what producers leave there is always older.)

A reader goes through a physical partition in the order of offsets and does not step over ``Wait``: what
stands after the marker of an attempt under way is decided by its outcome. A reader that *begins* at a
place it has not reached so (a seek) refreshes its view and waits while ``unsettled`` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kpsplit.splitter.key_range import WHOLE, KeyRange, key_hash, keyless_hash
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState, Phase
from kpsplit.splitter.records.marker import Marker
from kpsplit.splitter.records.stamp import Stamp


class SkipReason(StrEnum):
    """Why a record is not delivered although all is well."""

    MARKER = "marker"
    """The marker at a segment's end."""
    ORPHAN_MARKER = "orphan_marker"
    """A marker of an attempt that is over and ended nothing here."""
    STRAY = "stray"
    """A record of a producer that sends it again to the right segment."""


class ForeignReason(StrEnum):
    """What contradicts the lineage."""

    BEHIND_THE_END = "behind_the_end"
    """An unstamped record where nothing of this logical partition is stored."""
    NOT_THE_MARKER = "not_the_marker"
    """A record where the lineage has a marker: the log is not the one that was cut."""
    UNKNOWN_EPOCH = "unknown_epoch"
    """A stamp of an epoch that was never reached."""


class GapReason(StrEnum):
    """Why records that a segment had cannot be read."""

    EXPIRED = "expired"
    """The log begins later: retention removed them, or somebody deleted them."""
    RETIRED = "retired"
    """The sub-topic was retired after every group had drained it."""
    MISSING = "missing"
    """The topic is gone although nobody retired it."""
    MADE_ANEW = "made_anew"
    """The topic was deleted and made again: what it holds now is something else."""
    CUT_OFF = "cut_off"
    """The log ends before the segment does: it was truncated."""

    @property
    def phrase(self) -> str:
        """The reason in words."""
        return _PHRASES[self]


_PHRASES = {
    GapReason.EXPIRED: "retention removed them",
    GapReason.RETIRED: "the sub-topic was retired",
    GapReason.MISSING: "the topic is gone although nobody retired it",
    GapReason.MADE_ANEW: "the topic was deleted and made again",
    GapReason.CUT_OFF: "the log ends before the segment does",
}


@dataclass(frozen=True, slots=True)
class Deliver:
    """The record belongs to the segment and has this logical offset."""

    segment: Segment
    logical_offset: int


@dataclass(frozen=True, slots=True)
class Skip:
    """The record is not delivered; strays are counted."""

    reason: SkipReason


@dataclass(frozen=True, slots=True)
class Wait:
    """Read the control topic to its present end, then decide again with ``refreshed=True``."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """The record is not delivered, and that is reported: nobody is known to send it again."""

    reason: ForeignReason


Verdict = Deliver | Skip | Wait | Foreign


def classify(
    state: PartitionState,
    source: PhysicalPartition,
    offset: int,
    stamp: Stamp | None,
    marker: Marker | None,
    *,
    refreshed: bool = False,
) -> Verdict:
    """Return what to do with the record at a physical offset.

    Args:
        state: the reader's view of the logical partition.
        source: the physical partition that the record was read from.
        offset: its physical offset.
        stamp: its stamp, None if it has none.
        marker: what it says if it is a marker, else None.
        refreshed: whether the view was read to the control topic's end *after* the record had arrived. An
            attempt records its fence before it writes a marker, so such a view knows every attempt that can
            have written it. False is always safe; it may ask for a refresh that was not needed.
    """
    stamp = own_stamp(state, source, stamp)
    if any(s.source == source and s.end == offset for s in state.lineage):
        return Skip(SkipReason.MARKER) if marker else Foreign(ForeignReason.NOT_THE_MARKER)
    if marker is not None:
        over = refreshed or _is_last(state, marker.attempt_id)
        return Skip(SkipReason.ORPHAN_MARKER) if over and not _under_way(state, marker.attempt_id) else Wait()
    if stamp is not None and stamp.epoch > state.epoch:
        return Foreign(ForeignReason.UNKNOWN_EPOCH) if refreshed else Wait()
    segment = state.lineage.at(source, offset)
    if segment is None:
        return _outside(state, source, stamp, refreshed)
    if stamp is not None and _is_stray(segment, stamp):
        return Skip(SkipReason.STRAY)
    return Deliver(segment, segment.logical(offset))


def own_stamp(state: PartitionState, source: PhysicalPartition, stamp: Stamp | None) -> Stamp | None:
    """Return the stamp if it was made for this physical partition, else None: the record is a copy."""
    return stamp if stamp is not None and stamp.is_at(state.home(source)) else None


def unsettled(state: PartitionState, source: PhysicalPartition) -> bool:
    """Return whether an attempt under way may have put a marker into the open segment of a partition.

    A reader that begins inside that segment cannot know on which side of the marker it is, and waits.
    """
    if state.phase is not Phase.FENCED:
        return False
    return any(state.lineage.get(i).source == source for i in state.closing_segments())


def reader_hash(key: bytes | None, offset: int, within: KeyRange = WHOLE) -> int:
    """Return the key hash by which a reader places a record of a segment.

    A record with no key may stand in any segment; the hash of its offset is brought into the segment's range
    (``within``), so that the reader of that range takes it and no other. For the whole key space that is
    the hash of the offset itself.
    """
    if key is not None:
        return key_hash(key)
    return within.lo + keyless_hash(offset) % within.width


def wrong_place(segment: Segment, hash_: int) -> bool:
    """Return whether a record's key belongs to another segment: somebody wrote past kpsplit's routing."""
    return hash_ not in segment.range


def _under_way(state: PartitionState, attempt_id: str) -> bool:
    attempt = state.attempt
    return attempt is not None and attempt.id == attempt_id and state.phase in (Phase.PREPARING, Phase.FENCED)


def _is_last(state: PartitionState, attempt_id: str) -> bool:
    return state.last is not None and state.last.attempt.id == attempt_id


def _is_stray(segment: Segment, stamp: Stamp) -> bool:
    return stamp.epoch < segment.opened_epoch


def _outside(
    state: PartitionState, source: PhysicalPartition, stamp: Stamp | None, refreshed: bool
) -> Verdict:
    if not refreshed and source not in state.lineage.sources():
        return Wait()
    return Skip(SkipReason.STRAY) if stamp else Foreign(ForeignReason.BEHIND_THE_END)


def wrong_topic(state: PartitionState, source: PhysicalPartition, topic_id: str | None) -> GapReason | None:
    """Return why nothing of a topic can be read, None if it is the one that the lineage means.

    Args:
        state: the logical partition that has segments there.
        source: the physical partition.
        topic_id: Kafka's id of the topic that has the name now, None if there is none.
    """
    if state.is_retired(source.topic):
        return GapReason.RETIRED
    if topic_id is None:
        return GapReason.MISSING
    meant = state.topic_id_of(source.topic)
    return GapReason.MADE_ANEW if meant and topic_id != meant else None
