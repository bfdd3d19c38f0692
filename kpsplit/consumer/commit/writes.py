"""What a commit of a member writes. Pure (protocol, section 10).

A member commits the ranges it owns. With them go the group's ordinary offsets, for which all other members'
ranges count as the offset log has them. While some range of a partition was never committed, its
first owner still starts from the ordinary offsets, so these stay as they are; the generation is then
checked by an offset of the slots topic, which has no records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kpsplit.errors import InvariantError, KpsplitError
from kpsplit.splitter.commits import MOST_WITHDRAWN, CommitFold, cursor_of, ordinary_offsets
from kpsplit.splitter.group_slots import Mode, OwnedSlot
from kpsplit.splitter.key_range import WHOLE, KeyRange, uncovered
from kpsplit.splitter.lineage import MAX_OFFSET, Lineage, PhysicalPartition
from kpsplit.splitter.partition_state import PartitionState
from kpsplit.splitter.reading import Cursor
from kpsplit.splitter.records.offsets import Cause, CommitKey, Position, RangeCommit

if TYPE_CHECKING:  # what it takes part in is handed a deadline
    from kpsplit.clock import Deadline

Epochs = Mapping[tuple[int, int], int]
"""Leader epoch of the record before a position, by segment and position; what is not known is not there."""


@dataclass(frozen=True, slots=True)
class Processed:
    """What one member has processed of one logical partition.

    ``cursors`` are to be written; ``unchanged`` are those of its other ranges, which are written already.
    ``token``: the partition of a group's topic that stands for one of the slots. ``epochs``: leader epochs
    that belong to the positions, where they are known. ``moved``: the ranges that the application has moved,
    maybe back, since they were committed.
    """

    state: PartitionState
    mode: Mode
    cursors: tuple[Cursor, ...]
    unchanged: tuple[Cursor, ...]
    token: PhysicalPartition
    epochs: Epochs = field(default_factory=dict)
    moved: frozenset[KeyRange] = frozenset()

    @property
    def parent(self) -> PhysicalPartition:
        return self.state.parent

    @property
    def lineage(self) -> Lineage:
        return self.state.lineage


class RecordPlace(NamedTuple):
    """Where a record stands in its logical partition; unique there.

    ``segment`` is None where the message does not name it: its offset is Kafka's own then, in the parent.
    """

    hash: int
    segment: int | None
    offset: int


class CommitCoverage:
    """What one commit calls processed of a logical partition.

    A record is named by its place, and the place alone decides whether a commit covers it: it does not matter
    when a commit was put together, what was processed since, or how often it was tried.

    Raises:
        InvariantError: more was read than the lineage that is known has.
    """

    def __init__(self, processed: Processed) -> None:
        cursors = sorted(processed.cursors, key=lambda cursor: cursor.range)
        if any(cursor.ahead_of(processed.lineage) for cursor in cursors):
            raise InvariantError(f"{processed.parent} was read beyond the lineage that is known")
        self._lineage = processed.lineage
        self._ranges = [cursor.range for cursor in cursors]
        self._left = [cursor.pending(processed.lineage) for cursor in cursors]
        if processed.mode.plain:
            self._ranges, self._left = [WHOLE], [_slowest(self._left)]

    def holds(self, place: RecordPlace) -> bool:
        """Return whether a record is processed by what is committed."""
        index = bisect_right(self._ranges, place.hash, key=lambda range_: range_.lo) - 1
        if index < 0 or place.hash not in self._ranges[index]:
            return False
        segment = self._segment(place)
        if segment is None:
            return False
        left = self._left[index].get(segment)
        return left is None or place.offset < left

    def _segment(self, place: RecordPlace) -> int | None:
        if place.segment is not None:
            return place.segment
        found = self._lineage.at(self._lineage.parent, place.offset)
        return None if found is None else found.id


def _slowest(left: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return what one ordinary offset says: it stands for all keys, and so for the slowest."""
    offsets: dict[int, int] = {}
    for found in left:
        for segment, offset in found.items():
            offsets[segment] = min(offset, offsets.get(segment, offset))
    return offsets


