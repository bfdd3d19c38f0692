"""What readers report besides records: what a log has lost, and which gaps the application knows of. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum

from kpsplit.errors import InvariantError, KpsplitError
from kpsplit.splitter.lineage import PhysicalPartition, Segment
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import ForeignReason, GapReason, wrong_topic


class GapPolicy(StrEnum):
    """What happens where records that a segment had cannot be read."""

    ERROR = "error"
    """The slot stops and ``poll()`` returns an error, until the application seeks."""
    SKIP_AND_REPORT = "skip-and-report"
    """It is counted, logged, reported to ``error_cb``; when that has returned, reading goes on after it."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The physical offsets [start, end) of a segment that cannot be read."""

    segment: int
    source: PhysicalPartition
    start: int
    end: int
    reason: GapReason

    def __str__(self) -> str:
        extent = f"offsets {self.start} to {self.end - 1} of {self.source}"
        return f"segment {self.segment}: {extent} cannot be read ({self.reason.replace('_', ' ')})"


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offsets [low, high) that a log holds; ``stable``: every transaction before it is decided.

    ``leader_epoch``: the one in which ``high`` was said (None: not known).
    """

    low: int
    high: int
    stable: int
    leader_epoch: int | None = None

    def before(self, leader_epoch: int | None) -> bool:
        """Return whether a leader said so that was deposed before this epoch, as far as both are known."""
        mine = self.leader_epoch
        return mine is not None and leader_epoch is not None and mine < leader_epoch


_HINT = "seek past it, or set kpsplit.gap.policy=skip-and-report"


@dataclass(frozen=True, slots=True)
class Found:
    """What brokers say of a physical partition: Kafka's id of its topic (None: no such topic), its bounds.

    ``bounds`` is None where only the id was asked for, or where the topic has no such partition.
    """

    topic_id: str | None
    bounds: LogBounds | None


@dataclass(frozen=True, slots=True)
class Loss:
    """What cannot be read. ``gap`` is None where the extent is not known: nobody can go on after it."""

    gap: Gap | None
    error: KpsplitError
    reason: GapReason


def loss(state: PartitionState, segment: Segment, position: int, found: Found) -> Loss | None:
    """Return what a log has lost of a segment from a position on; None if it can be read from there.

    A log that is shorter than a closed segment has lost its end only when reading has come to the log's end.
    Not by the word of a leader that was deposed before the segment ended: it does not know the end yet.
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
    short = high < position or (high == position and segment.end is not None and high < segment.end)
    if short and not found.bounds.before(segment.end_leader_epoch):
        return _loss(segment, position, segment.end, GapReason.CUT_OFF)
    return None


def _loss(segment: Segment, start: int, end: int | None, reason: GapReason) -> Loss:
    if end is None:
        what = f"{segment.source} cannot be read from offset {start} on ({reason.replace('_', ' ')})"
        return Loss(None, KpsplitError(what, hint="look at: kpsplit doctor; then seek"), reason)
    gap = Gap(segment.id, segment.source, start, end, reason)
    return Loss(gap, KpsplitError(str(gap), hint=_HINT), reason)


def unknown_segment(parent: PhysicalPartition) -> KpsplitError:
    """Return what is wrong where a committed position lies in a segment that nobody knows."""
    return InvariantError(
        f"{parent}: a committed position names a segment that the control topic does not know",
        hint="was the control topic made anew? look at: kpsplit doctor",
    )


_Kind = tuple[int, GapReason]
"""Segment and reason."""


class GapNotices:
    """Which gaps of one logical partition the application knows of. Pure.

    Reading goes on after a gap only when the application knows of all of it: what lies there could be
    committed, and a member that is killed then would leave a gap that nobody ever learns of. A gap that
    was not reported stays before the committed position, so that the next owner finds it by itself.

    A slot that came later may have stood further back in the same gap: what it missed besides is reported
    as well.

    Not thread safe.
    """

    def __init__(self) -> None:
        self._given: defaultdict[_Kind, _Spans] = defaultdict(_Spans)
        self._told: defaultdict[_Kind, _Spans] = defaultdict(_Spans)

    def new(self, gap: Gap) -> int:
        """Return how many records of a gap were not reported yet."""
        return self._given[_kind(gap)].missing(gap.start, gap.end)

    def given(self, gap: Gap) -> None:
        """A gap was reported: to be noted after the report, which an exception may end."""
        self._given[_kind(gap)].add(gap.start, gap.end)

    def told(self, gap: Gap) -> None:
        """The report of a gap has reached the application."""
        self._told[_kind(gap)].add(gap.start, gap.end)

    def knows(self, gap: Gap) -> bool:
        """Return whether the application knows of all of a gap."""
        return self._told[_kind(gap)].cover(gap.start, gap.end)


class _Spans:
    """Offsets, as stretches [start, end) that do not touch each other."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def missing(self, start: int, end: int) -> int:
        return end - start - sum(min(e, end) - max(s, start) for s, e in self._near(start, end))

    def add(self, start: int, end: int) -> None:
        near = self._near(start, end)
        whole = min([start, *(s for s, _ in near)]), max([end, *(e for _, e in near)])
        self._spans = [*(span for span in self._spans if span not in near), whole]

    def _near(self, start: int, end: int) -> list[tuple[int, int]]:
        return [span for span in self._spans if span[0] <= end and start <= span[1]]

    def cover(self, start: int, end: int) -> bool:
        return start >= end or any(s <= start and end <= e for s, e in self._spans)


def _kind(gap: Gap) -> _Kind:
    return gap.segment, gap.reason


@dataclass(frozen=True, slots=True)
class GapFound:
    """Records are gone: ``records`` of them were not reported before.

    ``error`` says so where the policy is to stop; None: reading goes on after them.
    """

    parent: PhysicalPartition
    gap: Gap
    records: int
    error: KpsplitError | None


@dataclass(frozen=True, slots=True)
class ForeignFound:
    """Records that contradict the lineage were skipped: ``count`` of them, the first at ``offset``."""

    parent: PhysicalPartition
    source: PhysicalPartition
    offset: int
    count: int
    reason: ForeignReason


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A physical partition cannot be read: tried again where ``error.retriable``, else left alone.

    Both are None for trouble of the whole client. ``reason``: why records are gone, if they are.
    """

    parent: PhysicalPartition | None
    source: PhysicalPartition | None
    error: KpsplitError
    reason: GapReason | None = None


@dataclass(frozen=True, slots=True)
class EndReached:
    """Everything that is there was read; ``offset`` is the greatest next logical offset of its segments."""

    parent: PhysicalPartition
    offset: int


ReadingEvent = GapFound | ForeignFound | Unreadable | EndReached
