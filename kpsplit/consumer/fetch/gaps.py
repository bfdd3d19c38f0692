"""What a log has lost of what is to be read next. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kpsplit.consumer.fetch.lineage_reader import Gap, GapReason, wrong_topic
from kpsplit.consumer.fetch.physical_reader import LogBounds
from kpsplit.errors import KpsplitError
from kpsplit.splitter.lineage import Segment
from kpsplit.splitter.partition_state import PartitionState

_HINT = "seek behind it, or set kpsplit.gap.policy=skip-and-report"


@dataclass(frozen=True, slots=True)
class Found:
    """What brokers say of a physical partition: Kafka's id of its topic (None: no such topic), its bounds.

    ``bounds`` is None where only the id was asked for, or where the topic has no such partition.
    """

    topic_id: str | None
    bounds: LogBounds | None


@dataclass(frozen=True, slots=True)
class Loss:
    """What cannot be read. ``gap`` is None where the extent is not known: nobody can go on behind it."""

    gap: Gap | None
    error: KpsplitError
    reason: GapReason


def loss(state: PartitionState, segment: Segment, position: int, found: Found) -> Loss | None:
    """Return what a log has lost of a segment from a position on; None if it can be read from there.

    A log that is shorter than a closed segment has lost its end only when reading has come to the log's end.
    """
    reason = wrong_topic(state, segment.source, found.topic_id)
    if reason is not None:
        return _loss(segment, position, segment.end, reason)
    if found.bounds is None:
        return None
    low, high = found.bounds.low, found.bounds.high
    if low > position:
        return _loss(
            segment, position, low if segment.end is None else min(low, segment.end), GapReason.EXPIRED
        )
    if high < position or (high == position and segment.end is not None and high < segment.end):
        return _loss(segment, position, segment.end, GapReason.CUT_OFF)
    return None


def _loss(segment: Segment, start: int, end: int | None, reason: GapReason) -> Loss:
    if end is None:
        what = f"{segment.source} cannot be read from offset {start} on ({reason.replace('_', ' ')})"
        return Loss(None, KpsplitError(what, hint="look at: kpsplit doctor; then seek"), reason)
    gap = Gap(segment.id, segment.source, start, end, reason)
    return Loss(gap, KpsplitError(str(gap), hint=_HINT), reason)