class CommitPayloadError(KpsplitError):
    """What goes with a commit cannot be written until an operator repairs something; it is retried."""


class CommitPayload(Protocol):
    """What goes with one commit."""

    def write(self, producer: Any, deadline: Deadline) -> None:
        """Write it inside the commit's transaction, in its thread. It may be written again by a later one.

        Raises:
            KafkaException, KpsplitError: it could not be; the transaction is aborted.
        """

    def committed(self) -> None:
        """The transaction was committed; engine's thread."""

    def aborted(self) -> None:
        """The transaction was aborted; engine's thread."""


class TransactionParticipant(Protocol):
    """Adds to commits. While there is one, every commit is a transaction, of ordinary offsets too."""

    def payload(self, processed: Sequence[Processed]) -> CommitPayload:
        """Return what goes with a commit of exactly this; engine's thread."""

    def keeps(self, slot: OwnedSlot) -> bool:
        """Return whether something of a slot waits for a commit; engine's thread."""

    def make_producer(self, config: Mapping[str, Any]) -> Any:
        """Make the producer that commits."""

    def abandon(self, producer: Any) -> None:
        """Let go of one whose commit is undecided; it may still be inside a call that does not return."""


@dataclass(frozen=True, slots=True)
class CommitMember:
    """The member that commits. ``generation`` counts its rebalances, for people; brokers check their own."""

    group: str
    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class Writes:
    """One transaction: range commits, keys to withdraw, ordinary offsets (never empty)."""

    records: tuple[RangeCommit, ...]
    tombstones: tuple[CommitKey, ...]
    offsets: Mapping[PhysicalPartition, int]


def plain_offsets(processed: Iterable[Processed]) -> dict[PhysicalPartition, int]:
    """Return the ordinary offsets of partitions that are not enrolled: all there is to commit of them.

    Of the partition itself, also where the view has an enrolment and a split by now: an offset of a sub-topic
    is of another log.
    """
    plain = [p for p in processed if p.mode.plain and any(c.positions for c in p.cursors)]
    return {p.parent: at for p in plain for at in _in_parent(p)}


def _in_parent(processed: Processed) -> list[int]:
    """Return the ordinary offset of a logical partition's own log, if it can be told."""
    found = ordinary_offsets(processed.state, processed.cursors)
    return [found[processed.parent]] if processed.parent in found else []


def writes(
    processed: Sequence[Processed], member: CommitMember, fold: CommitFold, gone: Collection[str] = ()
) -> Writes | None:
    """Return what commits the ranges of enrolled partitions, None if there is none.

    ``gone``: topics that do not exist any more; coordinators refuse a commit that names one.
    """
    enrolled = [p for p in processed if not p.mode.plain and p.cursors and not _ahead(p)]
    if not enrolled:
        return None
    records = tuple(_record(p, c, member) for p in enrolled for c in p.cursors)
    stale = (
        key for p in enrolled for key in fold.stale_keys(member.group, p.parent, [c.range for c in p.cursors])
    )
    tombstones = tuple(islice(stale, MOST_WITHDRAWN))  # of all partitions: they go in one transaction
    offsets: dict[PhysicalPartition, int] = {}
    for p in enrolled:
        known = [*p.cursors, *p.unchanged, *_of_others(p, member.group, fold)]
        offsets |= _ordinary(p.state, known, gone) or {p.token: 0}
    return Writes(records, tombstones, offsets)


def of_partition(wrote: Writes, parent: PhysicalPartition, lineage: Lineage) -> Writes:
    records = tuple(record for record in wrote.records if record.parent == parent)
    offsets = {source: wrote.offsets[source] for source in lineage.sources() if source in wrote.offsets}
    return Writes(records, (), offsets)


def outdated(
    processed: Processed, member: CommitMember, fold: CommitFold, wrote: Writes, gone: Collection[str] = ()
) -> frozenset[KeyRange] | None:
    """Return whether a member has to write ordinary offsets of a partition again after its latest commit.

    Members that commit at the same time do not see each other's commits: what they wrote as the least of all
    positions is too low then, and would stay so if no commit followed. The member that comes last in the
    offset log corrects that: it knows all that came before once it has read its own commit.

    Args:
        processed: where all ranges of the member stand now, as ``unchanged``.
        member: the member that asks; its name is unique.
        fold: the offset log.
        wrote: what the member's latest commit of the partition wrote.
        gone: as for ``writes``.

    Returns:
        Ranges of that commit of which one has to be committed again as it is: none where all is well. None
        while the commit has not been read.
    """
    group, parent = member.group, processed.parent
    mine = {r.range: cursor_of(r, r.range) for r in wrote.records}
    if any(fold.cursors(group, parent, range_) != [(range_, c)] for range_, c in mine.items()):
        return None
    last = fold.last(group, parent)
    if not member.name or last is None or last.member != member.name or _ahead(processed):
        return frozenset()
    known = [*processed.unchanged, *_of_others(processed, group, fold)]
    offsets = _ordinary(processed.state, known, gone)
    wrong = any(wrote.offsets.get(source) != offset for source, offset in offsets.items())
    stands = {c.range: c for c in processed.unchanged}
    return frozenset(
        r for r, c in mine.items() if wrong and r in stands and stands[r].positions == c.positions
    )


def _ordinary(
    state: PartitionState, cursors: Iterable[Cursor], gone: Collection[str]
) -> dict[PhysicalPartition, int]:
    """Return the ordinary offsets of the topics that exist; the others are never read."""
    return {p: at for p, at in ordinary_offsets(state, cursors).items() if p.topic not in gone}


def _ahead(processed: Processed) -> bool:
    """Return whether the view is older than what was processed: nothing is known about the rest then."""
    return any(c.ahead_of(processed.lineage) for c in (*processed.cursors, *processed.unchanged))


def _of_others(processed: Processed, group: str, fold: CommitFold) -> list[Cursor]:
    """Return what the offset log has for the ranges that are not in this commit, where it has anything."""
    return [
        cursor
        for gap in uncovered(c.range for c in (*processed.cursors, *processed.unchanged))
        for _, cursor in fold.cursor(group, processed.parent, gap, processed.lineage)
        if cursor is not None
    ]


def _record(processed: Processed, cursor: Cursor, member: CommitMember) -> RangeCommit:
    positions = {
        segment: Position(next_, processed.epochs.get((segment, next_)))
        for segment, next_ in cursor.positions.items()
    }
    cause = Cause.SEEK if cursor.range in processed.moved else Cause.PROGRESS
    return RangeCommit(
        member.group, processed.parent, cursor.range, positions, member.name, member.generation, cause
    )


def least(lineage: Lineage, cursors: Sequence[Cursor]) -> Cursor:
    """Return the cursor of a whole range whose pieces were committed at different positions.

    What any piece has not processed is not processed; what the others have is passed over
    (``slots.assigned``).
    """
    range_ = KeyRange(min(c.range.lo for c in cursors), max(c.range.hi for c in cursors))
    pending = [c.pending(lineage) for c in cursors]
    positions: dict[int, int] = {}
    for segment in lineage:
        if segment.range.overlaps(range_):
            waiting = [p[segment.id] for p in pending if segment.id in p]
            end = segment.start if segment.end is None else segment.end
            positions[segment.id] = min(waiting, default=end)
    return Cursor(range_, positions).settled(lineage)


def logical_position(lineage: Lineage, cursors: Iterable[Cursor]) -> int:
    """Return the least logical offset that is not processed: one number per partition, as tools expect it.

    Not beyond MAX_OFFSET: a forged commit may name any position, and clients take no greater number.
    """
    left = [
        lineage.get(segment).logical(next_)
        for cursor in cursors
        if not cursor.ahead_of(lineage)
        for segment, next_ in cursor.readable(lineage).items()
    ]
    return min(*left, MAX_OFFSET) if left else lineage.next_logical()
